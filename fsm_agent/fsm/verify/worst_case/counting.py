"""How often a run can take the edges of a graph, as a formula of the limits.

Three arguments bound how often edges are taken:

* spending: between two resets of a counter its edges are taken at most as often as its limit;
* flow: the edges that leave a region are taken at most as often as the region is entered;
* a turn ends once.

"Between two resets" is counted region by region: resets inside the region, plus the times it is entered (or
the resets outside it, plus one). Each quantity is a sum over a cheapest cover of edges by such arguments, and
uses only others that are already bounded, so what is known is sound at every moment. Rounds are repeated
until nothing gets smaller at a sample of the limits; the sample decides which formula is found, never whether
it is true."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from fsm_agent.fsm.verify.proof.graph import bits
from fsm_agent.fsm.verify.proof.ranking import Ranking
from fsm_agent.fsm.verify.time_limit import TimeLimit
from fsm_agent.fsm.verify.worst_case.edge_sets import EdgeSets
from fsm_agent.fsm.verify.worst_case.polynomial import Polynomial
from fsm_agent.fsm.verify.worst_case.set_cover import cheapest_cover

SAMPLE, CAP_SAMPLE = 10, 10**6
"""Limits at which formulas are compared. Caps are dear, so that they are used only where nothing else
bounds."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An upper bound: its formula and its value at the sample."""

    formula: Polynomial
    weight: int

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.formula + other.formula, self.weight + other.weight)

    def __mul__(self, other: Estimate) -> Estimate:
        return Estimate(self.formula * other.formula, self.weight * other.weight)


ONCE, NEVER = Estimate(Polynomial.constant(1), 1), Estimate(Polynomial(), 0)


