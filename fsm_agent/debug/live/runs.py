"""Runs that show what is wrong with a table, move by move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fsm_agent.errors import FsmAgentError
from fsm_agent.fsm.base_turn import BaseTurn
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify.faults import CounterExample, counterexample
from fsm_agent.fsm.verify.reach import limit_names
from fsm_agent.fsm.verify.report import Report

ROUNDS = 2
"""How often a loop that never ends is shown."""


@dataclass(frozen=True, slots=True)
class Step:
    """One move: the row, and the counters that it changed, each with its value before and after."""

    row: str
    source: str
    event: str
    dest: str
    changes: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Moves from the start of a turn under ``limits``; ``end`` says what is wrong behind the last one.
    ``loop``: the number of the move at which the part begins that repeats forever."""

    title: str
    limits: Mapping[str, int]
    steps: tuple[Step, ...]
    end: str
    loop: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The run as plain JSON values."""
        return asdict(self)


def runs_against(table: Table, report: Report) -> tuple[Run, ...]:
    """A run that gets stuck or never ends, if a check found something, and one for each property that is
    broken."""
    found = counterexample(table) if not all(check.ok for check in report.checks) else None
    made = [_run_of(table, found)] if found is not None else []
    for one in report.properties:
        if one.rows:
            limits = dict.fromkeys(limit_names(table), 0) | one.maxima
            title = f"{'Known, and b' if one.known else 'B'}reaks: {one.says}"
            steps = tuple(_steps(table, [table.row(row).event for row in one.rows], limits))
            made.append(Run(title, dict(one.maxima), steps, "the property is broken here"))
    return tuple(made)


def _run_of(table: Table, found: CounterExample) -> Run:
    limits = {name: most for name, most in found.limits.items() if most}
    steps = tuple(_steps(table, [*found.start, *found.loop * ROUNDS], found.limits))
    if found.loop:
        end = f"this repeats without end, {len(found.loop)} moves each time"
        return Run("A turn that never ends", limits, steps, end, len(found.start) + 1)
    last = steps[-1].dest if steps else table.initial
    return Run(
        "A turn that gets stuck", limits, steps, f"{last} reports {found.start[-1]}, and no row is open"
    )


def _steps(table: Table, events: Sequence[str], limits: Mapping[str, int]) -> Iterator[Step]:
    """What the machine does; it ends where no row is open."""
    machine, turn = Machine(table, verified=False), BaseTurn(limits=dict(limits))
    turn.enter(table)
    for event in events:
        source = turn.state
        try:
            move = machine.advance(turn, event)
        except FsmAgentError:  # stuck: this is what the run shows
            return
        yield Step(move.row.id, source, event, move.row.dest, move.changes)
