"""What a run of AG-UI says of single events: what is void, what comes from the journal, who asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

pytest.importorskip("ag_ui")

from ag_ui.core import BaseEvent, ResumeEntry, UserMessage

from fsm_agent.dispatch.follow import Place, ServedEvent, event_at
from fsm_agent.dispatch.service import BadRequest
from fsm_agent.runtime.events import (
    EventValues,
    InterimText,
    Named,
    ReasoningText,
    StreamDelta,
    ToolComplete,
    ToolStart,
    Transition,
    Voided,
)
from fsm_agent.serve.agui_events import RunTranslator
from fsm_agent.serve.agui_messages import answer_of, unseen
from fsm_agent.sessions.store.pending import Pending
from tests.serve.agui_rules import checked, said, shown, state_of

ASKED = UserMessage(id="u1", content="go")
GO = {"id": "u1", "role": "user", "content": "go"}
CALL = ("c1", "look", {"key": "a"})


def at(place: str, values: EventValues, turn: str = "t-1") -> ServedEvent:
    return event_at(Place.read(place), turn, values, 0.0)


def moved(seq: int, source: str, dest: str, turn: str = "t-1", **counters: int) -> ServedEvent:
    return at(f"{seq}.0", Transition(turn, source, "done", dest, counters), turn)


def lines(*told: Iterable[BaseEvent]) -> list[str]:
    return [one.model_dump_json(by_alias=True) for part in told for one in part]


def wire(*told: Iterable[BaseEvent]) -> list[dict[str, Any]]:
    return checked([f"data: {line}" for line in lines(*told)])


def run_of(*events: ServedEvent, **options: Any) -> list[dict[str, Any]]:
    """A run with these events that ends with an error, which may come at any time."""
    run = RunTranslator("th", "r", [ASKED], **options)
    return wire(run.begin(), *(run.feed(one) for one in events), run.fail("over", "test"))


def waits(turn: str = "t-1", session: str = "th", **more: Any) -> Pending:
    given: dict[str, Any] = {
        "id": "p-1", "seq": 3, "call": "c1", "kind": "approval", "tool": "look", "asked": "may it?",
        "choices": ("once", "deny"), "digest": "", "due": None, "since": 0.0,
    }  # fmt: skip
    return Pending(session=session, turn=turn, **(given | more))


def test_text_that_a_dead_process_told_is_taken_back() -> None:
    events = run_of(
        moved(2, "BuildMessages", "CallLLM"), at("2.0-7.1", StreamDelta("half of")), at("2.0", Voided("2.0")),
        at("2.0-8.1", StreamDelta("the whole text")), moved(3, "CallLLM", "Finalize"),
    )  # fmt: skip
    (snapshot,) = [one for one in events if one["type"] == "MESSAGES_SNAPSHOT"]
    assert said(snapshot["messages"]) == ["user: go"]
    assert said(shown(events, [GO])) == ["user: go", "assistant: the whole text"]


def test_a_call_whose_process_died_is_told_once_more() -> None:
    start, done = ToolStart(*CALL), ToolComplete(*CALL, "saw a", "ok")
    before = moved(3, "CallLLM", "ExecuteTools"), at("3.1-7.1", start)
    events = run_of(*before, at("3.1", Voided("3.1")), at("3.1-8.1", start), at("3.1-8.2", done))
    assert said(shown(events, [GO])) == ["user: go", 'call: look {"key": "a"}', "tool: saw a"]
    # only the result was void
    events = run_of(*before, at("3.2-7.1", done), at("3.2", Voided("3.2")), at("3.2-8.1", done))
    assert said(shown(events, [GO])) == ["user: go", 'call: look {"key": "a"}', "tool: saw a"]
    assert [one["type"] for one in events].count("TOOL_CALL_START") == 1
    # and where the client has nothing of it, nothing is taken back
    events = run_of(*before, at("3.2", Voided("3.2")))
    assert "MESSAGES_SNAPSHOT" not in {one["type"] for one in events}


def test_ids_of_calls_that_a_model_uses_again_are_told_apart() -> None:
    rounds = [
        at(f"{seq}.1-0.{number}", values)
        for seq in (3, 6)
        for number, values in enumerate((ToolStart(*CALL), ToolComplete(*CALL, f"saw {seq}", "ok")), 1)
    ]
    messages = shown(run_of(*rounds), [GO])
    calls = [call["id"] for one in messages for call in one.get("toolCalls", [])]
    assert calls == ["c1", "c1~2"]
    assert [(one["toolCallId"], one["content"]) for one in messages if one["role"] == "tool"] == [
        ("c1", "saw 3"), ("c1~2", "saw 6"),
    ]  # fmt: skip


def test_text_beside_calls_is_told_once() -> None:
    streamed = at("2.0-7.1", StreamDelta("\n\nlet me look")), at("3.1-7.1", InterimText("let me look"))
    assert said(shown(run_of(*streamed), [GO])) == ["user: go", "assistant: let me look"]
    assert said(shown(run_of(streamed[1]), [GO])) == ["user: go", "assistant: let me look"]


def test_thoughts_end_before_text_and_moves() -> None:
    events = run_of(
        at("2.0-7.1", ReasoningText("hm")), at("2.0-7.2", StreamDelta("so")), at("2.0-7.3", ReasoningText("but")),
        moved(3, "CallLLM", "Finalize"), reasoning=True,
    )  # fmt: skip
    starts = [one["messageId"] for one in events if one["type"] == "REASONING_START"]
    assert len(set(starts)) == 2


def test_a_task_that_is_asked_about_is_suspended() -> None:
    run = RunTranslator("th", "r", [ASKED])
    data = {"session_id": "d-1", "task_id": "x"}
    told = [
        moved(3, "CallLLM", "ExecuteTools"), at("3.1-7.1", ToolStart("d", "delegate_task", {})),
        at("3.1-7.2", Named("child:start", {**data, "goal": "find it"})),
        at("3.1-7.3", Named("child:tool", {**data, "name": "look", "arguments": "{}"})),
        at("3.1-7.4", Named("child:suspended", data)),
    ]  # fmt: skip
    asked = waits("t-child", "d-1")
    events = wire(run.begin(), *(run.feed(one) for one in told), run.suspend([asked], []))
    (ended,) = [one for one in events if one["type"] == "SUBAGENT_FINISHED"]
    assert ended["outcome"]["type"] == "suspended"
    (interrupt,) = events[-1]["outcome"]["interrupts"]
    assert (interrupt["reason"], interrupt["subagentRunId"]) == ("confirmation", "d-1")
    assert "toolCallId" not in interrupt
    # the task begins once more in the run that continues, and may fail there
    failed = Named("child:end", {**data, "status": "failed", "turn_id": "", "error": "no way"})
    again = wire(run.begin(), run.feed(told[2]), run.feed(at("3.1-8.2", failed)), run.fail("over", "x"))
    assert [one["message"] for one in again if one["type"] == "SUBAGENT_ERROR"] == ["no way"]
    assert [one["stepName"] for one in again if one["type"] == "STEP_STARTED"] == []


def test_a_run_that_continues_has_its_step_and_state_and_no_call_again() -> None:
    run = RunTranslator("th", "r2", [ASKED])
    rows = [
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": '{"key": "a"}'}}],
        }
    ]
    lines(run.feed(moved(3, "CallLLM", "ExecuteTools", iterations=1)), run.propose([waits()], rows))
    done = ToolComplete(*CALL, "saw a", "ok")
    events = wire(
        run.begin(), run.feed(at("3.2-8.1", ToolStart(*CALL))), run.feed(at("3.2-8.2", done)),
        run.feed(moved(4, "ExecuteTools", "BuildMessages", iterations=2)), run.fail("over", "x"),
    )  # fmt: skip
    assert [one["type"] for one in events[:3]] == ["RUN_STARTED", "STATE_SNAPSHOT", "STEP_STARTED"]
    assert "TOOL_CALL_START" not in {one["type"] for one in events}
    state = state_of(events)
    assert (state["state"], state["moves"], state["counters"]) == ("BuildMessages", 4, {"iterations": 2})


def test_a_turn_that_another_agent_continues_begins_its_moves_anew() -> None:
    events = run_of(
        moved(1, "Prepare", "BuildMessages", iterations=3, sends=1), moved(2, "BuildMessages", "Finalize"),
        moved(1, "Prepare", "BuildMessages", turn="t-2", iterations=1),
    )  # fmt: skip
    state = state_of(events)
    assert (state["turn"], state["moves"], state["counters"]) == ("t-2", 1, {"iterations": 1})


@pytest.mark.parametrize(
    ("kind", "payload", "answer"),
    [
        ("approval", {"approved": True}, True), ("approval", {"approved": False}, False), ("approval", "session", "session"),
        ("approval", {"approved": True, "choice": "session"}, "session"), ("question", {"answer": "tea"}, "tea"),
        ("question", "tea", "tea"), ("question", 2, 2), ("result", {"rows": [1]}, {"rows": [1]}), ("timer", None, None),
    ],
)  # fmt: skip
def test_an_interrupt_is_answered_by_the_schema_and_in_short(kind: str, payload: Any, answer: Any) -> None:
    assert answer_of(ResumeEntry(interrupt_id="p-1", status="resolved", payload=payload), kind) == answer


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        ("approval", {"status": "resolved"}), ("approval", {"status": "resolved", "payload": {"answer": "yes"}}),
        ("question", {"status": "cancelled"}), ("question", {"status": "resolved", "payload": {"answer": ["a"]}}),
        ("approval", {"status": "resolved", "payload": {"approved": True, "editedArgs": {"path": "/"}}}),
    ],
)  # fmt: skip
def test_what_answers_nothing_is_refused(kind: str, entry: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        answer_of(ResumeEntry.model_validate({"interruptId": "p-1", **entry}), kind)


def test_new_messages_are_those_behind_what_the_session_has() -> None:
    one, two, three = (UserMessage(id=name, content=name) for name in ("one", "two", "three"))
    rows = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "yes"}]
    assert unseen([one, two], rows) == ([two], True)
    assert unseen([one, two, three], rows) == ([two, three], True)
    assert unseen([two], rows) == ([two], False)
    assert unseen([one], []) == ([one], True)
    assert unseen([], rows) == ([], False)
