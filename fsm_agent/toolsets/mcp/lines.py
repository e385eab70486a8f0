"""Cutting what a server writes into lines, within limits. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

MOST_NOISE = 1_000_000
"""Bytes that are no messages; a server that writes more between two messages is not speaking the protocol."""
BURST, STEADY = 2_000, 200
"""Messages that a server may send at once, and for each second after that. Not a rate alone: what is read
slowly comes slowly."""


class Misbehaved(Exception):
    """The server does what no server may; the connection must end. The text says what, for people."""


class LineReader:
    """Whole lines out of pieces. Never holds more than ``most`` bytes, and costs time proportional to what
    came in."""

    def __init__(self, most: int) -> None:
        self._most, self._held = most, bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The lines that this piece completes, without their ends. Raises ``Misbehaved`` for a line that is
        too long."""
        *whole, rest = piece.split(b"\n")
        for part in whole:
            self._add(part)
            line, self._held = bytes(self._held), bytearray()
            yield line.rstrip(b"\r")
        self._add(rest)

    def _add(self, part: bytes) -> None:
        if len(self._held) + len(part) > self._most:
            raise Misbehaved(f"it wrote a message of more than {self._most:,} bytes")
        self._held += part


class Flood:
    """Notices a server that writes without end."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._then = now, now()
        self._room, self._noise = float(BURST), 0

    def message(self) -> None:
        """A message came. Raises ``Misbehaved`` when there are too many."""
        self._noise, now = 0, self._now()
        self._room = min(BURST, self._room + STEADY * (now - self._then)) - 1
        self._then = now
        if self._room < 0:
            raise Misbehaved(f"it sent {BURST:,} messages at once and more than {STEADY} a second")

    def noise(self, size: int) -> None:
        """A line that is no message came, of so many bytes. Raises ``Misbehaved`` when there is nothing else
        for too long."""
        self._noise += size + 1
        if self._noise > MOST_NOISE:
            raise Misbehaved(
                f"it wrote more than {MOST_NOISE:,} bytes that are no messages to its standard output"
            )
