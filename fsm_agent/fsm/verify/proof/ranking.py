"""Check 2: every turn ends, for every configuration, by a lexicographic ranking that is the printed proof.

In each strongly connected part find the counters that some edge inside increments under a limit and no edge
inside resets. Those edges can run only finitely often, so drop them and look at what is left. When no edge is
left in any cycle, the counters in the order of their removal are a ranking; when edges are left and no
counter is found, they are a loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fsm_agent.fsm.verify.proof import Fault
from fsm_agent.fsm.verify.proof.graph import Edge, Graph, bits, parts


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
    """What can repeat: a short cycle of each loop, and which resets undo its counters. Rows are told once."""
    return tuple(dict.fromkeys(_loop_fault(ranking.graph, loop) for loop in ranking.loops))


def _loop_fault(graph: Graph, loop: tuple[Edge, ...]) -> Fault:
    free = tuple(edge for edge in loop if not any(limits for _, limits in edge.spends))
    cycle = _shortest_cycle(free) or _shortest_cycle(loop)
    what = "can repeat for ever" + ("" if graph.caps else " once the caps are taken away")
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
