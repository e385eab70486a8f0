"""How close a formula is to the truth under given limits: a smaller bound from the flow of runs, and
constructed runs that reach it or come near.

A run is a flow through the graph of locations; how often it takes each edge is a variable. Each run obeys
these laws, and all of them are linear:

* a location is left at most as often as it is entered, and the turn begins once;
* in a region, between two resets of a counter, the edges that find the counter below a limit before they
  spend it are taken at most as often as that limit. A stretch begins where the region is entered and where
  the counter is reset inside it;
* an edge that finds a counter used up, and resets it, is taken at most once for each limit's worth of edges
  that spend it.

So no run has more than the largest sum under these laws. That is often less than a formula, which adds up the
cost of every state as if one run paid all of it. HiGHS (the extra ``bounds``) finds the largest sum in
floating point, together with a price for each law; the prices are rounded to fractions and checked in exact
arithmetic, so a wrong answer of the solver is dropped.

The prices also guide the search for a long run: they are the worth of a location and of a unit of a budget.
Nothing proves that a constructed run is a longest one, but where it reaches the bound, both are exact."""

# A second bound from linear programming. A run is a flow through the graph of locations: each edge has a
# variable, and budgets are constraints. The result is numeric only, its dual prices are checked in exact
# fractions, and formulas remain what reviewers compare. Without it, the caps did not lower the bound on
# moves.

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from math import floor
from operator import itemgetter

from fsm_agent.fsm.proof import Edge, Proof, Ranking
from fsm_agent.fsm.table import Row, Spent, Table
from fsm_agent.fsm.verify.formulas import Bound
from fsm_agent.fsm.verify.reach import (
    SMALL,
    Pair,
    Search,
    TimeLimit,
    compile_moves,
    endless,
    largest_limits,
    search,
)

LARGEST_DENOMINATOR = 5_000
"""Prices are ratios of products of limits. Those with larger denominators are not recognized, and then there
is no smaller bound."""
TINY = 1e-3
"""A flow that takes an edge less often than this does not take it."""
GUIDES = ((0, 1e-3), (2, 2e-4), (4, 5e-4))
"""Flows that guide the search for a run of many moves, half a second each: a seed, and the perturbation of
the gains, so that each is a different largest flow. Chosen by what they find for the turn's table."""
MOST_VISITS = 30_000
"""Maximum visits of a constructed run; two seconds."""
SPARE = 1.1
"""Maximum steps of a search for a run that follows a flow, as a multiple of its length."""
NEAR = 0.995
"""A run that follows the flow and reaches this share of it is not improved."""
MOST_AHEAD = 300
"""Maximum pairs inspected for one step of a walk; the turn's largest step needs 160."""
MOST_STEPS = 50_000
"""Maximum visits of one walk."""
MOST_ENDS = 60
"""Number of ends of the turn that a walk meets without a better run before it stops."""
FAR_FROM = 8
"""A budget that is never reset and has this many units left counts as unlimited for one way to the next
visit."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Edges that are alike for all laws: source and destination, the limit of each tested spend, all counters
    spent and reset, and how much must have been spent of the counters that are reset."""

    source: int
    dest: int
    tested: tuple[tuple[str, int], ...]
    spends: frozenset[str]
    resets: frozenset[str]
    needs: tuple[tuple[str, int], ...]

    def tests(self, counter: str, limit: int) -> bool:
        """Return whether it finds ``counter`` below ``limit`` and spends it."""
        return any(name == counter and tested <= limit for name, tested in self.tested)


@dataclass(frozen=True, slots=True)
class Law:
    """The sum of ``terms``, coefficients by the number of the kind, is at most ``most``. The law is about
    passing through the location ``at``; a stretch in ``region`` under the limit of ``counter``; or, with
    neither, ``counter`` used up to ``limit``."""

    terms: Mapping[int, int]
    most: int
    at: int | None = None
    region: frozenset[int] = frozenset()
    counter: str = ""
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Priced:
    """No run has more than ``value``. ``prices`` (one for each law) prove it: together they pay for each kind
    at least its gain. ``amounts`` say how often a largest flow takes each kind."""

    value: Fraction
    prices: tuple[Fraction, ...]
    amounts: tuple[float, ...]


