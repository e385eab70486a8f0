"""Which counts a counter can have in each location: an interval analysis of the graph.

It proves of many rows and pairs of rows that no run takes them (a reply has just reset what the second row
wants spent), without a search. The intervals may be too wide, never too narrow."""

from __future__ import annotations

from collections.abc import Mapping

from fsm_agent.fsm.table import Row
from fsm_agent.fsm.verify.proof.graph import Graph
from fsm_agent.fsm.verify.reachability.goals import Box, boxes, joined

Ranges = Mapping[str, tuple[int, int]]
"""For each counter the least and the largest count."""
STEADY = 3
"""Times that a range may grow before it is taken to be as wide as it can get."""


def ranges(graph: Graph, limits: Mapping[str, int]) -> list[Ranges | None]:
    """The ranges of each location of ``graph`` (unfolded with caps), in a turn that starts with all counters
    at 0; ``None`` for a location that is out of reach.

    Counts are held at the largest limit that their counter is compared with, as in ``successors``.
    """
    limits = dict(limits) | dict.fromkeys(graph.flags, 1)
    most = {counter.name: 0 for counter in graph.table.counters}
    for row in graph.table.rows:
        for atom in row.guard.atoms():
            most[atom.counter] = max(most[atom.counter], limits[atom.limit])
    leaving: dict[int, list[tuple[Row, int]]] = {}
    for edge in graph.edges:
        leaving.setdefault(edge.source, []).append((edge.row, edge.dest))
    wanted = {row.id: boxes(row.guard, limits) for row in graph.table.rows}
    found: list[Ranges | None] = [None for _ in graph.locations]
    found[0] = dict.fromkeys(most, (0, 0))
    grown = [0] * len(graph.locations)
    todo = [0]
    while todo:
        here = todo.pop()
        now = found[here]
        assert now is not None, "only locations that were reached are gone through"
        for row, dest in leaving.get(here, ()):
            for box in wanted[row.id]:
                after = _after(now, box, row, most)
                if after is None:
                    continue
                wider = _wider(found[dest], after, most, steady=grown[dest] >= STEADY)
                if wider != found[dest]:
                    found[dest] = wider
                    grown[dest] += 1
                    todo.append(dest)
    return found


def meets(box: Box, here: Ranges | None) -> bool:
    """Can the counts of a location be in ``box``? A table without counters has boxes without any."""
    return here is not None and next(joined([box], [as_box(here)]), None) is not None


def as_box(here: Ranges) -> Box:
    return {counter: (least, largest + 1) for counter, (least, largest) in here.items()}


def _after(before: Ranges, box: Box, row: Row, most: Mapping[str, int]) -> Ranges | None:
    """The ranges that ``row`` leads to when the counts are in ``box``; None when they cannot be."""
    open_at = next(joined([box], [as_box(before)]), None)
    if open_at is None:
        return None
    after = {}
    for counter, (least, below) in open_at.items():
        assert below is not None
        low, high = (0, 0) if counter in row.resets else (least, below - 1)
        step = counter in row.spends
        after[counter] = (min(low + step, most[counter]), min(high + step, most[counter]))
    return after


def _wider(known: Ranges | None, more: Ranges, most: Mapping[str, int], *, steady: bool) -> Ranges:
    """What holds both; a range that still grows after a while is taken to grow to its end."""
    if known is None:
        return more
    both = {}
    for counter, (least, largest) in known.items():
        low, high = more[counter]
        both[counter] = (
            least if low >= least else 0 if steady else low,
            largest if high <= largest else most[counter] if steady else high,
        )
    return both
