"""Unified diffs as ``git diff`` prints them: the same hunks, headers, and marks."""

# A person approves a change by its diff, and knows diffs from Git. So ties are broken as Git breaks them: a
# shortest edit script by divide and conquer from both ends (Myers 1986) over the lines that both texts can
# share, then each block of changed lines slides to where it reads best. `git diff --no-index` on generated
# edits is the test.

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

CONTEXT = 3
MAX_COMPARED = 4_000
"""Maximum lines that differ, on both sides together; comparing more takes seconds, and the diff would be too
long to read."""
NO_FILE = "/dev/null"
"""The old name of a new file."""
NO_NEWLINE = "\\ No newline at end of file"

_MAX_COST = 256
"""Steps in search of the middle of a shortest script; after that, the best half so far is used."""
_WINDOW = 100
"""Lines around a frequent line whose neighbors decide whether it is compared, and how far a block slides."""
_HEADING = re.compile(r"[A-Za-z_$]")
_HEADING_LENGTH = 80

Block = tuple[int, int, int, int]
"""Replaced lines: first and end before, first and end after."""


def unified_diff(before: str, after: str, headings: bool = True) -> list[str] | None:
    """Return the hunks between two texts, without the two lines that name the files; ``None`` when too many
    lines differ. ``headings``: each hunk names its section."""
    old, new = _lines(before), _lines(after)
    if sum(differing(old, new)[1:]) > MAX_COMPARED:
        return None
    return list(_hunks(old, new, headings))


