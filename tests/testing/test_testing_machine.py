"""The generated state machine: rules from the table, new turns, and a failure that prints a program."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from fsm_agent.fsm.table import Row, Table, end, go, lines_of, on
from fsm_agent.fsm.turn_protocol import TurnLike
from fsm_agent.testing import CountingTurn, InvariantBroken, RowCoverage
from fsm_agent.testing.machine import TurnMachine
from fsm_agent_states.table import TURN
from tests.helpers.tables import DEFAULTS, courier

PARCEL = courier()
QUICK = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True)


class Parcel(TurnMachine, table=PARCEL, limits={"tries": 2, "rings": 1, "repacks": 1}):
    """Plain: counters only."""


def test_random_events_take_every_row_of_a_small_table() -> None:
    with RowCoverage(PARCEL) as coverage:
        run_state_machine_as_test(Parcel, settings=QUICK)
    assert coverage.missed == []


def test_a_turn_that_has_ended_is_followed_by_another() -> None:
    class Short(
        TurnMachine,
        table=Table("t", ("A", "B"), "B", (), lines_of({"A": [on("stop", end("e", "B"), why="")]})),
    ):
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
