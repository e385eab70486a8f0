"""Numbers that providers name in their errors."""

from __future__ import annotations

import re

MARGIN = 64
"""Tokens kept free below a cap that a provider named."""

_CAPS = (
    re.compile(r"at most (\d[\d,_]*)"),
    re.compile(r"less than or equal to (\d[\d,_]*)"),
    re.compile(r"(?:maximum|max|limit)[^\d]{0,60}?(\d[\d,_]*)"),
    re.compile(r"> ?(\d[\d,_]*)"),
)
_WINDOW = re.compile(r"(?:maximum context length|context (?:length|window|size)|n_ctx)[^\d]{0,40}(\d[\d,_]*)")


def output_cap_from(detail: str, window: int | None, estimate: int) -> int | None:
    """The largest output cap that the error allows, less a margin; ``None`` when it names no number."""
    for expression in _CAPS:
        if found := expression.search(detail):
            named = _number(found.group(1))
            room = window - estimate if window else named
            return max(1, min(named, room) - MARGIN)
    return None


def window_from(detail: str) -> int | None:
    """The context window that an overflow error names, in tokens; never guessed."""
    found = _WINDOW.search(detail)
    return _number(found.group(1)) if found else None


def _number(text: str) -> int:
    return int(text.replace(",", "").replace("_", ""))