class Flow:
    """The laws of the graph of ``ranking`` under ``limits``."""

    def __init__(self, ranking: Ranking, limits: Mapping[str, int]) -> None:
        self.graph, self.limits = ranking.graph, limits
        kinds = [_kind(edge, limits) for edge in self.graph.edges]
        self.kinds = tuple(dict.fromkeys(kinds))
        number = {kind: place for place, kind in enumerate(self.kinds)}
        self.kind_of = {
            (e.source, e.row.id): number[kind] for e, kind in zip(self.graph.edges, kinds, strict=True)
        }
        self.laws = (*self._passing(), *self._stretches(_regions(ranking)), *self._using_up())

    def most(
        self, states: Sequence[str] = (), spends: str = "", within: TimeLimit | None = None
    ) -> Priced | None:
        """Return the most visits of ``states`` together, or rows that spend ``spends``, or moves; ``None``
        when no bound was found in time or proved by its prices, or without a solver."""
        gains = self._gains(states, spends)
        found = _largest(gains, self.laws, within or endless())
        if found is None:
            return None
        prices = tuple(Fraction(max(price, 0)).limit_denominator(LARGEST_DENOMINATOR) for price in found[1])
        paid = [Fraction()] * len(gains)
        value = Fraction(self.graph.table.initial in states)
        for law, price in zip(self.laws, prices, strict=True):
            value += price * law.most
            for kind, factor in law.terms.items() if price else ():
                paid[kind] += price * factor
        if any(each < gain for each, gain in zip(paid, gains, strict=True)):
            return None
        return Priced(value, prices, found[0])

    def guides(self, states: Sequence[str], within: TimeLimit) -> Iterator[Priced]:
        """Yield other flows that are nearly largest, with prices that prove nothing."""
        for seed, off in GUIDES:
            chance = random.Random(seed)  # noqa: S311 - reproducible, not secret
            gains = [gain + chance.uniform(0, off) for gain in self._gains(states, "")]
            if found := _largest(gains, self.laws, within):
                yield Priced(Fraction(), tuple(Fraction(max(price, 0)) for price in found[1]), found[0])

    def _gains(self, states: Sequence[str], spends: str) -> list[int]:
        if spends:
            return [int(spends in kind.spends) for kind in self.kinds]
        names = [location.state for location in self.graph.locations]
        return [int(not states or names[kind.dest] in states) for kind in self.kinds]

    def _passing(self) -> Iterator[Law]:
        for here, location in enumerate(self.graph.locations):
            if location.state != self.graph.table.final:

                def factor(kind: Kind, at: int = here) -> int:
                    return (kind.source == at) - (kind.dest == at)

                yield Law(self._terms(factor), int(here == 0), at=here)

    def _stretches(self, regions: Sequence[frozenset[int]]) -> list[Law]:
        laws: dict[frozenset[tuple[int, int]], Law] = {}
        budgets = dict.fromkeys(budget for kind in self.kinds for budget in kind.tested)
        for region in regions:
            for counter, limit in budgets:
                if any(kind.source in region and kind.tests(counter, limit) for kind in self.kinds):
                    law = self._stretch(region, counter, limit)
                    laws.setdefault(frozenset({*law.terms.items(), (-1, law.most)}), law)
        return list(laws.values())

    def _stretch(self, region: frozenset[int], counter: str, limit: int) -> Law:
        def factor(kind: Kind) -> int:
            begins = kind.dest in region and (kind.source not in region or counter in kind.resets)
            return (kind.source in region and kind.tests(counter, limit)) - limit * begins

        return Law(self._terms(factor), limit if 0 in region else 0, None, region, counter, limit)

    def _using_up(self) -> Iterator[Law]:
        for counter, least in dict.fromkeys(need for kind in self.kinds for need in kind.needs):

            def factor(kind: Kind, counter: str = counter, least: int = least) -> int:
                used_up = any(name == counter and amount >= least for name, amount in kind.needs)
                return least * used_up - (counter in kind.spends)

            yield Law(self._terms(factor), 0, None, frozenset(), counter, least)

    def _terms(self, factor: Callable[[Kind], int]) -> dict[int, int]:
        factors = {number: factor(kind) for number, kind in enumerate(self.kinds)}
        return {number: value for number, value in factors.items() if value}


