"""The graph that the proofs walk: the states of a table with its flags unfolded into locations.

A location is a state together with the flags that are set. An edge is a row taken in one location in which
its guard can be true. Unfolding matters: "send again" spends no local budget, only the flag says that an open
block is needed for it. With ``caps=False`` the guards on caps count as always open and caps are not counted,
so that what is proved holds without them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from fsm_agent.fsm.table import Below, Row, Table
from fsm_agent.fsm.verify.proof.truth_tables import LineTruth


@dataclass(frozen=True, slots=True)
class Location:
    """A state and the flags that are set in it; ``name`` is the state, primed once for every flag that is
    set."""

    state: str
    flags: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.state + "'" * len(self.flags)


@dataclass(frozen=True, slots=True)
class Edge:
    """A row in one location. ``spends`` gives for each counter the limits that the guard has tested, () if
    none; flags are not listed, they are in the locations. ``source`` and ``dest`` are indices of
    ``Graph.locations``."""

    source: int
    dest: int
    row: Row
    spends: tuple[tuple[str, tuple[str, ...]], ...]
    resets: frozenset[str]

    def bounded(self, counters: frozenset[str]) -> frozenset[str]:
        """Those of ``counters`` that this edge increments under a limit."""
        return frozenset(counter for counter, limits in self.spends if limits and counter in counters)


@dataclass(frozen=True)
class Graph:
    """Locations reachable from the initial one (index 0) by the edges."""

    table: Table
    caps: bool
    locations: tuple[Location, ...]
    edges: tuple[Edge, ...]

    @cached_property
    def flags(self) -> frozenset[str]:
        return frozenset(counter.name for counter in self.table.counters if counter.flag)

    def names(self, locations: Iterable[int]) -> str:
        """The names of some locations, in the order of the table."""
        ordered = sorted(
            (self.locations[i] for i in locations), key=lambda at: (len(at.flags), self._place(at.state))
        )
        return "{" + ", ".join(location.name for location in ordered) + "}"

    def _place(self, state: str) -> int:
        return self.table.states.index(state)


def unfold(table: Table, truths: Iterable[LineTruth], *, caps: bool) -> Graph:
    """The graph of a table. ``truths`` as from ``line_truths(table)``."""
    lines: dict[str, list[LineTruth]] = {}
    for truth in truths:
        lines.setdefault(truth.source, []).append(truth)
    flags = frozenset(counter.name for counter in table.counters if counter.flag)
    ignored = frozenset(counter.name for counter in table.counters if counter.cap and not caps)
    locations = {Location(table.initial): 0}
    edges: list[Edge] = []
    todo = [Location(table.initial)]
    for location in todo:
        for truth in lines.get(location.state, ()):
            for row, regions in _open_rows(truth, location, flags, ignored):
                dest = Location(row.dest, (location.flags - {*row.resets}) | (flags & {*row.spends}))
                if dest not in locations:
                    locations[dest] = len(locations)
                    todo.append(dest)
                counted = [
                    counter for counter in row.spends if counter not in flags and counter not in ignored
                ]
                spends = tuple((counter, truth.implied(regions, counter)) for counter in counted)
                edges.append(
                    Edge(
                        locations[location],
                        locations[dest],
                        row,
                        spends,
                        frozenset(row.resets) - flags - ignored,
                    )
                )
    return Graph(table, caps, tuple(locations), tuple(edges))


def parts(locations: int, edges: Iterable[Edge]) -> list[int]:
    """The strongly connected parts that contain an edge, as bit sets, from a bit set of locations."""
    ahead: dict[int, int] = {}
    behind: dict[int, int] = {}
    for edge in edges:
        ahead[edge.source] = ahead.get(edge.source, 0) | 1 << edge.dest
        behind[edge.dest] = behind.get(edge.dest, 0) | 1 << edge.source
    found = []
    for start in bits(locations):
        if locations >> start & 1:
            part = reach(start, ahead) & reach(start, behind) & locations
            if part:
                found.append(part)
            locations &= ~(part | 1 << start)
    return found


def reach(start: int, ahead: dict[int, int]) -> int:
    """The bit set of what one or more steps lead to."""
    seen, todo = 0, ahead.get(start, 0)
    while todo:
        seen |= todo
        step = 0
        for i in bits(todo):
            step |= ahead.get(i, 0)
        todo = step & ~seen
    return seen


def bits(number: int) -> Iterator[int]:
    """The positions of the bits that are set, ascending."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


def _open_rows(
    truth: LineTruth, location: Location, flags: frozenset[str], ignored: frozenset[str]
) -> Iterator[tuple[Row, int]]:
    def value(atom: Below) -> bool | None:
        if atom.counter in ignored:
            return True
        if atom.counter in flags and atom.limit == atom.counter:  # the limit of a flag is 1 by definition
            return atom.counter not in location.flags
        return None

    here = truth.where(value)
    return ((row, regions & here) for row, regions in truth.rows if regions & here)
