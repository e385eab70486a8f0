"""What could have been decided otherwise at a move: which rows its state has, what each of their budgets has
left, and with which other budgets each would have been taken. Everything is asked of the table's own guards;
nothing runs. (Why: decision 108.)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import AllOf, AnyOf, Below, Guard, Row, Spent, Table

MOST = 64
"""Ways of opening a guard that are looked at, at most."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """Counters and limits, as guards read them. A limit that is not known is 0, that of a flag 1."""

    counters: Mapping[str, int]
    limits: Mapping[str, int]

    def count(self, counter: str) -> int:
        """Return how often it was counted."""
        return self.counters.get(counter, 0)

    def limit(self, name: str) -> int:
        """Return how often it may be."""
        return self.limits.get(name, 0)

    def changed(self, counters: Mapping[str, int], limits: Mapping[str, int]) -> Budgets:
        """Return these with others in their place."""
        return Budgets({**self.counters, **counters}, {**self.limits, **limits})


@dataclass(frozen=True, slots=True)
class Left:
    """A budget that a row's guard asks about: ``count`` of ``limit`` are spent."""

    counter: str
    limit: str
    count: int
    most: int


@dataclass(frozen=True, slots=True)
class Change:
    """Limits to have, and flags, for a guard to be open."""

    limits: Mapping[str, int]
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RowChoice:
    """One row. ``taken``: with these budgets it is. ``opens``: the fewest other budgets with which it would
    be, ``None`` when it is taken, or when there are none."""

    row: str
    rung: str
    dest: str
    exit: str | None
    guard: str
    taken: bool
    left: tuple[Left, ...]
    opens: Change | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def choices(table: Table, state: str, event: str, budgets: Budgets) -> list[RowChoice]:
    """The rows of a state and an event, in order. Raises ``ConfigError`` for an event that it has not."""
    rows = table.by_event.get((state, event))
    if rows is None:
        raise ConfigError(f"{state} has no line for such an event", event, ", ".join(table.events(state)))
    flags = frozenset(counter.name for counter in table.counters if counter.flag)
    known = budgets.changed({}, {flag: budgets.limits.get(flag, 1) for flag in flags})
    return [_choice(row, known, flags) for row in rows]


def _choice(row: Row, budgets: Budgets, flags: frozenset[str]) -> RowChoice:
    taken = row.guard.holds(budgets)
    atoms = dict.fromkeys(row.guard.atoms())
    left = tuple(
        Left(one.counter, one.limit, budgets.count(one.counter), budgets.limit(one.limit)) for one in atoms
    )
    opens = None if taken else _opened(row.guard, budgets, flags)
    return RowChoice(row.id, row.rung, row.dest, row.exit, row.guard.label, taken, left, opens)


def _opened(guard: Guard, budgets: Budgets, flags: frozenset[str]) -> Change | None:
    """The smallest of the changes with which the guard holds."""
    found = [
        change
        for _, atoms in zip(range(MOST), _ways(guard), strict=False)
        if (change := _change(atoms, budgets, flags)) is not None
        and guard.holds(budgets.changed(change.counters, change.limits))
    ]
    return min(found, key=lambda one: len(one.limits) + len(one.counters), default=None)


def _ways(guard: Guard) -> Iterator[tuple[Below | Spent, ...]]:
    """Each set of comparisons that is enough for the guard to hold."""
    match guard:
        case Below() | Spent():
            yield (guard,)
        case AllOf(parts=()):
            yield ()
        case AllOf(parts=(first, *rest)):
            for one in _ways(first):
                yield from ((*one, *others) for others in _ways(AllOf(tuple(rest))))
        case AnyOf(parts=parts):
            for part in parts:
                yield from _ways(part)


def _change(atoms: tuple[Below | Spent, ...], budgets: Budgets, flags: frozenset[str]) -> Change | None:
    """Other limits for those comparisons that do not hold; of a flag, whose limit is 1, another count."""
    limits: dict[str, int] = {}
    counters: dict[str, int] = {}
    for atom in (one for one in atoms if not one.holds(budgets)):
        below = atom if isinstance(atom, Below) else atom.atom
        is_open = isinstance(atom, Below)
        if below.counter in flags:
            counters[below.counter] = 0 if is_open else budgets.limit(below.limit)
        else:
            count = budgets.count(below.counter)
            wanted = count + 1 if is_open else count
            before = limits.get(below.limit, wanted)
            limits[below.limit] = max(before, wanted) if is_open else min(before, wanted)
    return Change(limits, counters)
