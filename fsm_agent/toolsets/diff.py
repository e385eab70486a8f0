"""A change of a text as a unified diff, in time that depends on the change and not on the text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from fsm_agent.support.texts import shorten

CONTEXT = 3
MAX_DIFF = 10_000
"""Characters."""
MAX_COMPARED = 4_000
"""Lines, on both sides together; comparing more takes seconds, and nobody reads such a diff."""

_HEADER = re.compile(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@")


def diff(before: str, after: str, path: str) -> str:
    """The change in the form of ``diff -u``, cut in the middle when it is long; a sentence when it cannot be
    shown so."""
    old: Sequence[str]
    new: Sequence[str]
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        return "Changed line ends only." if before != after else "Changed nothing."
    start, old, new = _trimmed(old, new)
    if len(old) + len(new) > MAX_COMPARED:
        return f"From line {start + 1} on {len(old):,} lines were replaced by {len(new):,}."
    return shorten("\n".join(_unified(start, old, new, path)), MAX_DIFF)


def whole_diff(before: str, after: str, path: str) -> str | None:
    """The change with nothing cut, in which every sign but the line feed stands as it is; ``None`` when it is
    too long to be compared."""
    start, old, new = _trimmed(before.split("\n"), after.split("\n"))
    if len(old) + len(new) > MAX_COMPARED:
        return None
    return "\n".join(_unified(start, old, new, path))


def _trimmed(old: Sequence[str], new: Sequence[str]) -> tuple[int, Sequence[str], Sequence[str]]:
    """(lines left out before, and the lines of both sides) around what differs."""
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    start = max(0, head - CONTEXT)
    keep = max(0, tail - CONTEXT)
    return start, old[start : len(old) - keep], new[start : len(new) - keep]


def _unified(start: int, old: Sequence[str], new: Sequence[str], path: str) -> Iterator[str]:
    lines = difflib.unified_diff(old, new, path, path, n=CONTEXT, lineterm="")
    return (_moved(line, start) for line in lines)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for mine, yours in zip(one, other, strict=False):
        if mine != yours:
            break
        count += 1
    return count


def _moved(line: str, by: int) -> str:
    """A hunk's header with the line numbers of the whole text."""
    header = _HEADER.fullmatch(line)
    if header is None:
        return line
    return f"@@ -{int(header[1]) + by}{header[2] or ''} +{int(header[3]) + by}{header[4] or ''} @@"
