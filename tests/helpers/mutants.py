"""Changed copies of a table: single rows for the seeded faults, random edits for the comparison with brute
force."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable, Iterable

from fsm_agent.fsm.table import ALWAYS, Row, Table, all_of


def with_rows(table: Table, rows: Iterable[Row]) -> Table:
    """The same table with other rows."""
    rows = tuple(rows)
    changed = copy.copy(table)
    by_event: dict[tuple[str, str], tuple[Row, ...]] = {}
    for row in rows:
        by_event[row.source, row.event] = (*by_event.get((row.source, row.event), ()), row)
    object.__setattr__(changed, "rows", rows)
    object.__setattr__(changed, "by_event", by_event)
    vars(changed).pop("digest", None)
    return changed


def changed(table: Table, row_id: str, **fields: object) -> Table:
    """One row with other fields."""
    assert any(row.id == row_id for row in table.rows), row_id
    return with_rows(
        table, (dataclasses.replace(row, **fields) if row.id == row_id else row for row in table.rows)
    )


def without(table: Table, row_id: str) -> Table:
    return with_rows(table, (row for row in table.rows if row.id != row_id))


def mutant(table: Table, seed: int) -> Table:
    """One to three random edits, most of them of rows that do not end the turn."""
    chance = random.Random(seed)
    rows = list(table.rows)
    for _ in range(chance.randint(1, 3)):
        edit = chance.choice(EDITS)
        inner = [number for number, row in enumerate(rows) if row.dest != table.final]
        edit(rows, chance.choice(inner if chance.random() < 0.9 else range(len(rows))), table, chance)
    return with_rows(table, rows)


Edit = Callable[[list[Row], int, Table, random.Random], None]


def _forget_spend(rows: list[Row], at: int, table: Table, chance: random.Random) -> None:
    spends = list(rows[at].spends)
    if spends:
        spends.remove(chance.choice(spends))
    rows[at] = dataclasses.replace(rows[at], spends=tuple(spends))


def _forget_reset(rows: list[Row], at: int, table: Table, chance: random.Random) -> None:
    resets = list(rows[at].resets)
    if resets:
        resets.remove(chance.choice(resets))
    rows[at] = dataclasses.replace(rows[at], resets=tuple(resets))


def _reset_more(rows: list[Row], at: int, table: Table, chance: random.Random) -> None:
    counter = chance.choice(table.counters).name
    if counter not in rows[at].spends:
        rows[at] = dataclasses.replace(rows[at], resets=tuple({*rows[at].resets, counter}))


def _drop_guard(rows: list[Row], at: int, table: Table, chance: random.Random) -> None:
    parts = list(rows[at].conjuncts)
    if parts:
        parts.remove(chance.choice(parts))
    rows[at] = dataclasses.replace(rows[at], guard=all_of(parts) if parts else ALWAYS)


def _delete_row(rows: list[Row], at: int, table: Table, chance: random.Random) -> None:
    if len(rows) > 1:
        del rows[at]


def _lead_elsewhere(rows: list[Row], at: int, table: Table, chance: random.Random) -> None:
    states = [state for state in table.states if state != table.final]
    rows[at] = dataclasses.replace(rows[at], dest=chance.choice(states), exit=None)


def _negate_part(rows: list[Row], at: int, table: Table, chance: random.Random) -> None:
    parts = list(rows[at].conjuncts)
    if parts:
        number = chance.randrange(len(parts))
        parts[number] = ~parts[number]
    rows[at] = dataclasses.replace(rows[at], guard=all_of(parts))


def _always_open(rows: list[Row], at: int, table: Table, chance: random.Random) -> None:
    rows[at] = dataclasses.replace(rows[at], guard=ALWAYS)


def _feed_itself(rows: list[Row], at: int, table: Table, chance: random.Random) -> None:
    if rows[at].spends:
        rows[at] = dataclasses.replace(
            rows[at], resets=tuple({*rows[at].resets, chance.choice(rows[at].spends)})
        )


def _swap_counters(rows: list[Row], at: int, table: Table, chance: random.Random) -> None:
    spends = list(rows[at].spends)
    if spends:
        other = chance.choice([counter.name for counter in table.counters if counter.name not in spends])
        spends[chance.randrange(len(spends))] = other
    rows[at] = dataclasses.replace(rows[at], spends=tuple(spends))


EDITS: tuple[Edit, ...] = (
    _forget_spend, _forget_reset, _reset_more, _drop_guard, _delete_row, _lead_elsewhere, _negate_part,
    _always_open, _feed_itself, _swap_counters,
)  # fmt: skip
