"""One move: which row is chosen, what it records, what it changes, and what it refuses."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Self

import pytest

from fsm_agent.errors import StuckTurn, TableError, UndeclaredEvent
from fsm_agent.fsm.machine import Machine, TurnLike
from fsm_agent.fsm.table import Counter, Rung, Table, end, go, left, lines_of, on
from fsm_agent_states.table import TURN
from tests.helpers.mutants import changed, without

LIMITS = {
    "iterations": 3, "free_rounds": 1, "summary_calls": 2, "fallbacks": 1, "attempts": 20, "sends": 9, "opened": 1,
    "retries": 2, "patience": 1, "rebuilds": 1, "rekeys": 1, "compactions": 1, "overflows": 1, "repairs": 1,
    "continuations": 3, "cut_calls": 4, "incompletes": 3, "scratchpads": 2, "acks": 2, "verifies": 1, "invalid_tool_rounds": 1,
    "reasks": 1, "nudges": 1, "thinking_prefills": 1, "empties": 1,
}  # fmt: skip


@dataclass(slots=True)
class Counted:
    """The smallest turn: a dataclass with slots and equality, which ``transitions`` could not be bound to."""

    state: str = "Prepare"
    seq: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=lambda: dict(LIMITS))

    def count(self, counter: str) -> int:
        return self.counts.get(counter, 0)

    def limit(self, name: str) -> int:
        return self.limits[name]

    def spend(self, counter: str) -> None:
        self.counts[counter] = self.count(counter) + 1

    def reset(self, counter: str) -> None:
        self.counts[counter] = 0

    def dump(self) -> dict[str, object]:
        return {"state": self.state, "seq": self.seq, "counts": dict(self.counts)}

    @classmethod
    def load(cls, data: Mapping[str, object]) -> Self:
        return cls(str(data["state"]), int(str(data["seq"])), dict(data["counts"]))  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(TURN)


def at(state: str, **counts: int) -> Counted:
    return Counted(state, counts=counts)


@pytest.mark.behaviour("FSM-02")
def test_a_run_walks_the_table(machine: Machine) -> None:
    turn: TurnLike = Counted()
    events = ("ready", "built", "tools", "done", "built", "text")
    rows = [machine.advance(turn, event).row.id for event in events]
    assert rows == [
        "Prepare.ready", "BuildMessages.built/3", "CallLLM.tools", "ExecuteTools.done", "BuildMessages.built/3",
        "CallLLM.text",
    ]  # fmt: skip
    assert (turn.state, turn.seq) == ("Finalize", 6)
    assert turn.count("iterations") == 2


def test_guards_are_recorded_in_order_and_once(machine: Machine) -> None:
    """Every budget that was looked at; an unconditional row records nothing."""
    move = machine.advance(at("ClassifyError", retries=1, fallbacks=1, rebuilds=1), "unreachable")
    assert move.row.id == "ClassifyError.unreachable/3"
    assert move.guards == (("not yet retried", False), ("fallbacks left", False), ("retries left", True))
    assert move.row.guard.label == "already retried and no fallbacks left and retries left"
    move = machine.advance(at("BuildMessages", opened=1, attempts=3, sends=2), "built")
    assert move.row.rung == "send again"
    assert move.guards == (("attempts left", True), ("sends left", True), ("no block open", False))
    assert machine.advance(at("CallLLM"), "error").guards == ()


def test_choosing_leaves_the_turn_alone(machine: Machine) -> None:
    turn = at("BuildMessages")
    row, guards = machine.choose(turn, "built")
    assert row.rung == "send"
    assert guards[2:] == (("no block open", True), ("iterations left", True))
    assert turn == at("BuildMessages")


def test_a_row_resets_first_and_then_spends(machine: Machine) -> None:
    move = machine.advance(
        at("ClassifyError", retries=2, repairs=1, empties=1, summary_calls=1), "server_error"
    )
    assert move.row.rung == "fallback"
    assert move.changes == (("retries", 2, 0), ("repairs", 1, 0), ("empties", 1, 0), ("fallbacks", 0, 1))
    move = machine.advance(at("CallLLM", opened=1, sends=4, retries=1), "cut_text")
    assert move.changes == (("opened", 1, 0), ("sends", 4, 0), ("retries", 1, 0), ("continuations", 0, 1))


def test_an_undeclared_event_changes_nothing_and_names_what_is_declared(machine: Machine) -> None:
    turn, same = at("Compress", retries=1), at("Compress", retries=1)
    with pytest.raises(UndeclaredEvent) as raised:
        machine.advance(turn, "built")
    declared = "unsummarised, lost, unaffordable, compressed, unchanged, stuck, outgrown, cancelled, crashed"
    said = "turn: Compress reported 'built', for which it has no line; declared events: "
    assert str(raised.value) == said + declared
    assert turn == same
    for place, told in (
        (at("Finalize"), "declared events: none, the turn has ended"),
        (at("Nowhere"), "'Nowhere', which is no state of the table; states: Prepare"),
    ):
        with pytest.raises(UndeclaredEvent, match=told):
            machine.advance(place, "crashed")


def test_a_wrong_table_is_refused_unless_asked_for() -> None:
    """Then a stuck turn raises and is unchanged."""
    holed = without(TURN, "CallLLM.no_summary/2")
    with pytest.raises(TableError, match=r"CallLLM\.no_summary: hole"):
        Machine(holed)
    turn = at("CallLLM", summary_calls=2)
    with pytest.raises(
        StuckTurn, match=r"no row of CallLLM\.no_summary is open \(summary calls left: False\)"
    ):
        Machine(holed, verified=False).advance(turn, "no_summary")
    assert turn == at("CallLLM", summary_calls=2)


def test_an_unverified_table_is_watched_for_overlaps() -> None:
    overlapping = changed(TURN, "ExecuteTools.bad_json/2", guard=left("invalid_tool_rounds"))
    turn = at("ExecuteTools")
    words = r"rows ExecuteTools\.bad_json/1 and ExecuteTools\.bad_json/2 are both open"
    with pytest.raises(TableError, match=words):
        Machine(overlapping, verified=False).advance(turn, "bad_json")
    assert turn == at("ExecuteTools")


def test_a_guard_that_fails_changes_nothing(machine: Machine) -> None:
    turn = at("ClassifyError")
    del turn.limits["retries"]
    with pytest.raises(KeyError, match="retries"):
        machine.advance(turn, "server_error")
    assert (turn.state, turn.seq, turn.counts) == ("ClassifyError", 0, {})


def test_a_truthy_comparison_counts_as_true() -> None:
    class Odd(int):
        def __lt__(self, other: object) -> bool:
            return 2  # type: ignore[return-value]

    lines = lines_of({"A": [on("x", Rung("loop", "A", left("n"), ("n",)), end("out", "E"), why="")]})
    turn = Counted("A", counts={"n": Odd()}, limits={"n": 1})
    move = Machine(Table("t", ("A", "E"), "E", (Counter("n"),), lines)).advance(turn, "x")
    assert (move.row.rung, move.guards) == ("loop", (("n left", True),))


def test_one_machine_serves_many_threads(machine: Machine) -> None:
    turns = [Counted() for _ in range(8)]

    def run(turn: Counted) -> None:
        for event in ("ready", *("built", "tools", "done") * 3, "built", "built", "summary"):
            machine.advance(turn, event)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, turns))
    assert {(turn.state, turn.seq, turn.count("iterations")) for turn in turns} == {("Finalize", 13, 3)}


@pytest.mark.behaviour("FSM-02")
def test_the_library_sees_the_same_transitions(machine: Machine) -> None:
    edges = [
        (trigger, transition.source, transition.dest, [condition.func for condition in transition.conditions])
        for trigger, event in machine.chooser.events.items()
        for transitions in event.transitions.values()
        for transition in transitions
    ]
    rows = [(row.event, row.source, row.dest, [part.label for part in row.conjuncts]) for row in TURN.rows]
    assert sorted(edges) == sorted(rows)
    assert machine.chooser.models == []


def test_names_that_the_library_uses_are_no_trap() -> None:
    first = [on("state", go("B"), why=""), on("trigger", end("x", "E"), why="")]
    lines = lines_of({"A": first, "B": [on("to_A", end("y", "E"), why="")]})
    machine = Machine(Table("t", ("A", "B", "E"), "E", (), lines))
    turn = Counted("A")
    assert [machine.advance(turn, event).row.dest for event in ("state", "to_A")] == ["B", "E"]


def test_who_logs_everything_is_not_told_each_step_of_the_library(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert machine.advance(Counted(), "ready").row.id == "Prepare.ready"
    assert [record.name for record in caplog.records if record.name.startswith("transitions")] == []
