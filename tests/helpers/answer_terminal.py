"""Answers in pieces, printed by a separate process on a real pseudo terminal, and the text that its screen
and scrollback hold in the end. ``python -m tests.helpers.answer_terminal`` is that process."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import pyte
from wcwidth import wcwidth

from tests.helpers.screen import rows_of, text_of

ROOT = Path(__file__).parents[2]
LINES = 24


class Paper(pyte.Screen):
    """A screen that keeps the rows that scroll away. Each character has its own width, because terminals
    disagree about combined ones. ``pyte`` drops what follows some characters without width, and begins
    a new row for a combining mark after the last column."""

    def __init__(self, columns: int) -> None:
        self.gone: list[str] = []
        super().__init__(columns, LINES)

    def draw(self, data: str) -> None:
        for kept, chars in groupby(data, lambda char: wcwidth(char) > 0):
            if kept:
                super().draw("".join(chars))
            elif self.cursor.x:
                line, at = self.buffer[self.cursor.y], self.cursor.x - 1
                at -= not line[at].data  # the second half of a wide one
                joined = unicodedata.normalize("NFC", line[at].data + "".join(chars))
                line[at] = line[at]._replace(data=joined)

    def index(self) -> None:
        if self.cursor.y == self.lines - 1:
            self.gone.append(text_of(self.buffer[0]))
        super().index()

    @property
    def rows(self) -> list[str]:
        return [*self.gone, *rows_of(self)]


class AnswerTerminal:
    """Prints one answer after the other, each on an empty screen."""

    def __init__(self, file: int, printer: subprocess.Popen[str]) -> None:
        self._file, self._printer = file, printer

    def rows(self, pieces: Sequence[str], columns: int) -> list[str]:
        """The rows that are there after an answer came in these pieces, without empty ones around them."""
        paper = Paper(columns)
        stream = pyte.ByteStream(paper)
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
        assert self._printer.stdin is not None
        self._printer.stdin.write(json.dumps(pieces) + "\n")
        self._printer.stdin.flush()
        while paper.title != "shown":
            stream.feed(os.read(self._file, 65_536))
        return "\n".join(paper.rows).strip("\n").split("\n")


@contextmanager
def answer_terminal() -> Iterator[AnswerTerminal]:
    ours, theirs = os.openpty()
    hidden = ("COLUMNS", "LINES", "NO_COLOR")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {
        "TERM": "xterm-256color",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "states"))),
    }
    printer = subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=theirs, stderr=theirs, text=True,
        env=environment, cwd=ROOT,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield AnswerTerminal(ours, printer)
    finally:
        printer.communicate()  # at the end of its input it ends
        os.close(ours)


def main() -> None:
    from fsm_agent.cli.screen import console_of
    from fsm_agent.cli.view import ProgressView

    for line in sys.stdin:
        view = ProgressView(console_of(sys.stderr), console_of(sys.stdout))
        view.restart()
        for piece in json.loads(line):
            view.stream_delta(piece)
        view.stop()
        print("\x1b]0;shown\x07", end="", flush=True)


if __name__ == "__main__":
    main()
