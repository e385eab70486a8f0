"""Sessions and turns as those who use them see them: another process, an unfinished turn, a fork."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.errors import ConfigError, SessionBusy
from fsm_agent.fsm.codec import check_field
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.insights import insights
from fsm_agent.testing import ScriptedModel, call, overflow, repeat, text, tools
from tests.helpers.harness import begin
from tests.helpers.store_homes import contents, declared_dead, moves, process, unsafe_tool

# Another process


@pytest.mark.behaviour("SESS-01")
def test_a_conversation_goes_on_in_another_process(home: Path) -> None:
    """And what that one said meanwhile is read again by the first."""
    mine = process(home, text("one"), text("three"))
    first = mine.run_conversation("first")
    second = process(home, text("two")).run_conversation("second")
    assert second.usage_session.total == first.usage_turn.total + second.usage_turn.total
    third = mine.run_conversation("third")
    assert contents(third.messages) == ["first", "one", "second", "two", "third", "three"]


def test_102_the_next_request_begins_with_the_bytes_of_the_last(home: Path) -> None:
    one, two = ScriptedModel([tools(call("look", {})), text("an answer")]), ScriptedModel([text("more")])
    look = tool(effect="pure", name="look")(lambda: "seen " * 50)
    process(home, model=one, tools=[look]).chat("first")
    process(home, model=two, tools=[look]).chat("second")
    before, after = one.requests[-1]["messages"], two.requests[0]["messages"]
    assert json.dumps(after[: len(before)]) == json.dumps(before)
    assert [row["role"] for row in after[len(before) :]] == ["assistant", "user"]


async def test_109_a_second_process_is_refused_and_told_who_holds_the_session(home: Path) -> None:
    running = process(home, text("one")).start("first")
    await moves(running, 1)
    with pytest.raises(SessionBusy, match=rf"{running.id} is running in process \d+ on .+ \(up since"):
        await process(home, text("x")).arun("second")
    with pytest.raises(SessionBusy, match=r"is running in process"):
        process(home, text("x")).resume(running.id)
    await running.arun()
    await process(home, text("two")).arun("second")


# Unfinished turns


@pytest.mark.behaviour("SESS-08")
def test_a_turn_is_resumed_by_turn_session_prefix_or_title(home: Path) -> None:
    for name in ("turn", "session", "prefix", "title"):
        store = Store(home)
        one = process(home, text("unused"), store=store, session_id=f"s-{name}-0001")
        turn = one.start("please")
        asyncio.run(moves(turn, 2))
        session = store.session(one.session_id)
        session.title = f"about {name}"
        asyncio.run(store.save(session))
        store.let_go(turn.id)
        declared_dead(store)
        by = {"turn": turn.id, "session": one.session_id, "prefix": f"s-{name}", "title": f"about {name}"}
        resumed = process(home, text("done")).resume(by[name])
        assert (resumed.id, resumed.state, len(resumed.steps)) == (turn.id, "CallLLM", 2)
        assert resumed.run().final_response == "done"
    with pytest.raises(ConfigError, match=r"nothing to resume: the turn ended with text_response"):
        one.resume("s-title-0001")
    with pytest.raises(ConfigError, match=r"no such session; given: s-two"):
        one.resume("s-two")


@pytest.mark.parametrize("requests", [1, 2, 3, 4])
def test_a_turn_that_stopped_early_goes_on_with_the_whole_conversation(
    home: Path, store: Store, requests: int
) -> None:
    """Not only with its own message, also when its process ended before its first move."""
    one = process(home, text("one"), store=store)
    one.chat("first")
    turn = one.start("second")

    async def cut_off() -> None:
        for _ in range(requests):
            await turn.step_into()
        store.let_go(turn.id)

    asyncio.run(cut_off())
    declared_dead(store)
    other = process(home, text("two"), text("three"))
    said = contents(other.resume(turn.id).run().messages)
    assert said == ["first", "one", "second", "two"]
    assert contents(other.run_conversation("third").messages) == [*said, "third", "three"]


async def test_a_new_message_gives_up_what_a_dead_process_left_and_keeps_the_transcript_valid(
    home: Path,
) -> None:
    (put, ran), store, heard = unsafe_tool(), Store(home), list[str]()
    turn = process(home, tools(call("put", {"key": "a"}, "c1")), store=store, tools=[put]).start("first")
    await moves(turn, 3)  # up to ExecuteTools
    await turn.step_into()  # the row with the call is written …
    await store.write(lambda c: None)
    journal: Any = turn._runner.journal
    journal._hand_over()  # … and handed over, as it is before a tool starts
    await store.write(lambda c: None)
    declared_dead(store)
    model = ScriptedModel([text("done")])
    await process(home, model=model, tools=[put], callbacks={"status": heard.append}).arun("second")
    rows = model.requests[0]["messages"]
    assert any("left unfinished" in line for line in heard)
    assert [row["role"] for row in rows][-4:] == ["user", "assistant", "tool", "user"]
    assert rows[-2]["content"] == "not run: the process ended before it started"
    assert not ran


async def test_a_tool_whose_turn_was_cancelled_is_not_run_twice(home: Path) -> None:
    begun, ran = asyncio.Event(), list[str]()

    @tool(effect="unsafe")
    async def put(key: str) -> str:
        """Store."""
        ran.append(key)
        begun.set()
        await asyncio.Event().wait()
        return "done"

    turn = process(home, tools(call("put", {"key": "a"})), text("I see"), tools=[put]).start("go")
    running = asyncio.create_task(turn.arun())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    result = await turn.arun()
    assert ran == ["a"]
    assert result.messages[-2]["content"].startswith("Unknown outcome")
    assert result.final_response == "I see"


# Forks


def finished(home: Path, store: Store, **options: Any) -> tuple[Agent, str, list[str]]:
    """An agent, its turn that called a tool, and what that tool was called with."""
    put, ran = unsafe_tool()
    script = [tools(call("put", {"key": "a"}, "c1")), text("first end"), repeat(text("other end"))]
    one = process(home, *script, store=store, tools=[put], **options)
    return one, one.run_conversation("go").turn_id, ran


CALLED = {"reply": {"tool_calls": [{"name": "put", "arguments": {"key": "b"}}]}}
PUT_A = ["go", None, "put a", "other end"]


@pytest.mark.parametrize(
    ("at", "edit", "shown", "ran"),
    [
        (0, {"user_message": "go elsewhere"}, ["go elsewhere", "other end"], 0),
        (2, {"reply": "by hand"}, ["go", "by hand"], 0), (2, CALLED, ["go", None, "put b", "other end"], 1),
        (3, {"results": {"c1": "by hand"}}, ["go", None, "by hand", "other end"], 0),
        (3, {}, PUT_A, 0), (3, {"rerun_tools": True}, PUT_A, 1),
        (4, {"results": {"c1": "by hand"}}, ["go", None, "by hand", "other end"], 0),
        (4, {"messages": {0: {"role": "user", "content": "anew"}}}, ["anew", None, "put a", "other end"], 0),
        (4, {"messages": [{"role": "user", "content": "anew"}]}, ["anew", "other end"], 0),
        (4, {"user_message": "other words"}, ["other words", None, "put a", "other end"], 0),
        (4, {"counters": {"iterations": 5, "retries": 1}}, PUT_A, 0),
        (4, {"settings": {"max_iterations": 7}}, PUT_A, 0),
        (4, {"fields": {"system_prompt": "Be short."}}, PUT_A, 0),
    ],
)  # fmt: skip
def test_a_fork_goes_on_from_any_move_with_changes(
    home: Path, at: int, edit: dict[str, Any], shown: list[Any], ran: int
) -> None:
    one, turn_id, keys = finished(home, Store(home))
    before = one.journal.messages(turn_id)
    forked = one.fork(turn_id, at, edit)
    assert [step.seq for step in forked.steps] == list(range(1, at + 1))
    result = forked.run()
    assert contents(result.messages) == shown
    assert len(keys) == 1 + ran, "a tool is not run again unless told"
    assert one.journal.messages(turn_id) == before, "the old turn stays as it is"
    assert one.journal.messages(forked.id) == result.messages
    assert result.parent_session_id == "s-1"
    assert one.journal.info(forked.id).parent == turn_id
    if "counters" in edit:
        assert one.journal.snapshot(forked.id, at)["counts"]["iterations"] == 5
        assert one.journal.snapshot(forked.id, at)["counts"]["retries"] == 1
    if "settings" in edit:
        assert forked.gate.turn.settings.max_iterations == 7  # type: ignore[attr-defined]


@pytest.mark.parametrize("ends", [False, True], ids=["runs", "its process ends before they are used"])
@pytest.mark.parametrize(
    ("at", "edit", "kind", "origin"),
    [
        (2, CALLED, "CallModel", "by hand"),
        (3, {"results": {"c1": "by hand"}}, "RunTool", "by hand"),
        (3, {}, "RunTool", "taken over"),
    ],
)
def test_the_answers_that_a_fork_need_not_ask_for_are_in_its_journal(
    home: Path, store: Store, at: int, edit: Any, kind: str, origin: str, ends: bool
) -> None:
    """Else what a person answered, or what ran before, would be asked of the world after all."""
    one, turn_id, _ = finished(home, store)
    put, ran = unsafe_tool()
    forked = one.fork(turn_id, at, edit)
    if ends:
        begin(forked)
        other = process(home, text("end"), tools=[put], store=store, session_id="s-other")
        other.resume(forked.id).run()
        assert ran == (["b"] if "reply" in edit else [])
    else:
        forked.run()
        assert {effect.origin for effect in one.journal.effects(turn_id, at)} == {""}
        called = sum(tool.calls for tool in insights(store, days=1).tools)
        assert called == 1 + ("reply" in edit), "what was not carried out is not a call"
    [effect] = [effect for effect in one.journal.effects(forked.id, at) if effect.kind == kind]
    assert (effect.origin, effect.status, effect.seconds) == (origin, "done", None)
    assert effect.reply is not None


def test_a_fork_from_the_very_beginning_of_a_turn_has_what_was_said_before(home: Path) -> None:
    one = process(home, text("one"), text("two"), text("other"))
    one.chat("first")
    second = one.run_conversation("second").turn_id
    assert contents(one.fork(second, 0).run().messages) == ["first", "one", "second", "other"]


def test_an_edit_that_cannot_be_made_is_one_line(home: Path) -> None:
    one, turn_id, _ = finished(home, Store(home))
    wrong: list[tuple[int, dict[str, Any], str]] = [
        (4, {"nonsense": 1}, "a turn cannot be edited so; given: nonsense; allowed: counters, fields"),
        (4, {"counters": {"nonsense": 1}}, "no such counter; given: nonsense; allowed: attempts"),
        (4, {"counters": {"retries": -1}}, "counter retries cannot be set so; given: -1"),
        (4, {"fields": {"state": "Finalize"}}, "no such field to edit; given: state"),
        (
            4,
            {"fields": {"reply": 5}},
            r"reply of TurnState cannot be set so; given: 5; allowed: .*ModelReply",
        ),
        (4, {"fields": {"visible": 5}}, "visible of TurnState cannot be set so; given: 5; allowed: str"),
        (4, {"fields": {"handoffs": [{"to": "x"}]}}, "handoffs of TurnState cannot be set so"),
        (4, {"reply": "x"}, "a reply can be given only before the model is asked; given: BuildMessages"),
        (4, {"results": {"c9": "x"}}, "no such tool call here; given: c9; allowed: c1"),
        (4, {"messages": {"9": None}}, "no message of that index; given: 9; allowed: 0 to 2"),
        (99, {}, "has no move of that number; given: 99; allowed: 0 to 6"),
    ]
    for at, edit, words in wrong:
        with pytest.raises(ConfigError, match=words):
            one.fork(turn_id, at, edit)


# Snapshots


async def test_every_snapshot_is_what_the_turn_was(home: Path) -> None:
    look = tool(effect="pure", name="look")(lambda: "x" * 4_000)
    script = [tools(call("look", {})), overflow(), text("a summary"), text("the end")]
    rows = [{"role": role, "content": role * 80} for _ in range(12) for role in ("user", "assistant")]
    one = process(home, *script, tools=[look], context_window=60_000)
    turn = one.start("go", conversation_history=rows)
    while (step := await turn.step()) is not None:
        state: Any = turn.gate.turn
        snapshot = one.journal.snapshot(turn.id, step.seq)
        assert (snapshot["state"], snapshot["seq"]) == (state.state, step.seq)
        assert {name: snapshot[name] for name in ("counts", "sent", "visible")} == {
            "counts": state.counters(), "sent": state.accounting.request_count, "visible": state.call.visible,
        }  # fmt: skip
        assert one.journal.messages(turn.id, step.seq) == [row.to_dict() for row in state.history]
        for name in snapshot.keys() - {"history", "rows"}:  # what an edit may leave as it was
            check_field(type(state), name, snapshot[name])
    assert turn.result is not None
    assert any(step.source == "Compress" for step in turn.steps)
    assert one.journal.messages(turn.id) == turn.result.messages


@pytest.mark.parametrize("rows", [10, 2_000])
def test_a_move_writes_what_changed_however_long_the_history(home: Path, store: Store, rows: int) -> None:
    history = [{"role": ("user", "assistant")[number % 2], "content": "word " * 20} for number in range(rows)]
    turn = process(home, text("hi"), store=store).start("go", conversation_history=history)
    turn.run()
    sizes = "SELECT MAX(length(delta)) FROM transitions WHERE turn = ? AND seq > 1"
    assert store.database.select(sizes, turn.id)[0][0] < 1_500
