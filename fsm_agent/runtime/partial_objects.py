"""What can be said of an answer of a type while it is still being written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SHARE, LEAST = 0.25, 32
"""It is read again when it has grown by so much of its length, and by so many characters: all readings of a
long answer together cost a few times what one does."""


class PartialObjects:
    """``read`` makes an object of the beginning of an answer, or ``nothing``; ``tell`` hears each that is
    another than the one before."""

    def __init__(self, read: Callable[[str], Any], tell: Callable[[Any], None], nothing: Any) -> None:
        self._read, self._tell, self._nothing = read, tell, nothing
        self._last = nothing
        self.restart()

    def restart(self) -> None:
        """The answer begins here; what came before was none."""
        self._pieces: list[str] = []
        self._length = self._next = self._seen = 0

    def feed(self, piece: str) -> None:
        """Take the next piece of the answer."""
        self._pieces.append(piece)
        self._length += len(piece)
        if self._length >= self._next:
            self._look()

    def end(self) -> None:
        """Nothing more comes for now."""
        if self._length > self._seen:
            self._look()

    def _look(self) -> None:
        self._pieces = ["".join(self._pieces)]
        self._seen, self._next = self._length, self._length + max(LEAST, int(self._length * SHARE))
        found = self._read(self._pieces[0])
        if found is not self._nothing and found != self._last:
            self._last = found
            self._tell(found)
