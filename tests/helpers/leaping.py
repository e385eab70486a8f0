"""An event loop whose time can be moved on: what happens after a minute happens at once, and never too
early."""

from __future__ import annotations

import asyncio


class LeapingLoop(asyncio.SelectorEventLoop):
    """Its timers, and with them the time limits of coroutines, follow ``time``; other clocks are as ever."""

    _ahead = 0.0

    def time(self) -> float:
        return super().time() + self._ahead

    def leap(self, seconds: float) -> None:
        """Move time on; from any thread."""
        self.call_soon_threadsafe(self._leap, seconds)

    def _leap(self, seconds: float) -> None:
        self._ahead += seconds
