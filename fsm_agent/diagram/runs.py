"""Records of turns, read from files: moves of an export (JSON Lines), and row counts of a test run (JSON).

In an export, only the lines with ``"kind": "move"`` count as moves; they carry the fields of ``journal.Step``
under the same names. A file of row counts is ``{"table": name, "rows": {row id: count}}``, as the pytest
plugin writes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.table import Table

# ----------------------------------------------------------------------------------------------------
# Recorded turns with their child turns: children of an agent, and turns of nested tables.


ALLOWED = "a file of JSON lines with moves (a turn's or a session's export), or a JSON file of row counts"


@dataclass(frozen=True, slots=True)
class Run:
    """The moves of one turn. ``id``, ``table`` and ``asked`` are empty if a file lacks them. ``at`` is the
    number of moves of the parent turn when it began this one."""

    steps: tuple[Step, ...]
    id: str = ""
    table: str = ""
    asked: str = ""
    at: int = 0
    children: tuple[Run, ...] = ()

    @property
    def exit(self) -> str | None:
        """Return its exit reason; ``None`` if it has not ended."""
        return self.steps[-1].exit if self.steps else None

    def below(self) -> Iterator[Run]:
        """Yield all descendant turns, each before its own children."""
        for child in self.children:
            yield child
            yield from child.below()


@dataclass(slots=True)
class _Turn:
    """The data of a turn in a file."""

    about: Mapping[str, Any]
    steps: list[Step]
    times: list[float]


def runs_of(source: str) -> list[Run]:
    """Return the turns in a file, each with its children; for an export of one turn, only that turn. Raises
    ``ConfigError`` for invalid content."""
    wanted, turns = None, dict[str, _Turn]()
    for number, line in enumerate(text_of(source).splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise ConfigError(f"line {number} is not JSON", source, ALLOWED) from None
        match value:
            case {"kind": "fsm-agent", "of": "turn", "id": str(name)}:
                wanted = name
            case {"kind": "turn", "id": str(name)}:
                turns[name] = _Turn(value, [], [])
            case {"kind": "move"}:
                turn = turns.setdefault(str(value.get("turn", "")), _Turn({}, [], []))
                turn.steps.append(_step(source, number, value))
                turn.times.append(float(value.get("at") or 0))
    return [run for name in _first(turns, wanted) for run in _split_turns(_run(turns, name))]


def text_of(source: str) -> str:
    """Return the text of a file. Raises ``ConfigError`` if it cannot be read."""
    try:
        return Path(source).read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read it ({error.strerror})", source, ALLOWED) from None
    except UnicodeDecodeError:
        raise ConfigError("this is not text", source, ALLOWED) from None


def move_at(began: float, times: Sequence[float]) -> int:
    """Return the number of moves made when something began; ``times`` are the times of the moves."""
    return sum(time <= began for time in times)


def _first(turns: Mapping[str, _Turn], wanted: str | None) -> list[str]:
    """Return the turns whose parent is not in the file."""
    if wanted is not None and wanted in turns:
        return [wanted]
    return [name for name, turn in turns.items() if _parent(turn) not in turns and turn.steps]


def _parent(turn: _Turn) -> str | None:
    """Return the turn that began this one; a fork has no parent."""
    parent = turn.about.get("parent")
    return parent if isinstance(parent, str) and turn.about.get("forked_at") is None else None


def _run(turns: dict[str, _Turn], name: str, times: Sequence[float] = ()) -> Run:
    """Take the turn of that name and its descendants out of ``turns``, so that none becomes its own child."""
    turn = turns.pop(name)
    began = turn.about.get("began")
    names = [other for other, one in turns.items() if _parent(one) == name]
    return Run(
        tuple(turn.steps),
        name,
        str(turn.about.get("table_name") or ""),
        str(turn.about.get("asked") or ""),
        move_at(float(began), times) if isinstance(began, int | float) else 0,
        tuple(_run(turns, child, turn.times) for child in names if child in turns),
    )


def _split_turns(run: Run) -> list[Run]:
    """Split the moves of several turns that a file does not separate: a new turn begins where the numbers
    stop increasing."""
    runs: list[list[Step]] = []
    for step in run.steps:
        if not runs or step.seq <= runs[-1][-1].seq:
            runs.append([])
        runs[-1].append(step)
    return [run] if len(runs) < 2 else [replace(run, steps=tuple(steps)) for steps in runs]


def _step(source: str, number: int, value: Mapping[str, Any]) -> Step:
    match value:
        case {
            "seq": int(seq), "source": str(left), "event": str(event), "dest": str(dest), "row": str(row),
            "seconds": int() | float() as seconds,
        }:  # fmt: skip
            pass
        case _:
            raise ConfigError(
                f"line {number} is not a complete move",
                source,
                "seq, source, event, dest, row, seconds, exit",
            )
    guards = [(str(label), bool(holds)) for label, holds in value.get("guards") or ()]
    changes = [(str(name), int(before), int(after)) for name, before, after in value.get("changes") or ()]
    end = value.get("exit")
    return Step(
        seq, left, event, dest, row, guards, changes, float(seconds), None if end is None else str(end)
    )


@dataclass(frozen=True, slots=True)
class Tally:
    """How often rows were taken and states left, and the seconds spent there. ``runs`` are the moves by turn,
    empty if only counts are known; ``foreign`` are counts of rows that the table does not have; ``begun`` are
    the child turns of ``runs``, which are not counted."""

    rows: Mapping[str, int]
    visits: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    runs: tuple[tuple[Step, ...], ...] = ()
    foreign: Mapping[str, int] = field(default_factory=dict)
    begun: tuple[Run, ...] = ()

    @property
    def moves(self) -> int:
        """Number of moves by rows of the table."""
        return sum(self.rows.values())


def read_runs(source: str) -> list[Run]:
    """Return the turns in a file, with their children. An export of one turn may contain the turns that it
    was forked from; they are skipped.

    Raises ``ConfigError`` if the file does not exist, a line cannot be read, or there is no move.
    """
    runs = [run for run in runs_of(source) if run.steps]
    if not runs:
        raise ConfigError("there is no move in this file", source, ALLOWED)
    return runs


def tally_of_runs(table: Table, runs: Sequence[Run]) -> Tally:
    """Count the moves of turns, and keep their child turns in ``begun``. Raises ``ConfigError`` if rows were
    taken but none belongs to the table."""
    counts = Counter(step.row for run in runs for step in run.steps)
    counted = tally_from(table, counts, [run.steps for run in runs])
    return replace(counted, begun=tuple(child for run in runs for child in run.children))


def tally(table: Table, steps: Iterable[Step]) -> Tally:
    """Count the moves of one or several turns. Raises ``ConfigError`` if rows were taken but none belongs to
    the table."""
    steps = list(steps)
    return tally_from(table, Counter(step.row for step in steps), _runs_divided(steps))


def tally_of(table: Table, sources: Sequence[str], steps: Sequence[Step] = ()) -> Tally:
    """Count the contents of files, exports and row counts mixed, and ``steps``. Raises ``ConfigError``."""
    counts = Counter(step.row for step in steps)
    runs = _runs_divided(steps)
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
    """Build the tally from counts by row id. Raises ``ConfigError`` if there are counts, but none of a row of
    the table."""
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
    """Return table and counts of a file of row counts; ``None`` for any other file."""
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


def _runs_divided(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """Split the moves of several turns: a new turn begins where the numbers stop increasing."""
    runs: list[list[Step]] = []
    for step in steps:
        if not runs or step.seq <= runs[-1][-1].seq:
            runs.append([])
        runs[-1].append(step)
    return [tuple(run) for run in runs]
