"""Proofs about a table before it is used: exactly one row is open, nothing is stuck, every turn ends.

The proof that every turn ends, for every configuration, is a lexicographic ranking, which is printed. In each
strongly connected part, find the counters that some edge inside increments under a limit and no edge inside
resets. Those edges can run only finitely often, so remove them and repeat with the rest. When no cycle is
left, the counters in the order of removal are a ranking. A part in which no such counter is found is a
loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from fsm_agent.errors import TableError
from fsm_agent.fsm.table import AllOf, AnyOf, Below, Guard, Row, Spent, Table

# ----------------------------------------------------------------------------------------------------
# The graph that the proofs walk: the states of a table with its flags unfolded into locations.
#
# Guards of one line become truth tables, stored as integers. Over n budgets there are 2**n regions; a guard
# has one bit for each region in which it is true, so "and", "or", "implies" are one operation each. A region
# is any combination of budgets left and spent: limits are free, so every combination occurs in some
# configuration.
#
# A location is a state together with the flags that are set. An edge is a row taken in one location in which
# its guard can be true. Unfolding matters: "send again" spends no local budget, only the flag says that an
# open block is needed for it. With ``caps=False`` the guards on caps count as always open and caps are not
# counted, so that the proofs also hold without them.


MOST_ATOMS = 18
"""Maximum budgets tested by one line. The longest line so far tests 6; 2**18 regions still take a few
milliseconds."""


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
        """Return the regions that agree with ``value``; an atom for which it returns None is
        unconstrained."""
        regions = self.everywhere
        for atom, column in zip(self.atoms, self.columns, strict=True):
            wanted = value(atom)
            if wanted is not None:
                regions &= column if wanted else ~column
        return regions

    def implied(self, regions: int, counter: str) -> tuple[str, ...]:
        """Return the limits below which ``counter`` must be in all of ``regions``."""
        pairs = zip(self.atoms, self.columns, strict=True)
        return tuple(
            atom.limit for atom, column in pairs if atom.counter == counter and not regions & ~column
        )

    def words(self, regions: int) -> str:
        """Describe one part of ``regions`` in words, with no condition that is not needed."""
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
    """Return the truth tables of every line. Raises ``TableError`` for a line that tests too many budgets."""
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
    """A row in one location. ``spends`` pairs each counter with the limits that the guard has tested, () if
    none; flags are omitted, because locations contain them. ``source`` and ``dest`` are indices of
    ``Graph.locations``."""

    source: int
    dest: int
    row: Row
    spends: tuple[tuple[str, tuple[str, ...]], ...]
    resets: frozenset[str]

    def bounded(self, counters: frozenset[str]) -> frozenset[str]:
        """Return those of ``counters`` that this edge increments under a limit."""
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
        """The names of the counters that are 0 or 1."""
        return frozenset(counter.name for counter in self.table.counters if counter.flag)

    def names(self, locations: Iterable[int]) -> str:
        """Return the names of some locations, in the order of the table."""
        ordered = sorted(
            (self.locations[i] for i in locations), key=lambda at: (len(at.flags), self._place(at.state))
        )
        return "{" + ", ".join(location.name for location in ordered) + "}"

    def _place(self, state: str) -> int:
        return self.table.states.index(state)


def unfold(table: Table, truths: Iterable[LineTruth], *, caps: bool) -> Graph:
    """Build the graph of a table. ``truths`` is the result of ``line_truths(table)``."""
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
    """Return the strongly connected parts of a bit set of locations that contain an edge, as bit sets."""
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
    """Return the bit set of the locations reachable in one or more steps."""
    seen, todo = 0, ahead.get(start, 0)
    while todo:
        seen |= todo
        step = 0
        for i in bits(todo):
            step |= ahead.get(i, 0)
        todo = step & ~seen
    return seen


def bits(number: int) -> Iterator[int]:
    """Yield the positions of the bits that are set, ascending."""
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


# ----------------------------------------------------------------------------------------------------
# The conditions that a table must meet before a machine is built.


@dataclass(frozen=True, slots=True)
class Fault:
    """One finding: the rows (or states) it is about, what is wrong there, and the fix. ``str()`` is the
    message."""

    where: tuple[str, ...]
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{', '.join(self.where)}: {self.what}; {self.fix}"


def partition_faults(truths: Iterable[LineTruth]) -> tuple[Fault, ...]:
    """Find holes (no row is open), overlaps (two rows are open) and rows that can never be true."""
    return tuple(fault for truth in truths for fault in _line_faults(truth))


def _line_faults(truth: LineTruth) -> Iterator[Fault]:
    covered = 0
    for position, (row, regions) in enumerate(truth.rows):
        if not regions:
            what = f"row can never be true ({row.guard.label})"
            yield Fault((row.id,), what, "remove the rung, or the rung before it that is always open")
        both = covered & regions
        if both:
            other, also = next(
                (other, regions & seen) for other, seen in truth.rows[:position] if regions & seen
            )
            what = f"overlap, both rows are open when {truth.words(also)}"
            yield Fault((other.id, row.id), what, f"let {row.id} need what {other.id} refuses")
        covered |= regions
    hole = truth.everywhere & ~covered
    if hole:
        where = f"{truth.source}.{truth.event}"
        yield Fault(
            (where,), f"hole, no row is open when {truth.words(hole)}", "add a last rung that needs nothing"
        )


def structure_faults(truths: Iterable[LineTruth], graph: Graph) -> tuple[Fault, ...]:
    """Find faults of states and of paths. ``graph`` with caps, unfolded from ``truths``."""
    return (*_states(graph.table, graph), *_never_taken(truths, graph))


def counter_faults(graph: Graph) -> tuple[Fault, ...]:
    """Find rows by which a counter could pass its maximum. ``graph`` with caps."""
    return (*_twice(graph.table), *_untested_spends(graph))


def _states(table: Table, graph: Graph) -> Iterator[Fault]:
    reached = {location.state for location in graph.locations}
    declared = {source for source, _ in table.by_event}
    for state in table.states:
        if state != table.final and state not in declared:
            yield Fault(
                (state,), "state is stuck, it has no line", f"add a line that leads on, or to {table.final}"
            )
        if state not in reached:
            yield Fault(
                (state,),
                f"state is unreachable from {table.initial}",
                "add a row that leads to it, or remove it",
            )
    behind: dict[int, int] = {}
    for edge in graph.edges:
        behind[edge.dest] = behind.get(edge.dest, 0) | 1 << edge.source
    ends = [i for i, location in enumerate(graph.locations) if location.state == table.final]
    to_end = 0
    for end in ends:
        to_end |= reach(end, behind) | 1 << end
    for i in bits((1 << len(graph.locations)) - 1 & ~to_end):
        name = graph.locations[i].name
        yield Fault((name,), f"no path leads to {table.final}", "add a row that ends the turn")


def _never_taken(truths: Iterable[LineTruth], graph: Graph) -> Iterator[Fault]:
    reached = {location.state for location in graph.locations}
    taken = {edge.row.id for edge in graph.edges}
    for row in (row for truth in truths for row, regions in truth.rows if regions):
        if row.source in reached and row.id not in taken:
            what = f"row is never open where {row.source} can be reached ({row.guard.label})"
            yield Fault((row.id,), what, "remove the rung, or the flag from its needs")


def _twice(table: Table) -> Iterator[Fault]:
    for row in table.rows:
        both = sorted(set(row.spends) & set(row.resets))
        if both:
            what = f"row resets and spends {', '.join(both)}"
            yield Fault((row.id,), what, "do one of the two; together they hide what the row costs")
        again = sorted({counter for counter in row.spends if row.spends.count(counter) > 1})
        if again:
            yield Fault((row.id,), f"row spends {', '.join(again)} twice", "a row spends a counter once")


def _untested_spends(graph: Graph) -> Iterator[Fault]:
    reported = set()
    for edge in graph.edges:
        location = graph.locations[edge.source]
        bare = [counter for counter, limits in edge.spends if not limits]
        bare += [flag for flag in edge.row.spends if flag in location.flags and flag not in edge.row.resets]
        for counter in bare:
            if (edge.row.id, counter) not in reported:
                reported.add((edge.row.id, counter))
                problem = (
                    f"row spends {counter} without testing it (in {location.name}), so it can pass its"
                    " maximum"
                )
                yield Fault((edge.row.id,), problem, f'let its rung need left("{counter}")')


@dataclass(frozen=True, slots=True)
class Layer:
    """Counters that rank one part of the graph, ``depth`` removals down (1 is the whole graph)."""

    depth: int
    locations: frozenset[int]
    counters: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The result of ``rank``: ``layers``, outermost first, and in ``loops`` the remaining edges of each part
    without a ranking. Compared by identity, so that values derived from a ranking can be cached."""

    graph: Graph
    layers: tuple[Layer, ...]
    loops: tuple[tuple[Edge, ...], ...]

    @property
    def ends(self) -> bool:
        """Whether every turn ends, that is, no loop is left."""
        return not self.loops

    def lines(self) -> list[str]:
        """Return the proof, one line per depth: which counters rank which part."""
        text = []
        for depth in sorted({layer.depth for layer in self.layers}):
            here = [layer for layer in self.layers if layer.depth == depth]
            text.append(
                "; ".join(
                    f"in {self.graph.names(layer.locations)}: {', '.join(layer.counters)}" for layer in here
                )
            )
        return [f"{number}. {line}" for number, line in enumerate(text, 1)]


