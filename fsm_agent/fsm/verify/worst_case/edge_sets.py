"""Sets of edges and of locations of a graph as bit sets."""

from __future__ import annotations

from collections.abc import Iterable

from fsm_agent.fsm.verify.proof.graph import Graph, bits


class EdgeSets:
    """Answers about sets of edges and of locations. Bit e stands for ``graph.edges[e]``, bit i for
    ``graph.locations[i]``.

    ``spent`` and ``reset`` are the edges that spend (under a limit) or reset a counter, ``final`` those that
    end the turn, ``flagged`` the locations in which a flag is set, ``whole`` all locations."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.whole = (1 << len(graph.locations)) - 1
        self.final = 0
        self.spent: dict[str, int] = {}
        self.reset = {counter.name: 0 for counter in graph.table.counters}
        self._out = [0] * len(graph.locations)
        self._in = [0] * len(graph.locations)
        self._ends: dict[int, tuple[int, int]] = {}
        for e, edge in enumerate(graph.edges):
            self._out[edge.source] |= 1 << e
            self._in[edge.dest] |= 1 << e
            self.final |= (edge.row.dest == graph.table.final) << e
            for counter in edge.resets:
                self.reset[counter] |= 1 << e
            for counter, limits in edge.spends:
                if limits:
                    self.spent[counter] = self.spent.get(counter, 0) | 1 << e
        self.flagged = {
            flag: sum(1 << i for i, location in enumerate(graph.locations) if flag in location.flags)
            for flag in sorted(graph.flags)
        }

    def touching(self, region: int) -> int:
        """The edges of a visit to ``region``: the one that enters, those inside, the one that leaves."""
        out, into = self._ends_of(region)
        return out | into

    def leaving(self, region: int) -> int:
        out, into = self._ends_of(region)
        return out & ~into

    def entering(self, region: int) -> int:
        out, into = self._ends_of(region)
        return into & ~out

    def inside(self, region: int) -> int:
        out, into = self._ends_of(region)
        return out & into

    def into(self, states: Iterable[str]) -> int:
        """The edges by which a state of ``states`` is entered, also from itself."""
        states = set(states)
        return sum(1 << e for e, edge in enumerate(self.graph.edges) if edge.row.dest in states)

    def sources(self, edges: int) -> int:
        """The locations in which ``edges`` start."""
        return sum(1 << i for i, leaving in enumerate(self._out) if leaving & edges)

    def before(self, region: int) -> int:
        """The locations outside ``region`` from which one step leads into it."""
        return self.sources(self.entering(region))

    def arcs(self) -> list[tuple[int, int]]:
        """The pairs of different locations that an edge joins, the final ones left out."""
        pairs = (
            (edge.source, edge.dest) for edge in self.graph.edges if edge.row.dest != self.graph.table.final
        )
        return sorted({(source, dest) for source, dest in pairs if source != dest})

    def limits(self, counter: str, edges: int) -> set[str]:
        """The limits under which ``edges`` spend ``counter``; of several tested by one edge, one is
        enough."""
        found = (dict(self.graph.edges[e].spends).get(counter) for e in bits(edges))
        return {limits[0] for limits in found if limits}

    def _ends_of(self, region: int) -> tuple[int, int]:
        """The edges that start in ``region`` and those that lead into it."""
        ends = self._ends.get(region)
        if ends is None:
            out = into = 0
            for i in bits(region):
                out, into = out | self._out[i], into | self._in[i]
            ends = self._ends[region] = out, into
        return ends
