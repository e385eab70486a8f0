"""The lines of a stream of events (SSE), put together from the bytes that arrive. No network, no SDK."""

from __future__ import annotations

from fsm_agent.providers.bounded_body import BadBody


class EventLines:
    """What has come of a stream. An event of more than ``most`` bytes is not read on."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._begun: list[bytes] = []  # of the line that has no end yet
        self._begun_size = 0
        self._data: list[bytes] = []  # of the event that has no end yet
        self._data_size = 0
        self._ended_in_cr = False

    def feed(self, piece: bytes) -> list[str]:
        """Take the next bytes, and return the data of the events that are whole now, in order. The names of
        events are not looked at; an event without data is none.

        Raises ``BadBody`` for one that is too long, and ``UnicodeDecodeError``."""
        if not piece:
            return []
        if self._ended_in_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._ended_in_cr = piece.endswith(b"\r")
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = piece.split(b"\n")
        if lines and self._begun:
            lines[0] = b"".join((*self._begun, lines[0]))
        if lines:
            self._begun, self._begun_size = [], 0
        self._begun.append(rest)
        self._begun_size += len(rest)
        found = [data for line in lines if (data := self._line(line))]
        self._judge()
        return found

    def _line(self, line: bytes) -> str:
        """Take a line, and return the data of the event that it ends."""
        if line:
            if line.startswith(b"data:"):
                self._data_size += len(line)
                self._judge()
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            return ""
        data, self._data, self._data_size = self._data, [], 0
        return b"\n".join(data).decode()

    def _judge(self) -> None:
        if self._begun_size + self._data_size > self._most:
            raise BadBody(f"it sent an event of more than {self._most:,} bytes")
