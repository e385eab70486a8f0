"""A change of a text as a unified diff, in time that depends on the change and not on the text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

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
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        return "Changed line ends only." if before != after else "Changed nothing."
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    start = max(0, head - CONTEXT)
    keep = max(0, tail - CONTEXT)
    old, new = old[start : len(old) - keep], new[start : len(new) - keep]
    if len(old) + len(new) > MAX_COMPARED:
        return f"From line {head + 1} on {len(old):,} lines were replaced by {len(new):,}."
    lines = difflib.unified_diff(old, new, path, path, n=CONTEXT, lineterm="")
    return shorten("\n".join(_moved(line, start) for line in lines), MAX_DIFF)


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
