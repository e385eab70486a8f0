"""Racing a piece of work against a time limit and an interrupt.

A limit is reached when either the injected clock or the machine's own says so. The race looks at both a few
times a second instead of sleeping on the injected clock: with a simulated clock, which jumps, a sleeping
watchdog would kill work that a real server is just about to finish."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Literal

from fsm_agent.runtime.ports import Clock

Finish = Literal["done", "late", "interrupted"]


_SHORTEST = 0.005
"""Seconds between two looks at least."""


class Stopwatch:
    """Seconds since the last ``restart``, by whichever of two clocks went further."""

    __slots__ = ("_clock", "_machine", "_now")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Count from now."""
        self._now, self._machine = self._clock.now(), time.monotonic()

    def elapsed(self) -> float:
        """Return the seconds since the start, by the clock that went further."""
        return max(self._clock.now() - self._now, time.monotonic() - self._machine)


async def wait_with_deadline(
    work: asyncio.Future[Any],
    *,
    left: Callable[[], float],
    interrupted: asyncio.Event,
    poll: float = 0.3,
    tick: Callable[[], None] | None = None,
) -> Finish:
    """Wait until ``work`` is done, ``left()`` says that no seconds are left, or ``interrupted`` is set.

    ``left`` is asked every ``poll`` seconds, and when by its last answer the time is up.

    ``work`` is left as it is: cancelling it is the caller's decision. ``tick`` is called at every look.
    """
    await asyncio.sleep(0)
    if work.done():  # what is ready at once needs no watching
        return "done"
    stop = asyncio.ensure_future(interrupted.wait())
    try:
        while True:
            pause = min(poll, max(_SHORTEST, left()))
            await asyncio.wait({work, stop}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return "done"
            if stop.done():
                return "interrupted"
            if left() <= 0:
                return "late"
            if tick is not None:
                tick()
    finally:
        stop.cancel()
