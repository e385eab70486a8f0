"""Finding the place in a file that a text means, when it is not there letter for letter.

Three ways, the next only when the one before finds nothing: the exact text; the same lines when spaces are
not compared; the most similar lines. Each must find one place: with two, nobody knows which is meant."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice
from typing import Literal

SIMILAR = 0.85
"""Share of characters in common from which lines count as meant. Below it, lines of one kind (imports, rows
of a table) begin to be taken for each other."""
EDGE = 0.6
"""So similar the first line must be to the first and the last to the last, or a line more or less would be
replaced."""
DISTANCE = 0.05
"""By so much the best place must be more similar than the next, or they are ambiguous."""
SHORTEST = 20
"""Characters besides spaces; a shorter text is like too much else."""
SPAN = 2
"""So many lines more or less than the text has a place may have: they were forgotten or invented."""
MAX_SCORED = 300
"""Places that are compared letter by letter; those that share no whole line with the text come last."""
MAX_LINES = 100_000
MAX_PLACES = 1_000

How = Literal["exact", "spaces", "similar"]


@dataclass(frozen=True, slots=True)
class TextPlace:
    """Characters ``start`` to before ``end`` of the file, on lines ``first`` to ``last`` (from 1). ``score``:
    how similar."""

    start: int
    end: int
    first: int
    last: int
    how: How
    score: float = 1.0

    def lines(self) -> str:
        """Return the place in words."""
        return f"line {self.first}" if self.first == self.last else f"lines {self.first} to {self.last}"


def places(text: str, wanted: str) -> list[TextPlace]:
    """Where ``wanted`` may be meant: one place when it is clear, several when it is ambiguous, the best
    first."""
    if exact := list(islice(_exact(text, wanted), MAX_PLACES)):
        return exact
    index = FileLines(text)
    if not wanted.strip() or len(index.lines) > MAX_LINES:
        return []
    return (
        list(_by_spaces(index, wanted)) or list(_inside_a_line(text, wanted)) or _by_similarity(index, wanted)
    )


class FileLines:
    """A text as lines with their ends, and where each begins."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def place(self, first: int, count: int, whole: bool, how: How, score: float = 1.0) -> TextPlace:
        """Of ``count`` lines from index ``first``; without the last line's end unless the ``whole`` line is
        meant."""
        end = self.starts[first + count]
        if not whole:
            last = self.lines[first + count - 1]
            end -= len(last) - len(last.rstrip("\r\n"))
        return TextPlace(self.starts[first], end, first + 1, first + count, how, score)


def _exact(text: str, wanted: str) -> Iterator[TextPlace]:
    """Overlapping places included, because those are ambiguous too."""
    at, starts = text.find(wanted), None
    while at >= 0:
        starts = starts or [0, *(match.end() for match in re.finditer("\n", text))]
        first = bisect_right(starts, at)
        last = bisect_right(starts, max(at, at + len(wanted) - 1))
        yield TextPlace(at, at + len(wanted), first, last, "exact")
        at = text.find(wanted, at + 1)


def _by_spaces(index: FileLines, wanted: str) -> Iterator[TextPlace]:
    """Runs of lines that are the wanted ones when all spaces are taken out; blank lines at its ends do not
    count."""
    lines = _trimmed(wanted)
    keys = [_packed(line) for line in lines]
    packed = [_packed(line) for line in index.lines]
    for first in range(len(packed) - len(keys) + 1):
        if packed[first] == keys[0] and packed[first : first + len(keys)] == keys:
            yield index.place(first, len(keys), wanted.endswith("\n"), "spaces")


def _inside_a_line(text: str, wanted: str) -> Iterator[TextPlace]:
    """A part of a line whose words are apart by other spaces."""
    if wanted != wanted.strip() or "\n" in wanted:
        return
    pattern = r"[^\S\n]+".join(re.escape(word) for word in wanted.split())
    for match in islice(re.finditer(pattern, text), MAX_PLACES):
        line = text.count("\n", 0, match.start()) + 1
        yield TextPlace(match.start(), match.end(), line, line, "spaces")


def _by_similarity(index: FileLines, wanted: str) -> list[TextPlace]:
    lines = _trimmed(wanted)
    target = "\n".join(_spaced(line) for line in lines)
    if len(_packed(target)) < SHORTEST:
        return []
    scored = []
    for first, count in _candidates(index, lines):
        ends = ((index.lines[first], lines[0]), (index.lines[first + count - 1], lines[-1]))
        if any(_similarity(_spaced(one), _spaced(other), EDGE) < EDGE for one, other in ends):
            continue
        score = _similarity("\n".join(_spaced(line) for line in index.lines[first : first + count]), target)
        if score >= SIMILAR:
            scored.append(index.place(first, count, wanted.endswith("\n"), "similar", score))
    scored.sort(key=lambda place: -place.score)
    apart: list[TextPlace] = []
    for place in scored:
        if all(place.first > other.last or place.last < other.first for other in apart):
            apart.append(place)
    if not apart:
        return []
    return [place for place in apart if place.score > apart[0].score - DISTANCE]


def _candidates(index: FileLines, lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where to look: (first line, number of lines). Places that share most whole lines with the text come
    first."""
    where: dict[str, list[int]] = defaultdict(list)
    for number, line in enumerate(index.lines):
        where[_packed(line)].append(number)
    votes: dict[int, int] = defaultdict(int)
    for offset, line in enumerate(lines):
        found = where.get(_packed(line), []) if line.strip() else []
        for number in found[:MAX_SCORED]:
            votes[number - offset] += 1
    if not votes:
        votes = dict.fromkeys(_like_a_line(index, lines), 1)
    tried = set()
    for start in sorted(votes, key=lambda start: -votes[start])[:MAX_SCORED]:
        for first in (start, start - 1, start + 1):
            for count in range(len(lines) - SPAN, len(lines) + SPAN + 1):
                inside = first >= 0 and count > 0 and first + count <= len(index.lines)
                if inside and (first, count) not in tried:
                    tried.add((first, count))
                    yield first, count


def _like_a_line(index: FileLines, lines: Sequence[str]) -> list[int]:
    """Where the text may begin when none of its lines is there: where its longest line has a likeness."""
    offset = max(range(len(lines)), key=lambda number: len(lines[number]))
    target = _spaced(lines[offset])
    likeness = [(_similarity(_spaced(line), target), number) for number, line in enumerate(index.lines)]
    return [
        number - offset for score, number in sorted(likeness, reverse=True)[:10] if score >= SIMILAR - 0.1
    ]


def _similarity(one: str, other: str, least: float = SIMILAR - 0.1) -> float:
    """0 when it is certainly below ``least``, which is quicker to find out."""
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    if matcher.real_quick_ratio() < least or matcher.quick_ratio() < least:
        return 0.0
    return matcher.ratio()


def _trimmed(wanted: str) -> list[str]:
    lines = wanted.splitlines()
    while not lines[0].strip():
        del lines[0]
    while not lines[-1].strip():
        del lines[-1]
    return lines


def _packed(line: str) -> str:
    return "".join(line.split())


def _spaced(line: str) -> str:
    return " ".join(line.split())
