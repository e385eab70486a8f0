"""Ctrl-C while a turn runs: the first interrupts the turn, the second ends the program."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ctrl_c(interrupt: Callable[[], object]) -> Iterator[None]:
    """Within the event loop of the turn. ``interrupt`` is called in the loop, because a signal may come at a
    moment at which a lock is held; the second signal raises ``KeyboardInterrupt``."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, pressed = asyncio.get_running_loop(), 0

    def handle(*_: Any) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(interrupt)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
