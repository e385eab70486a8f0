"""The command line at a real terminal."""

from __future__ import annotations

import codecs
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from fsm_agent.testing import ScriptedServer
from tests.helpers.processes import environment
from tests.helpers.waiting import PATIENCE

pty = pytest.importorskip("pty", reason="a terminal is needed")


class Terminal:
    """The program at the other end of a terminal. ``screen`` is all that it wrote so far."""

    def __init__(self, file: int, running: subprocess.Popen[bytes]) -> None:
        self._file, self.running, self.screen = file, running, ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a character
        os.set_blocking(file, False)

    @property
    def plain(self) -> str:
        """The screen without colors and the like."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.screen).replace("\r\n", "\n")

    def until(self, words: str, times: int = 1) -> None:
        """Read until the program has written this ``times`` times."""
        self._read(lambda: self.screen.count(words) >= times, words)

    def ended(self) -> int:
        self._read(lambda: self.running.poll() is not None, "its end")
        return self.running.returncode

    def say(self, line: str, until: str = "") -> None:
        self.press(line + "\n", until)

    def press(self, keys: str, until: str = "") -> None:
        """Type, and read until the program has written this."""
        os.write(self._file, keys.encode())
        if until:
            self.until(until)

    def _read(self, enough: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not enough():
            assert time.monotonic() < until, f"waited for {what}; the screen says: {self.screen[-2000:]}"
            try:
                self.screen += self._decoder.decode(os.read(self._file, 65_536))
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # the other end was closed
                self.running.wait(PATIENCE)


@contextmanager
def talk(home: Path, script: Iterable[Any], *options: str) -> Iterator[tuple[Terminal, ScriptedServer]]:
    """A chat whose model gives these replies, when it is ready for the first message."""
    with (
        ScriptedServer(script) as server,
        terminal("chat", "--model", "local:m", "--base-url", server.url, *options, home=home) as screen,
    ):
        screen.until("›")
        yield screen, server


@contextmanager
def terminal(*arguments: str, home: Path, columns: int = 110, **files: IO[bytes]) -> Iterator[Terminal]:
    """``stdout`` and ``stderr`` may be files."""
    ours, theirs = pty.openpty()
    env = environment(TERM="xterm-256color", COLUMNS=str(columns))
    running = subprocess.Popen(
        [sys.executable, "-m", "fsm_agent", *arguments, "--home", str(home)],
        **{"stdin": theirs, "stdout": theirs, "stderr": theirs, **files}, env=env, cwd=home, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(ours, running)
    finally:
        running.kill()
        running.wait()
        os.close(ours)