class Counting:
    """Upper bounds for a graph, starting from the parts of its ranking. Sets of edges and of locations are
    bit sets."""

    def __init__(self, ranking: Ranking) -> None:
        self.sets = EdgeSets(ranking.graph)
        self._caps = {counter.name for counter in ranking.graph.table.counters if counter.cap}
        layers = [sum(1 << i for i in layer.locations) for layer in ranking.layers]
        parts = list(dict.fromkeys(part for part in (*layers, *self.sets.flagged.values()) if part))
        self._visited = {part: self.sets.touching(part) for part in (self.sets.whole, *parts)}
        self._regions = list(dict.fromkeys([*parts, *(1 << i for i in bits(self.sets.whole))]))
        self._entries: dict[int, Estimate] = {}
        self._exits: dict[int, Estimate] = {}
        self._intervals: dict[tuple[str, int], Estimate] = {}
        self._asked: dict[int, Estimate | None] = {}
        self._cheaper = 0
        self._grown: dict[tuple[int, int], int] = {}
        self.refined = False
        self.lock = threading.Lock()
        self._settle()

    def refine(self, within: TimeLimit) -> None:
        """Look for regions that make bounds smaller until there is none, or time is over; what was found is
        kept for the next call. Whoever shares this holds ``lock`` meanwhile."""
        while not self.refined and not within.over:
            self.refined = not self._grow(within)
            self._settle()

    def taken(self, edges: int) -> Estimate | None:
        """How often ``edges`` are taken together, or None when no argument bounds them."""
        if edges not in self._asked:
            offers: dict[int, Estimate] = {}
            for mask, offer in self._offers(edges):
                if mask not in offers or offer.weight < offers[mask].weight:
                    offers[mask] = offer
            found = list(offers.values())
            chosen = cheapest_cover(edges, [(mask, offer.weight) for mask, offer in offers.items()])
            self._asked[edges] = None if chosen is None else sum((found[i] for i in chosen), NEVER)
        return self._asked[edges]

    def paid(self, counter: str, edges: int) -> Estimate | None:
        """How often ``edges`` are taken together, by the limit of ``counter`` alone, which all of them must
        spend."""
        if not edges:
            return NEVER  # and there is no limit under which they spend
        if edges & ~self.sets.spent.get(counter, 0):
            return None
        stretches = self._intervals
        known = [
            stretches[counter, part]
            for part, touching in self._visited.items()
            if not edges & ~touching and (counter, part) in stretches
        ]
        if not known:
            return None
        limits = self.sets.limits(counter, edges)
        limit = Estimate(Polynomial.largest(limits), CAP_SAMPLE if counter in self._caps else SAMPLE)
        return limit * min(known, key=lambda estimate: estimate.weight)

    def entered(self, region: int) -> Estimate | None:
        """How often a run comes into ``region`` from outside; starting in it is coming in."""
        start = ONCE if region & 1 else NEVER
        entering = self.taken(self.sets.entering(region))
        return entering + start if entering else None

    def _offers(self, edges: int) -> Iterator[tuple[int, Estimate]]:
        """(edges bounded, bound): every argument that says something about ``edges``."""
        for counter, spending in self.sets.spent.items():
            if not edges & spending:
                continue
            spent = edges & spending
            for mask in {spent & touching for touching in self._visited.values()} - {0}:
                price = self.paid(counter, mask)
                if price:
                    yield mask, price
        for leaving, price in self._exits.items():
            if leaving & edges:
                yield leaving & edges, price
        if edges & self.sets.final:
            yield edges & self.sets.final, ONCE

    def _between(self, counter: str, part: int) -> Estimate | None:
        """In how many stretches without a reset of ``counter`` a run is in ``part``."""
        inside = self.sets.reset[counter] & self.sets.inside(part)
        resets, others = self.taken(inside), self.taken(self.sets.reset[counter] & ~inside)
        starts = [ONCE + others] if others else []
        if part in self._entries:
            starts.append(self._entries[part])
        return resets + min(starts, key=lambda estimate: estimate.weight) if resets and starts else None

    def _settle(self) -> None:
        """Repeat the arguments until no bound gets smaller."""
        better = True
        while better:
            better = False
            self._forget()
            for region in self._regions:
                better |= self._enter(region)
            for counter, spending in self.sets.spent.items():
                for part, touching in self._visited.items():
                    mask = spending & touching
                    if mask and _improve(self._intervals, (counter, part), self._between(counter, part)):
                        self._cheaper |= mask
                        better = True

    def _enter(self, region: int) -> bool:
        """Keep how often ``region`` is entered, if that is less than what is known."""
        found = self.entered(region)
        if not _improve(self._entries, region, found):
            return False
        leaving = self.sets.leaving(region)
        _improve(self._exits, leaving, found)
        self._cheaper |= leaving
        return True

    def _forget(self) -> None:
        """Drop the answers about edges that an argument has become cheaper for."""
        self._asked = {edges: known for edges, known in self._asked.items() if not edges & self._cheaper}
        self._cheaper = 0

    def _grow(self, within: TimeLimit) -> bool:
        """For each step, look for a region that holds its start but not its end and is entered less often.
        Says whether there may be more to be found."""
        found = False
        for source, dest in self.sets.arcs():
            if within.over:
                return True
            region = self._grown.get((source, dest), 1 << source)
            larger = [region | 1 << i for i in bits(self.sets.before(region)) if i != dest]
            for candidate in larger:
                self._enter(candidate)
            known = [candidate for candidate in (region, *larger) if candidate in self._entries]
            best = min(known, key=lambda candidate: self._entries[candidate].weight, default=region)
            if best != region:
                self._grown[source, dest] = best
                self._regions = list(dict.fromkeys((*self._regions, best)))
                found = True
        return found


Key = TypeVar("Key")


def _improve(known: dict[Key, Estimate], key: Key, found: Estimate | None) -> bool:
    """Keep ``found`` if it is smaller than what is known."""
    if found is None or (key in known and known[key].weight <= found.weight):
        return False
    known[key] = found
    return True
