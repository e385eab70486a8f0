"""Where the turns of an agent wait until they may run."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator

from fsm_agent.errors import ConfigError
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.deadline import Stopwatch, wait_with_deadline
from fsm_agent.runtime.events import StatusText
from fsm_agent.runtime.measures import measured
from fsm_agent.runtime.ports import Clock
from fsm_agent.runtime.turn_inbox import TurnInbox
from fsm_agent.runtime.turn_places import PLACES, Place
from fsm_agent.settings.model import Poll


class TurnDoor:
    """``most``: turns that may run at once in this process, ``None`` for any number."""

    def __init__(
        self, most: int | None, inbox: TurnInbox, callbacks: Callbacks, clock: Clock, poll: Poll
    ) -> None:
        self._most, self._inbox, self._callbacks = most, inbox, callbacks
        self._clock, self._poll = clock, poll
        self._waiting: set[Place] = set()

    @contextlib.asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        """Run what is inside when there is a place for it. A wait is told, and again every so often. Who is
        interrupted while waiting goes in at once, to end. Raises ``ConfigError`` when the agent is closed
        meanwhile."""
        place, watch = PLACES.enter(self._most), Stopwatch(self._clock)
        try:
            if not place.done():
                await self._waited(place)
            measured("queue_wait", watch.elapsed())
            yield
        finally:
            PLACES.leave(place)

    async def _waited(self, place: Place) -> None:
        watch, told = Stopwatch(self._clock), 0.0

        def tick() -> None:
            nonlocal told
            if watch.elapsed() - told >= self._poll.heartbeat:
                told = watch.elapsed()
                self._tell(place)

        self._waiting.add(place)
        try:
            self._tell(place)
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

    def _tell(self, place: Place) -> None:
        run, ahead = PLACES.ahead(place)
        line = f"; {ahead} wait before it" if ahead else ""
        self._callbacks.publish(
            StatusText(f"the turn waits: {run} run already, of at most {self._most}{line}")
        )

    def close(self) -> None:
        """Send away who waits."""
        for place in list(self._waiting):
            why = "the agent was closed while a turn of it waited for its place"
            PLACES.refuse(place, ConfigError(why, self._most, "a larger max_turns_at_once, or closing later"))