def rank(graph: Graph) -> Ranking:
    """Find a ranking of the graph, or the loops that have none."""
    order = [counter.name for counter in graph.table.counters]
    layers: list[Layer] = []
    loops: list[tuple[Edge, ...]] = []

    def remove(locations: int, edges: Iterable[Edge], depth: int) -> None:
        edges = tuple(edges)
        for part in parts(locations, edges):
            inner = tuple(edge for edge in edges if part >> edge.source & 1 and part >> edge.dest & 1)
            reset = frozenset().union(*(edge.resets for edge in inner))
            ranked = frozenset().union(*(edge.bounded(frozenset(order)) for edge in inner)) - reset
            if not ranked:
                loops.append(inner)
                continue
            layers.append(Layer(depth, frozenset(bits(part)), tuple(c for c in order if c in ranked)))
            remove(part, (edge for edge in inner if not edge.bounded(ranked)), depth + 1)

    remove((1 << len(graph.locations)) - 1, graph.edges, 1)
    return Ranking(graph, tuple(sorted(layers, key=lambda layer: layer.depth)), tuple(loops))


def ending_faults(ranking: Ranking) -> tuple[Fault, ...]:
    """Report what can repeat: a short cycle of each loop, and which resets undo its counters; equal faults
    once."""
    return tuple(dict.fromkeys(_loop_fault(ranking.graph, loop) for loop in ranking.loops))


