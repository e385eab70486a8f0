"""Child turns: isolated, at the same time, within their budgets, never more powerful than their parent."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.testing import FakeClock, call, repeat, text, tools
from tests.helpers.families import Lines, Stay, delegate, model, offered, told
from tests.helpers.harness import MakeAgent
from tests.helpers.waiting import PATIENCE, until_so

ONE: Lines = {"go": [delegate("a"), text("ok")], "a": [text("A")]}
"""One child that answers at once."""


pytestmark = pytest.mark.agent(toolsets=["delegate", "todo"])


@pytest.fixture
def played(agent: MakeAgent) -> Callable[..., Any]:
    """Play a conversation of these lines."""

    def play(lines: Lines, requests: list[Any] | None = None, **options: Any) -> Any:
        return agent(model=model(lines, requests), **options).run_conversation("go")

    return play


def entries(result: Any) -> list[Any]:
    """What each child of the first delegation brought."""
    return list(told(result)[0]["results"])


@pytest.mark.behaviour("AGT-05", "AGT-05b", "AGT-05c")
def test_100_only_the_summary_comes_back_and_the_child_sees_nothing_else(agent: MakeAgent) -> None:
    requests: list[Any] = []
    note = tool(concurrency="parallel", effect="pure", name="note")(lambda: "a secret detail")
    lines = {
        "my private talk": [
            tools(call("delegate_task", {"goal": "find the cat", "context": "it is gray"})),
            text("The cat sleeps."),
        ],
        "find the cat\n\nContext:\nit is gray": [tools(call("note")), text("It sleeps in the barn.")],
    }
    one = agent(model=model(lines, requests), tools=[note])
    result = one.run_conversation("my private talk")
    (report,) = told(result)
    assert result.final_response == "The cat sleeps."
    assert report["results"][0] | {"turn": ""} == {
        "task": "find the cat", "status": "completed", "summary": "It sleeps in the barn.", "turn": "", "iterations": 2,
        "tokens": 30,
    }  # fmt: skip
    assert "secret detail" not in json.dumps(result.messages)
    child = [body for asked, body in requests if asked.startswith("find")]
    assert "my private talk" not in json.dumps(child)
    assert offered(child[0]) == {"note", "todo"}


def test_a_childs_turn_and_figures_are_its_own(played: Callable[..., Any], agent: MakeAgent) -> None:
    two = {"go": [delegate("a", "b"), text("ok")], "a": [text("A")], "b": [text("B")]}
    result = played(two)
    assert (result.attempts, result.total_tokens) == (2, 30)
    figures = [(child.outcome, child.attempts, child.usage.total) for child in result.children]
    assert figures == [("completed", 1, 15)] * 2
    assert {child.turn_id for child in result.children} == {entry["turn"] for entry in entries(result)}
    # in the journal it is a turn of its own
    one = agent(model=model(ONE))
    turn = one.start("go")
    result = turn.run()
    info = one.journal.info(result.children[0].turn_id)
    assert (info.parent, info.forked_at, info.asked, info.outcome) == (turn.id, None, "a", "completed")
    assert one.journal.steps(info.id)[-1].dest == "Finalize"
    call_id = next(row["tool_calls"][0]["id"] for row in result.messages if row.get("tool_calls"))
    assert result.children[0].task_id == f"{call_id}.0"
    with one.store.database.reading() as c:
        kind, parent = c.execute("SELECT kind, parent FROM sessions WHERE id = ?", (info.session,)).fetchone()
    assert (kind, parent) == ("child", result.session_id)


@pytest.mark.behaviour("AGT-06")
def test_the_results_are_in_task_order_and_the_children_run_at_the_same_time(
    played: Callable[..., Any],
) -> None:
    barrier = threading.Barrier(3, timeout=PATIENCE)
    gone = {name: threading.Event() for name in "abcd"}
    gone["d"].set()

    @tool(effect="pure")
    def meet(name: str) -> str:
        """Come back when all are there, the last one first."""
        barrier.wait()
        assert gone[chr(ord(name) + 1)].wait(PATIENCE)
        gone[name].set()
        return "met"

    lines: Lines = {"go": [delegate("a", "b", "c"), text("ok")]}
    lines |= {name: [tools(call("meet", {"name": name})), text(name.upper())] for name in "abc"}
    assert [entry["summary"] for entry in entries(played(lines, tools=[meet]))] == ["A", "B", "C"]


@pytest.mark.behaviour("EXEC-13")
def test_delegations_beyond_the_limit_are_answered_and_not_run(played: Callable[..., Any]) -> None:
    ran: list[Any] = []
    goals = [call("delegate_task", {"goal": name}) for name in "abcd"]
    lines: Lines = {name: [text(name)] for name in "abcdefgh"}
    lines["go"] = [tools(*goals), delegate("e", "f", "g", "h"), text("ok")]
    results = told(played(lines, ran))
    assert [isinstance(one, dict) for one in results] == [True, True, True, False, False]
    assert all("over the limit of 3" in one for one in results[3:])
    assert {asked for asked, _ in ran} == {"go", "a", "b", "c"}


@pytest.mark.behaviour("CONC-08", "AGT-01c", "AGT-05")
def test_a_child_has_no_children_by_default_and_no_tools_that_are_withheld(
    played: Callable[..., Any],
) -> None:
    deep = {"delegation": {"max_depth": 2}}
    own = [tool(name=name)(lambda: "x") for name in ("memory", "send_message", "execute_code", "fine")]
    options: Any
    for options, names in (
        ({}, {"todo"}),
        ({"settings": deep}, {"todo", "delegate_task"}),
        (
            {"tools": own, "toolsets": ["delegate", "clarify", "memory", "code"]},
            {"fine"},
        ),  # even if the host made them
    ):
        requests: list[Any] = []
        played(ONE, requests, **options)
        assert offered(next(body for asked, body in requests if asked == "a")) == names
    lines = {"go": [delegate("a"), text("ok")], "a": [delegate("b"), text("A")], "b": [text("B")]}
    assert played(lines, settings=deep).completed
    requests = []
    played({"go": [text("ok")]}, requests, settings={"delegation": {"max_depth": 0}})
    assert offered(requests[0][1]) == {"todo"}


def test_a_failing_child_does_not_hurt_the_others(played: Callable[..., Any]) -> None:
    lines = {"go": [delegate("a", "b"), text("ok")], "a": [text("")] * 9, "b": [text("B")]}
    no_wait = {"backoff": {key: {"base": 0, "cap": 0} for key in ("exception", "invalid")}}
    failed, fine = entries(played(lines, settings=no_wait))
    assert (failed["status"], fine["status"]) == ("failed", "completed")
    assert failed["error"]
    # one that goes in circles is halted, also when its parent is attended
    fail = tool(effect="pure", name="fail")(lambda: 1 / 0)
    lines = {"go": [delegate("circle"), text("ok")], "circle": [tools(call("fail"))] * 9}
    result = played(lines, tools=[fail], callbacks={"approval": lambda request: True})
    assert [child.turn_exit_reason for child in result.children] == ["guardrail_halt"]
    assert result.completed


@pytest.mark.behaviour("AGT-05")
def test_a_long_answer_is_cut_to_its_share_of_the_room_and_kept_whole(played: Callable[..., Any]) -> None:
    long = "fact " * 10_000
    settings = {"delegation": {"summary_max_chars": 3_000}}
    (entry,) = entries(played(ONE | {"a": [text(long)]}, settings=settings))
    assert len(entry["summary"]) <= 3_000
    path = entry["summary"].split("the whole answer is in ")[1].split("]")[0]
    assert Path(path).read_text().strip() == long.strip()
    two = {"go": [delegate("a", "b"), text("ok")], "a": [text(long)], "b": [text(long)]}
    first, second = entries(played(two, context_window=20_000))
    assert 2_000 * 0.8 < len(first["summary"]) < 20_000
    assert len(first["summary"]) == len(second["summary"])


def busy(goal: str, rounds: int) -> Lines:
    return {goal: [tools(call("todo", {"todos": [{"id": str(n), "content": "x"}]})) for n in range(rounds)]}


@pytest.mark.behaviour("BUD-03", "BUD-03b", "BUD-03d", "DIS-01")
@pytest.mark.parametrize(("mode", "iterations"), [("independent", 8), ("tree_cap", 5), ("shared", 5)])
def test_the_budgets_of_a_tree(played: Callable[..., Any], mode: str, iterations: int) -> None:
    """Root: one iteration before the children. tree_cap 6 and shared 6 leave five for the children."""
    delegation = {"budget": mode, "max_iterations": 4, "tree_cap_factor": 1}
    settings = {"max_iterations": 6, "delegation": delegation, "budget": {"grace_call": False}}
    lines = {"go": [delegate("a", "b"), text("ok")], **busy("a", 5), **busy("b", 5)}
    children = played(lines, settings=settings).children
    assert sum(child.api_calls for child in children) == iterations
    assert all(child.api_calls <= 4 and child.outcome != "completed" for child in children)


@pytest.mark.behaviour("BUD-02d")
def test_a_budget_that_is_handed_in_is_shared_with_the_children(played: Callable[..., Any]) -> None:
    budget = IterationBudget(4)
    played(ONE | busy("a", 9), budget=budget, settings={"budget": {"grace_call": False}})
    assert budget.used == 4


def test_a_budget_counts_on_after_a_restart(agent: MakeAgent) -> None:
    settings = {"max_iterations": 9, "budget": {"grace_call": False}, "delegation": {"tree_cap_factor": 1}}
    lines = {"go": [delegate("a"), *busy("go", 9)["go"]], "a": [*busy("a", 4)["a"], text("A")]}
    one = agent(model=model(lines), settings=settings)

    async def some() -> str:
        turn = one.start("go")
        await turn.run_until(state="BuildMessages", event="done")
        return turn.id

    result = one.resume(asyncio.run(some())).run()
    assert (result.children[0].api_calls, result.api_calls) == (5, 4)


@pytest.mark.behaviour("AGT-06")
def test_an_interrupt_reaches_every_child_and_keeps_what_they_said(agent: MakeAgent) -> None:
    started = threading.Barrier(3, timeout=PATIENCE)

    @tool(effect="pure")
    async def linger() -> str:
        """Stay."""
        await asyncio.to_thread(started.wait)
        await asyncio.Event().wait()
        return "never"

    stays = [tools(call("linger")), text("never")]
    one = agent(
        model=model({"go": [delegate("a", "b"), text("never")], "a": stays, "b": stays}), tools=[linger]
    )
    stopper = threading.Thread(target=lambda: started.wait() < 0 or one.interrupt("enough"))
    stopper.start()
    result = one.run_conversation("go")
    stopper.join()
    assert result.interrupted
    assert [entry["status"] for entry in entries(result)] == ["interrupted"] * 2
    assert [child.outcome for child in result.children] == ["interrupted"] * 2


@pytest.mark.behaviour("LOOP-06", "AGT-06")
def test_a_child_that_does_nothing_is_stopped_and_a_long_one_shows_a_sign_of_life(
    played: Callable[..., Any],
) -> None:
    """Time goes by in two steps: until the sign, which comes once the child is at work, and after it."""
    clock, status = FakeClock(), list[str]()

    @tool(effect="pure", timeout=3_000)
    async def linger() -> str:
        """Stay."""
        clock.advance(70)
        await asyncio.Event().wait()
        return "never"

    def sign(line: str) -> None:
        if "(linger)" in line:
            clock.advance(700)
        status.append(line)

    settings = {"delegation": {"stale_in_tool": 600, "heartbeat": 60}, "poll": {"control": 0.02}}
    lines = ONE | {"a": [tools(call("linger")), text("never")]}
    options: Any = {"settings": settings, "callbacks": {"status": sign}, "clock": clock}
    result = played(lines, tools=[linger], **options)
    (entry,) = entries(result)
    assert (result.completed, entry["status"]) == (True, "interrupted")
    assert "in a tool" in entry["error"]
    assert any("1 of 1 delegated tasks at work: a (linger)" in line for line in status)


@pytest.mark.behaviour("LOOP-06")
def test_each_request_of_a_child_is_a_sign_of_life(agent: MakeAgent) -> None:
    """Four requests of 170 s each are longer than a child may do nothing, 450 s."""
    clock = FakeClock()
    parent, child = iter(ONE["go"]), iter([*busy("a", 3)["a"], text("A")])

    def answer(body: Mapping[str, Any]) -> Any:
        if next(row["content"] for row in body["messages"] if row["role"] == "user") == "go":
            return next(parent)
        clock.advance(170)
        return next(child)

    one = agent(repeat(answer), clock=clock, settings={"poll": {"control": 0.02}})
    (entry,) = entries(one.run_conversation("go"))
    assert (entry["status"], entry["summary"]) == ("completed", "A")


def test_the_parents_events_tell_what_its_children_do(agent: MakeAgent) -> None:
    heard: list[str] = []
    lines = ONE | {"a": [tools(call("todo", {})), text("A")]}
    one = agent(model=model(lines), callbacks={"event": lambda name, data: heard.append(name)})
    turn = one.start("go")
    streamed = [event for event in turn.events() if event.name == "event"]
    names = [name for name in heard if name.startswith("child:")]
    assert names == ["child:start", "child:tool", "child:end"]
    assert {event.turn_id for event in streamed} == {turn.id}
    assert names == [str(event.values[0]) for event in streamed if str(event.values[0]).startswith("child:")]


# Approvals: no way around them by delegation (APPR-05)


def dangerous(agent: MakeAgent, ran: list[str], approve: Any = None, **settings: Any) -> str:
    """The result that a child gets when it and its parent call a dangerous tool."""

    @tool(approval="ask")
    def drop_table(name: str) -> str:
        """Drop a table."""
        ran.append(name)
        return "dropped"

    want, callbacks = tools(call("drop_table", {"name": "users"})), {"approval": approve} if approve else {}
    lines = {"go": [want, delegate("a"), text("ok")], "a": [want, text("A")]}
    one = agent(model=model(lines), tools=[drop_table], callbacks=callbacks, settings=settings)
    return child_rows(one, one.run_conversation("go"))


def child_rows(one: Agent, result: Any) -> str:
    return json.dumps(one.journal.messages(result.children[0].turn_id))


@pytest.mark.behaviour("APPR-05")
@pytest.mark.parametrize("answer", ["once", "session"])
def test_a_yes_in_the_parent_is_no_yes_in_a_child(agent: MakeAgent, answer: str) -> None:
    ran: list[str] = []
    assert "a child turn may not ask" in dangerous(agent, ran, lambda request: answer)
    assert ran == ["users"]


def test_a_child_asks_only_where_that_is_set_and_somebody_is_there(agent: MakeAgent) -> None:
    ran: list[str] = []
    asked: list[str] = []

    def approve(request: Any) -> str:
        asked.append(request.origin)
        return "once"

    dangerous(agent, ran, approve, delegation={"approvals": "ask"})
    assert (ran, asked) == (["users"] * 2, ["", "a"]), "it says what for"
    dangerous(agent, ran, delegation={"approvals": "ask"})
    assert len(ran) == 2, "no person is there"
    # what is allowed or forbidden for good holds for children
    dangerous(agent, ran, approval={"allow": ["drop_table"]})
    assert len(ran) == 4
    dangerous(agent, ran, approve, approval={"deny": ["drop_table"]}, delegation={"approvals": "ask"})
    assert len(ran) == 4


@pytest.mark.slow
def test_children_that_ask_at_once_are_answered_one_after_the_other(played: Callable[..., Any]) -> None:
    """The second question waits for the first, and has its whole time after that."""
    ran: list[str] = []
    busy_with: list[int] = [0]
    clock = FakeClock()

    @tool(approval="ask")
    def drop(name: str) -> str:
        """Drop a table."""
        ran.append(name)
        return "dropped"

    def approve(request: Any) -> str:
        busy_with[0] += 1
        assert busy_with[0] == 1
        clock.advance(60)
        busy_with[0] -= 1
        return "once"

    lines: Lines = {"go": [delegate("a", "b", "c"), text("ok")]}
    lines |= {name: [tools(call("drop", {"name": name})), text(name)] for name in "abc"}
    settings = {"delegation": {"approvals": "ask"}, "approval": {"timeout": 100}, "poll": {"control": 0.02}}
    played(lines, tools=[drop], callbacks={"approval": approve}, settings=settings, clock=clock)
    assert sorted(ran) == ["a", "b", "c"]


def test_a_check_before_every_tool_holds_for_children_too(agent: MakeAgent) -> None:
    ran: list[str] = []
    hit = tool(name="hit")(lambda: ran.append("hit") or "hit")
    hook = {"before_tool": lambda name: "block" if name == "hit" else None}
    one = agent(model=model(ONE | {"a": [tools(call("hit")), text("A")]}), tools=[hit], callbacks=hook)
    assert "blocked by a check" in child_rows(one, one.run_conversation("go"))
    assert not ran


# Continuing after the host stopped in the middle


def test_an_interrupted_delegation_continues_with_the_same_children(agent: MakeAgent) -> None:
    """One child had ended, one waits in a tool, and both are found again."""
    stay, requests = Stay(), list[Any]()
    lines = {"go": [delegate("a", "b"), text("both are done")], "a": [text("A")]}
    lines |= {"b": [tools(call("stay")), text("B")]}
    one = agent(model=model(lines, requests), tools=[stay.tool])

    async def cut_off() -> str:
        turn = one.start("go")
        running = asyncio.ensure_future(turn.arun())
        await stay.reached.wait()
        await until_so(lambda: any(found.asked == "a" and found.ended for found in one.journal.recent()))
        running.cancel()
        await asyncio.wait({running})
        return turn.id

    result = one.resume(asyncio.run(cut_off())).run()
    assert result.final_response == "both are done"
    assert [entry["summary"] for entry in entries(result)] == ["A", "B"]
    assert (stay.ran, len(result.children)) == (2, 2)
    assert sorted(asked for asked, _ in requests) == ["a", "b", "b", "go", "go"]


def test_the_same_turn_continues_in_the_same_loop_after_its_host_was_cancelled(agent: MakeAgent) -> None:
    """The children of the first time are still stopping when the call is made again."""
    stay = Stay()
    one = agent(model=model(ONE | {"a": [tools(call("stay")), text("A")]}), tools=[stay.tool])

    async def twice() -> Any:
        return await (await stay.cut_off(one)).arun()

    assert [entry["summary"] for entry in entries(asyncio.run(twice()))] == ["A"]
    assert stay.ran == 2


def test_children_of_a_turn_that_is_given_up_are_given_up_too(agent: MakeAgent) -> None:
    stay = Stay()
    lines = ONE | {"a": [tools(call("stay")), text("never")]}
    one = agent(model=model(lines), tools=[stay.tool], session_id="s-1")
    asyncio.run(stay.cut_off(one))
    assert len(one.journal.recent(unfinished=True)) == 2
    agent(model=model({"go": [text("on we go")]}), session_id="s-1").run_conversation("something else")
    assert not one.journal.recent(unfinished=True)


def test_an_unsafe_tool_of_a_child_is_not_run_again_after_that(agent: MakeAgent) -> None:
    stay = Stay("unsafe")
    lines = ONE | {"a": [tools(call("stay")), text("I do not know whether it was paid.")]}
    one = agent(model=model(lines), tools=[stay.tool])
    result = one.resume(asyncio.run(stay.cut_off(one)).id).run()
    assert stay.ran == 1
    assert "Unknown outcome" in child_rows(one, result)
    assert "do not know" in entries(result)[0]["summary"]
