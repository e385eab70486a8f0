"""What a person types at the terminal, and when: only what comes after a question can answer it.

Lines are read from the terminal itself, past the buffers of this process, which may hold what was typed
before.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Waiting = Callable[[], bool]
"""Does anybody still wait for the answer?"""
QUIET = 0.1
"""Seconds without a line after which a paste is over; a person does not write two lines within it."""
PAUSE = 0.5
"""Seconds without a key after which nobody is in the middle of typing something."""
POLL = 0.1
_LONGEST = 65_536


def forget() -> None:
    """Throw away what was typed so far, also a line without its end. Raises ``OSError`` when the terminal is
    gone."""
    if sys.platform == "win32":
        import msvcrt

        while msvcrt.kbhit():
            msvcrt.getwch()
        return
    import termios

    try:
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    except termios.error as error:
        raise OSError(*error.args) from error


def forget_all(waiting: Waiting) -> None:
    """``forget``, until there is a pause: also the rest of a paste, and the end of a line that somebody is
    just typing, which would else come behind the question and answer it."""
    with _key_by_key():
        while waiting() and _arrives(PAUSE):
            forget()
    forget()


@contextmanager
def _key_by_key() -> Iterator[None]:
    """Let keys be seen before Enter, and none of them on the screen."""
    if sys.platform == "win32":
        yield
        return
    import termios

    terminal = sys.stdin.fileno()
    try:
        before = termios.tcgetattr(terminal)
    except termios.error as error:
        raise OSError(*error.args) from error
    keys = [*before[:3], before[3] & ~(termios.ICANON | termios.ECHO), *before[4:6], [*before[6]]]
    keys[6][termios.VMIN], keys[6][termios.VTIME] = 1, 0
    termios.tcsetattr(terminal, termios.TCSANOW, keys)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)


def line(waiting: Waiting) -> str | None:
    """What was typed until Enter; ``None`` when nobody waits for it any more, or when the input has ended."""
    if sys.platform == "win32":  # its terminal cannot be waited for
        text = sys.stdin.readline()
        return text.removesuffix("\n") if text else None
    read = b""
    while waiting():
        if not _arrives(POLL):
            continue
        if not (more := os.read(sys.stdin.fileno(), _LONGEST)):
            return None
        read += more
        if read.endswith(b"\n"):
            return read[:-1].decode("utf-8", "replace")
    return None


def follows() -> bool:
    """Does another line come in at once?"""
    return _arrives(QUIET)


def _arrives(seconds: float) -> bool:
    """Is there a line, or the end of the input, within this time?"""
    if sys.platform == "win32":
        import msvcrt

        time.sleep(seconds)
        return msvcrt.kbhit()
    return bool(select.select([sys.stdin.fileno()], [], [], seconds)[0])
