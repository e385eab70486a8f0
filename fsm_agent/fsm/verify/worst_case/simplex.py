"""The largest value of a linear function under linear constraints, with prices that prove it.

The search for the prices is done in floating point and may go wrong; what it finds is checked in fractions,
so that an answer is true whatever happened on the way."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from fsm_agent.fsm.verify.time_limit import TimeLimit, endless

Terms = Mapping[int, int]
"""Coefficients by the number of the variable; those that are not named are 0."""

TINY = 1e-9
MOST_PIVOTS = 3_000
"""The turn's table needs a hundred."""
LARGEST_DENOMINATOR = 5_000
"""Prices are ratios of products of limits; those with larger denominators are not recognised, and then there
is no answer."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """The sum of ``terms`` is at most ``most``, which is not negative."""

    terms: Terms
    most: int = 0


@dataclass(frozen=True, slots=True)
class Priced:
    """No choice of variables has more than ``value``. ``prices`` (one for each constraint) prove it: together
    they pay for each unit of each variable at least what it gains. ``amounts`` are, nearly, a choice of
    variables that has so much."""

    value: Fraction
    prices: tuple[Fraction, ...]
    amounts: Mapping[int, float]


def most(gain: Terms, constraints: Sequence[Constraint], within: TimeLimit | None = None) -> Priced | None:
    """The largest sum of ``gain`` over variables that are not negative; ``None`` when it has no limit, or was
    not found in time."""
    tableau = _Tableau(gain, constraints)
    if not tableau.solve(within or endless()):
        return None
    prices = tuple(Fraction(price).limit_denominator(LARGEST_DENOMINATOR) for price in tableau.prices())
    if not _pays(prices, gain, constraints):
        return None
    value = sum((price * c.most for price, c in zip(prices, constraints, strict=True)), Fraction())
    return Priced(value, prices, tableau.amounts())


def _pays(prices: Sequence[Fraction], gain: Terms, constraints: Sequence[Constraint]) -> bool:
    """Weak duality, in exact arithmetic."""
    paid: dict[int, Fraction] = {}
    for price, constraint in zip(prices, constraints, strict=True):
        if price:
            for variable, factor in constraint.terms.items():
                paid[variable] = paid.get(variable, Fraction()) + price * factor
    nothing = Fraction()
    return all(price >= 0 for price in prices) and all(
        paid.get(v, nothing) >= gain.get(v, 0) for v in {*paid, *gain}
    )


class _Tableau:
    """The simplex method on a dictionary: a row says how much is left of its constraint. Limits are made a
    little larger, each by another amount, or it would turn in circles among the many that are 0; prices do
    not depend on the limits."""

    def __init__(self, gain: Terms, constraints: Sequence[Constraint]) -> None:
        chance = random.Random(0)  # noqa: S311 - reproducible, not secret
        self.variables = sorted(
            {*gain, *(variable for constraint in constraints for variable in constraint.terms)}
        )
        place = {variable: number for number, variable in enumerate(self.variables)}
        count = len(self.variables)
        self.rows = [[0.0] * count + [c.most + chance.uniform(1e-7, 1e-6)] for c in constraints]
        for row, constraint in zip(self.rows, constraints, strict=True):
            for variable, factor in constraint.terms.items():
                row[place[variable]] = float(factor)
        self.aim = [*(float(gain.get(variable, 0)) for variable in self.variables), 0.0]
        self.free = list(range(count))
        self.basic = [count + number for number in range(len(self.rows))]

    def solve(self, within: TimeLimit) -> bool:
        for _ in range(MOST_PIVOTS):
            if within.over:
                return False
            column = max(range(len(self.free)), key=self.aim.__getitem__, default=-1)
            if column < 0 or self.aim[column] <= TINY:
                return True
            ratios = (
                (row[-1] / row[column], number) for number, row in enumerate(self.rows) if row[column] > TINY
            )
            leaving = min(ratios, default=None)
            if leaving is None:
                return False
            self._pivot(leaving[1], column)
        return False

    def prices(self) -> list[float]:
        prices = [0.0] * len(self.rows)
        for place, number in enumerate(self.free):
            if number >= len(self.variables):
                prices[number - len(self.variables)] = max(-self.aim[place], 0.0)
        return prices

    def amounts(self) -> dict[int, float]:
        found = dict.fromkeys(self.variables, 0.0)
        known = zip(self.basic, self.rows, strict=True)
        return found | {
            self.variables[number]: row[-1] for number, row in known if number < len(self.variables)
        }

    def _pivot(self, at: int, column: int) -> None:
        """Let the variable of ``column`` change places with what is left of constraint ``at``."""
        row = self.rows[at]
        pivot, row[column] = row[column], 1.0
        row[:] = [value / pivot for value in row]
        used = [(place, value) for place, value in enumerate(row) if value]
        for other in (
            *(other for number, other in enumerate(self.rows) if number != at and other[column]),
            self.aim,
        ):
            factor, other[column] = other[column], 0.0
            for place, value in used:
                other[place] -= factor * value
        self.basic[at], self.free[column] = self.free[column], self.basic[at]
