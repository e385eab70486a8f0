"""The graph that the proofs walk: the states of a table with its flags unfolded into locations.

Guards of one line become truth tables, held as integers. Over n budgets there are 2**n regions; a guard has
one bit for each region in which it is true, so "and", "or", "implies" are one operation each. A region is any
combination of budgets left and spent: limits are free, so every combination occurs in some configuration.

A location is a state together with the flags that are set. An edge is a row taken in one location in which
its guard can be true. Unfolding matters: "send again" spends no local budget, only the flag says that an open
block is needed for it. With ``caps=False`` the guards on caps count as always open and caps are not counted,
so that what is proved holds without them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from fsm_agent.errors import TableError
from fsm_agent.fsm.table import AllOf, AnyOf, Below, Guard, Row, Spent, Table

MOST_ATOMS = 18
"""Budgets of one line. The draft's longest line tests 6; 2**18 regions still take a few milliseconds."""


@dataclass(frozen=True, slots=True)
class LineTruth:
    """The rows of one (state, event) with their truth tables.

    ``atoms`` are the budgets tested, ``columns`` their truth tables, ``everywhere`` the table that is true in
    every region. Two wordings of the same comparison are one atom."""

    source: str
    event: str
    atoms: tuple[Below, ...]
    columns: tuple[int, ...]
    everywhere: int
    rows: tuple[tuple[Row, int], ...]

    def where(self, value: Callable[[Below], bool | None]) -> int:
        """The regions that agree with ``value``; an atom for which it gives None is free."""
        regions = self.everywhere
        for atom, column in zip(self.atoms, self.columns, strict=True):
            wanted = value(atom)
            if wanted is not None:
                regions &= column if wanted else ~column
        return regions

    def implied(self, regions: int, counter: str) -> tuple[str, ...]:
        """The limits below which ``counter`` certainly is in all of ``regions``."""
        pairs = zip(self.atoms, self.columns, strict=True)
        return tuple(
            atom.limit for atom, column in pairs if atom.counter == counter and not regions & ~column
        )

    def words(self, regions: int) -> str:
        """One part of ``regions`` in words, with as few conditions as describe it."""
        first = (regions & -regions).bit_length() - 1
        values = {i: bool(first >> i & 1) for i in range(len(self.atoms))}
        for i in tuple(values):
            without = {j: value for j, value in values.items() if j != i}
            if not self._cube(without) & ~regions:
                values = without
        named = (self.atoms[i].yes if value else self.atoms[i].no for i, value in values.items())
        return " and ".join(named) or "always"

    def _cube(self, values: dict[int, bool]) -> int:
        regions = self.everywhere
        for i, value in values.items():
            regions &= self.columns[i] if value else ~self.columns[i]
        return regions


def line_truths(table: Table) -> tuple[LineTruth, ...]:
    """The truth tables of every line. Raises ``TableError`` for a line that tests too many budgets."""
    return tuple(_line_truth(source, event, rows) for (source, event), rows in table.by_event.items())


def _line_truth(source: str, event: str, rows: Iterable[Row]) -> LineTruth:
    rows = tuple(rows)
    known: dict[tuple[str, str], Below] = {}
    for row in rows:
        for atom in row.guard.atoms():
            known.setdefault((atom.counter, atom.limit), atom)
    if len(known) > MOST_ATOMS:
        raise TableError(
            f"{source}.{event}: tests {len(known)} budgets, at most {MOST_ATOMS}; split the event by a fact"
        )
    columns, everywhere = _columns(len(known))
    column_of = dict(zip(known, columns, strict=True))
    tables = tuple((row, _regions(row.guard, row.id, column_of, everywhere)) for row in rows)
    return LineTruth(source, event, tuple(known.values()), columns, everywhere, tables)


def _regions(guard: Guard, row: str, column_of: dict[tuple[str, str], int], everywhere: int) -> int:
    match guard:
        case Below(counter=counter, limit=limit):
            return column_of[counter, limit]
        case Spent(atom=atom):
            return everywhere & ~column_of[atom.counter, atom.limit]
        case AllOf(parts=parts):
            regions = everywhere
            for part in parts:
                regions &= _regions(part, row, column_of, everywhere)
            return regions
        case AnyOf(parts=parts):
            regions = 0
            for part in parts:
                regions |= _regions(part, row, column_of, everywhere)
            return regions
    raise AssertionError(f"{guard!r}: a table takes no such guard")


@lru_cache(maxsize=MOST_ATOMS + 1)
def _columns(atoms: int) -> tuple[tuple[int, ...], int]:
    everywhere = (1 << (1 << atoms)) - 1
    # bit r of column i is bit i of r: blocks of 2**i zeros and 2**i ones
    return tuple(everywhere ^ everywhere // ((1 << (1 << i)) + 1) for i in range(atoms)), everywhere


@dataclass(frozen=True, slots=True)
class Location:
    """A state and the flags that are set in it; ``name`` is the state, primed once for every flag that is
    set."""

    state: str
    flags: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Return the state's name, with a mark for each flag that is set."""
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
        """Return the names of the counters that are 0 or 1."""
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
