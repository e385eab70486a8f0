"""What is promised of a value that the turns of a table carry and its rows do not know, as data.

A table counts; it does not see a transcript, a basket or a lock. ``Promises`` say in small abstract values
what there is of it when a turn begins, what a visit of a state may do to it, and what must hold where. They
are given to a ``Table`` as ``promises``, and ``fsm-agent verify`` proves them by induction over the table,
for every setting (``fsm_agent.fsm.verify.induction``). That the states do what is declared, tests have
to show: ``Promises.allowed`` tells them what that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import Any

from fsm_agent.fsm.table import Row

SAME: Any = ...
"""In a change: the field may stay what it is."""

Change = Mapping[str, tuple[Any, ...]]
"""For each field that may change, all that it may be afterwards; a field that is not named stays."""


def may(**fields: tuple[Any, ...]) -> Change:
    """Make a change: ``may(tail=(SAME, "user"), open=(False,))``; ``may()`` changes nothing."""
    return MappingProxyType(fields)


@dataclass(frozen=True, slots=True)
class VisitChange:
    """What a visit of ``state`` that ends with one of ``events`` may do: one of ``changes``.

    ``events``: none means all that the state has; the visit of the final state ends with ``""``. ``after``:
    only when the row that led to the state spent one of these counters, is of one of these lines
    (``"State.event"``), or ends the turn with one of these reasons."""

    state: str
    changes: tuple[Change, ...]
    events: tuple[str, ...] = ()
    after: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Demand:
    """What must hold of every value with which ``state`` is entered; of a state ``""``, when the final state
    has been visited. ``what`` says it in words, as the end of "it must be that …"."""

    state: str
    what: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class Promises:
    """All that is promised of one value. ``name``: what is proved, as a line among the checks. ``starts``:
    the values with which a turn can begin, frozen dataclasses of one class. Of ``visits`` the first that fits
    counts."""

    name: str
    starts: tuple[Any, ...]
    visits: tuple[VisitChange, ...]
    demands: tuple[Demand, ...]

    def visit(self, came: frozenset[str], state: str, event: str) -> VisitChange | None:
        """Return what is declared of a visit, ``None`` when nothing is. ``came``: see ``words``."""
        return next(
            (
                one
                for one in self.visits
                if one.state == state
                and (not one.events or event in one.events)
                and (not one.after or one.after & came)
            ),
            None,
        )

    def words(self, row: Row | None) -> frozenset[str]:
        """Return the words of ``after`` that are true of a row; none before the first."""
        if row is None:
            return frozenset()
        known = frozenset[str]().union(*(one.after for one in self.visits))
        return known & {*row.spends, f"{row.source}.{row.event}", row.exit or ""}

    def allowed(self, came: Row | None, state: str, event: str, value: Any) -> frozenset[Any]:
        """Return the values that a visit may leave; none when nothing is declared of it. ``came``: the row
        that led to the state."""
        found = self.visit(self.words(came), state, event)
        return frozenset(results(found, value)) if found else frozenset()


def results(visit: VisitChange, value: Any) -> Iterator[Any]:
    """What a visit may make of a value; some of it may come twice."""
    for change in visit.changes:
        for chosen in product(*change.values()):
            fields = {name: to for name, to in zip(change, chosen, strict=True) if to is not SAME}
            yield replace(value, **fields) if fields else value
