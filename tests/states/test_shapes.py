"""The transcript's shapes: proved, refuted when one declaration is wrong, and what the wires make of them."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.conversation.effects import Runtime
from fsm_agent.conversation.history import violations
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.wire import WireCopy, format_of
from fsm_agent.conversation.wire.form import WIRES, Ask, View
from fsm_agent.fsm.properties import Change, VisitChange, may
from fsm_agent.fsm.table import Table, end, go, lines_of, on
from fsm_agent.fsm.verify import verify_table
from fsm_agent.settings import PrefillRow
from fsm_agent.testing import FakeClock, ScriptedModel, blank, call, reasoning, text, tools
from fsm_agent.testing.wires import chat_rows
from fsm_agent_states.logic.shapes import (
    CALLS,
    EMPTY,
    LOADED,
    NO_CHANGE,
    ROUND,
    TRANSCRIPT,
    Shape,
    begin_with,
    shape_of,
    takes,
    with_user_row,
)
from fsm_agent_states.table import TURN
from fsm_agent_states.turn import TurnState
from tests.helpers.harness import TOOLS
from tests.helpers.shape_watch import ShapeWatch, proof

REPLIED = may(tail=("assistant",))


def test_the_transcript_is_proved_in_under_a_second() -> None:
    report = verify_table(TURN, small=False)
    [check] = [check for check in report.checks if check.name == TRANSCRIPT.name]
    assert check.findings == ()
    assert check.seconds is not None
    assert check.seconds < 1
    found = proof()
    assert check.extent == f"{len(found.places):,} places, {found.obligations:,} obligations"
    assert found.obligations > 5_000


def test_the_invariant_holds_at_the_start_and_is_closed_under_every_row() -> None:
    """Checked again from the places alone, without the search that found them."""
    found = proof()
    known = {(place.location, place.came, place.value) for place in found.places}
    assert {(0, frozenset(), value) for value in TRANSCRIPT.starts} <= known
    steps = 0
    for place in found.places:
        for edge in found.graph.edges:
            if edge.source == place.location:
                visit = TRANSCRIPT.visit(place.came, edge.row.source, edge.row.event)
                assert visit is not None
                came = TRANSCRIPT.words(edge.row)
                for change in visit.changes:
                    steps += 1
                    for value in _all_of(change, place.value):
                        assert (edge.dest, came, value) in known
    assert steps > 5_000


def _all_of(change: Change, value: Shape) -> list[Shape]:
    """A second way to write down what a change allows: every shape, filtered."""
    values = [value]
    for name in ("first", "tail", "open", "gaps", "scaffold", "frozen"):
        allowed = change.get(name, (...,))
        values = [one if to is ... else replace(one, **{name: to}) for one in values for to in allowed]
    return values


# What is refuted


CHAT, CODEX = "chat_completions takes the request", "codex_responses takes the request"
CLAUDE, AS_SENT = "anthropic_messages takes the request", "what the reply answers is as it was sent"
CLOSED, CLEAN = "all calls of the turn are closed", "no scaffold is left"
SAID, OPEN = may(tail=("assistant",), frozen=(True,)), may(tail=("assistant",), open=(True,), frozen=(True,))
FORGOTTEN, BACK = may(tail=("tool",), open=(True,)), may(scaffold=("assistant",))
# What is wrong: the row (or state and event, or state) whose visit does it, what it does, the demand, and the
# row that is named if it is another one.
WRONG: dict[str, tuple[str, Sequence[Change], str, str]] = {
    "a tool round forgets one result": ("ExecuteTools.done", [ROUND, FORGOTTEN], CHAT, ""),
    "a free round stores its calls alone": ("ExecuteTools.done_free", [CALLS], CODEX, ""),
    "calls that are not JSON get no results": ("ExecuteTools.bad_json/1", [CALLS], CLAUDE, ""),
    "an empty reply goes out as the last row": ("EmptyRecovery.nothing/1", [REPLIED], CLAUDE, ""),
    "thoughts are given back, nothing behind": ("BuildMessages.built/3", [BACK], CLAUDE, ""),
    "a reply is stored with its tag open": ("CallLLM.open_scratchpad/1", [SAID], CHAT, ""),
    "a nudge stays at an exit": ("Finalize", [may(open=(False,))], CLEAN, "BuildMessages.built/1"),
    "a bug leaves calls open at the end": ("Finalize", [may(scaffold=("",))], CLOSED, "ExecuteTools.crashed"),
    "a compaction keeps only the reply": ("Compress.compressed", [may(tail=("assistant",), frozen=(False,))],
        CHAT, ""),
    "a compaction drops everything": ("Compress.compressed", [EMPTY], CODEX, ""),
    "the user's message is not stored": ("Prepare.ready", [LOADED], CLAUDE, ""),
    "a reply rewrites what was sent": ("CallLLM.tools", [may(frozen=(False,))], AS_SENT, "Prepare.ready"),
    "the calls are stored with the reply": ("CallLLM.tools", [OPEN], AS_SENT, ""),
}  # fmt: skip


def refuted(name: str) -> list[str]:
    """What is found of this wrong declaration."""
    place, changes, _, _ = WRONG[name]
    state, _, event = place.partition("/")[0].partition(".")
    after = frozenset({"thinking_prefills"} if "thoughts" in name else ())
    visit = VisitChange(state, tuple(changes), (event,) if event else (), after)
    return [str(fault) for fault in proof(replace(TRANSCRIPT, visits=(visit, *TRANSCRIPT.visits))).faults]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_declaration_is_refuted(name: str) -> None:
    """It names the row, the demand, both shapes, and the shortest run of rows, which ends with the row's
    visit."""
    place, _, demand, named = WRONG[name]
    row, faults = named or place, refuted(name)
    told = [fault for fault in faults if f"it must be that {demand} (" in fault]
    assert told, faults
    assert told[0].startswith(row)
    run = told[0].partition("(shortest run: ")[2].partition(")")[0].split(" → ")
    assert run[0] == "Prepare.ready"
    assert any(step.startswith(row) for step in run)
    assert [TURN.row(step).dest for step in run[:-1]] == [TURN.row(step).source for step in run[1:]]
    assert told[0].count(" first, ") == 2, "the shapes before and after"


def test_a_state_of_which_nothing_is_declared_is_found() -> None:
    visits = tuple(visit for visit in TRANSCRIPT.visits if visit.state != "ClassifyError")
    found = proof(replace(TRANSCRIPT, visits=visits))
    assert "ClassifyError.fatal: nothing is declared of what this visit does" in "\n".join(
        map(str, found.faults)
    )


# What the guide says

GUIDE = (Path(__file__).parents[2] / "docs" / "verify.md").read_text(encoding="utf-8")


def test_the_figures_and_the_finding_of_the_guide_are_true() -> None:
    found = proof()
    words = " ".join(GUIDE.split())
    assert f"These are {found.obligations:,} obligations in {len(found.places):,} places" in words
    assert refuted("a tool round forgets one result")[0] in words


@pytest.mark.parametrize(("first", "holds"), [("Charge", True), ("Ship", False)])
def test_the_promise_of_the_guide_is_proved(first: str, holds: bool) -> None:
    code = next(part for part in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL) if "Booking" in part)
    module = ModuleType("booking")
    sys.modules[module.__name__] = module
    exec(code, vars(module))
    then = "Ship" if first == "Charge" else "Charge"
    over = on("done", end("text_response", "End"), why="")
    lines = lines_of({first: [on("done", go(then), why="")], then: [over]})
    promises = replace(module.PROMISES, visits=(*module.PROMISES.visits, VisitChange("End", (may(),))))
    table = Table("shop", (first, then, "End"), "End", (), lines, promises=lambda: promises)
    assert verify_table(table, small=False).ok == holds
    del sys.modules[module.__name__]


# What a shape is


def user(text: str = "go") -> Message:
    return Message("user", text)


def said(text: str = "well", *calls: str) -> Message:
    return Message("assistant", text, tool_calls=tuple(ToolCall(call, "echo", "{}") for call in calls))


def result(call: str) -> Message:
    return Message("tool", "r", tool_call_id=call)


NOTE = Message("assistant", "failed", wire=False)
REQUEST = user()


@pytest.mark.parametrize(
    ("rows", "own", "shape"),
    [
        ([], 0, Shape()), ([user()], 1, Shape("user", "user")),
        ([user(), said("", "a"), result("a")], 3, Shape("user", "tool")),
        ([user(), said("", "a", "b"), result("b")], 3, Shape("user", "tool", open=True)),
        ([user(), said("", "a", "b"), result("b"), user()], 1, Shape("user", "user", gaps=True)),
        ([said(), user()], 1, Shape("assistant", "user")), ([user(), result("x")], 1, Shape("user", "user")),
        ([user(), NOTE], 2, Shape("user", "user")), ([user(), said("  ")], 2, Shape("user", "user")),
    ],
)  # fmt: skip
def test_the_shape_of_a_transcript(rows: list[Message], own: int, shape: Shape) -> None:
    assert shape_of(rows, rows[len(rows) - own :]) == shape


def test_a_prefix_is_as_sent_while_nothing_of_it_is_another_row() -> None:
    sent = [user(), said(), REQUEST]
    assert shape_of([*sent, said("", "a"), result("a")], sent=sent).frozen
    assert not shape_of([user(), *sent[1:]], sent=sent).frozen
    assert not shape_of(sent[:2], sent=sent).frozen
    assert not shape_of(sent).frozen


# What the wires make of it


def sample(shape: Shape) -> tuple[list[Message], list[Message], list[Message]]:
    """History, rows of the turn and scaffold of that shape."""
    before = [said()] if shape.first == "assistant" else [user("hello"), said()] if shape.first else []
    if shape.gaps:
        before += [user(), said("", "lost")]
    own: list[Message] = {
        "": [], "user": [user()], "assistant": [user(), said()],
        "tool": [user(), said("", "mine"), result("mine")],
    }[shape.tail]  # fmt: skip
    scaffold = [said("hm"), user("continue")] if shape.scaffold else []
    return [*before, *own], own, scaffold


def rows_on(
    mode: Any, history: Sequence[Message], scaffold: Sequence[Message], **around: Any
) -> list[dict[str, Any]]:
    runtime = Runtime("any", "any", api_mode=mode)
    pieces = WireCopy().messages("", history, scaffold, View.of(runtime, frozenset()), **around)
    rows: list[dict[str, Any]] = chat_rows(json.loads(format_of(mode).body(Ask(runtime), pieces)))
    return rows


@pytest.mark.parametrize("mode", WIRES)
@pytest.mark.parametrize(
    "speakers", [(), ("user",), ("assistant",), ("user", "assistant"), ("assistant", "user")]
)
def test_every_shape_that_is_proved_to_go_out_is_written_as_a_wire_takes_it(mode: Any, speakers: Any) -> None:
    """Also behind rows before it, with a hint."""
    before = [PrefillRow(role=speaker, content=f"before {speaker}") for speaker in speakers]
    around: dict[str, Any] = {"prefill": before, "hint": "HINT"} if speakers else {}
    shapes = {replace(shape, frozen=False) for shape in proof().values("CallLLM")}
    assert len(shapes) == 16
    for shape in shapes:
        history, own, scaffold = sample(shape)
        assert shape_of(history, own, scaffold) == shape
        assert takes(mode, begin_with(speakers[0], shape) if speakers else shape)
        rows = rows_on(mode, history, scaffold, **around)
        assert violations(rows) == []
        assert rows[-1]["role"] in WIRES[mode].tail
        said = json.dumps(rows)
        assert [said.count(row.content) for row in before] == [1] * len(before)
        assert said.count("HINT") == json.dumps(rows[-1]).count("HINT") == len(around) // 2
        calls = {call["id"] for row in rows for call in row.get("tool_calls", ())}
        assert calls == {call.id for row in own for call in row.tool_calls}, "its own are kept, gaps are not"


@pytest.mark.parametrize("mode", WIRES)
def test_every_shape_at_an_end_goes_on_with_the_next_message(mode: Any) -> None:
    for shape in {replace(shape, frozen=False) for shape in proof().values("")}:
        history, _, _ = sample(shape)
        rows = rows_on(mode, [*history, user("and now?")], ())
        assert violations(rows) == []
        assert rows[-1]["role"] == "user"
        assert takes(mode, with_user_row(shape))


@pytest.mark.parametrize("mode", WIRES)
def test_what_no_wire_takes(mode: Any) -> None:
    assert takes(mode, Shape("user", "user"))
    for shape in (Shape(), Shape("user", "assistant"), Shape("user", "tool", open=True)):
        assert not takes(mode, shape)


def test_nothing_changes_is_a_declaration() -> None:
    row = TURN.row("EmptyRecovery.nothing/1")
    assert NO_CHANGE == {}
    assert TRANSCRIPT.allowed(row, "EmptyRecovery", "nothing", Shape()) == {Shape()}
    assert TRANSCRIPT.allowed(row, "Nowhere", "nothing", Shape()) == frozenset()


# The states do what is declared


def watched(script: Sequence[Any], **options: Any) -> list[tuple[str, str, Shape]]:
    """One turn, looked at on every move; what was seen."""

    async def scenario() -> list[tuple[str, str, Shape]]:
        with Agent(ScriptedModel(script), tools=TOOLS, toolsets=[], clock=FakeClock()) as agent:
            turn = agent.start("go", **options)
            watch = ShapeWatch(turn.gate.turn)
            async for step in turn:
                watch.moved(step.row)
            watch.ended()
        return watch.seen

    return asyncio.run(scenario())


ROUNDS = (tools(call("put", {"key": "k"}), call("echo", {})), blank(), text("done."))


def test_a_turn_goes_through_the_shapes_that_are_declared() -> None:
    closed, words = "all calls closed", []
    for state, _, shape in watched(ROUNDS):
        first, *rest = str(shape).removeprefix("(user first, ").removesuffix(")").split(f", {closed}, ")
        words.append((state, first, *rest))
    assert words == [
        ("Prepare", "user last", "no scaffold, not as sent"),
        ("BuildMessages", "user last", "no scaffold, not as sent"),
        ("CallLLM", "user last", "no scaffold, as sent"),
        ("ExecuteTools", "tool last", "no scaffold, as sent"),
        ("BuildMessages", "tool last", "no scaffold, as sent"),
        ("CallLLM", "tool last", "no scaffold, as sent"),
        ("EmptyRecovery", "tool last", "no scaffold, as sent"),
        ("BuildMessages", "tool last", "a scaffold that ends with user, as sent"),
        ("CallLLM", "tool last", "a scaffold that ends with user, as sent"),
        ("Finalize", "assistant last", "no scaffold, as sent"),
    ]


@pytest.mark.parametrize(
    "history",
    [
        [{"role": "assistant", "content": "first"}],
        [{"role": "user", "content": "x"}, said("", "lost").to_dict()],
        [{"role": "tool", "content": "of nothing", "tool_call_id": "x"}],
    ],
)
def test_what_a_caller_supplies_may_be_anything(history: list[Any]) -> None:
    assert watched(ROUNDS, conversation_history=history)[-1][2].tail == "assistant"


def _forgets_a_result(turn: TurnState, *rows: Message) -> None:
    kept = rows[:-1] if rows[-1].role == "tool" else rows
    turn.history.extend(kept)
    turn.rows.extend(kept)


def _stores_a_nudge(turn: TurnState) -> tuple[Message, ...]:
    turn.append(said("(nothing)"), user("continue"))
    return ()


TWO_CALLS = (tools(call("put", {"key": "k"}), call("echo", {})), text("done."))
THINKS, THOUGHT = (reasoning("hm"), text("done.")), said("hm")
PLANTED: dict[str, tuple[str, Any, Sequence[Any], str]] = {
    "a result is lost": ("turn.TurnState.append", _forgets_a_result, TWO_CALLS, "ExecuteTools.done"),
    "a scaffold is never dropped": ("logic.parts.Recovery.drop_scaffold", lambda recovery: None, ROUNDS,
        "Finalize."),
    "thoughts go out last": ("logic.recover.scaffold_for", lambda turn: (THOUGHT,), THINKS,
        "BuildMessages.built"),
    "a nudge is stored": ("logic.recover.scaffold_for", _stores_a_nudge, ROUNDS, "BuildMessages.built"),
}  # fmt: skip
"""Where a bug is planted, the bug, a script that comes by, and the visit that is found."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_state_that_does_otherwise_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, bug, script, visit = PLANTED[name]
    monkeypatch.setattr(f"fsm_agent_states.{where}", bug)
    with pytest.raises(AssertionError, match=f"not declared: {re.escape(visit)}"):
        watched(script)
