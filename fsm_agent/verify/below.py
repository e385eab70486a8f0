"""What is known of a bound from below: exact search under small limits, a constructed run under large ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fsm_agent.table import Row, Table
from fsm_agent.verify.bound import Bound
from fsm_agent.verify.exact import Search, search
from fsm_agent.verify.folding import fold
from fsm_agent.verify.longest import long_run, visits
from fsm_agent.verify.report import Worst
from fsm_agent.verify.scopes import SMALL, Scope

READABLE = 60
"""Moves of a run of a small scope that is printed."""
MOST_VISITS = 30_000
"""Visits of a run that is constructed; two seconds."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known from below of one bound under the limits asked about: a run with many visits and their number, the number
    that exact search found."""

    run: tuple[Row, ...] = ()
    constructed: int | None = None
    exact: int | None = None


def all_known(table: Table, found: tuple[Bound, ...], limits: Mapping[str, int] | None) -> list[Known]:
    if limits is None:
        return [Known() for _ in found]
    searched = {caps: search(table, limits, caps=caps, most_pairs=SMALL) for caps in {bound.caps for bound in found}}
    return [_known(table, bound, limits, searched[bound.caps]) for bound in found]


def _known(table: Table, bound: Bound, limits: Mapping[str, int], searched: Search | None) -> Known:
    states = bound.states or None
    if searched is not None:
        return Known(searched.worst_run(states), None, searched.most_visits(states))
    value = bound.value(limits)
    if states is None or value > MOST_VISITS:
        return Known()
    run = long_run(table, limits, bound.states, caps=bound.caps, enough=value)
    return Known(run, visits(table, run, bound.states))


def worst(
    table: Table, found: tuple[Bound, ...], known: Sequence[Known], limits: Mapping[str, int] | None, scopes: tuple[Scope, ...]
) -> Worst | None:
    """A run for the first quantity: under the limits asked about and with the caps, as a turn runs; without limits the
    longest of the small scopes that is short enough to be read."""
    first = found[0].states
    if limits is None:
        runs = [(scope, scope.found.worst_run(first)) for scope in scopes if not scope.caps]
        readable = [run for run in runs if len(run[1]) <= READABLE]
        if not readable:
            return None
        scope, rows = max(readable, key=lambda run: len(run[1]))
        return _a_worst(table, found[0], scope.limits, rows, scope.found.most_visits(first))
    asked = [(bound, below) for bound, below in zip(found, known, strict=True) if bound.states == first and below.run]
    if not asked:
        return None
    bound, below = asked[-1]
    return _a_worst(table, bound, limits, below.run, bound.value(limits) if below.exact is None else below.exact)


def _a_worst(table: Table, bound: Bound, limits: Mapping[str, int], rows: tuple[Row, ...], most: int) -> Worst:
    count = visits(table, rows, bound.states)
    folded = fold([row.id for row in rows])
    return Worst(bound.name, bound.caps, dict(limits), count, len(rows), count == most, folded)
