"""What one unit of a budget is worth in visits of some states, read off the graph of locations.

A budget is spent on a cycle. Its unit is worth the visits of that cycle, and all that the cycle gives back of
other budgets: an iteration is worth one request and the retries, refreshes and compactions of a new call
block. On the cycle nothing else may be spent but caps, or the unit would be that other budget's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fsm_agent.fsm.verify.proof.graph import Edge, Graph, reach

MOST_WAYS = 2_000
"""Cycles looked at for one row. A table that ends has no free cycle, so that ways are finite; a wide one may
have many."""


class BudgetValue:
    """The value of the counters of ``graph`` (unfolded without caps) under ``limits``, in visits of
    ``states``, or in moves when ``states`` is None. ``largest`` is the largest limit of each counter."""

    def __init__(self, graph: Graph, limits: Mapping[str, int], states: frozenset[str] | None) -> None:
        self.graph, self._states = graph, states
        self.largest: dict[str, int] = {}
        self._spending: dict[str, list[Edge]] = {}
        for edge in graph.edges:
            for counter, tested in edge.spends:
                if tested:
                    self.largest[counter] = max(
                        self.largest.get(counter, 0), *(limits[limit] for limit in tested)
                    )
                    self._spending.setdefault(counter, []).append(edge)
        self._free: dict[int, list[Edge]] = {}
        for edge in {(e.source, e.dest, e.resets): e for e in graph.edges if not e.spends}.values():
            self._free.setdefault(edge.source, []).append(edge)
        self._behind: dict[int, int] = {}
        for edges in self._free.values():
            for edge in edges:
                self._behind[edge.dest] = self._behind.get(edge.dest, 0) | 1 << edge.source
        self._set: dict[str, int] = {}
        self.of = {counter: self._worth(counter, frozenset()) for counter in self._spending}
        self.of_flag = {flag: self._set.get(flag, 0) for flag in graph.flags}

    def _worth(self, counter: str, above: frozenset[str]) -> int:
        """Counters of ``above`` are being weighed; what gives them back is not counted again."""
        first, above = not above, above | {counter}
        best = 0
        for edge in {
            (e.source, e.dest, e.resets): e for e in self._spending[counter] if len(e.spends) == 1
        }.values():
            gain = max((self._gain(way, above) for way in self._cycles(edge)), default=0)
            best = max(best, gain)
            if first and gain:
                self._note_flags(edge, gain)
        return best

    def _note_flags(self, edge: Edge, gain: int) -> None:
        """A flag that ``edge`` sets keeps what the rest of the cycle gains; of several cycles the least."""
        before, after = self.graph.locations[edge.source], self.graph.locations[edge.dest]
        for flag in after.flags - before.flags:
            rest = gain - self.counts(after.state)
            self._set[flag] = min(self._set.get(flag, rest), rest)

    def _gain(self, way: tuple[Edge, ...], above: frozenset[str]) -> int:
        back = {counter for edge in way for counter in edge.resets if counter in self._spending} - above
        renewed = sum(self.largest[counter] * self._worth(counter, above) for counter in back)
        return renewed + sum(self.counts(self.graph.locations[edge.dest].state) for edge in way)

    def counts(self, state: str) -> bool:
        return self._states is None or state in self._states

    def _cycles(self, edge: Edge) -> Iterator[tuple[Edge, ...]]:
        """The ways from the end of ``edge`` to its start over edges that spend nothing, ``edge`` first."""
        home = reach(edge.source, self._behind) | 1 << edge.source
        found, todo = 0, list[tuple[Edge, ...]]([(edge,)])
        while todo and found < MOST_WAYS:
            way = todo.pop()
            here = way[-1].dest
            if here == edge.source:
                found += 1
                yield way
                continue
            passed = 0
            for before in way:
                passed |= 1 << before.dest
            todo += [
                (*way, step)
                for step in self._free.get(here, ())
                if home >> step.dest & 1 and not passed >> step.dest & 1
            ]
