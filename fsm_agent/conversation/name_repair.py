"""Finding the tool that a model meant when it wrote a name that does not exist."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

MAX_NAME = 64
"""Characters, as providers allow; longer names are not compared, because comparing is quadratic."""
MAX_WRITTEN = 1_000
"""Characters of what stands in the place of a name: a name, and what a model let follow it."""

_QUOTES = "\"'`<>“”‘’«»"
_AFTER_QUOTE = re.compile(f"[{_QUOTES}].*", re.DOTALL)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATORS = re.compile(r"[-\s_]+")


def repair_name(name: str, known: Sequence[str], cutoff: float = 0.7) -> str | None:
    """The one name of ``known`` that ``name`` stands for, or ``None``.

    An exact name wins; then spelling (quotes and what follows them, case, dashes, camel case, a "tool" suffix
    once or twice); then likeness by ``difflib`` of at least ``cutoff`` (0 to 1). Two equally good answers are
    no answer."""
    bare = _AFTER_QUOTE.sub("", name[:MAX_WRITTEN].strip().lstrip(_QUOTES)).strip()
    if not bare:
        return None
    if bare in known:
        return bare
    spelled: dict[str, set[str]] = {}
    for candidate in known:
        spelled.setdefault(_snake(candidate), set()).add(candidate)
    for spelling in _spellings(bare):
        if spelling in spelled:
            return _only(spelled[spelling])
    if len(bare) > MAX_NAME:
        return None
    return _alike(list(_spellings(bare)), spelled, cutoff)


def _alike(spellings: Sequence[str], spelled: dict[str, set[str]], cutoff: float) -> str | None:
    scores: dict[str, float] = {}
    for known in spelled:
        best = max(difflib.SequenceMatcher(None, known, spelling).ratio() for spelling in spellings)
        if best >= cutoff:
            scores[known] = best
    winners = {
        name for known, score in scores.items() if score == max(scores.values()) for name in spelled[known]
    }
    return _only(winners)


def _spellings(bare: str) -> Iterator[str]:
    """The name in snake case, then without its "tool" suffix, at most twice."""
    spelling = _snake(bare)
    yield spelling
    for _ in range(2):
        shorter = spelling.removesuffix("tool").rstrip("_")
        if shorter in ("", spelling):
            return
        spelling = shorter
        yield spelling


def _snake(name: str) -> str:
    return _SEPARATORS.sub("_", _HUMP.sub("_", name)).strip("_").lower()


def _only(names: set[str]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None
