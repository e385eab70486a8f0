"""What a server says on its standard error: a bounded file in the home directory, and its last words."""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from fsm_agent.support.private_files import private_file, private_folder
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import one_line
from fsm_agent.toolsets.mcp.lines import LineReader, Misbehaved

log = logging.getLogger(__name__)

LOGS = "logs"
"""Folder of the home directory."""
MAX_FILE = 250_000
"""Bytes of one file; it and the one before it are kept."""
MAX_LINE = 4_000
MAX_A_SECOND = 50_000
"""Bytes that are written; what comes faster is counted and left out."""
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])|[\x00-\x08\x0b-\x1f\x7f]"
)


class ServerLog:
    """Appends lines with the time, without the ``secrets`` and without control sequences. Never raises for
    the disk."""

    def __init__(self, path: Path, secrets: Iterable[str] = (), now: Callable[[], float] = time.time) -> None:
        self.path, self._secrets, self._now = path, tuple(secrets), now
        self._last: deque[str] = deque(maxlen=4)
        self._lines = LineReader(MAX_LINE)
        self._second, self._written, self._dropped, self._broken = 0, 0, 0, False

    @property
    def last_words(self) -> str:
        """The end of what was said, on one line; empty when nothing was."""
        return one_line(" | ".join(line for line in self._last if line), 300)

    def hush(self) -> None:
        """Forget the last words: what comes now is said by another process."""
        self._last.clear()

    def feed(self, piece: bytes) -> None:
        """Bytes as they come."""
        try:
            for line in self._lines.feed(piece):
                self.say(line.decode("utf-8", "replace"))
        except Misbehaved:  # a line without an end: its beginning is enough
            self._lines = LineReader(MAX_LINE)
            self.say(piece[:MAX_LINE].decode("utf-8", "replace") + " …")

    def say(self, text: str) -> None:
        """One line."""
        now = self._now()
        if int(now) != self._second:
            left_out, self._second, self._written, self._dropped = self._dropped, int(now), 0, 0
            if left_out:
                self._append(f"[{left_out:,} lines left out]\n")
        if self._written > MAX_A_SECOND:
            self._dropped += 1
            return
        line = mask(_ESCAPES.sub(" ", text[:MAX_LINE]), self._secrets).rstrip()
        self._last.append(line)
        self._written += len(line) + 1
        self._append(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))} {line}\n")

    def _append(self, text: str) -> None:
        if self._broken:
            return
        try:
            private_folder(self.path.parent)
            if self.path.exists() and self.path.stat().st_size > MAX_FILE:
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            with open(self.path, "a", encoding="utf-8", errors="replace", opener=private_file) as file:
                file.write(text)
        except OSError as error:
            self._broken = True
            log.warning("%s cannot be written: %s", self.path, error.strerror)
