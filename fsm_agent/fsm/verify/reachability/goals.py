"""What a run is searched for: a row or two rows in a row, as ranges of counts in one state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fsm_agent.fsm.table import AllOf, AnyOf, Below, Guard, Row, Spent, Table
from fsm_agent.fsm.verify.proof.graph import Graph

Box = Mapping[str, tuple[int, int | None]]
"""For some counters (at least, below); below None is no limit. Counters that are not named may have any
count."""

Aim = tuple[str, ...]
"""The ids of one row, or of two that follow each other."""


@dataclass(frozen=True, slots=True)
class Goal:
    """To take ``rows``, one after the other. They can be taken in the source of the first one wherever the
    counts are in one of ``boxes``; without a box they never can."""

    rows: tuple[Row, ...]
    boxes: tuple[Box, ...]

    @property
    def state(self) -> str:
        """Return the state in which the rows begin."""
        return self.rows[0].source

    @property
    def aim(self) -> Aim:
        """Return the ids of the rows."""
        return tuple(row.id for row in self.rows)


def row_goals(table: Table, limits: Mapping[str, int]) -> Iterator[Goal]:
    """A goal for each row of a table."""
    for row in table.rows:
        yield _goal(table, (row,), limits)


def pair_goals(graph: Graph, limits: Mapping[str, int]) -> Iterator[Goal]:
    """A goal for each two rows that follow each other in some location of ``graph`` (unfolded with caps)."""
    leaving: dict[int, list[Row]] = {}
    for edge in graph.edges:
        leaving.setdefault(edge.source, []).append(edge.row)
    told: set[tuple[str, str]] = set()
    for edge in graph.edges:
        for row in leaving.get(edge.dest, ()):
            if (edge.row.id, row.id) not in told:
                told.add((edge.row.id, row.id))
                yield _goal(graph.table, (edge.row, row), limits)


def _goal(table: Table, rows: tuple[Row, ...], limits: Mapping[str, int]) -> Goal:
    limits = dict(limits) | {counter.name: 1 for counter in table.counters if counter.flag}
    wanted: list[Box] = [{}]
    for row in reversed(rows):
        after = [box for box in (_before(box, row) for box in wanted) if box is not None]
        wanted = list(joined(after, boxes(row.guard, limits)))
    return Goal(rows, tuple(wanted))


def boxes(guard: Guard, limits: Mapping[str, int]) -> list[Box]:
    """The counts for which ``guard`` holds."""
    match guard:
        case Below(counter=counter, limit=limit):
            return [{counter: (0, limits[limit])}] if limits[limit] > 0 else []
        case Spent(atom=atom):
            return [{atom.counter: (limits[atom.limit], None)}]
        case AllOf(parts=parts):
            found: list[Box] = [{}]
            for part in parts:
                found = list(joined(found, boxes(part, limits)))
            return found
        case AnyOf(parts=parts):
            return [box for part in parts for box in boxes(part, limits)]
    raise AssertionError(f"{guard!r}: a table takes no such guard")


def joined(some: Iterable[Box], others: Iterable[Box]) -> Iterator[Box]:
    """What is in a box of both."""
    others = tuple(others)
    for one in some:
        for other in others:
            both = dict(one)
            for counter, (least, below) in other.items():
                least_too, below_too = both.get(counter, (0, None))
                ends = [end for end in (below, below_too) if end is not None]
                both[counter] = (max(least, least_too), min(ends) if ends else None)
            if all(below is None or least < below for least, below in both.values()):
                yield both


def _before(box: Box, row: Row) -> Box | None:
    """The counts from which ``row`` leads into ``box``; None when there are none."""
    earlier: dict[str, tuple[int, int | None]] = {}
    for counter, (least, below) in box.items():
        spent = counter in row.spends
        if counter in row.resets:
            if not (least <= spent and (below is None or spent < below)):
                return None
            continue
        if spent:
            least, below = max(0, least - 1), None if below is None else below - 1
        if below is not None and below <= least:
            return None
        earlier[counter] = (least, below)
    return earlier
