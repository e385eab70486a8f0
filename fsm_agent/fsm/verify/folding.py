"""Long runs in few words: what repeats is written once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_PART = 200
"""Rows of a part that is looked for; a call block of the turn at its default limits takes 47."""


@dataclass(frozen=True, slots=True)
class FoldedPart:
    """``rows``, so many ``times`` one after the other: ids of rows, and parts of them that repeat in turn."""

    times: int
    rows: tuple[str | FoldedPart, ...]

    def __str__(self) -> str:
        return f"{self.times} × [{' → '.join(map(str, self.rows))}]"


def fold(rows: Sequence[str]) -> tuple[str | FoldedPart, ...]:
    """A run with what repeats folded; of the parts that could be at a place the one that saves most rows."""
    rows = tuple(rows)
    found: list[str | FoldedPart] = []
    at = 0
    while at < len(rows):
        times, size = _best_repeat(rows, at)
        part = rows[at : at + size]
        found.append(part[0] if times == 1 else FoldedPart(times, fold(part)))
        at += times * size
    return tuple(found)


def _best_repeat(rows: tuple[str, ...], at: int) -> tuple[int, int]:
    """(times, size) of the part that starts at ``at`` and saves most rows when it is written once."""
    best = 1, 1
    for size in range(1, min(LONGEST_PART, (len(rows) - at) // 2) + 1):
        if rows[at] != rows[at + size]:
            continue
        part, end = rows[at : at + size], at + size
        while rows[end : end + size] == part:
            end += size
        times = (end - at) // size
        if (times - 1) * size > (best[0] - 1) * best[1]:
            best = times, size
    return best
