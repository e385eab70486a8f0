"""Giving a replacement the indentation of the place that it goes to."""

from __future__ import annotations

from collections.abc import Sequence


def reindented(new: str, wanted: str, found: str) -> str:
    """``new`` with the indentation moved as ``found`` is against ``wanted``, when that is the same for every
    line of them."""
    move = _move(_filled(wanted), _filled(found))
    if move is None:
        return new
    old, own = move
    lines = new.splitlines(keepends=True)
    if not all(line.startswith(old) for line in lines if line.strip()):
        return new
    return "".join(own + line[len(old) :] if line.strip() else line for line in lines)


def _move(wanted: Sequence[str], found: Sequence[str]) -> tuple[str, str] | None:
    """The indentation to take away and the one to put there; ``None`` when lines are moved differently, or
    not at all."""
    if len(wanted) != len(found) or not wanted:
        return None
    for cut in range(len(_indent(wanted[0])) + 1):
        old = _indent(wanted[0])[: len(_indent(wanted[0])) - cut]
        kept = _indent(wanted[0])[len(old) :]
        if not _indent(found[0]).endswith(kept):
            continue
        own = _indent(found[0])[: len(_indent(found[0])) - len(kept)]
        if all(
            _indent(w).startswith(old) and _indent(f) == own + _indent(w)[len(old) :]
            for w, f in zip(wanted, found, strict=True)
        ):
            return None if old == own else (old, own)
    return None


def _filled(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]