def unified_diff_lines(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return the hunks between two lists of lines without line ends, and without headings."""
    return list(_hunks([f"{line}\n" for line in old], [f"{line}\n" for line in new], headings=False))


def differing(old: Sequence[str], new: Sequence[str]) -> tuple[int, int, int]:
    """Return (first line that differs, lines of each side from there to the last that differs)."""
    head, tail = _common_ends(old, new)
    return head, len(old) - head - tail, len(new) - head - tail


def numbers(hunks: Sequence[str]) -> Iterator[tuple[int | None, int | None]]:
    """Yield the old and the new line number of each line of a diff, ``None`` where it has none."""
    mine = yours = 0
    for line in hunks:
        if found := re.match(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@", line):
            mine, yours = int(found[1]), int(found[2])
            yield None, None
            continue
        old, new = line[:1] in (" ", "-"), line[:1] in (" ", "+")
        yield (mine if old else None, yours if new else None)
        mine, yours = mine + old, yours + new


def _lines(text: str) -> list[str]:
    """Return the lines with their ends; only a line feed ends one."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _hunks(old: Sequence[str], new: Sequence[str], headings: bool) -> Iterator[str]:
    blocks = _blocks(old, new)
    while blocks:
        ends = (at for at, (one, two) in enumerate(pairwise(blocks), 1) if two[0] - one[1] > 2 * CONTEXT)
        end = next(ends, len(blocks))
        yield from _hunk(old, new, blocks[:end], headings)
        blocks = blocks[end:]


def _hunk(old: Sequence[str], new: Sequence[str], blocks: Sequence[Block], headings: bool) -> Iterator[str]:
    first, last = blocks[0], blocks[-1]
    before = min(CONTEXT, first[0])
    after = min(CONTEXT, len(old) - last[1])
    start, end = first[0] - before, last[1] + after
    mine, yours = _range(start, end), _range(first[2] - before, last[3] + after)
    named = (line for line in reversed(old[:start]) if _HEADING.match(line))
    heading = next(named, "")[:_HEADING_LENGTH].rstrip() if headings else ""
    yield f"@@ -{mine} +{yours} @@ {heading}".rstrip(" ")
    at = start
    for own, until, new_start, new_end in blocks:
        for sign, lines in ((" ", old[at:own]), ("-", old[own:until]), ("+", new[new_start:new_end])):
            yield from _sign_lines(sign, lines)
        at = until
    yield from _sign_lines(" ", old[at:end])


def _range(start: int, end: int) -> str:
    first = start + (end > start)
    return f"{first}" if end - start == 1 else f"{first},{end - start}"


def _sign_lines(sign: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield sign + line.removesuffix("\n")
        if not line.endswith("\n"):
            yield NO_NEWLINE


def _common_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """Return the number of common lines at the beginning, and at the end of the rest."""
    most = min(len(old), len(new))
    head = 0
    while head < most and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < most - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return head, tail


def _blocks(old: Sequence[str], new: Sequence[str]) -> list[Block]:
    one, two = _Side(old), _Side(new)
    head, tail = _common_ends(old, new)
    mine = _lines_to_compare(one, head, len(old) - tail, Counter(new))
    yours = _lines_to_compare(two, head, len(new) - tail, Counter(old))
    _Script(one, two, mine, yours).mark(0, len(mine), 0, len(yours), minimal=False)
    one.compact(two)
    two.compact(one)
    blocks, at, other = [], 0, 0
    while at < len(old) or other < len(new):
        start, other_start = at, other
        while one.changed[at]:
            at += 1
        while two.changed[other]:
            other += 1
        if at > start or other > other_start:
            blocks.append((start, at, other_start, other))
        at, other = at + 1, other + 1
    return blocks


def _lines_to_compare(side: _Side, start: int, end: int, others: Counter[str]) -> list[int]:
    """Return the lines to compare. Lines missing from the other text are changed in any case; so are frequent
    ones (blank lines, closing braces) among them, where a match would only split a block."""
    many = _root(len(side.lines))
    kinds = {at: 0 if not (times := others[side.lines[at]]) else 2 if times >= many else 1
             for at in range(start, end)}  # fmt: skip
    compared = []
    for at, kind in kinds.items():
        if kind == 1 or (kind == 2 and not _amid_changes(kinds, at, start, end - 1)):
            compared.append(at)
        else:
            side.changed[at] = True
    return compared


def _root(number: int) -> int:
    """Return the next power of two above the square root, at most 1024."""
    root = 1
    while number > 0:
        root, number = root * 2, number >> 2
    return min(root, 1024)


def _amid_changes(kinds: dict[int, int], at: int, first: int, last: int) -> bool:
    lacking, frequent = 0, 0
    for way in (range(at - 1, max(first, at - _WINDOW) - 1, -1), range(at + 1, min(last, at + _WINDOW) + 1)):
        here = 0
        frequent += 1
        for place in way:
            if kinds[place] == 1:
                break
            here += kinds[place] == 0
            frequent += kinds[place] == 2
        if not here:
            return False
        lacking += here
    return frequent * 4 < frequent + lacking


@dataclass(frozen=True, slots=True)
class _Script:
    """Marks the changed lines of both sides. ``mine`` and ``yours``: the indices of the compared lines."""

    one: _Side
    two: _Side
    mine: Sequence[int]
    yours: Sequence[int]

    def _same(self, at: int, other: int) -> bool:
        return self.one.lines[self.mine[at]] == self.two.lines[self.yours[other]]

    def mark(self, start: int, end: int, other: int, other_end: int, minimal: bool) -> None:
        """Mark the changes between two stretches of compared lines."""
        while start < end and other < other_end and self._same(start, other):
            start, other = start + 1, other + 1
        while start < end and other < other_end and self._same(end - 1, other_end - 1):
            end, other_end = end - 1, other_end - 1
        if start == end or other == other_end:
            for at in self.mine[start:end]:
                self.one.changed[at] = True
            for at in self.yours[other:other_end]:
                self.two.changed[at] = True
            return
        at, across, low, high = self._middle(start, end, other, other_end, minimal)
        self.mark(start, at, other, across, low)
        self.mark(at, end, across, other_end, high)

    def _middle(
        self, start: int, end: int, other: int, other_end: int, minimal: bool
    ) -> tuple[int, int, bool, bool]:
        """Return a place on a shortest script, and whether its two halves are known to be shortest. ``forth``
        and ``back`` hold the furthest place on each diagonal from both ends."""
        least, most, far = start - other_end, end - other, end + 1
        middle_forth, middle_back = start - other, end - other_end
        odd = (middle_forth - middle_back) % 2 == 1
        forth, back = {middle_forth: start}, {middle_back: end}
        reach, reach_back = [middle_forth, middle_forth], [middle_back, middle_back]
        cost = 0
        while True:
            cost += 1
            _widen(reach, least, most, forth, -1)
            for line in range(reach[1], reach[0] - 1, -2):
                at = forth[line - 1] + 1 if forth[line - 1] >= forth[line + 1] else forth[line + 1]
                while at < end and at - line < other_end and self._same(at, at - line):
                    at += 1
                forth[line] = at
                if odd and reach_back[0] <= line <= reach_back[1] and back[line] <= at:
                    return at, at - line, True, True
            _widen(reach_back, least, most, back, far)
            for line in range(reach_back[1], reach_back[0] - 1, -2):
                at = back[line - 1] if back[line - 1] < back[line + 1] else back[line + 1] - 1
                while at > start and at - line > other and self._same(at - 1, at - line - 1):
                    at -= 1
                back[line] = at
                if not odd and reach[0] <= line <= reach[1] and at <= forth[line]:
                    return at, at - line, True, True
            if cost >= _MAX_COST and not minimal:
                lines, lines_back = (range(ends[1], ends[0] - 1, -2) for ends in (reach, reach_back))
                ahead = max((_clip(forth[line], line, end, other_end, min) for line in lines), key=sum)
                behind = min((_clip(back[line], line, start, other, max) for line in lines_back), key=sum)
                forward = end + other_end - sum(behind) < sum(ahead) - start - other
                return (*ahead, True, False) if forward else (*behind, False, True)


def _widen(reach: list[int], least: int, most: int, places: dict[int, int], unknown: int) -> None:
    """Move the range of diagonals outward by one, and inward by one at the edge of the rectangle."""
    if reach[0] > least:
        reach[0] -= 1
        places[reach[0] - 1] = unknown
    else:
        reach[0] += 1
    if reach[1] < most:
        reach[1] += 1
        places[reach[1] + 1] = unknown
    else:
        reach[1] -= 1


def _clip(
    at: int, line: int, edge: int, other_edge: int, nearer: Callable[[int, int], int]
) -> tuple[int, int]:
    """Clip a place on a diagonal to the rectangle."""
    at = nearer(at, edge)
    at = nearer(at - line, other_edge) + line
    return at, at - line


class _Side:
    """The lines of a text, and which of them change. ``changed`` ends with an unchanged sentinel."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.changed = [False] * (len(lines) + 1)

    def compact(self, other: _Side) -> None:
        """Slide each block: join it with blocks that it touches, align it with a change of the other side if
        possible, else move it to where the indentation reads best."""
        group, across = _Group(self), _Group(other)
        while True:
            if group.end > group.start:
                self._slide(group, across)
            if not group.next():
                return
            across.next()

    def _slide(self, group: _Group, across: _Group) -> None:
        while True:
            size, beside = group.end - group.start, -1
            while group.up():
                across.previous()
            earliest = group.end
            while True:
                if across.end > across.start:
                    beside = group.end
                if not group.down():
                    break
                across.next()
            if size == group.end - group.start:
                break
        if group.end == earliest:
            return
        wanted = beside if beside != -1 else self._best_end(group, earliest)
        while group.end > wanted:
            group.up()
            across.previous()

    def _best_end(self, group: _Group, earliest: int) -> int:
        size = group.end - group.start
        best, found = (0, 0), -1
        for end in range(max(earliest, group.end - size - 1, group.end - _WINDOW), group.end + 1):
            (indent, penalty), (first, more) = self._split(end), self._split(end - size)
            score = indent + first, penalty + more
            deeper = (score[0] > best[0]) - (score[0] < best[0])
            if found == -1 or 60 * deeper + score[1] - best[1] <= 0:
                best, found = score, end
        return found

    def _split(self, at: int) -> tuple[int, int]:
        """Return (indentation, penalty) of a block's edge before this line. Blank lines and less indentation
        are good places; the ends of the text and the middle of a section are not."""
        own = _indent(self.lines[at]) if at < len(self.lines) else -1
        before, blanks = self._beyond(range(at - 1, -1, -1))
        after, blanks_after = self._beyond(range(at + 1, len(self.lines)))
        penalty = (before == -1 and not blanks) + 21 * (at >= len(self.lines))
        follow = 1 + blanks_after if own == -1 else 0
        blanks += follow
        penalty += -30 * blanks + 6 * follow
        indent = own if own != -1 else after
        if indent == -1 or before == -1 or indent == before:
            return indent, penalty
        if indent > before:
            return indent, penalty + (10 if blanks else -4)
        if after > indent:
            return indent, penalty + (17 if blanks else 24)
        return indent, penalty + (17 if blanks else 23)

    def _beyond(self, way: range) -> tuple[int, int]:
        """Return (indentation of the next nonblank line, blank lines before it)."""
        blanks = 0
        for at in way:
            if (indent := _indent(self.lines[at])) != -1:
                return indent, blanks
            blanks += 1
            if blanks == 20:
                return 0, blanks
        return -1, blanks


def _indent(line: str) -> int:
    """Return the columns before the first word, ``-1`` for a blank line."""
    columns = 0
    for char in line:
        if char not in " \t\n\v\f\r":
            return columns
        columns += 1 if char == " " else 8 - columns % 8 if char == "\t" else 0
        if columns >= 200:
            return 200
    return -1


class _Group:
    """Adjacent changed lines of a side, from ``start`` to before ``end``; may be empty."""

    def __init__(self, side: _Side) -> None:
        self.lines, self.changed = side.lines, side.changed
        self.start, self.end = 0, self._last(0)

    def _last(self, at: int) -> int:
        while self.changed[at]:
            at += 1
        return at

    def _first(self, at: int) -> int:
        while at > 0 and self.changed[at - 1]:
            at -= 1
        return at

    def next(self) -> bool:
        """Go to the next group, past one unchanged line."""
        if self.end == len(self.lines):
            return False
        self.start, self.end = self.end + 1, self._last(self.end + 1)
        return True

    def previous(self) -> None:
        """Go to the previous group."""
        self.start, self.end = self._first(self.start - 1), self.start - 1

    def up(self) -> bool:
        """Slide up by a line if the text stays the same, and join an adjacent group."""
        if self.start == 0 or self.lines[self.start - 1] != self.lines[self.end - 1]:
            return False
        self.start, self.end = self.start - 1, self.end - 1
        self.changed[self.start], self.changed[self.end] = True, False
        self.start = self._first(self.start)
        return True

    def down(self) -> bool:
        """Slide down by a line if the text stays the same, and join an adjacent group."""
        if self.end == len(self.lines) or self.lines[self.start] != self.lines[self.end]:
            return False
        self.changed[self.start], self.changed[self.end] = False, True
        self.start, self.end = self.start + 1, self._last(self.end + 1)
        return True
