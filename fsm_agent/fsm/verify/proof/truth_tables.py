"""Truth tables of the guards of one line, as integers.

Over n budgets there are 2**n regions; a guard is an integer with one bit for each region in which it is true,
so "and", "or", "implies" are one operation each. A region is any combination of budgets left and spent:
limits are free, so every combination occurs in some configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from fsm_agent.errors import TableError
from fsm_agent.fsm.table import AllOf, AnyOf, Below, Guard, Row, Spent, Table

MOST_ATOMS = 18
"""Budgets of one line. The draft's longest line tests 6; 2**18 regions still take a few milliseconds."""


@dataclass(frozen=True, slots=True)
class LineTruth:
    """The rows of one (state, event) with their truth tables.

    ``atoms`` are the budgets tested, ``columns`` their truth tables, ``everywhere`` the table that is true in
    every region. Two wordings of the same comparison are one atom."""

    source: str
    event: str
    atoms: tuple[Below, ...]
    columns: tuple[int, ...]
    everywhere: int
    rows: tuple[tuple[Row, int], ...]

    def where(self, value: Callable[[Below], bool | None]) -> int:
        """The regions that agree with ``value``; an atom for which it gives None is free."""
        regions = self.everywhere
        for atom, column in zip(self.atoms, self.columns, strict=True):
            wanted = value(atom)
            if wanted is not None:
                regions &= column if wanted else ~column
        return regions

    def implied(self, regions: int, counter: str) -> tuple[str, ...]:
        """The limits below which ``counter`` certainly is in all of ``regions``."""
        pairs = zip(self.atoms, self.columns, strict=True)
        return tuple(
            atom.limit for atom, column in pairs if atom.counter == counter and not regions & ~column
        )

    def words(self, regions: int) -> str:
        """One part of ``regions`` in words, with as few conditions as describe it."""
        first = (regions & -regions).bit_length() - 1
        values = {i: bool(first >> i & 1) for i in range(len(self.atoms))}
        for i in tuple(values):
            without = {j: value for j, value in values.items() if j != i}
            if not self._cube(without) & ~regions:
                values = without
        named = (self.atoms[i].yes if value else self.atoms[i].no for i, value in values.items())
        return " and ".join(named) or "always"

    def _cube(self, values: dict[int, bool]) -> int:
        regions = self.everywhere
        for i, value in values.items():
            regions &= self.columns[i] if value else ~self.columns[i]
        return regions


def line_truths(table: Table) -> tuple[LineTruth, ...]:
    """The truth tables of every line. Raises ``TableError`` for a line that tests too many budgets."""
    return tuple(_line_truth(source, event, rows) for (source, event), rows in table.by_event.items())


def _line_truth(source: str, event: str, rows: Iterable[Row]) -> LineTruth:
    rows = tuple(rows)
    known: dict[tuple[str, str], Below] = {}
    for row in rows:
        for atom in row.guard.atoms():
            known.setdefault((atom.counter, atom.limit), atom)
    if len(known) > MOST_ATOMS:
        raise TableError(
            f"{source}.{event}: tests {len(known)} budgets, at most {MOST_ATOMS}; split the event by a fact"
        )
    columns, everywhere = _columns(len(known))
    column_of = dict(zip(known, columns, strict=True))
    tables = tuple((row, _regions(row.guard, row.id, column_of, everywhere)) for row in rows)
    return LineTruth(source, event, tuple(known.values()), columns, everywhere, tables)


def _regions(guard: Guard, row: str, column_of: dict[tuple[str, str], int], everywhere: int) -> int:
    match guard:
        case Below(counter=counter, limit=limit):
            return column_of[counter, limit]
        case Spent(atom=atom):
            return everywhere & ~column_of[atom.counter, atom.limit]
        case AllOf(parts=parts):
            regions = everywhere
            for part in parts:
                regions &= _regions(part, row, column_of, everywhere)
            return regions
        case AnyOf(parts=parts):
            regions = 0
            for part in parts:
                regions |= _regions(part, row, column_of, everywhere)
            return regions
    raise AssertionError(f"{guard!r}: a table takes no such guard")


@lru_cache(maxsize=MOST_ATOMS + 1)
def _columns(atoms: int) -> tuple[tuple[int, ...], int]:
    everywhere = (1 << (1 << atoms)) - 1
    # bit r of column i is bit i of r: blocks of 2**i zeros and 2**i ones
    return tuple(everywhere ^ everywhere // ((1 << (1 << i)) + 1) for i in range(atoms)), everywhere
