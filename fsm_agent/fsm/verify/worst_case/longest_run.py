"""A run with very many visits of some states, constructed: the lower bound beside the formula's upper bound.

Exact search finds a longest run only under small limits. Here each step goes on to the next visit in the way
that keeps most of what the budgets that are left are worth (``budget_value``). Nothing proves that the run is
a longest one, but when it has as many visits as the formula says at most, both are exact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.verify.proof.graph import unfold
from fsm_agent.fsm.verify.proof.truth_tables import line_truths
from fsm_agent.fsm.verify.reachability.successors import Pair, compile_moves, largest_limits
from fsm_agent.fsm.verify.time_limit import TimeLimit, endless
from fsm_agent.fsm.verify.worst_case.budget_value import BudgetValue

MOST_AHEAD = 300
"""Pairs looked at for one step; the turn's largest needs 160."""
MOST_STEPS = 50_000
"""Visits of one run."""
MOST_ENDS = 60
"""Ends of the turn that are met without a better run before the best one is taken."""
FAR_FROM = 8
"""A budget with so many units left, and never given back, is as good as endless for one way to the next
visit."""


def long_run(
    table: Table,
    limits: Mapping[str, int],
    states: tuple[str, ...] = (),
    *,
    caps: bool,
    enough: int | None = None,
    within: TimeLimit | None = None,
) -> tuple[Row, ...]:
    """The rows of a run with many visits of ``states``, or many moves when there are none, from the start of
    a turn to its end. With ``caps=False`` the caps are taken away.

    A run with ``enough`` visits is not improved any more. A run that comes to a dead end is taken up again
    before it, a few times; the longest one that was found ``within`` the time is given.
    It has 50,000 visits at most."""
    walk = _LongestWalk(table, limits, states, caps=caps)
    return tuple(table.rows[number] for number in walk.run(enough, within or endless()))


def visits(table: Table, run: tuple[Row, ...], states: tuple[str, ...]) -> int:
    """How often ``run`` is in one of ``states``; how many moves it makes when there are none."""
    return (table.initial in states) + sum(row.dest in states for row in run) if states else len(run)


Way = tuple[tuple[int, ...], Pair]
"""Numbers of rows, and the pair that they lead to."""


@dataclass(slots=True)
class _Step:
    """The way to a visit, the visits so far, and the ways on that are not yet tried, the most promising
    last."""

    way: tuple[int, ...]
    visits: int
    onward: list[Way]


