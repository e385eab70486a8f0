"""Each invariant catches the fault that it is there for; the real turn and the generated state machine keep all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from fsm_agent import Agent, tool
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.wire import Ask
from fsm_agent.conversation.wire.chat import ChatFormat
from fsm_agent.conversation.wire.form import Pieces
from fsm_agent.fsm.machine import Machine, TurnLike
from fsm_agent.fsm.table import Row, Table, end, go, lines_of, on
from fsm_agent.testing import (
    INVARIANTS,
    CountingTurn,
    FakeClock,
    InvariantBroken,
    Look,
    Moved,
    RowCoverage,
    ScriptedModel,
    call,
    status,
    text,
    tools,
)
from fsm_agent.testing.invariants import Place, history_is_valid_on_every_wire
from fsm_agent.testing.machine import TurnMachine
from fsm_agent_states.table import TURN
from tests.helpers.tables import DEFAULTS, courier

PARCEL = courier()
LIMITS = {"tries": 2, "rings": 2, "repacks": 1}


Fault = Callable[[CountingTurn, Row], tuple[str, Row]]


def looked(events: Sequence[str], fault: Fault) -> None:
    """Play the events; what the last move is said to have been, or what it left behind, is changed by ``fault``."""
    turn = CountingTurn(PARCEL, LIMITS)
    machine, look = Machine(PARCEL), Look(PARCEL, turn)
    for event in events[:-1]:
        look.moved(event, machine.advance(turn, event).row)
    row = machine.advance(turn, events[-1]).row
    look.moved(*fault(turn, row))


def changed(**attributes: Any) -> Fault:
    """What the row left behind is changed: of the turn, or of its ``counts`` or ``limits`` where those have it."""

    def fault(turn: CountingTurn, row: Row) -> tuple[str, Row]:
        for name, value in attributes.items():
            if isinstance(value, dict):
                getattr(turn, name).update(value)
            else:
                setattr(turn, name, value)
        return row.event, row

    return fault


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            lambda turn, row: ("vanished", row),
            "only declared events: Ring reported 'vanished'; it declares open, closed",
        ),
        (changed(state="Pack"), "the row leads from here to there: the turn went ('Ring', 'closed', 'Pack')"),
        (changed(seq=4), "seq grows by one: seq went from 2 to 4"),
        (
            lambda turn, row: (row.event, PARCEL.row("Ring.closed/2")),
            "the guard held: its guard does not hold: no rings left and tries left",
        ),
        (changed(counts={"rings": 0}), "counters change as the row says: rings is 0, not 1"),
        (changed(limits={"rings": 0}), "counters stay within limits: rings is 1, its limit 0"),
    ],
    ids=["undeclared", "elsewhere", "twice", "unguarded", "unspent", "beyond"],
)
def test_an_invariant_catches_its_fault(fault: Fault, words: str) -> None:
    looked(["packed", "arrived", "closed"], changed())
    with pytest.raises(InvariantBroken) as caught:
        looked(["packed", "arrived", "closed"], fault)
    assert words in str(caught.value)
    assert str(caught.value).startswith("parcel, move ")


def test_leaving_the_end_is_a_fault() -> None:
    turn = CountingTurn(PARCEL, LIMITS)
    turn.state = PARCEL.final
    look = Look(PARCEL, turn)
    turn.state, turn.seq = "Drive", 1
    with pytest.raises(InvariantBroken, match="the end has no exits: the turn left Done"):
        look.moved("packed", replace(PARCEL.row("Pack.packed"), source="Done"))


class Forgetful(ChatFormat):
    """A wire on which the results of tools are lost."""

    def body(self, ask: Ask, messages: Pieces) -> bytes:
        rows = json.loads(b"".join(messages))
        return json.dumps({"messages": [row for row in rows if row["role"] != "tool"]}).encode()


def test_a_history_that_a_provider_would_refuse_is_a_fault() -> None:
    """Whatever is stored, the wire copy repairs it; so it takes a broken wire to break this."""
    turn = CountingTurn(PARCEL, LIMITS)
    row = PARCEL.row("Pack.packed")
    moved = Moved(PARCEL, turn, "packed", row, Place.of(PARCEL, turn), Place.of(PARCEL, turn))
    assert history_is_valid_on_every_wire(moved) is None
    turn.history = [  # type: ignore[attr-defined]
        Message("user", "hi"),
        Message("assistant", None, tool_calls=(ToolCall("a", "echo", "{}"),)),
        Message("tool", "done", tool_call_id="a"),
    ]
    assert history_is_valid_on_every_wire(moved) is None
    broken = history_is_valid_on_every_wire(moved, {"chat_completions": Forgetful()})
    assert broken == "the history cannot be sent as chat_completions: INV-02: calls ['a'] are never answered"


def test_a_project_adds_its_own() -> None:
    def never_rings_twice(moved: Moved) -> str | None:
        return "rang twice" if moved.after.counts["rings"] > 1 else None

    turn, machine = CountingTurn(PARCEL, LIMITS), Machine(PARCEL)
    look = Look(PARCEL, turn, (*INVARIANTS, never_rings_twice))
    for event in ("packed", "arrived", "closed"):
        look.moved(event, machine.advance(turn, event).row)
    with pytest.raises(InvariantBroken, match="never rings twice: rang twice"):
        look.moved("closed", machine.advance(turn, "closed").row)


@tool(effect="pure")
def echo(text: str) -> str:
    return text


def test_a_real_turn_keeps_them(tmp_path: Path) -> None:
    model = ScriptedModel([status(500), tools(call("echo", {"text": "a"}), call("nope")), text("done")])
    agent = Agent(model, tools=[echo], toolsets=[], home=tmp_path, clock=FakeClock())

    async def run() -> int:
        turn = agent.start("go")
        look = Look(TURN, turn.gate.turn)  # type: ignore[arg-type]
        moves = 0
        async for step in turn:
            look.moved(step.event, TURN.row(step.row))
            moves += 1
        return moves

    assert asyncio.run(run()) == 9
    agent.close()


QUICK = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True)


class Parcel(TurnMachine, table=PARCEL, limits={"tries": 2, "rings": 1, "repacks": 1}):
    """Plain: counters only."""


def test_random_events_take_every_row_of_a_small_table() -> None:
    with RowCoverage(PARCEL) as coverage:
        run_state_machine_as_test(Parcel, settings=QUICK)
    assert coverage.missed == []


ONE_WAY = Table("t", ("A", "B"), "B", (), lines_of({"A": [on("stop", end("e", "B"), why="")]}))


def test_a_turn_that_has_ended_is_followed_by_another() -> None:
    class Short(TurnMachine, table=ONE_WAY):
        most = 0

        def ended(self) -> None:
            Short.most = max(Short.most, self.turns)

    run_state_machine_as_test(Short, settings=QUICK)
    assert Short.most > 3


class Twice(CountingTurn):
    def spend(self, counter: str) -> None:
        self.counts[counter] += 1 + (counter == "repacks")


class FaultyParcel(Parcel):
    def begin(self) -> TurnLike:
        return Twice(self.table, self.limits)


@pytest.mark.slow
def test_a_failure_prints_the_shortest_program_that_reproduces_it() -> None:
    with pytest.raises(InvariantBroken) as caught:
        run_state_machine_as_test(FaultyParcel, settings=settings(QUICK, print_blob=False))
    assert "counters change as the row says: repacks is 2, not 1" in str(caught.value)
    printed = "\n".join(caught.value.__notes__)
    program = [line for line in printed.splitlines() if line.startswith("state")]
    assert program == ["state = FaultyParcel()", "state.packed()", "state.broken()", "state.teardown()"]
    state = FaultyParcel()
    state.packed()  # type: ignore[attr-defined]
    with pytest.raises(InvariantBroken):
        state.broken()  # type: ignore[attr-defined]


@pytest.mark.behaviour("FSM-08")
def test_the_turn_of_the_package_as_a_machine() -> None:
    class Turns(TurnMachine, table=TURN, limits=DEFAULTS, without=("cancelled", "crashed")):
        longest = 0

        def move(self, event: str) -> Row:
            row = super().move(event)
            Turns.longest = max(Turns.longest, self.turn.seq)
            return row

    run_state_machine_as_test(Turns, settings=settings(QUICK, max_examples=15))
    assert Turns.longest >= 5
    assert not hasattr(Turns, "cancelled")


def test_events_with_the_name_of_something_else_get_another() -> None:
    lines = {
        "A": [on("turn", go("B"), why=""), on("new_turn", go("B"), why="")],
        "B": [on("it's over", end("e", "C"), why="")],
    }

    class Odd(TurnMachine, table=Table("odd", ("A", "B", "C"), "C", (), lines_of(lines))):
        pass

    names = {name for name in vars(Odd) if not name.startswith("_")}
    assert {"report_new_turn", "it_s_over"} <= names
    run_state_machine_as_test(Odd, settings=settings(QUICK, max_examples=5))


def test_an_unknown_event_to_leave_out_is_wrong_use() -> None:
    with pytest.raises(ValueError, match="parcel has no event lost"):

        class Wrong(TurnMachine, table=PARCEL, without=("lost",)):
            pass
