"""Messages to a running turn from any thread: interrupts and steering texts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class TurnInbox:
    """Holds an interrupt and steering texts until a turn takes them. Idempotent, thread-safe. ``listeners``
    are called at each interrupt, even when no turn runs.

    An interrupt before the start of a turn is kept and ends that turn at its first gate."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._interrupted = False
        self.message: str | None = None
        self._steer: list[str] = []
        self._event: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.listeners: list[Callable[[], None]] = []

    def interrupt(self, message: str | None = None) -> None:
        """Ask the turn to stop, from any thread. ``message``: a text of the user, if any."""
        with self._lock:
            self._interrupted = True
            self.message = message or self.message
            if self._event is not None and self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._event.set)
        for listener in self.listeners:
            listener()

    def steer(self, text: str) -> None:
        """Add a message without interrupting, from any thread."""
        with self._lock:
            self._steer.append(text)

    @property
    def interrupted(self) -> bool:
        """Say whether an interrupt was requested."""
        return self._interrupted

    def take_steer(self) -> tuple[str, ...]:
        """Return and clear the messages, oldest first."""
        with self._lock:
            texts, self._steer = tuple(self._steer), []
            return texts

    def event(self) -> asyncio.Event:
        """Return an event of the running loop that the interrupt sets."""
        with self._lock:
            loop = asyncio.get_running_loop()
            if self._event is None or self._loop is not loop:
                self._event, self._loop = asyncio.Event(), loop
            if self._interrupted:
                self._event.set()
            return self._event

    def clear(self) -> None:
        """Clear the interrupt; called only at the end of a turn."""
        with self._lock:
            self._interrupted, self.message = False, None
            self._event = self._loop = None