def _kind(edge: Edge, limits: Mapping[str, int]) -> Kind:
    tested = tuple(
        sorted((counter, min(limits[name] for name in names)) for counter, names in edge.spends if names)
    )
    spent = [part.atom for part in edge.row.conjuncts if isinstance(part, Spent)]
    needs = tuple(sorted((atom.counter, limits[atom.limit]) for atom in spent if atom.counter in edge.resets))
    spends = frozenset(counter for counter, _ in edge.spends)
    return Kind(edge.source, edge.dest, tested, spends, edge.resets, needs)


def _regions(ranking: Ranking) -> list[frozenset[int]]:
    """Return all locations, the parts of the ranking, the locations with and without each flag, each location
    alone, and the smaller of these without one location, since a budget may only matter behind it."""
    locations = ranking.graph.locations
    everywhere = frozenset(range(len(locations)))
    flagged = [
        frozenset(i for i in everywhere if flag in locations[i].flags) for flag in sorted(ranking.graph.flags)
    ]
    small = [*flagged, *(layer.locations for layer in ranking.layers if layer.depth > 1)]
    large = [everywhere, *(layer.locations for layer in ranking.layers), *flagged]
    large += [everywhere - some for some in flagged]
    less = [region - {one} for region in small for one in sorted(region)]
    alone = [frozenset((one,)) for one in sorted(everywhere)]
    return [region for region in dict.fromkeys([*large, *less, *alone]) if region]


def can_solve() -> bool:
    """Return whether the solver, the extra ``bounds``, is installed."""
    return find_spec("highspy") is not None


