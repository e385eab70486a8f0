"""Descriptions of parameters, taken out of a docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection

_HEADER = re.compile(r"\s*(?:args|arguments|parameters|params)\s*:\s*$", re.IGNORECASE)
_SPHINX = re.compile(r"\s*:param\s+(?:[^:]*\s)?\*{0,2}(?P<name>\w+)\s*:\s*(?P<text>.*)$")
_SPHINX_TYPE = re.compile(r"\s*:(?:type\s+\w+|rtype)\s*:")
_PLAIN = re.compile(r"\s*(?:[-*]\s+)?`{0,2}(?P<name>\w+)`{0,2}\s*(?:\([^()]*\)\s*)?:(?=\s|$)(?P<text>.*)$")


def described(docstring: str | None, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """What the tool does, and what each of ``names`` means.

    Understands ``Args:`` sections (Google), ``:param name: text`` (Sphinx) and plain ``name: text`` lines; a
    deeper indented line continues the entry above it. Everything that describes no parameter stays in the
    first text."""
    kept: list[str] = []
    found: dict[str, str] = {}
    current, indent = "", 0
    for line in inspect.cleandoc(docstring or "").splitlines():
        depth = len(line) - len(line.lstrip())
        entry = _SPHINX.match(line) or _PLAIN.match(line)
        if entry and entry["name"] in names and entry["name"] not in found:
            current, indent = entry["name"], depth
            found[current] = entry["text"].strip()
        elif current and line.strip() and depth > indent:
            found[current] = f"{found[current]} {line.strip()}".strip()
        else:
            current = ""
            if not _HEADER.match(line) and not _SPHINX_TYPE.match(line):
                kept.append(line.rstrip())
    return _joined(kept), {name: text for name, text in found.items() if text}


def undeclared(docstring: str | None, names: Collection[str]) -> str | None:
    """The first name that the docstring describes as a parameter, in an ``Args:`` section or after
    ``:param``, and that is none of ``names``; ``None`` when all are there. Plain lines may be anything."""
    section = entries = -1
    for line in inspect.cleandoc(docstring or "").splitlines():
        depth = len(line) - len(line.lstrip())
        if _HEADER.match(line):
            section, entries = depth, -1
        elif line.strip() and depth <= section:
            section = -1
        elif line.strip() and section >= 0 and entries < 0:
            entries = depth
        entry = _SPHINX.match(line) or (_PLAIN.match(line) if 0 <= section < depth == entries else None)
        if entry and entry["name"] not in names:
            return entry["name"]
    return None


def _joined(lines: list[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
