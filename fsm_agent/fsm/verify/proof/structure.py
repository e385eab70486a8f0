"""The structural checks: exactly one row is open, nothing is stuck or out of reach, no counter passes its
maximum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify.proof import Fault
from fsm_agent.fsm.verify.proof.graph import Graph, bits, reach
from fsm_agent.fsm.verify.proof.truth_tables import LineTruth


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
    return (*_twice(graph.table), *_untested(graph))


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


def _untested(graph: Graph) -> Iterator[Fault]:
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