def _largest(
    gains: Sequence[float], laws: Sequence[Law], within: TimeLimit
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the amounts of a largest flow, and the price of each law."""
    if not can_solve() or within.over:
        return None
    import highspy

    solver, model = highspy.Highs(), highspy.HighsLp()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("time_limit", within.share(1).seconds)
    model.num_col_, model.num_row_, model.sense_ = len(gains), len(laws), highspy.ObjSense.kMaximize
    model.col_cost_, model.col_lower_ = [*map(float, gains)], [0.0] * len(gains)
    model.col_upper_ = [highspy.kHighsInf] * len(gains)
    model.row_lower_, model.row_upper_ = [-highspy.kHighsInf] * len(laws), [float(law.most) for law in laws]
    matrix = model.a_matrix_
    matrix.format_, starts = highspy.MatrixFormat.kRowwise, [0]
    for law in laws:
        starts.append(starts[-1] + len(law.terms))
    matrix.start_, matrix.index_ = starts, [kind for law in laws for kind in law.terms]
    matrix.value_ = [float(factor) for law in laws for factor in law.terms.values()]
    solver.passModel(model)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    found = solver.getSolution()
    return tuple(found.col_value), tuple(found.row_dual)


# Constructed runs


class Worth:
    """The worth of a pair by the prices of a flow: that of its location, and of each unit of the budgets that
    are left there. ``places`` are the places in a pair of the budgets that have a price."""

    def __init__(self, flow: Flow, priced: Priced) -> None:
        table, graph = flow.graph.table, flow.graph
        place = {counter.name: number for number, counter in enumerate(table.counters, 1)}
        self.flags = [place[name] for name in sorted(graph.flags)]
        self._number = {
            (table.states.index(at.state), *(name in at.flags for name in sorted(graph.flags))): number
            for number, at in enumerate(graph.locations)
        }
        self._locations = [0.0] * len(graph.locations)
        prices: list[dict[tuple[int, int], float]] = [{} for _ in graph.locations]
        for law, price in zip(flow.laws, priced.prices, strict=True):
            if law.at is not None:
                self._locations[law.at] += float(price)
            for at in law.region if price else ():
                budget = place[law.counter], law.limit
                prices[at][budget] = prices[at].get(budget, 0.0) + float(price)
        self._budgets = [[(*budget, price) for budget, price in here.items()] for here in prices]
        self.places = {at for here in self._budgets for at, _, _ in here}

    def location(self, pair: Pair) -> int:
        """Return the number of the location of a pair."""
        return self._number[(pair[0], *[pair[at] > 0 for at in self.flags])]

    def of(self, pair: Pair) -> float:
        """Return the worth of a pair, in visits."""
        here = self.location(pair)
        worth = self._locations[here]
        for at, limit, price in self._budgets[here]:
            if pair[at] < limit:
                worth += (limit - pair[at]) * price
        return worth


Choice = tuple[bool, float, float, int, int, Pair, float]
"""Three criteria, most important first; the row, the kind of its edge, the pair it leads to and its worth."""


class FlowWalk:
    """A run that follows a flow: of the open rows, take one that the flow has left and that loses the least
    worth; backtrack a few steps where only the end of the turn is left."""

    def __init__(self, flow: Flow, priced: Priced) -> None:
        self._flow, self._amounts = flow, priced.amounts
        self._table, self._worth = flow.graph.table, Worth(flow, priced)
        self._used = [0] * len(flow.kinds)
        self._start, self._moves = compile_moves(self._table, flow.limits, caps=flow.graph.caps)
        self._final = self._table.states.index(self._table.final)

    def run(self, most_steps: int, within: TimeLimit | None = None) -> tuple[Row, ...]:
        """Return the longest run found depth first; empty if ``most_steps`` or the time ran out first."""
        within = within or endless()
        way, taken = list[int](), list[int]()
        first, ending = self._choices(self._start, 0.0)
        onward, endings, best = [first], [ending], list[int]()
        for _ in range(most_steps):
            if within.over or not onward:
                break
            if onward[-1]:
                *_, row, kind, pair, worth = onward[-1].pop()
                self._used[kind] += 1
                way.append(row)
                taken.append(kind)
                choices, ending = self._choices(pair, worth)
                onward.append(choices)
                endings.append(ending)
                continue
            best = _longer(best, way, endings)
            onward.pop()
            endings.pop()
            if way:
                way.pop()
                self._used[taken.pop()] -= 1
        return tuple(self._table.rows[number] for number in _longer(best, way, endings))

    def _choices(self, pair: Pair, worth: float) -> tuple[list[Choice], int | None]:
        """Return the moves from here, the best last, and a row that ends the turn here."""
        here = self._worth.location(pair)
        onward: list[Choice] = []
        ending = None
        for number, after in self._moves(pair):
            kind = self._flow.kind_of.get((here, self._table.rows[number].id))
            if after[0] == self._final:
                ending = number
            elif kind is not None:
                then, amount = self._worth.of(after), self._amounts[kind]
                left = 1 - self._used[kind] / amount if amount > TINY else -1.0
                onward.append((left > 0, round(then - worth, 3), left, number, kind, after, then))
        return sorted(onward), ending


def _longer(best: list[int], way: list[int], endings: list[int | None]) -> list[int]:
    """Return ``best``, or the rows of ``way`` up to the last place where the turn can end, and its end."""
    for last in range(len(endings) - 1, len(best) - 1, -1):
        ending = endings[last]
        if ending is not None:
            return [*way[:last], ending]
    return best


Way = tuple[tuple[int, ...], Pair]
"""Numbers of rows, and the pair that they lead to."""


@dataclass(slots=True)
class _Step:
    """The way to a visit, the visits so far, and the ways not yet tried, the most promising last."""

    way: tuple[int, ...]
    visits: int
    onward: list[Way]


class VisitWalk:
    """A run with many visits of ``states`` (moves when there are none): each step is the way to the next
    visit that keeps the most worth of the budgets. Rows are numbers of ``table.rows``. ``flow`` is the one
    without caps; with ``caps`` the units left of a cap bound the worth."""

    def __init__(self, flow: Flow, priced: Priced, states: tuple[str, ...], *, caps: bool) -> None:
        self._table, self._states = (table := flow.graph.table), states
        self._worth = Worth(flow, priced)
        self._start, self._moves = compile_moves(table, flow.limits, caps=caps)
        self._final = table.states.index(table.final)
        place = {counter.name: number for number, counter in enumerate(table.counters, 1)}
        reset = {counter for row in table.rows for counter in row.resets}
        capped = [counter.name for counter in table.counters if counter.cap and caps]
        most = largest_limits(table, flow.limits)
        self._caps = [(place[name], most[name]) for name in capped if name not in reset]
        kept = {*self._worth.flags, *self._worth.places, *(place[name] for name in capped)}
        self._kept = [0, *sorted(kept)]
        self._lasting = {place[name]: most[name] for name in place if name not in reset}
        self._counted = [not states or state in states for state in table.states]
        self._visits = [self._counted[table.states.index(row.dest)] for row in table.rows]
        self._pays = [any(place[name] in self._worth.places for name in row.spends) for row in table.rows]
        self._known: dict[Pair, list[Way]] = {}

    def run(self, enough: int | None = None, within: TimeLimit | None = None) -> tuple[Row, ...]:
        """Search depth first, best promise first, until there are ``enough`` visits or no better run is
        found; from a dead end, backtrack a few steps. 50,000 visits at most."""
        within = within or endless()
        stack = [_Step((), int(self._table.initial in self._states), self._onward(self._start))]
        best: tuple[int, ...] = ()
        most, ends = -1, 0
        while stack and ends < MOST_ENDS and (enough is None or most < enough) and not within.over:
            step = stack[-1]
            if not step.onward or len(stack) > MOST_STEPS:
                stack.pop()
                continue
            way, pair = step.onward.pop()
            seen = step.visits + sum(self._visits[number] for number in way)
            if pair[0] != self._final:
                stack.append(_Step(way, seen, self._onward(pair)))
                continue
            ends += 1
            if seen > most:
                most, ends = seen, 0
                best = tuple(number for part in (*stack, _Step(way, 0, [])) for number in part.way)
            stack.pop()
        return tuple(self._table.rows[number] for number in best)

    def _onward(self, pair: Pair) -> list[Way]:
        """Return the ways from ``pair``, the most promising last. They are the same wherever pairs differ
        only in budgets that are never reset and far from their limit."""
        base = [count if at in self._lasting else 0 for at, count in enumerate(pair)]
        same = tuple(
            [
                min(self._lasting[at] - count, FAR_FROM) if at in self._lasting else count
                for at, count in enumerate(pair)
            ]
        )
        known = self._known.get(same)
        if known is None:
            found = list(self._ways(pair, self._kept, simple=True))
            if all(after[0] == self._final for _, after in found):
                found = list(self._ways(pair, range(len(pair)), simple=False)) or found
            known = [
                (way, tuple([count - less for count, less in zip(after, base, strict=True)]))
                for way, after in found
            ]
            if all(len(way) <= FAR_FROM for way, _ in found):
                self._known[same] = known
        ways = [
            (way, tuple([count + more for count, more in zip(after, base, strict=True)]))
            for way, after in known
        ]
        return sorted(ways, key=self._promise)

    def _promise(self, found: Way) -> tuple[float, float, int]:
        """Return the most visits possible with this way, the same without caps, and the negated length of the
        way."""
        way, pair = found
        if pair[0] == self._final:
            return -1, 0, -len(way)
        free = round(self._worth.of(pair) + sum(self._visits[number] for number in way), 3)
        return min([free, *(limit - pair[place] for place, limit in self._caps)]), free, -len(way)

    def _ways(self, start: Pair, kept: Iterable[int], *, simple: bool) -> Iterator[Way]:
        """Yield the ways from ``start`` to the first visit after a payment, or to the end of the turn; the
        shortest to each pair, where pairs with the same counts at the places ``kept`` are identified. A
        ``simple`` way passes no location twice."""
        same_of, at_of = itemgetter(*kept), self._worth.location
        todo: list[tuple[tuple[int, ...], Pair, frozenset[int], bool]] = [((), start, frozenset(), False)]
        known: set[tuple[bool, object]] = set()
        for way, pair, passed, paid in todo:
            for row, after in self._moves(pair):
                pays = paid or self._pays[row]
                same = pays, same_of(after)
                if same in known or len(known) > MOST_AHEAD:
                    continue
                known.add(same)
                if after[0] == self._final or (pays and self._counted[after[0]]):
                    yield (*way, row), after
                elif not simple or at_of(after) not in passed:
                    todo.append(((*way, row), after, passed | {at_of(after)}, pays))


def long_run(
    flow: Flow,
    states: tuple[str, ...] = (),
    *,
    caps: bool,
    enough: int | None = None,
    within: TimeLimit | None = None,
) -> tuple[Row, ...]:
    """Return the rows of a run with many visits of ``states``, or many moves; empty without a solver, or when
    no end was found in time. ``flow`` is the one without caps. A run with ``enough`` visits is not
    improved."""
    priced = flow.most(states, within=within)
    return VisitWalk(flow, priced, states, caps=caps).run(enough, within) if priced else ()


def visits(table: Table, run: tuple[Row, ...], states: tuple[str, ...]) -> int:
    """Return how often ``run`` is in one of ``states``, or the number of its moves when there are none."""
    return (table.initial in states) + sum(row.dest in states for row in run) if states else len(run)


# Each bound of a table


@dataclass(frozen=True, slots=True)
class Known:
    """One bound under the given limits: no run has more than ``most``; ``run`` has ``constructed`` visits;
    exact search found ``exact``; ``priced`` proves a bound in ``flow``. ``cut``: there was no time to make
    ``most`` smaller, or the run longer."""

    most: int
    run: tuple[Row, ...] = ()
    constructed: int | None = None
    exact: int | None = None
    cut: bool = False
    flow: Flow | None = None
    priced: Priced | None = None


def assess_all(
    table: Table,
    proof: Proof,
    found: tuple[Bound, ...],
    limits: Mapping[str, int] | None,
    within: TimeLimit,
    *,
    runs: bool,
) -> list[Known | None]:
    """Return the knowledge of each bound, ``None`` without limits. ``runs=False`` omits all searches. The
    cheapest method comes first: formulas, exact search where limits are small, flows, runs."""
    if limits is None:
        return [None for _ in found]
    searched = {
        caps: search(table, limits, caps=caps, most_pairs=SMALL) if runs and not within.over else None
        for caps in {bound.caps for bound in found}
    }
    flows = _Flows(proof, limits)
    known: list[Known | None] = []
    for number, bound in enumerate(found):
        exact = searched[bound.caps]
        if bound.spends:
            known.append(None)  # filled in below with the run that spends most
        elif exact is not None:
            known.append(_search_bound(bound, limits, exact))
        elif within.over or not can_solve():
            known.append(Known(bound.value(limits), cut=within.over))
        else:
            within.tell(f"flow and longest run of {bound.name}")
            known.append(_assess(table, bound, flows, within.share(len(found) - number), runs=runs))
    capped = [one.run for bound, one in zip(found, known, strict=True) if one is not None and bound.caps]
    return [
        _spend_bound(bound, limits, capped) if bound.spends else one
        for bound, one in zip(found, known, strict=True)
    ]


class _Flows:
    """The flows with the caps and without, each built on first use."""

    def __init__(self, proof: Proof, limits: Mapping[str, int]) -> None:
        self.limits = limits
        self._proof, self._made = proof, dict[bool, Flow]()

    def of(self, *, caps: bool) -> Flow:
        if caps not in self._made:
            ranking = self._proof.with_caps if caps else self._proof.without_caps
            self._made[caps] = Flow(ranking, self.limits)
        return self._made[caps]


def _spend_bound(bound: Bound, limits: Mapping[str, int], runs: Sequence[tuple[Row, ...]]) -> Known:
    spent = {run: sum(bound.spends in row.spends for row in run) for run in runs}
    best = max(spent, key=lambda run: spent[run], default=())
    return Known(bound.value(limits), best, spent.get(best))


def _search_bound(bound: Bound, limits: Mapping[str, int], found: Search) -> Known:
    exact = found.most_visits(bound.states or None)
    return Known(min(exact, bound.value(limits)), found.worst_run(bound.states or None), None, exact)


def _assess(table: Table, bound: Bound, flows: _Flows, within: TimeLimit, *, runs: bool) -> Known:
    value, flow = bound.value(flows.limits), flows.of(caps=bound.caps)
    priced = flow.most(bound.states, within=within.share(2 if runs else 1))
    most = value if priced is None else min(value, floor(priced.value))
    run: tuple[Row, ...] = ()
    if runs and most <= MOST_VISITS:
        run = _longest(table, bound, flows, most, within)
    return Known(most, run, visits(table, run, bound.states) if run else None, cut=within.over)


def _longest(table: Table, bound: Bound, flows: _Flows, most: int, within: TimeLimit) -> tuple[Row, ...]:
    """Return the best of the runs that follow a flow, for moves, and of the run from visit to visit."""
    best: tuple[Row, ...] = ()
    if not bound.states:
        flow = flows.of(caps=bound.caps)
        for guide in flow.guides(bound.states, within.share(2)):
            best = max(best, FlowWalk(flow, guide).run(int(most * SPARE), within), key=len)
            if len(best) >= most * NEAR:
                return best
    other = long_run(flows.of(caps=False), bound.states, caps=bound.caps, enough=most, within=within)
    return max(best, other, key=lambda run: visits(table, run, bound.states))