class _LongestWalk:
    """The search for one run. Rows are numbers of ``table.rows``, counters are places in a pair."""

    def __init__(
        self, table: Table, limits: Mapping[str, int], states: tuple[str, ...], *, caps: bool
    ) -> None:
        self.table, self.states = table, states
        self.worth = BudgetValue(
            unfold(table, line_truths(table), caps=False), limits, frozenset(states) or None
        )
        self.start, self.moves = compile_moves(table, limits, caps=caps)
        self.final = table.states.index(table.final)
        place = {counter.name: number for number, counter in enumerate(table.counters, 1)}
        reset = {counter for row in table.rows for counter in row.resets}
        capped = [c.name for c in table.counters if c.cap and caps]
        of, largest = self.worth.of, self.worth.largest
        self.budgets = [(place[c], largest[c], value) for c, value in of.items() if value]
        self.set_flags = [(place[flag], value) for flag, value in self.worth.of_flag.items()]
        most = largest_limits(table, limits)
        self.caps = [(place[c], most[c]) for c in capped if c not in reset]
        self.kept = [
            0,
            *(place[c] for c in (*self.worth.of_flag, *capped)),
            *(at for at, _, _ in self.budgets),
        ]
        self.lasting = {place[c]: most[c] for c in place if c not in reset}
        self.counted = [self.worth.counts(state) for state in table.states]
        self.visits = [self.counted[table.states.index(row.dest)] for row in table.rows]
        self.pays = [any(of.get(counter) for counter in row.spends) for row in table.rows]
        self.known: dict[Pair, list[Way]] = {}

    def run(self, enough: int | None, within: TimeLimit) -> tuple[int, ...]:
        """Depth first, best promise first, until there are ``enough`` visits or no better run is found."""
        stack = [_Step((), int(self.table.initial in self.states), self.onward(self.start))]
        best: tuple[int, ...] = ()
        most, ends = -1, 0
        while stack and ends < MOST_ENDS and (enough is None or most < enough) and not within.over:
            step = stack[-1]
            if not step.onward or len(stack) > MOST_STEPS:
                stack.pop()
                continue
            way, pair = step.onward.pop()
            seen = step.visits + sum(self.visits[number] for number in way)
            if pair[0] != self.final:
                stack.append(_Step(way, seen, self.onward(pair)))
                continue
            ends += 1
            if seen > most:
                most, ends = seen, 0
                best = tuple(number for part in (*stack, _Step(way, 0, [])) for number in part.way)
            stack.pop()
        return best

    def onward(self, pair: Pair) -> list[Way]:
        """The ways from ``pair``, the most promising last.

        They are the same, in the same order, wherever only budgets differ that are never given back and far
        from their limit."""
        base = [count if at in self.lasting else 0 for at, count in enumerate(pair)]
        same = tuple(
            [
                min(self.lasting[at] - count, FAR_FROM) if at in self.lasting else count
                for at, count in enumerate(pair)
            ]
        )
        known = self.known.get(same)
        if known is None:
            found = self.search(pair)
            known = [
                (way, tuple([count - less for count, less in zip(after, base, strict=True)]))
                for way, after in found
            ]
            if all(len(way) <= FAR_FROM for way, _ in found):
                self.known[same] = known
        ways = [
            (way, tuple([count + more for count, more in zip(after, base, strict=True)]))
            for way, after in known
        ]
        return sorted(ways, key=self.promise) if self.caps else ways

    def search(self, pair: Pair) -> list[Way]:
        ways = list(self.ways(pair, self.kept, simple=True))
        if all(after[0] == self.final for _, after in ways):
            ways = list(self.ways(pair, range(len(pair)), simple=False)) or ways
        return sorted(ways, key=self.promise)

    def promise(self, found: Way) -> tuple[int, int, int]:
        """How many visits there can be with this way at most, the same without caps, and the shorter way."""
        way, pair = found
        if pair[0] == self.final:
            return -1, 0, -len(way)
        local = sum(
            (limit - pair[place]) * value for place, limit, value in self.budgets if pair[place] < limit
        )
        local += sum(value for place, value in self.set_flags if pair[place])
        local += sum(self.visits[number] for number in way)
        capped = [limit - pair[place] for place, limit in self.caps]
        return min([local, *capped]), local, -len(way)

    def ways(self, start: Pair, kept: Iterable[int], *, simple: bool) -> Iterator[Way]:
        """The ways from ``start`` to the first visit after something was paid, or to the end of the turn; the
        shortest to each pair, where pairs with the same counts at the places ``kept`` are taken as one. A
        ``simple`` way passes no location twice."""
        same_of, at_of = itemgetter(*kept), itemgetter(0, *(place for place, _ in self.set_flags))
        todo: list[tuple[tuple[int, ...], Pair, frozenset[object], bool]] = [((), start, frozenset(), False)]
        known: set[tuple[bool, object]] = set()
        for way, pair, passed, paid in todo:
            for row, after in self.moves(pair):
                pays = paid or self.pays[row]
                same = pays, same_of(after)
                if same in known or len(known) > MOST_AHEAD:
                    continue
                known.add(same)
                if after[0] == self.final or (pays and self.counted[after[0]]):
                    yield (*way, row), after
                elif not simple or at_of(after) not in passed:
                    todo.append(((*way, row), after, passed | {at_of(after)}, pays))
