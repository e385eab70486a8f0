"""Streamed text, broken between words at the edge of a terminal."""

from __future__ import annotations

import re

from rich.cells import cell_len

_PIECES = re.compile(r"\n|[^\S\n]+|\S+")
_FENCE = ("```", "~~~")
INDENT = "    "


class Wrapping:
    """Text comes in pieces of any size and goes out as soon as a word is whole.

    Code is left as it is, so that it can be copied: fenced, or indented by four spaces. A word that is wider
    than the terminal is left to the terminal."""

    def __init__(self) -> None:
        self._held = ""  # the beginning of a word
        self._gap = ""  # white space that is not needed where a line is broken
        self._line = ""  # what stands on the line so far, before it is broken
        self._column = 0
        self._fenced = False

    def feed(self, text: str, width: int) -> str:
        """What can be shown now; ``width`` in columns."""
        *whole, last = _PIECES.findall(self._held + text) or [""]
        held = last if last and not last.isspace() else ""
        self._held = held if len(held) <= 4 * width else ""
        return "".join(self._put(piece, width) for piece in (whole if self._held else (*whole, last)))

    def rest(self, width: int) -> str:
        """What is still held back, when no more comes."""
        held, self._held = self._held, ""
        return self._put(held, width) if held else ""

    @property
    def _code(self) -> bool:
        return self._fenced or self._line.startswith(INDENT)

    def _put(self, piece: str, width: int) -> str:
        if piece == "\n":
            self._fenced ^= self._line.lstrip().startswith(_FENCE)
            self._line, self._gap, self._column = "", "", 0
            return "\n"
        self._line += piece
        if piece.isspace():
            self._gap += piece
            return ""
        gap, self._gap = self._gap, ""
        wide = cell_len(piece)
        if gap and self._column and self._column + cell_len(gap) + wide > width and not self._code:
            self._column = wide
            return "\n" + piece
        self._column += cell_len(gap) + wide
        return gap + piece
