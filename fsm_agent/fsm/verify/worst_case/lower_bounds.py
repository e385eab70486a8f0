"""What is known of a bound under given limits besides its formula: exact search under small ones, and under
large ones a smaller bound from the flow of runs, and constructed runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor

from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.verify.folding import fold
from fsm_agent.fsm.verify.proof.examine import Proof
from fsm_agent.fsm.verify.reachability.exact import Search, search
from fsm_agent.fsm.verify.reachability.small_scopes import SMALL, Scope
from fsm_agent.fsm.verify.report import Worst
from fsm_agent.fsm.verify.time_limit import TimeLimit
from fsm_agent.fsm.verify.worst_case.flow import Flow
from fsm_agent.fsm.verify.worst_case.formulas import Bound
from fsm_agent.fsm.verify.worst_case.greedy_run import greedy_run
from fsm_agent.fsm.verify.worst_case.longest_run import long_run, visits
from fsm_agent.fsm.verify.worst_case.simplex import Priced

READABLE = 60
"""Moves of a run of a small scope that is printed."""
MOST_VISITS = 30_000
"""Visits of a run that is constructed; two seconds."""
SPARE = 1.1
"""Steps tried for a run that follows a flow, as a multiple of its length."""
NEAR = 0.995
"""A run that follows the flow and has so much of it is not looked for in another way."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one bound under the limits asked about: ``most``, that no run has more; a run with
    many visits and their number; the number that exact search found."""

    most: int
    run: tuple[Row, ...] = ()
    constructed: int | None = None
    exact: int | None = None
    cut: bool = False
    """There was no time to make ``most`` smaller, or the run longer."""


def all_known(
    table: Table,
    proof: Proof,
    found: tuple[Bound, ...],
    limits: Mapping[str, int] | None,
    within: TimeLimit,
    *,
    runs: bool,
) -> list[Known | None]:
    """``None`` without limits. ``runs=False`` leaves out all that searches. What costs least comes first:
    formulas, exact search where limits are small, flows, runs."""
    if limits is None:
        return [None for _ in found]
    rankings = {bound.caps: proof.with_caps if bound.caps else proof.without_caps for bound in found}
    searched = {
        caps: search(table, limits, caps=caps, most_pairs=SMALL) if runs and not within.over else None
        for caps in rankings
    }
    flows: dict[bool, Flow] = {}
    known: list[Known | None] = []
    for number, bound in enumerate(found):
        if bound.spends:
            known.append(None)  # as much as any of the runs has of it
            continue
        if exact := searched[bound.caps]:
            known.append(_searched(bound, limits, exact))
            continue
        if within.over:
            known.append(Known(bound.value(limits), cut=True))
            continue
        within.tell(f"flow and longest run of {bound.name}")
        flow = flows.setdefault(bound.caps, Flow(rankings[bound.caps], limits))
        known.append(_known(table, bound, limits, flow, within.share(len(found) - number), runs=runs))
    capped = [one.run for bound, one in zip(found, known, strict=True) if one is not None and bound.caps]
    return [
        _spent(bound, limits, capped) if bound.spends else one
        for bound, one in zip(found, known, strict=True)
    ]


def _spent(bound: Bound, limits: Mapping[str, int], runs: Sequence[tuple[Row, ...]]) -> Known:
    spent = {run: sum(bound.spends in row.spends for row in run) for run in runs}
    best = max(spent, key=lambda run: spent[run], default=())
    return Known(bound.value(limits), best, spent.get(best))


def _searched(bound: Bound, limits: Mapping[str, int], found: Search) -> Known:
    exact = found.most_visits(bound.states or None)
    return Known(min(exact, bound.value(limits)), found.worst_run(bound.states or None), None, exact)


def _known(
    table: Table, bound: Bound, limits: Mapping[str, int], flow: Flow, within: TimeLimit, *, runs: bool
) -> Known:
    value = bound.value(limits)
    priced = flow.most(bound.states, within.share(2 if runs else 1))
    most = value if priced is None else min(value, floor(priced.value))
    if not runs or most > MOST_VISITS:
        return Known(most, cut=within.over)
    run = _run(table, bound, limits, flow, priced, most, within)
    return Known(most, run, visits(table, run, bound.states) if run else None, cut=within.over)


def _run(
    table: Table,
    bound: Bound,
    limits: Mapping[str, int],
    flow: Flow,
    priced: Priced | None,
    most: int,
    within: TimeLimit,
) -> tuple[Row, ...]:
    """The better one of the two ways to make a run: one looks ahead to the next visit, the other follows the
    flow."""
    steps = int(most * SPARE)
    run = greedy_run(flow, priced, limits, steps, within) if priced and not bound.states else ()
    if len(run) >= most * NEAR:
        return run
    other = long_run(table, limits, bound.states, caps=bound.caps, enough=most, within=within)
    return max(run, other, key=lambda run: visits(table, run, bound.states))


def worst(
    table: Table,
    found: tuple[Bound, ...],
    known: Sequence[Known | None],
    limits: Mapping[str, int] | None,
    scopes: tuple[Scope, ...],
) -> Worst | None:
    """A run for the first quantity: under the limits asked about and with the caps, as a turn runs; without
    limits the longest of the small scopes that is short enough to be read."""
    first = found[0].states
    if limits is None:
        runs = [(scope, scope.found.worst_run(first)) for scope in scopes if not scope.caps]
        readable = [run for run in runs if len(run[1]) <= READABLE]
        if not readable:
            return None
        scope, rows = max(readable, key=lambda run: len(run[1]))
        return _a_worst(table, found[0], scope.limits, rows, scope.found.most_visits(first))
    asked = [
        (b, below) for b, below in zip(found, known, strict=True) if b.states == first and below and below.run
    ]
    if not asked:
        return None
    bound, below = asked[-1]
    return _a_worst(table, bound, limits, below.run, below.most)


def _a_worst(
    table: Table, bound: Bound, limits: Mapping[str, int], rows: tuple[Row, ...], most: int
) -> Worst:
    count = visits(table, rows, bound.states)
    folded = fold([row.id for row in rows])
    caps = {counter.name for counter in table.counters if counter.cap and not bound.caps}
    shown = {name: limit for name, limit in limits.items() if name not in caps}
    return Worst(bound.name, bound.caps, shown, count, len(rows), count == most, folded)
