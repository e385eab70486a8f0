"""``TurnLimiter``: a limit on the turns that run at once in this process, first come, first served."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future

from fsm_agent.errors import ConfigError
from fsm_agent.fsm.pause_point import TurnInbox
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.deadline import Stopwatch, wait_with_deadline
from fsm_agent.runtime.events import StatusText, measure
from fsm_agent.runtime.ports import Clock
from fsm_agent.settings.model import Poll

Place = Future[None]
"""Done when its turn may run."""


class _Queue:
    """The turns that run in this process and those that wait, from any thread and event loop."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start empty: in a fork of the process none of the turns runs."""
        self._lock = threading.Lock()
        self._running = 0
        self._waiting: deque[tuple[int, Place]] = deque()

    def enter(self, most: int | None) -> Place:
        """Take a place, or wait for one in the queue; ``leave`` gives it back in either case. With ``None``
        the turn runs at once, and counts."""
        place = Place()
        with self._lock:
            if most is None:
                self._admit(place)
            else:
                self._waiting.append((most, place))
                self._admit_next()
        return place

    def leave(self, place: Place) -> None:
        """Give a place back, or leave the queue."""
        with self._lock:
            if not place.done():
                self._drop(place)
            elif place.exception() is None:
                self._running -= 1
            self._admit_next()

    def refuse(self, place: Place, why: Exception) -> None:
        """Turn away a turn that waits; one that runs stays."""
        with self._lock:
            if not place.done():
                self._drop(place)
                place.set_exception(why)
                self._admit_next()

    def ahead(self, place: Place) -> tuple[int, int]:
        """(turns that run, turns that wait ahead of this one)."""
        with self._lock:
            waiting = [one for _, one in self._waiting]
            return self._running, waiting.index(place) if place in waiting else 0

    def _drop(self, place: Place) -> None:
        self._waiting = deque(one for one in self._waiting if one[1] is not place)

    def _admit_next(self) -> None:
        """No turn overtakes another, not even one that would find room."""
        while self._waiting and self._running < self._waiting[0][0]:
            self._admit(self._waiting.popleft()[1])

    def _admit(self, place: Place) -> None:
        self._running += 1
        place.set_result(None)


_QUEUE = _Queue()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_QUEUE.reset)


class TurnLimiter:
    """The limit of one agent. ``most``: turns that may run at once in this process, ``None`` for any
    number."""

    def __init__(
        self, most: int | None, inbox: TurnInbox, callbacks: Callbacks, clock: Clock, poll: Poll
    ) -> None:
        self._most, self._inbox, self._callbacks = most, inbox, callbacks
        self._clock, self._poll = clock, poll
        self._waiting: set[Place] = set()

    @contextlib.asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """Run the block when there is room. A wait is reported, and again at every heartbeat. A turn that is
        interrupted while it waits runs at once, to end. Raises ``ConfigError`` when the agent is closed
        meanwhile."""
        place, watch = _QUEUE.enter(self._most), Stopwatch(self._clock)
        try:
            if not place.done():
                await self._wait(place)
            measure("queue_wait", watch.elapsed())
            yield
        finally:
            _QUEUE.leave(place)

    async def _wait(self, place: Place) -> None:
        watch, reported = Stopwatch(self._clock), 0.0

        def tick() -> None:
            nonlocal reported
            if watch.elapsed() - reported >= self._poll.heartbeat:
                reported = watch.elapsed()
                self._report(place)

        self._waiting.add(place)
        try:
            self._report(place)
            work = asyncio.wrap_future(place)
            await wait_with_deadline(
                work,
                left=lambda: math.inf,
                interrupted=self._inbox.event(),
                poll=self._poll.control,
                tick=tick,
            )
            if work.done():
                work.result()
        finally:
            self._waiting.discard(place)

    def _report(self, place: Place) -> None:
        running, ahead = _QUEUE.ahead(place)
        line = f"; {ahead} wait before it" if ahead else ""
        words = f"the turn waits: {running} run already, of at most {self._most}{line}"
        self._callbacks.publish(StatusText(words))

    def close(self) -> None:
        """Turn away all turns that wait."""
        for place in list(self._waiting):
            why = "the agent was closed while a turn of it waited for its place"
            _QUEUE.refuse(place, ConfigError(why, self._most, "a larger max_turns_at_once, or closing later"))


# How long a turn works, apart from the time in which nothing is done for it.
