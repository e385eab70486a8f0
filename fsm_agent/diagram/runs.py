"""What turns did, read from files: moves of an export (JSON Lines), and row counts of a test run (JSON).

Of an export only the lines with ``"kind": "move"`` are looked at; they carry the fields of ``journal.Step``
under their names. A file of row counts is ``{"table": name, "rows": {row id: count}}``, as the pytest plugin
writes it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fsm_agent.diagram.recorded import ALLOWED, Run, runs_of, text_of
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.table import Table


@dataclass(frozen=True, slots=True)
class Tally:
    """How often rows were taken and states left, and the seconds spent there. ``runs`` are the moves turn by
    turn, none where only counts are known; ``foreign`` are counts of rows that the table does not have;
    ``begun`` are the turns that those of ``runs`` began, which are not counted."""

    rows: Mapping[str, int]
    visits: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    runs: tuple[tuple[Step, ...], ...] = ()
    foreign: Mapping[str, int] = field(default_factory=dict)
    begun: tuple[Run, ...] = ()

    @property
    def moves(self) -> int:
        """Moves by rows of the table."""
        return sum(self.rows.values())


def recorded(source: str) -> list[Run]:
    """The turns in a file, with those that they began. An export of one turn may hold the turns that it was
    forked from; they are left out.

    Raises ``ConfigError`` when there is no such file, a line cannot be read, or nothing moved.
    """
    runs = [run for run in runs_of(source) if run.steps]
    if not runs:
        raise ConfigError("there is no move in this file", source, ALLOWED)
    return runs


def tally_of_runs(table: Table, runs: Sequence[Run]) -> Tally:
    """Count the moves of turns, and keep those that they began beside them. Raises ``ConfigError`` when none
    of their rows is one of the table."""
    counts = Counter(step.row for run in runs for step in run.steps)
    counted = tally_from(table, counts, [run.steps for run in runs])
    return replace(counted, begun=tuple(child for run in runs for child in run.children))


def tally(table: Table, steps: Iterable[Step]) -> Tally:
    """Count the moves of one or several turns. Raises ``ConfigError`` when none of their rows is one of the
    table."""
    steps = list(steps)
    return tally_from(table, Counter(step.row for step in steps), _divided(steps))


def tally_of(table: Table, sources: Sequence[str], steps: Sequence[Step] = ()) -> Tally:
    """Count what files say, exports and row counts mixed, and ``steps``. Raises ``ConfigError``."""
    counts = Counter(step.row for step in steps)
    runs = _divided(steps)
    for source in sources:
        found = _row_counts(text_of(source))
        if found is None:
            first = [run for run in runs_of(source) if run.steps]
            below = [run for one in first for run in one.below() if run.table in ("", table.name)]
            more = [run.steps for run in (*first, *below)]
            if not more:
                raise ConfigError("there is neither a move nor a row count in this file", source, ALLOWED)
            runs += more
            counts.update(step.row for run in more for step in run)
        else:
            name, rows = found
            if name != table.name:
                raise ConfigError(
                    f"this file counts rows of the table {name!r}", source, f"counts of {table.name!r}"
                )
            counts.update(rows)
    return tally_from(table, counts, runs)


def tally_from(table: Table, counts: Mapping[str, int], runs: Sequence[tuple[Step, ...]] = ()) -> Tally:
    """The tally of counts of rows by their ids. Raises ``ConfigError`` when there are counts, but none of a
    row of the table."""
    known = {row.id: counts.get(row.id, 0) for row in table.rows}
    foreign = {row: count for row, count in counts.items() if row not in known and count}
    if foreign and not any(known.values()):
        raise ConfigError(
            f"no row of the table {table.name!r} was taken",
            next(iter(foreign)),
            f"rows like {table.rows[0].id}",
        )
    visits: Counter[str] = Counter()
    for row in table.rows:
        visits[row.source] += known[row.id]
        visits[row.dest] += known[row.id] if row.dest == table.final else 0
    seconds: dict[str, float] = {}
    for step in (step for run in runs for step in run):
        seconds[step.source] = seconds.get(step.source, 0.0) + step.seconds
    return Tally(known, dict(visits), seconds, tuple(runs), foreign)


def _row_counts(text: str) -> tuple[str, dict[str, int]] | None:
    """Table and counts of a file of row counts; ``None`` for any other file."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    match value:
        case {"table": str(name), "rows": dict(rows)} if all(
            type(count) is int and count >= 0 for count in rows.values()
        ):
            return name, rows
    return None


def _divided(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """Moves of several turns one after the other: a new turn begins where the numbers do not grow."""
    runs: list[list[Step]] = []
    for step in steps:
        if not runs or step.seq <= runs[-1][-1].seq:
            runs.append([])
        runs[-1].append(step)
    return [tuple(run) for run in runs]
