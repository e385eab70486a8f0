"""Upper bounds on the visits and moves of a turn, as formulas of the limits.

Three arguments bound how often a run takes edges:

* spending: between two resets of a counter, its edges are taken at most as often as its limit;
* flow: the edges that leave a region are taken at most as often as the region is entered;
* a turn ends once.

"Between two resets" is counted region by region: resets inside the region, plus the times it is entered (or
the resets outside it, plus one). Each quantity is a sum over a cheapest cover of edges by such arguments, and
uses only others that are already bounded, so each intermediate result is sound. Rounds are repeated until no
bound at a sample of the limits gets smaller; the sample decides which formula is found, never whether it is
true."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from fsm_agent.fsm.proof import Graph, Ranking, bits
from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify.polynomial import Polynomial, Printer, Variable
from fsm_agent.fsm.verify.reach import Search, TimeLimit, endless


@dataclass(frozen=True, slots=True)
class Bound:
    """An upper bound on the visits of ``states`` together, on all moves if ``states`` is empty, or on how
    often the cap ``spends`` is spent.

    The bound is the smallest of ``formulas``. ``caps`` tells whether the caps are kept or taken away.
    ``refined``: the time was enough to make it as small as possible."""

    states: tuple[str, ...]
    caps: bool
    formulas: tuple[Polynomial, ...]
    printer: Printer
    refined: bool = True
    spends: str = ""

    @property
    def name(self) -> str:
        """What is counted, in words."""
        if self.spends:
            return f"{self.spends} spent"
        return f"visits of {' and '.join(self.states)}" if self.states else "moves"

    @property
    def text(self) -> str:
        """The formula; the minimum if there are several."""
        return self.write()[0]

    @property
    def legend(self) -> list[str]:
        """One line for each name in the formula that abbreviates a sum."""
        return self.write()[1]

    def write(self, sums: dict[str, str] | None = None) -> tuple[str, list[str]]:
        """Return the formula and its legend. ``sums``: names of sums that other formulas of the same page
        share."""
        texts, legend = self.printer.named(self.formulas, sums)
        return (f"min({', '.join(texts)})" if len(texts) > 1 else texts[0]), legend

    def exact(self, found: Search) -> int:
        """Return the exact value of the bounded quantity from an exact search."""
        return found.most_spent(self.spends) if self.spends else found.most_visits(self.states or None)

    def value(self, limits: Mapping[str, int]) -> int:
        """Return the value for these limits. Raises ``KeyError`` for a limit that is not given."""
        return min(formula.value(limits) for formula in self.formulas)


def bounds(
    without_caps: Ranking, with_caps: Ranking, watch: tuple[str, ...] = (), within: TimeLimit | None = None
) -> tuple[Bound, ...]:
    """Return the bounds of a table whose turns end; they are true whenever the time is over (by default
    never).

    There are bounds on the visits of each state of ``watch``, of all of them together, of each state that
    runs other tables, and on moves. An empty ``watch`` means the states that a cap counts, or all states if
    there is no cap. A cap that also counts other moves and is never reset is a bound of its own."""
    table, within = without_caps.graph.table, within or endless()
    states = watch or watched_states(table)
    wanted: list[tuple[str, ...]] = [(state,) for state in states]
    wanted += [(state,) for state in table.inner if state not in states]
    wanted += [*([states] if watch and len(states) > 1 else []), ()]
    caps = [counter.name for counter in table.counters if counter.cap]
    found = _bounds(without_caps, wanted, [], within.share(2 if caps else 1))
    if caps:
        apart = [cap for cap in caps if _counts_apart(table, cap)]
        found += _bounds(with_caps, wanted, apart, within)
    return tuple(found)


def _counts_apart(table: Table, cap: str) -> bool:
    """Return whether the cap also counts moves other than the visits of one state, and is never reset."""
    into = {row.dest for row in table.rows if cap in row.spends}
    others = any(row.dest in into and cap not in row.spends for row in table.rows)
    return (others or len(into) > 1) and not any(cap in row.resets for row in table.rows)


def watched_states(table: Table) -> tuple[str, ...]:
    """Return the states whose visits a cap counts, or all but the final one if no cap does."""
    caps = {counter.name for counter in table.counters if counter.cap}
    counted = {row.dest for row in table.rows if caps & set(row.spends)}
    return tuple(
        state for state in table.states if (state in counted or not counted) and state != table.final
    )


def _bounds(
    ranking: Ranking, wanted: list[tuple[str, ...]], spent: list[str], within: TimeLimit
) -> list[Bound]:
    """Bound the visits of each of ``wanted``, and how often each cap of ``spent`` is spent."""
    counting = _counting_of(ranking)
    with counting.lock:
        counting.refine(within)
        return _bounds_of(ranking, wanted, spent, counting)


def _bounds_of(
    ranking: Ranking, wanted: list[tuple[str, ...]], spent: list[str], counting: Counting
) -> list[Bound]:
    caps = [counter.name for counter in ranking.graph.table.counters if counter.cap and ranking.graph.caps]
    asked: list[tuple[tuple[str, ...], str, Iterator[Polynomial]]] = [
        *(((), cap, _cap_bounds(counting, cap)) for cap in spent),
        *((states, "", _visits(counting, states, caps) if states else _moves(counting)) for states in wanted),
    ]
    printer, found = None, []
    for states, cap, estimates in asked:
        if formulas := tuple(dict.fromkeys(estimates)):
            printer = printer or _printer(counting)
            found.append(Bound(states, ranking.graph.caps, formulas, printer, counting.refined, cap))
    return found


def _cap_bounds(counting: Counting, cap: str) -> Iterator[Polynomial]:
    """Yield bounds on how often the rows that spend a cap are taken: by all arguments together, and by the
    cap alone."""
    spending = counting.sets.spent[cap]
    for estimate in (counting.count_edges(spending), counting.count_paid(cap, spending)):
        if estimate:
            yield estimate.formula


@lru_cache(maxsize=8)
def _counting_of(ranking: Ranking) -> Counting:
    """Cached, because it is the same for all watched states and is refined whenever there is time."""
    return Counting(ranking)


def _visits(counting: Counting, states: tuple[str, ...], caps: list[str]) -> Iterator[Polynomial]:
    """Yield bounds on the visits of ``states``: by all arguments together, and by each of ``caps`` alone. The
    start is a visit."""
    into = counting.sets.into(states)
    start = Polynomial.constant(counting.sets.graph.table.initial in states)
    for estimate in (counting.count_edges(into), *(counting.count_paid(cap, into) for cap in caps)):
        if estimate:
            yield estimate.formula + start


def _moves(counting: Counting) -> Iterator[Polynomial]:
    """Yield the bound on moves: each move leaves a visit of a state, so it is the sum over the states."""
    table = counting.sets.graph.table
    left = [next(_visits(counting, (state,), []), None) for state in table.states if state != table.final]
    known = [visits for visits in left if visits is not None]
    if len(known) == len(left):
        yield sum(known, Polynomial())


def _printer(counting: Counting) -> Printer:
    """Build a printer with names for frequent terms: how often a flag is set, and the largest of the limits
    of one counter."""
    table = counting.sets.graph.table
    sums: dict[str, tuple[Variable, ...]] = {}
    for flag, locations in counting.sets.flagged.items():
        entered = counting.count_entries(locations)
        monomials = entered.formula.terms if entered else {}
        if len(monomials) > 1 and all(
            len(monomial) == 1 and factor == 1 for monomial, factor in monomials.items()
        ):
            group = next(
                (name for name, counters in table.reset_groups.items() if flag in counters), f"{flag}_count"
            )
            order = [counter.name for counter in table.counters]
            parts = sorted(
                (monomial[0] for monomial in monomials),
                key=lambda v: order.index(v[0]) if v[0] in order else len(order),
            )
            sums[f"{group.lower()}s"] = tuple(parts)
    maxima = {}
    for counter, edges in counting.sets.spent.items():
        limits = tuple(sorted(counting.sets.limits(counter, edges)))
        if len(limits) > 1:
            maxima[f"most_{counter}"] = limits
    taken = {atom.limit for row in table.rows for atom in row.guard.atoms()}
    return Printer(sums, maxima, frozenset({*taken, *sums, *maxima}))


SAMPLE, CAP_SAMPLE = 10, 10**6
"""Limits at which formulas are compared. Caps give large bounds, so they are used only where no other
limit applies."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An upper bound as a formula, and its value at the sample."""

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
        """Search for regions that lower the bounds until none is left or time is over; keep the results for
        the next call. The caller must hold ``lock``."""
        while not self.refined and not within.over:
            self.refined = not self._grow(within)
            self._settle()

    def count_edges(self, edges: int) -> Estimate | None:
        """Return how often ``edges`` are taken together, or None when no argument bounds them."""
        if edges not in self._asked:
            offers: dict[int, Estimate] = {}
            for mask, offer in self._offers(edges):
                if mask not in offers or offer.weight < offers[mask].weight:
                    offers[mask] = offer
            found = list(offers.values())
            chosen = cheapest_cover(edges, [(mask, offer.weight) for mask, offer in offers.items()])
            self._asked[edges] = None if chosen is None else sum((found[i] for i in chosen), NEVER)
        return self._asked[edges]

    def count_paid(self, counter: str, edges: int) -> Estimate | None:
        """Return how often ``edges`` are taken together, by the limit of ``counter`` alone, which all of them
        must spend."""
        if not edges:
            return NEVER  # an empty set has no limit under which it spends
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

    def count_entries(self, region: int) -> Estimate | None:
        """Return how often a run enters ``region`` from outside; a start in it counts as entering."""
        start = ONCE if region & 1 else NEVER
        entering = self.count_edges(self.sets.entering(region))
        return entering + start if entering else None

    def _offers(self, edges: int) -> Iterator[tuple[int, Estimate]]:
        """Yield (edges bounded, bound) for every argument about ``edges``."""
        for counter, spending in self.sets.spent.items():
            if not edges & spending:
                continue
            spent = edges & spending
            for mask in {spent & touching for touching in self._visited.values()} - {0}:
                price = self.count_paid(counter, mask)
                if price:
                    yield mask, price
        for leaving, price in self._exits.items():
            if leaving & edges:
                yield leaving & edges, price
        if edges & self.sets.final:
            yield edges & self.sets.final, ONCE

    def _between(self, counter: str, part: int) -> Estimate | None:
        """Return the number of stretches without a reset of ``counter`` in which a run is in ``part``."""
        inside = self.sets.reset[counter] & self.sets.inside(part)
        resets, others = self.count_edges(inside), self.count_edges(self.sets.reset[counter] & ~inside)
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
        """Record how often ``region`` is entered, if that is less than the known bound."""
        found = self.count_entries(region)
        if not _improve(self._entries, region, found):
            return False
        leaving = self.sets.leaving(region)
        _improve(self._exits, leaving, found)
        self._cheaper |= leaving
        return True

    def _forget(self) -> None:
        """Drop the cached results for edges that an argument now bounds more cheaply."""
        self._asked = {edges: known for edges, known in self._asked.items() if not edges & self._cheaper}
        self._cheaper = 0

    def _grow(self, within: TimeLimit) -> bool:
        """For each step, look for a region that contains its start but not its end and is entered less often.
        Return whether there may be more to find."""
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
    """Keep ``found`` if it is smaller than the known estimate; return whether it was."""
    if found is None or (key in known and known[key].weight <= found.weight):
        return False
    known[key] = found
    return True