def _loop_fault(graph: Graph, loop: tuple[Edge, ...]) -> Fault:
    free = tuple(edge for edge in loop if not any(limits for _, limits in edge.spends))
    cycle = _shortest_cycle(free) or _shortest_cycle(loop)
    what = "can repeat without end" + ("" if graph.caps else " once the caps are taken away")
    undone = []
    for counter in dict.fromkeys(counter for edge in cycle for counter, limits in edge.spends if limits):
        resetting = dict.fromkeys(edge.row.id for edge in loop if counter in edge.resets)
        undone.append(f"{counter} is given back by {', '.join(resetting)}")
    if undone:
        what += f" ({'; '.join(undone)})"
    else:
        what += " without spending a counter"
    fix = "let one of these rows spend a counter that no row of the loop resets"
    return Fault(tuple(dict.fromkeys(edge.row.id for edge in cycle)), what, fix)


def _shortest_cycle(edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
    leaving: dict[int, list[Edge]] = {}
    for edge in edges:
        leaving.setdefault(edge.source, []).append(edge)
    best: tuple[Edge, ...] = ()
    for start in leaving:
        paths: dict[int, tuple[Edge, ...]] = {start: ()}
        todo = [start]
        for here in todo:
            for edge in leaving.get(here, ()):
                if edge.dest == start and (not best or len(paths[here]) + 1 < len(best)):
                    best = (*paths[here], edge)
                if edge.dest not in paths:
                    paths[edge.dest] = (*paths[here], edge)
                    todo.append(edge.dest)
    return best


@dataclass(frozen=True, slots=True)
class Proof:
    """The findings of the checks of one table; it is a proof when ``faults`` is empty. ``regions`` is the
    number of combinations of budgets for which the partition was checked."""

    regions: int
    partition: tuple[Fault, ...]
    structure: tuple[Fault, ...]
    counters: tuple[Fault, ...]
    with_caps: Ranking
    without_caps: Ranking

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All that is wrong with the table; empty when it is proved."""
        endless = ending_faults(self.with_caps) or ending_faults(self.without_caps)
        return (*self.partition, *self.structure, *self.counters, *endless)


@lru_cache(maxsize=8)
def examine(table: Table) -> Proof:
    """Run the checks on a table and return all findings, cached for the last few tables. Raises
    ``TableError`` only for a line that tests too many budgets."""
    truths = line_truths(table)
    graph, free = unfold(table, truths, caps=True), unfold(table, truths, caps=False)
    return Proof(
        regions=sum(1 << len(truth.atoms) for truth in truths),
        partition=partition_faults(truths),
        structure=structure_faults(truths, graph),
        counters=counter_faults(graph),
        with_caps=rank(graph),
        without_caps=rank(free),
    )


_PROVED: set[str] = set()


def prove(table: Table) -> None:
    """Raise ``TableError`` unless exactly one row is open for every declared event and every turn ends, for
    every configuration, with the caps and without; also for each table that its states run. The message names
    the rows and the fix. A successful verdict is cached."""
    for inner in table.within.values():
        prove(inner)
    digest = table.digest
    if digest in _PROVED:
        return
    faults = examine(table).faults
    if faults:
        raise TableError("\n".join(f"{table.name}: {fault}" for fault in faults))
    _PROVED.add(digest)
