"""What is proved of a table before it is used: exactly one row is open, nothing is stuck, every turn ends.

Every turn ends, for every configuration, by a lexicographic ranking that is the printed proof. In each
strongly connected part, find the counters that some edge inside increments under a limit and no edge inside
resets. Those edges can run only finitely often, so drop them and look at the rest. When no edge is left in a
cycle, the counters in the order of their removal are a ranking; edges that are left without such a counter
are a loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from fsm_agent.errors import TableError
from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify.graph import Edge, Graph, LineTruth, bits, line_truths, parts, reach, unfold


@dataclass(frozen=True, slots=True)
class Fault:
    """One finding: the rows (or states) it is about, what is wrong there, and what to do. ``str()`` is the
    message."""

    where: tuple[str, ...]
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{', '.join(self.where)}: {self.what}; {self.fix}"


def partition_faults(truths: Iterable[LineTruth]) -> tuple[Fault, ...]:
    """Holes (no row is open), overlaps (two rows are open) and rows that can never be true."""
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
    """Faults of states and of paths. ``graph`` with caps, unfolded from ``truths``."""
    return (*_states(graph.table, graph), *_never_taken(truths, graph))


def counter_faults(graph: Graph) -> tuple[Fault, ...]:
    """Rows by which a counter could pass its maximum. ``graph`` with caps."""
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
    told = set()
    for edge in graph.edges:
        location = graph.locations[edge.source]
        bare = [counter for counter, limits in edge.spends if not limits]
        bare += [flag for flag in edge.row.spends if flag in location.flags and flag not in edge.row.resets]
        for counter in bare:
            if (edge.row.id, counter) not in told:
                told.add((edge.row.id, counter))
                what = (
                    f"row spends {counter} without testing it (in {location.name}), so it can pass its"
                    " maximum"
                )
                yield Fault((edge.row.id,), what, f'let its rung need left("{counter}")')


@dataclass(frozen=True, slots=True)
class Layer:
    """Counters that rank one part of the graph, ``depth`` removals down (1 is the whole graph)."""

    depth: int
    locations: frozenset[int]
    counters: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The result: ``layers`` outermost first, and for each part without a ranking the edges that are left in
    it. Equal to itself alone, so that what is worked out from one can be remembered."""

    graph: Graph
    layers: tuple[Layer, ...]
    loops: tuple[tuple[Edge, ...], ...]

    @property
    def ends(self) -> bool:
        """Say whether every turn ends: no loop is left."""
        return not self.loops

    def lines(self) -> list[str]:
        """The proof, one line for each depth: which counters rank which part."""
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
    """What can repeat: a short cycle of each loop, and which resets undo its counters. Each row once."""
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
    """What the checks of one table found; it is a proof when ``faults`` is empty. ``regions`` is the number
    of combinations of budgets that the partition was checked for."""

    regions: int
    partition: tuple[Fault, ...]
    structure: tuple[Fault, ...]
    counters: tuple[Fault, ...]
    with_caps: Ranking
    without_caps: Ranking

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Return all that is wrong with the table; empty when it is proved."""
        endless = ending_faults(self.with_caps) or ending_faults(self.without_caps)
        return (*self.partition, *self.structure, *self.counters, *endless)


@lru_cache(maxsize=8)
def examine(table: Table) -> Proof:
    """Run the checks on a table and give all that they found, remembered for the last few tables. Raises
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
    """Raise ``TableError`` unless exactly one row is open for every declared event and every turn ends, both
    for every configuration, with the caps and without; and of each table that its states run. The message
    names the rows and the fix. A verdict is remembered."""
    for inner in table.within.values():
        prove(inner)
    digest = table.digest
    if digest in _PROVED:
        return
    faults = examine(table).faults
    if faults:
        raise TableError("\n".join(f"{table.name}: {fault}" for fault in faults))
    _PROVED.add(digest)
