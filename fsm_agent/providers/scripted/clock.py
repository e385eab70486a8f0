"""A clock that moves only when it is told to, or when somebody sleeps on it."""

from __future__ import annotations

import asyncio
import threading


class FakeClock:
    """Simulated time in seconds. ``sleep`` advances at once and lets other tasks run; ``sleeps`` records each
    wait.

    ``advance`` may be called from any thread, for example from a hook of ``ScriptedServer``.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self.sleeps: list[float] = []
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> float:
        """Return the simulated time."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Note the wait, move the clock by it, and yield once to the event loop."""
        self.sleeps.append(seconds)
        self.advance(max(0.0, seconds))
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        """Move time forward. Raises ``ValueError`` for a negative step: time does not go backwards."""
        if seconds < 0:
            raise ValueError(f"a clock does not go backwards; given: {seconds}")
        with self._lock:
            self._now += seconds
