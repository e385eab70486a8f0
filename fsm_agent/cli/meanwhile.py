"""What a person types at the terminal while a turn runs: each line is a message, and a line without its end
is the beginning of the next one.

Keys are read one by one and not echoed, so that they do not stand in the middle of an answer."""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

POLL = 0.05
"""Seconds between two looks at the keyboard."""
_MOST = 65_536
_LINE = re.compile(r"\x1b[\r\n]")
_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)")
"""What keys such as arrows send."""
_BACK, _WIPED = ("\x7f", "\b"), "\x15"


class Keys:
    """Makes messages of keys. ``draft`` is what has no end yet."""

    def __init__(self) -> None:
        self.draft = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, data: bytes) -> list[str]:
        """Return the messages that end in these keys, oldest first. A backslash before Enter, and Alt-Enter,
        begin a new line."""
        messages = []
        for key in _SEQUENCES.sub("", _LINE.sub("\v", self._decoder.decode(data))):
            if key in "\r\n" and not self.draft.endswith("\\"):
                messages.append(self.draft)
                self.draft = ""
            elif key in "\r\n":
                self.draft = self.draft[:-1] + "\n"
            elif key in _BACK:
                self.draft = self.draft[:-1]
            elif key == _WIPED:
                self.draft = ""
            elif key == "\v" or key >= " ":
                self.draft += "\n" if key == "\v" else key
        return [message for message in messages if message.strip()]


class Meanwhile:
    """Listens at the terminal while a turn runs. ``shows`` is told what is typed so far."""

    def __init__(self, shows: Callable[[str], None]) -> None:
        self._shows, self._keys = shows, Keys()
        self._lock = threading.RLock()
        self._heard: Callable[[str], None] | None = None
        self._modes: list[Any] | None = None

    def draft(self) -> str:
        """Return what was typed and not sent, once."""
        draft, self._keys.draft = self._keys.draft, ""
        return draft

    @contextmanager
    def listening(self, heard: Callable[[str], None]) -> Iterator[None]:
        """Within the event loop of the turn; ``heard`` gets each message."""
        self._heard = heard
        self._key_by_key()
        looking = asyncio.ensure_future(self._look())
        try:
            yield
        finally:
            looking.cancel()
            with self._lock:
                self._take()
                self._heard = None
                self._as_before()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """From any thread: what was typed so far is taken, and the terminal is free for a question."""
        with self._lock:
            self._take()
            self._as_before()
            try:
                yield
            finally:
                if self._heard is not None:
                    self._key_by_key()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(POLL)
            if self._lock.acquire(blocking=False):  # else a question is asked
                try:
                    self._take()
                finally:
                    self._lock.release()

    def _take(self) -> None:
        if self._heard is None:
            return
        before = self._keys.draft
        with suppress(OSError):  # the terminal is gone
            while select.select([sys.stdin.fileno()], [], [], 0)[0]:
                if not (data := os.read(sys.stdin.fileno(), _MOST)):
                    break
                for message in self._keys.take(data):
                    self._heard(message)
        if self._keys.draft != before:
            self._shows(self._keys.draft)

    def _key_by_key(self) -> None:
        import termios

        with suppress(termios.error):
            terminal = sys.stdin.fileno()
            self._modes = modes = termios.tcgetattr(terminal)
            keys = [*modes[:3], modes[3] & ~(termios.ICANON | termios.ECHO), *modes[4:6], [*modes[6]]]
            keys[6][termios.VMIN], keys[6][termios.VTIME] = 1, 0
            termios.tcsetattr(terminal, termios.TCSADRAIN, keys)

    def _as_before(self) -> None:
        import termios

        modes, self._modes = self._modes, None
        if modes is not None:
            with suppress(termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, modes)
