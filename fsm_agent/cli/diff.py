"""Changes of files in colours."""

from __future__ import annotations

import re

from rich.text import Text

from fsm_agent.cli.screen import clean

SHOWN = 40
"""Lines of a change that are shown after it was made."""
_DIFF = re.compile(r"^--- .*\n\+\+\+ .*\n(?=@@ )", re.MULTILINE)
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def colour_of(line: str) -> str:
    """Return how a line of a unified diff is shown."""
    return _COLOURS.get(line[:1], "dim")


def counts(result: str) -> str:
    """Return how many lines a tool's result shows to be added and removed: ``+3 -1``."""
    lines = result[found.end() :].split("\n") if (found := _DIFF.search(result)) else []
    added, removed = (sum(line.startswith(sign) for line in lines) for sign in "+-")
    return f"+{added:,} -{removed:,}"


def coloured(result: str) -> Text | None:
    """Return the change that a tool's result shows, ``None`` when there is none. Of a long one the rest is
    counted."""
    found = _DIFF.search(result)
    if found is None:
        return None
    lines = clean(result[found.end() :]).split("\n")
    shown = Text("\n").join(Text(f"      {line}", colour_of(line)) for line in lines[:SHOWN])
    if len(lines) > SHOWN:
        shown.append(f"\n      … {len(lines) - SHOWN:,} more lines", "dim")
    return shown
