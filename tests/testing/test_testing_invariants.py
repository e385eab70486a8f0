"""Each invariant catches the fault that it is there for, and the real turn keeps all of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fsm_agent import Agent, tool
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.wire import Ask
from fsm_agent.conversation.wire.chat import ChatFormat
from fsm_agent.conversation.wire.form import Pieces
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.table import Row
from fsm_agent.testing import (
    INVARIANTS,
    CountingTurn,
    FakeClock,
    InvariantBroken,
    Look,
    Moved,
    ScriptedModel,
    call,
    status,
    text,
    tools,
)
from fsm_agent.testing.invariants import Place, history_is_valid_on_every_wire
from fsm_agent_states.table import TURN
from tests.helpers.tables import courier

PARCEL = courier()
LIMITS = {"tries": 2, "rings": 2, "repacks": 1}


def looked(events: Sequence[str], fault: Callable[[CountingTurn, Row], tuple[str, Row]]) -> None:
    """Play the events; what the last move is said to have been, or what it left behind, is changed by
    ``fault``."""
    turn = CountingTurn(PARCEL, LIMITS)
    machine, look = Machine(PARCEL), Look(PARCEL, turn)
    for event in events[:-1]:
        look.moved(event, machine.advance(turn, event).row)
    row = machine.advance(turn, events[-1]).row
    look.moved(*fault(turn, row))


def undeclared(turn: CountingTurn, row: Row) -> tuple[str, Row]:
    return "vanished", row


def elsewhere(turn: CountingTurn, row: Row) -> tuple[str, Row]:
    turn.state = "Pack"
    return row.event, row


def twice(turn: CountingTurn, row: Row) -> tuple[str, Row]:
    turn.seq += 1
    return row.event, row


def unguarded(turn: CountingTurn, row: Row) -> tuple[str, Row]:
    return row.event, PARCEL.row("Ring.closed/2")


def unspent(turn: CountingTurn, row: Row) -> tuple[str, Row]:
    turn.counts["rings"] = 0
    return row.event, row


def beyond(turn: CountingTurn, row: Row) -> tuple[str, Row]:
    turn.limits["rings"] = 0
    return row.event, row


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (undeclared, "only declared events: Ring reported 'vanished'; it declares open, closed"),
        (elsewhere, "the row leads from here to there: the turn went ('Ring', 'closed', 'Pack')"),
        (twice, "seq grows by one: seq went from 2 to 4"),
        (unguarded, "the guard held: its guard does not hold: no rings left and tries left"),
        (unspent, "counters change as the row says: rings is 0, not 1"),
        (beyond, "counters stay within limits: rings is 1, its limit 0"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_invariant_catches_its_fault(
    fault: Callable[[CountingTurn, Row], tuple[str, Row]], words: str
) -> None:
    with pytest.raises(InvariantBroken) as caught:
        looked(["packed", "arrived", "closed"], fault)
    assert words in str(caught.value)
    assert str(caught.value).startswith("parcel, move ")


def test_no_fault_no_words() -> None:
    looked(["packed", "arrived", "closed"], lambda turn, row: (row.event, row))


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
