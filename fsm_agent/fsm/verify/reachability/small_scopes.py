"""Small scopes: limits of 0, 1 and 2 under which a table can be searched exactly, chosen so that every row is
taken."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from fsm_agent.fsm.table import AllOf, AnyOf, Below, Guard, Row, Spent, Table
from fsm_agent.fsm.verify.reachability.exact import Search, search
from fsm_agent.fsm.verify.time_limit import TimeLimit, endless

SMALL = 5_000
"""Pairs of one scope; 20 ms."""
MOST_TRIES = 80
MOST_TOO_LARGE = 12
"""Scopes passed over one after the other before a table is taken to be too wide."""
CAP, KEPT = 24, 6
"""Roomy limits: of caps, and of what is never given back."""


@dataclass(frozen=True, slots=True)
class Scope:
    """One configuration and what the exact search found under it."""

    limits: dict[str, int]
    caps: bool
    found: Search


def limit_names(table: Table) -> tuple[str, ...]:
    """The limits that the guards of a table read, flags left out (theirs is 1 by definition), in reading
    order."""
    flags = {counter.name for counter in table.counters if counter.flag}
    atoms = (atom for row in table.rows for atom in row.guard.atoms())
    return tuple(dict.fromkeys(atom.limit for atom in atoms if atom.counter not in flags))


def all_limit_names(table: Table) -> tuple[str, ...]:
    """The same, and how many turns its states run at once; those of the tables that it runs follow as
    ``table.limit``."""
    names = [*limit_names(table), *(inner.most for inner in table.inner.values() if inner.most)]
    for one in table.within.values():
        names += [name if "." in name else f"{one.name}.{name}" for name in all_limit_names(one)]
    return tuple(dict.fromkeys(names))


def small_scopes(
    table: Table, most_pairs: int = SMALL, within: TimeLimit | None = None
) -> tuple[tuple[Scope, ...], tuple[Row, ...]]:
    """Scopes that were searched, and the rows that none of them takes. The same table gives the same scopes,
    unless time is over.

    Each scope aims at one row that is not yet taken: what its guard needs spent gets the limit 0 (or 2 at
    times, so that it has to be spent first), what it needs left gets 1, the rest is drawn. Scopes with too
    many pairs are passed over."""
    chance = random.Random(0)  # noqa: S311 - reproducible, not secret
    scopes: list[Scope] = []
    waiting = list(table.rows)
    too_large, within = 0, within or endless()
    for _ in range(MOST_TRIES):
        if not waiting or too_large == MOST_TOO_LARGE or within.over:
            break
        limits, caps = _aimed_at(waiting[0], table, chance)
        found = search(table, limits, caps=caps, most_pairs=most_pairs)
        waiting.append(waiting.pop(0))
        too_large += 1
        if found is not None:
            too_large = 0
            scopes.append(Scope(limits, caps, found))
            waiting = [row for row in waiting if row.id not in found.taken]
    missed = {row.id for row in waiting}
    return tuple(scopes), tuple(row for row in table.rows if row.id in missed)


def roomy_limits(table: Table) -> dict[str, int]:
    """Limits that leave most rows in reach of a short run: a few units of what is never given back, one or
    two of the rest. Several limits of one counter differ."""
    reset = {counter for row in table.rows for counter in row.resets}
    caps = {counter.name for counter in table.counters if counter.cap}
    limits: dict[str, int] = {}
    used: dict[str, int] = {}
    for atom in (atom for row in table.rows for atom in row.guard.atoms()):
        if atom.limit in limit_names(table) and atom.limit not in limits:
            used[atom.counter] = used.get(atom.counter, 0) + 1
            base = CAP if atom.counter in caps else 2 if atom.counter in reset else KEPT
            limits[atom.limit] = base + used[atom.counter] - 1
    return limits


def drawn_limits(table: Table, row: Row, seed: int) -> dict[str, int]:
    """Random small limits under which ``row`` should be open in reach; the same seed gives the same."""
    limits, caps = _aimed_at(row, table, random.Random(seed))  # noqa: S311 - reproducible, not secret
    return limits if caps else limits | {counter.name: CAP for counter in table.counters if counter.cap}


def _aimed_at(row: Row, table: Table, chance: random.Random) -> tuple[dict[str, int], bool]:
    names = limit_names(table)
    caps = {counter.name for counter in table.counters if counter.cap}
    limits = {name: chance.choice((0, 0, 1, 1, 2)) for name in names}
    with_caps = any(atom.counter in caps for atom in _refused(row.guard)) or chance.random() < 0.25
    limits |= {atom.limit: 1 + chance.randrange(2) for atom in row.guard.atoms() if atom.limit in limits}
    limits |= {atom.limit: chance.choice((0, 0, 1)) for atom in _refused(row.guard) if atom.limit in limits}
    return limits, with_caps


def _refused(guard: Guard) -> Iterator[Below]:
    """The budgets that ``guard`` wants spent."""
    if isinstance(guard, Spent):
        yield guard.atom
    elif isinstance(guard, AllOf | AnyOf):
        for part in guard.parts:
            yield from _refused(part)
