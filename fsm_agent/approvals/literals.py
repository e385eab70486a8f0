"""A text that must be in every line that a regular expression matches: what a fast program can look for
first."""

from __future__ import annotations

import re

SHORTEST = 3
_QUANTIFIER = re.compile(r"[*+?]|\{\d*(?:,\d*)?\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_FOLDED = re.compile(r"[iIkKsS]|[^\x00-\x7f]")
"""What Python's case rules may equate with other letters than another program does (dotless i, Kelvin sign,
long s)."""
_UNSURE = re.compile("[\r\n\x00\ufeff\ufffd\ud800-\udfff]")
"""What reading a file as text may take away, or put there."""


def certain_literal(pattern: str, ignore_case: bool) -> str | None:
    """The longest text of at least three characters that is surely in what ``pattern`` matches; ``None`` when
    none is sure.

    Reads plain characters, escapes, classes and repetitions; gives up at groups, alternatives and everything
    else. With ``ignore_case`` it is to be looked for without regard to case."""
    runs: list[str] = [""]
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character in "()|":
            return None
        if match := _QUANTIFIER.match(pattern, at):
            if match[0] != "+":
                runs[-1] = runs[-1][:-1]
            runs.append("")
            at = match.end()
        elif character == "[":
            closed = _CLASS.match(pattern, at)
            if closed is None:
                return None
            runs.append("")
            at = _after(pattern, closed.end())
        elif character in ".^$":
            runs.append("")
            at = _after(pattern, at + 1)
        elif character == "\\":
            escaped = pattern[at + 1 : at + 2]
            if escaped == "" or (escaped.isalnum() and escaped not in "bBdDsSwWAZ"):
                return None
            runs[-1:] = [runs[-1], ""] if escaped.isalnum() else [runs[-1] + escaped]
            at = _after(pattern, at + 2) if escaped.isalnum() else at + 2
        else:
            runs[-1] += character
            at += 1
    return _longest(runs, ignore_case)


def _after(pattern: str, at: int) -> int:
    """Past the repetition of something that is no literal."""
    match = _QUANTIFIER.match(pattern, at)
    return match.end() if match else at


def _longest(runs: list[str], ignore_case: bool) -> str | None:
    parts = [part for run in runs for part in (_FOLDED.split(run) if ignore_case else [run])]
    return max(
        (part for part in parts if len(part) >= SHORTEST and not _UNSURE.search(part)), key=len, default=None
    )
