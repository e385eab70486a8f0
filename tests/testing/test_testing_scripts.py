"""Scripts as a user meets them: readable names, playing, facts that forbid, the coverage of rows; and each
invariant catches the fault that it is there for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import fsm_agent.testing
from fsm_agent import Agent, tool
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.wire.form import Ask, Pieces
from fsm_agent.conversation.wire.openai import ChatFormat
from fsm_agent.fsm.machine import Machine, TurnLike
from fsm_agent.fsm.table import Row, Table, end, go, lines_of, on
from fsm_agent.runtime.events import EVERYWHERE, RowTaken
from fsm_agent.testing import (
    INVARIANTS,
    CountingTurn,
    FakeClock,
    InvariantBroken,
    Look,
    Moved,
    RowCoverage,
    Script,
    ScriptedModel,
    call,
    ids_of,
    pair_scripts,
    play,
    possible_scripts,
    row_scripts,
    status,
    text,
    tools,
)
from fsm_agent.testing.invariants import Place, history_is_valid_on_every_wire
from fsm_agent.testing.machine import TurnMachine
from fsm_agent_states.table import TURN
from tests.fsm.test_verify_cover import exact_pairs
from tests.helpers.processes import printed
from tests.helpers.tables import DEFAULTS, courier

PARCEL = courier()
LIMITS = {"tries": 2, "rings": 2, "repacks": 1}
SCRIPTS = row_scripts(PARCEL, LIMITS)


@pytest.mark.parametrize("script", SCRIPTS, ids=ids_of(SCRIPTS))
def test_a_script_plays_to_its_end(script: Script) -> None:
    turn = play(PARCEL, script)
    assert (turn.state, turn.seq) == (PARCEL.final, len(script.rows))


def test_names_are_rows_and_pairs_of_rows() -> None:
    ids = {row.id for row in PARCEL.rows}
    assert set(ids_of(SCRIPTS)) <= ids
    for name in ids_of(pair_scripts(PARCEL, LIMITS)):
        assert set(name.split(" then ")) <= ids


def test_a_turn_that_counts_wrongly_breaks_an_invariant() -> None:
    class Forgetful(CountingTurn):
        def spend(self, counter: str) -> None:
            pass

    script = next(script for script in SCRIPTS if any(row.spends for row in script.rows))
    with pytest.raises(InvariantBroken, match=r"counters change as the row says: \w+ is 0, not 1"):
        play(PARCEL, script, Forgetful(PARCEL, LIMITS))


def test_a_script_of_other_limits_takes_another_row_and_says_so() -> None:
    script = next(script for script in SCRIPTS if "Drive.broken/1" in [row.id for row in script.rows])
    with pytest.raises(InvariantBroken, match=r"move \d: Drive.broken/2 was taken, not Drive.broken/1"):
        play(PARCEL, script, CountingTurn(PARCEL, LIMITS | {"repacks": 0}))


class Door:
    """The door is opened at the third ring at the earliest, and never by a person who was home before."""

    def begin(self) -> Iterator[int]:
        yield 0

    def after(self, facts: int, row: Row, counts: Mapping[str, int]) -> Iterator[int]:
        if row.event == "open" and facts < 2:
            return
        yield facts + (row.event == "closed")


def test_facts_forbid_what_the_states_cannot_report() -> None:
    scripts = possible_scripts(PARCEL, LIMITS, Door())
    assert {row.id for script in scripts for row in script.rows} == {row.id for row in PARCEL.rows}
    for script in scripts:
        play(PARCEL, script)
        assert len(script.facts) == len(script.rows) + 1
        if "open" in script.events:
            assert script.events.count("closed") >= 2
    shortest = (script for script in scripts if "open" in script.events and len(script.events) == 5)
    assert any(shortest), "and no longer than it must be"


def test_without_facts_the_pairs_are_those_of_the_table() -> None:
    from fsm_agent.fsm.verify import search

    class Nothing:
        def begin(self) -> Iterator[None]:
            yield None

        def after(self, facts: None, row: Row, counts: Mapping[str, int]) -> Iterator[None]:
            yield None

    exact = search(PARCEL, LIMITS)
    assert exact is not None
    scripts = possible_scripts(PARCEL, LIMITS, Nothing(), pairs=True)
    assert {pair for script in scripts for pair in script.pairs} == exact_pairs(exact)
    for script in scripts:
        play(PARCEL, script)


def test_what_was_covered_before_needs_no_script() -> None:
    done = {("Drive.broken/2",), ("Ring.open",)}
    names = ids_of(possible_scripts(PARCEL, LIMITS, Door(), skip=done))
    assert not {"Drive.broken/2", "Ring.open"} & set(names)


# Coverage


def test_coverage_counts_the_rows_of_its_own_table_only() -> None:
    other = Table("other", ("A", "B"), "B", (), lines_of({"A": [on("go", end("gone", "B"), why="")]}))
    with RowCoverage(PARCEL) as coverage:
        play(PARCEL, SCRIPTS[0])
        Machine(other).advance(CountingTurn(other, {}), "go")
        play(courier(), SCRIPTS[0])
    play(PARCEL, SCRIPTS[0])
    assert sum(coverage.counts.values()) == 2 * len(SCRIPTS[0].rows)
    assert not EVERYWHERE.hears(RowTaken)


def test_coverage_says_what_is_missing_and_takes_counts_of_others(tmp_path: Path) -> None:
    coverage = RowCoverage(PARCEL)
    coverage.add({"Pack.packed": 2, "no.such/row": 5})
    assert coverage.share == pytest.approx(1 / len(PARCEL.rows))
    assert coverage.missed == [row.id for row in PARCEL.rows if row.id != "Pack.packed"]
    assert coverage.summary().startswith(f"parcel: 1 of {len(PARCEL.rows)} rows taken")
    coverage.write(tmp_path / "rows.json")
    assert '"Pack.packed": 2' in (tmp_path / "rows.json").read_text()


def test_a_row_that_leads_nowhere_new_is_counted_too() -> None:
    lines = lines_of({"A": [on("x", go("B"), why="")], "B": [on("x", end("e", "C"), why="")]})
    table = Table("t", ("A", "B", "C"), "C", (), lines)
    with RowCoverage(table) as coverage:
        play(table, row_scripts(table)[0])
    assert (coverage.share, coverage.missed) == (1.0, [])


# The package


def test_the_public_names_are_what_all_says() -> None:
    names = fsm_agent.testing.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    for name in names:
        assert getattr(fsm_agent.testing, name) is not None
    assert not hasattr(fsm_agent.testing, "nothing")


@pytest.mark.slow
def test_no_name_loads_hypothesis_or_pytest() -> None:
    names = "INVARIANTS, RowCoverage, ScriptedServer, row_scripts"
    code = f"import sys\nfrom fsm_agent.testing import {names}\nprint(*sys.modules)"
    loaded = {module.split(".")[0] for module in printed("-c", code).split()}
    assert not loaded & {"hypothesis", "pytest", "_pytest", "openai", "anthropic"}


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
        (lambda turn, row: ("vanished", row),
         "only declared events: Ring reported 'vanished'; it declares open, closed"),
        (changed(state="Pack"), "the row leads from here to there: the turn went ('Ring', 'closed', 'Pack')"),
        (changed(seq=4), "seq grows by one: seq went from 2 to 4"),
        (lambda turn, row: (row.event, PARCEL.row("Ring.closed/2")),
         "the guard held: its guard does not hold: no rings left and tries left"),
        (changed(counts={"rings": 0}), "counters change as the row says: rings is 0, not 1"),
        (changed(limits={"rings": 0}), "counters stay within limits: rings is 1, its limit 0"),
    ],
    ids=["undeclared", "elsewhere", "twice", "unguarded", "unspent", "beyond"],
)  # fmt: skip
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
    before = Place.of(PARCEL, turn)
    assert history_is_valid_on_every_wire(Moved(PARCEL, turn, "packed", row, before, before)) is None
    turn.history = [  # type: ignore[attr-defined]
        Message("user", "hi"),
        Message("assistant", None, tool_calls=(ToolCall("a", "echo", "{}"),)),
        Message("tool", "done", tool_call_id="a"),
    ]
    moved = Moved(PARCEL, turn, "packed", row, before, Place.of(PARCEL, turn))
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
    with Agent(model, tools=[echo], toolsets=[], home=tmp_path, clock=FakeClock()) as agent:

        async def run() -> int:
            turn = agent.start("go")
            look = Look(TURN, turn.gate.turn)
            moves = 0
            async for step in turn:
                look.moved(step.event, TURN.row(step.row))
                moves += 1
            return moves

        assert asyncio.run(run()) == 9


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
