"""Text of others beside words of ours: every row of it begins with the gutter, so that none can pass for a
question.

``command │ for f in *.py; do↵`` begins a line of the text, ``┆`` a row that goes on with it because there is
no more room.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fsm_agent.approvals.visible import ESCAPE

BEGINS, GOES_ON, VALUE, NAMED = "│", "┆", "=", "›"
"""Between label and row: of a text, of the rest of a line that is too long, of a number or another value that
is no text; and before a name that is too long to stand beside its value."""
NARROWEST = 20
"""Columns for the text at least; a terminal that has fewer breaks the rows itself."""
_PIECES = re.compile(rf"{ESCAPE.pattern}|.")


@dataclass(frozen=True, slots=True)
class QuestionRow:
    """One row that a person reads: ``head`` is ours, ``text`` is a piece of what others wrote. ``sentence``:
    it is the question itself."""

    head: str
    text: str = ""
    sentence: bool = False

    def __str__(self) -> str:
        return self.head + self.text


def beside(label: str, shown: str, width: int, sign: str = BEGINS) -> list[QuestionRow]:
    """The rows of a text that ``fsm_agent.approvals.visible`` made; the label stands beside the first.
    ``width`` in columns."""
    before = f"    {label} "
    room = max(NARROWEST, width - len(before) - 2)
    rows: list[QuestionRow] = []
    for line in shown.split("\n"):
        for number, piece in enumerate(broken(line, room)):
            head = before if not rows else " " * len(before)
            rows.append(QuestionRow(f"{head}{GOES_ON if number else sign} ", piece))
    return rows


def broken(line: str, room: int) -> Iterator[str]:
    """Pieces of a line, each at most ``room`` columns wide. Whatever is not ASCII counts as two: terminals do
    not agree about it. A piece ends before a blank if it can, because a blank is seen at the beginning of a
    row and not at its end. No escape is torn."""
    signs, start = _PIECES.findall(line), 0
    while start < len(signs):
        end, used = start, 0
        while end < len(signs) and (used := used + _columns(signs[end])) <= room:
            end += 1
        end = max(end, start + 1)
        if end < len(signs):
            middle = (start + end) // 2
            end = next((at for at in range(end, middle, -1) if signs[at] == " " != signs[at - 1]), end)
            seen = end
            while seen > start and signs[seen - 1] == " ":
                seen -= 1
            end = seen if seen > start else end
        yield "".join(signs[start:end])
        start = end
    if not signs:
        yield ""


def _columns(piece: str) -> int:
    return len(piece) if piece.isascii() else sum(1 if char.isascii() else 2 for char in piece)
