"""A real terminal with the command line in it, and what a person sees on its screen."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import environment
from tests.helpers.waiting import PATIENCE

pexpect = pytest.importorskip("pexpect")
pyte = pytest.importorskip("pyte")
ROOT = Path(__file__).parents[2]
_TIMES = re.compile(r"\s+\d+(?:\.\d+)?\s+s\b")
_FRAMES = re.compile("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]")
_WHERE = b"\x1b[6n"
"""A program asks the terminal where its cursor is."""


class Screen:
    """``rows`` are the rows of the screen now; ``shown`` is the same without what differs from run to run."""

    def __init__(self, child: Any, columns: int, lines: int) -> None:
        self._child = child
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._rows: list[str] | None = None

    @property
    def rows(self) -> list[str]:
        if self._rows is None:
            self._rows = rows_of(self._screen)
        return self._rows

    @property
    def shown(self) -> str:
        text = "\n".join(self.rows).strip("\n") + "\n"
        return _FRAMES.sub("*", _TIMES.sub(" T s", text))

    def colors(self, words: str) -> set[str]:
        """The colors of the letters of these words, at their first place."""
        for number, row in enumerate(self.rows):
            if (at := row.find(words)) >= 0:
                return {self._screen.buffer[number][column].fg for column in range(at, at + len(words))}
        raise AssertionError(f"{words!r} is not on the screen:\n{self.shown}")

    def until(self, words: str, *, gone: bool = False, patience: float = PATIENCE) -> None:
        """Read until these words are on the screen, or are gone."""
        self.until_so(lambda: any(words in row for row in self.rows) is not gone, repr(words), patience)

    def until_so(self, holds: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
        """Read until this holds of the screen."""
        end = time.monotonic() + patience
        while not holds():
            assert time.monotonic() < end, f"waited for {what}; the screen says:\n{self.shown}"
            try:
                data = self._child.read_nonblocking(65_536, timeout=0.2)
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                assert holds(), f"it ended:\n{self.shown}"
                return
            self._stream.feed(data)
            self._rows = None
            for _ in range(data.count(_WHERE)):
                self._child.send(f"\x1b[{self._screen.cursor.y + 1};{self._screen.cursor.x + 1}R")

    def press(self, keys: str, until: str = "") -> None:
        """Type, and read until these words are on the screen."""
        self._child.send(keys)
        if until:
            self.until(until)

    def resize(self, columns: int, lines: int) -> None:
        self._screen.resize(lines, columns)
        self._rows = None
        self._child.setwinsize(lines, columns)

    def ended(self) -> int:
        self._child.expect(pexpect.EOF, timeout=PATIENCE)
        if self._child.isalive():
            self._child.wait()
        self._child.close()
        return int(self._child.exitstatus)


@contextmanager
def screen(*arguments: str, home: Path, folder: Path, columns: int = 80, lines: int = 40) -> Iterator[Screen]:
    """The command line with these arguments, in ``folder``."""
    env = environment(TERM="xterm-256color", FSM_AGENT_HOME=str(home))
    env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    options = {"env": env, "cwd": str(folder), "dimensions": (lines, columns)}
    child = pexpect.spawn(sys.executable, ["-m", "fsm_agent", *arguments], **options)
    try:
        yield Screen(child, columns, lines)
    finally:
        end(child)


def rows_of(screen: Any) -> list[str]:
    """The rows of a ``pyte.Screen`` without blanks at their ends."""
    return [text_of(screen.buffer[number]) for number in range(screen.lines)]


def text_of(line: Mapping[int, Any]) -> str:
    """A row of its buffer. Its ``display`` makes all of them, and measures every letter: forty times as long."""
    return "".join(line[column].data for column in range(max(line, default=-1) + 1)).rstrip()


def end(child: Any) -> None:
    """Kill what still runs in a terminal. By itself pexpect gives the system a tenth of a second for that."""
    if child.isalive():
        child.kill(signal.SIGKILL)
        child.wait()
    child.close()


def breaks(rows: list[str], width: int) -> list[str]:
    """The rows that continue an indented row in the first column, because it had no room for their first word. The
    rows of a table's last columns begin further to the right."""
    return [
        after
        for row, after in pairwise(rows)
        if re.match(r" {2,8}\S", row)
        and (first := after.split(" ", 1)[0])
        and len(row) + 1 + len(first) > width
    ]


def recorded(name: str, seen: Screen, place: Path) -> None:
    """Read until the screen is as its record, wherever ``place`` is; ``RECORD_SCREENS`` has it written."""
    file = ROOT / "tests" / "cli" / "screens" / f"{name}.txt"

    def shown() -> str:
        return seen.shown.replace(str(place), "PLACE")

    if os.environ.get("RECORD_SCREENS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown(), "utf-8")
    record = file.read_text("utf-8")
    seen.until_so(lambda: shown() == record, f"the screen {file.name}:\n{record}")
