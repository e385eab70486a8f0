"""How well a text answers a search, and the piece of it that shows why."""

# FTS5 has ``snippet()`` and ``bm25()``, but not for what is asked here. The index keeps no copy of the
# messages, and without one ``snippet()`` gives NULL. Given the texts in a table of its own it still cuts in
# words as SQLite knows them: two characters inside of a Chinese sentence are never found, its pieces have
# at most 64 words where an agent is shown 4,000 characters, and it marks with text instead of places.
# ``bm25()`` ranks all hits, which takes seconds at a million messages.

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fsm_agent.sessions.store.search.text_analysis import Folded, Query, composed

SNIPPET = 180
"""Characters of a snippet."""
BEFORE = 50
"""Characters of a snippet before its first marked word."""
MATCHES = 200
"""Places in one text that are looked at for the best piece of it."""
SATURATION, LENGTH_WEIGHT = 1.2, 0.75
"""k1 and b of BM25, as is usual."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of a text. ``marks`` are (start, end) of the words that were looked for. ``cut`` says
    whether there is more text before and behind."""

    text: str
    marks: tuple[tuple[int, int], ...] = ()
    cut: tuple[bool, bool] = (False, False)

    def marked(self, before: str = "**", after: str = "**") -> str:
        """Return it as one line with the words between ``before`` and ``after``."""
        out, place = "…" if self.cut[0] else "", 0
        for start, end in self.marks:
            out += self.text[place:start] + before + self.text[start:end] + after
            place = end
        return out + self.text[place:] + ("…" if self.cut[1] else "")


EMPTY = Snippet("")


def scores(texts: Sequence[str], query: Query) -> list[float]:
    """Return how well each text answers the query (BM25, higher is better). How rare a term is, is counted
    among these texts alone."""
    if not texts:
        return []
    counts = [[term.count(text) for term in query.terms] for text in map(Folded.of, texts)]
    usual = sum(map(len, texts)) / len(texts) or 1.0
    weights = []
    for column in zip(*counts, strict=True):
        having = sum(count > 0 for count in column)
        weights.append(math.log(1 + (len(texts) - having + 0.5) / (having + 0.5)))
    return [_score(row, weights, len(text) / usual) for row, text in zip(counts, texts, strict=True)]


def _score(counts: Sequence[int], weights: Sequence[float], length: float) -> float:
    damped = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * length)
    return sum(
        weight * count * (SATURATION + 1) / (count + damped)
        for count, weight in zip(counts, weights, strict=True)
    )


def snippet_of(text: str, query: Query, size: int = SNIPPET) -> Snippet:
    """Return the piece of a text with most of the terms, on one line."""
    line = " ".join(composed(text).split())
    folded = Folded.of(line)
    places = sorted(
        (*place, number) for number, term in enumerate(query.terms) for place in term.places(folded, MATCHES)
    )
    start = _best(places, len(line), size)
    end = min(len(line), start + size)
    start, end = _at_words(line, start, end, {place for one in places for place in one[:2]})
    marks = _apart(
        (max(first, start) - start, min(last, end) - start)
        for first, last, _ in places
        if first < end and last > start
    )
    return Snippet(line[start:end], marks, (start > 0, end < len(line)))


def _best(places: Sequence[tuple[int, int, int]], length: int, size: int) -> int:
    """Where the window begins that holds most different terms; the first of several."""
    best, most = 0, 0
    for index, (first, _, _) in enumerate(places):
        terms = {
            number for start, _, number in places[index : index + MATCHES] if start < first + size - BEFORE
        }
        if len(terms) > most:
            best, most = first, len(terms)
    return max(0, min(best - BEFORE, length - size))


def _at_words(line: str, start: int, end: int, keep: set[int]) -> tuple[int, int]:
    """Not in the middle of a word, where a blank is near and no marked word would be lost."""
    first = line.find(" ", start, start + BEFORE // 2) if start > 0 else -1
    last = line.rfind(" ", end - BEFORE // 2, end) if end < len(line) else -1
    cut_first = first > 0 and not any(start <= place < first for place in keep)
    cut_last = last > 0 and not any(last < place <= end for place in keep)
    return first + 1 if cut_first else start, last if cut_last else end


def _apart(marks: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Marks in order that do not overlap."""
    out: list[tuple[int, int]] = []
    for start, end in sorted(marks):
        if out and start < out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        elif end > start:
            out.append((start, end))
    return tuple(out)