class EdgeSets:
    """Queries on sets of edges and of locations. Bit e means ``graph.edges[e]``, bit i means
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
        """Return the edges of a visit to ``region``: those that enter it, those inside, those that leave."""
        out, into = self._ends_of(region)
        return out | into

    def leaving(self, region: int) -> int:
        """Return the edges that lead out of a region, as bits."""
        out, into = self._ends_of(region)
        return out & ~into

    def entering(self, region: int) -> int:
        """Return the edges that lead into a region, as bits."""
        out, into = self._ends_of(region)
        return into & ~out

    def inside(self, region: int) -> int:
        """Return the edges within a region, as bits."""
        out, into = self._ends_of(region)
        return out & into

    def into(self, states: Iterable[str]) -> int:
        """Return the edges that enter a state of ``states``, including from itself."""
        states = set(states)
        return sum(1 << e for e, edge in enumerate(self.graph.edges) if edge.row.dest in states)

    def sources(self, edges: int) -> int:
        """Return the locations in which ``edges`` start."""
        return sum(1 << i for i, leaving in enumerate(self._out) if leaving & edges)

    def before(self, region: int) -> int:
        """Return the locations outside ``region`` from which one step leads into it."""
        return self.sources(self.entering(region))

    def arcs(self) -> list[tuple[int, int]]:
        """Return the pairs of different locations that an edge joins, without edges to the final state."""
        pairs = (
            (edge.source, edge.dest) for edge in self.graph.edges if edge.row.dest != self.graph.table.final
        )
        return sorted({(source, dest) for source, dest in pairs if source != dest})

    def limits(self, counter: str, edges: int) -> set[str]:
        """Return the limits under which ``edges`` spend ``counter``; of several tested by one edge, one is
        enough."""
        found = (dict(self.graph.edges[e].spends).get(counter) for e in bits(edges))
        return {limits[0] for limits in found if limits}

    def _ends_of(self, region: int) -> tuple[int, int]:
        """Return the edges that start in ``region`` and those that lead into it."""
        ends = self._ends.get(region)
        if ends is None:
            out = into = 0
            for i in bits(region):
                out, into = out | self._out[i], into | self._in[i]
            ends = self._ends[region] = out, into
        return ends


PATIENCE = 3000
"""Maximum branches tried before the best cover so far is taken. The longest search for the turn table takes
728."""


def cheapest_cover(universe: int, prices: Sequence[tuple[int, int]]) -> tuple[int, ...] | None:
    """Return the indices of the subsets of a cheapest cover, or None when something cannot be covered.

    ``universe`` is a bit set, ``prices`` are (bit set, price). Ties go to the first.
    """
    subsets = _minimal_subsets(
        [(mask & universe, price, index) for index, (mask, price) in enumerate(prices)]
    )
    choices = _classes(universe, subsets)
    if choices is None:
        return None
    best: tuple[int, tuple[int, ...]] | None = None
    tried = 0

    def search(left: int, price: int, taken: tuple[int, ...]) -> None:
        nonlocal best, tried
        tried += 1
        if best is not None and (price >= best[0] or tried > PATIENCE):
            return
        member = next((bit for bit, _ in choices if left & bit), None)
        if member is None:
            best = (price, taken)
            return
        for mask, cost, index in dict(choices)[member]:
            search(left & ~mask, price + cost, (*taken, index))

    search(universe, 0, ())
    assert best is not None
    return best[1]


Subset = tuple[int, int, int]


def _minimal_subsets(subsets: list[Subset]) -> list[Subset]:
    """Return the subsets, cheapest first, without those that a cheaper one contains."""
    kept: list[Subset] = []
    for mask, price, index in sorted(subsets, key=lambda s: (s[1], -s[0].bit_count(), s[2])):
        if mask and not any(not mask & ~other for other, _, _ in kept):
            kept.append((mask, price, index))
    return kept


def _classes(universe: int, subsets: list[Subset]) -> list[tuple[int, list[Subset]]] | None:
    """Return one member of each class of members that the same subsets contain, with those subsets; classes
    with the fewest subsets first. Return None if a member is in no subset."""
    classes: dict[tuple[int, ...], tuple[int, list[Subset]]] = {}
    for position in bits(universe):
        holding = [subset for subset in subsets if subset[0] >> position & 1]
        if not holding:
            return None
        # per price of what is covered: large subsets first, so that a good cover is found early
        holding.sort(key=lambda s: s[1] / (s[0] & universe).bit_count())
        classes.setdefault(tuple(s[2] for s in holding), (1 << position, holding))
    return sorted(classes.values(), key=lambda c: len(c[1]))
