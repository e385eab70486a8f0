"""Check 3: how many visits and moves a turn can make at most, as formulas of the limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify.proof.ranking import Ranking
from fsm_agent.fsm.verify.reachability.exact import Search
from fsm_agent.fsm.verify.time_limit import TimeLimit, endless
from fsm_agent.fsm.verify.worst_case.counting import Counting
from fsm_agent.fsm.verify.worst_case.polynomial import Polynomial, Printer, Variable


@dataclass(frozen=True, slots=True)
class Bound:
    """An upper bound on the visits of ``states`` together, or on all moves when ``states`` is empty; or on
    how often the cap ``spends`` is spent.

    It is the smallest of ``formulas``. ``caps`` tells whether the caps stand or are taken away.
    ``refined``: no time was missing to make it smaller."""

    states: tuple[str, ...]
    caps: bool
    formulas: tuple[Polynomial, ...]
    printer: Printer
    refined: bool = True
    spends: str = ""

    @property
    def name(self) -> str:
        """Return what is counted, in words."""
        if self.spends:
            return f"{self.spends} spent"
        return f"visits of {' and '.join(self.states)}" if self.states else "moves"

    @property
    def text(self) -> str:
        """Return the formula; of several the least counts."""
        return self.written()[0]

    @property
    def legend(self) -> list[str]:
        """Return a line for each name in the formula that stands for a sum."""
        return self.written()[1]

    def written(self, sums: dict[str, str] | None = None) -> tuple[str, list[str]]:
        """The formula and its legend. ``sums``: names of sums that other formulas of the same page share."""
        texts, legend = self.printer.named(self.formulas, sums)
        return (f"min({', '.join(texts)})" if len(texts) > 1 else texts[0]), legend

    def exact(self, found: Search) -> int:
        """What exact search found of it."""
        return found.most_spent(self.spends) if self.spends else found.most_visits(self.states or None)

    def value(self, limits: Mapping[str, int]) -> int:
        """The number for these limits. Raises ``KeyError`` for a limit that is not given."""
        return min(formula.value(limits) for formula in self.formulas)


def bounds(
    without_caps: Ranking, with_caps: Ranking, watch: tuple[str, ...] = (), within: TimeLimit | None = None
) -> tuple[Bound, ...]:
    """The bounds of a table whose turns end, true whenever time is over (by default it never is).

    On the visits of each state of ``watch``, of all of them together, of each state that runs other tables,
    and on moves. An empty ``watch`` stands
    for the states that a cap counts, or all states if there is no cap; what a cap counts besides, and
    nothing gives back, is bounded by it."""
    table, within = without_caps.graph.table, within or endless()
    states = watch or watched(table)
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
    """Does the cap count other moves than the visits of one state, and is never given back?"""
    into = {row.dest for row in table.rows if cap in row.spends}
    others = any(row.dest in into and cap not in row.spends for row in table.rows)
    return (others or len(into) > 1) and not any(cap in row.resets for row in table.rows)


def watched(table: Table) -> tuple[str, ...]:
    """The states that a cap counts the visits of, or all but the final one if there is none."""
    caps = {counter.name for counter in table.counters if counter.cap}
    counted = {row.dest for row in table.rows if caps & set(row.spends)}
    return tuple(
        state for state in table.states if (state in counted or not counted) and state != table.final
    )


def _bounds(
    ranking: Ranking, wanted: list[tuple[str, ...]], spent: list[str], within: TimeLimit
) -> list[Bound]:
    """Of visits of each of ``wanted``, and of how often each cap of ``spent`` is."""
    counting = _counted(ranking)
    with counting.lock:
        counting.refine(within)
        return _bounds_of(ranking, wanted, spent, counting)


def _bounds_of(
    ranking: Ranking, wanted: list[tuple[str, ...]], spent: list[str], counting: Counting
) -> list[Bound]:
    caps = [counter.name for counter in ranking.graph.table.counters if counter.cap and ranking.graph.caps]
    asked: list[tuple[tuple[str, ...], str, Iterator[Polynomial]]] = [
        *(((), cap, _spent(counting, cap)) for cap in spent),
        *((states, "", _visits(counting, states, caps) if states else _moves(counting)) for states in wanted),
    ]
    printer, found = None, []
    for states, cap, estimates in asked:
        if formulas := tuple(dict.fromkeys(estimates)):
            printer = printer or _printer(counting)
            found.append(Bound(states, ranking.graph.caps, formulas, printer, counting.refined, cap))
    return found


def _spent(counting: Counting, cap: str) -> Iterator[Polynomial]:
    """How often the rows that spend a cap are taken: at most as often as it says, and as other budgets
    let them."""
    spending = counting.sets.spent[cap]
    for estimate in (counting.taken(spending), counting.paid(cap, spending)):
        if estimate:
            yield estimate.formula


@lru_cache(maxsize=8)
def _counted(ranking: Ranking) -> Counting:
    """The same for whatever is watched, and refined whenever there is time."""
    return Counting(ranking)


def _visits(counting: Counting, states: tuple[str, ...], caps: list[str]) -> Iterator[Polynomial]:
    """The visits of ``states`` by all arguments together, and by each of ``caps`` alone; the start is a
    visit."""
    into = counting.sets.into(states)
    start = Polynomial.constant(counting.sets.graph.table.initial in states)
    for estimate in (counting.taken(into), *(counting.paid(cap, into) for cap in caps)):
        if estimate:
            yield estimate.formula + start


def _moves(counting: Counting) -> Iterator[Polynomial]:
    """The moves, one for each visit of a state that is left: a sum over the states."""
    table = counting.sets.graph.table
    left = [next(_visits(counting, (state,), []), None) for state in table.states if state != table.final]
    known = [visits for visits in left if visits is not None]
    if len(known) == len(left):
        yield sum(known, Polynomial())


def _printer(counting: Counting) -> Printer:
    """Names for what occurs again and again: how often a flag is set, and the largest of the limits of one
    counter."""
    table = counting.sets.graph.table
    sums: dict[str, tuple[Variable, ...]] = {}
    for flag, locations in counting.sets.flagged.items():
        entered = counting.entered(locations)
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
