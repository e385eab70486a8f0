"""The cheapest way to cover a set with priced subsets: branch and bound on bit sets.

Used with edges as the set: each subset is a group of edges that one argument bounds, its price the bound. Any
cover gives a sound sum, so the search may stop early; it only loses tightness."""

from __future__ import annotations

from collections.abc import Sequence

from fsm_agent.fsm.verify.proof.graph import bits

PATIENCE = 3000
"""Branches tried before the best cover so far is taken. The longest search for the turn table takes 728."""


def cheapest_cover(universe: int, prices: Sequence[tuple[int, int]]) -> tuple[int, ...] | None:
    """Indices of the subsets of a cheapest cover, or None when something cannot be covered.

    ``universe`` is a bit set, ``prices`` are (bit set, price). Ties go to the first.
    """
    subsets = _undominated([(mask & universe, price, index) for index, (mask, price) in enumerate(prices)])
    choices = _classes(universe, subsets)
    if choices is None:
        return None
    best: tuple[int, tuple[int, ...]] | None = None
    tried = 0

    def search(left: int, price: int, taken: tuple[int, ...]) -> None:
        nonlocal best, tried
        tried += 1
        if best is not None and (price >= best[0] or tried > PATIENCE):
            return
        member = next((bit for bit, _ in choices if left & bit), None)
        if member is None:
            best = (price, taken)
            return
        for mask, cost, index in dict(choices)[member]:
            search(left & ~mask, price + cost, (*taken, index))

    search(universe, 0, ())
    assert best is not None
    return best[1]


Subset = tuple[int, int, int]


def _undominated(subsets: list[Subset]) -> list[Subset]:
    """Without the subsets that a cheaper one contains, cheapest first."""
    kept: list[Subset] = []
    for mask, price, index in sorted(subsets, key=lambda s: (s[1], -s[0].bit_count(), s[2])):
        if mask and not any(not mask & ~other for other, _, _ in kept):
            kept.append((mask, price, index))
    return kept


def _classes(universe: int, subsets: list[Subset]) -> list[tuple[int, list[Subset]]] | None:
    """One member of each class of members that the same subsets contain, with those subsets, fewest first."""
    classes: dict[tuple[int, ...], tuple[int, list[Subset]]] = {}
    for position in bits(universe):
        holding = [subset for subset in subsets if subset[0] >> position & 1]
        if not holding:
            return None
        # per price of what is covered: large subsets first, so that a good cover is found early
        holding.sort(key=lambda s: s[1] / (s[0] & universe).bit_count())
        classes.setdefault(tuple(s[2] for s in holding), (1 << position, holding))
    return sorted(classes.values(), key=lambda c: len(c[1]))
