"""Tables that are text files: lines below titles in brackets, some of them with two columns."""

from __future__ import annotations

from pathlib import Path


def sections(path: Path) -> dict[str, list[str]]:
    """The lines below each title."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            found[line[1:-1]] = lines = []
        else:
            lines.append(line)
    return found


def columns(lines: list[str]) -> list[tuple[str, str]]:
    """The text before and behind the arrow of each line."""
    return [(left, right) for left, _, right in (line.partition(" ⇒ ") for line in lines)]
