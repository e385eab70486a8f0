"""Admission of turns: ``TurnLimiter`` limits the turns that run at once in this process, first come, first
served; ``MessageQueue`` handles a message that arrives while a turn of the agent runs; ``HandoffChain`` runs
a turn and those that follow it by handoff.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from fsm_agent.conversation.result import TurnResult
from fsm_agent.errors import ConfigError, TurnFailed
from fsm_agent.fsm.pause_point import TurnInbox
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.clock import Stopwatch, wait_with_deadline
from fsm_agent.runtime.events import StatusText, StreamDelta, measure
from fsm_agent.runtime.ports import Clock
from fsm_agent.sessions.turn import DurableTurn
from fsm_agent.settings import Poll, SecondMessage

Place = Future[None]
"""Done when the turn may run."""


class _Queue:
    """The running and waiting turns of this process, from any thread and event loop."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start empty: in a forked process none of the turns runs."""
        self._lock = threading.Lock()
        self._running = 0
        self._waiting: deque[tuple[int, Place]] = deque()

    def enter(self, most: int | None) -> Place:
        """Enter the queue, and run at once if there is room; ``leave`` must follow in either case. With
        ``None`` the turn runs at once, but still counts."""
        place = Place()
        with self._lock:
            if most is None:
                self._admit(place)
            else:
                self._waiting.append((most, place))
                self._admit_next()
        return place

    def leave(self, place: Place) -> None:
        """Free the slot, or leave the queue."""
        with self._lock:
            if not place.done():
                self._drop(place)
            elif place.exception() is None:
                self._running -= 1
            self._admit_next()

    def refuse(self, place: Place, why: Exception) -> None:
        """Reject a waiting turn; a running one is not affected."""
        with self._lock:
            if not place.done():
                self._drop(place)
                place.set_exception(why)
                self._admit_next()

    def ahead(self, place: Place) -> tuple[int, int]:
        """Return (running turns, turns that wait ahead of this one)."""
        with self._lock:
            waiting = [one for _, one in self._waiting]
            return self._running, waiting.index(place) if place in waiting else 0

    def _drop(self, place: Place) -> None:
        self._waiting = deque(one for one in self._waiting if one[1] is not place)

    def _admit_next(self) -> None:
        """Admit waiting turns in order: no turn overtakes another, not even one that would find room."""
        while self._waiting and self._running < self._waiting[0][0]:
            self._admit(self._waiting.popleft()[1])

    def _admit(self, place: Place) -> None:
        self._running += 1
        place.set_result(None)


_QUEUE = _Queue()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_QUEUE.reset)


class TurnLimiter:
    """The limiter of one agent. ``most``: turns that may run at once in this process, ``None`` for any
    number."""

    def __init__(
        self, most: int | None, inbox: TurnInbox, callbacks: Callbacks, clock: Clock, poll: Poll
    ) -> None:
        self._most, self._inbox, self._callbacks = most, inbox, callbacks
        self._clock, self._poll = clock, poll
        self._waiting: set[Place] = set()

    @contextlib.asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Run the block when there is room. Waiting is reported at once, and again at every heartbeat. A turn
        that is interrupted while it waits runs at once, in order to end. Raises ``ConfigError`` when the
        agent is closed meanwhile."""
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
        """Reject all waiting turns."""
        for place in list(self._waiting):
            why = "the agent was closed while a turn of it waited for its place"
            _QUEUE.refuse(place, ConfigError(why, self._most, "a larger max_turns_at_once, or closing later"))


# ----------------------------------------------------------------------------------------------------
# ``MessageQueue``: handles a message that arrives while another turn of the same agent runs.


Next = Callable[[TurnResult[Any]], DurableTurn[TurnResult[Any]] | None]


UNREAD = 1_000_000
"""Maximum backlog of events for a reader of streamed text; a longer one would lose text."""


class HandoffChain:
    """A turn and its successors by handoff: ``following`` returns the successor for the result of a turn,
    ``None`` after the last. ``result`` is ``None`` until all have ended."""

    def __init__(self, turn: DurableTurn[TurnResult[Any]] | None, following: Next) -> None:
        self.result: TurnResult[Any] | None = None
        self._turn, self._following = turn, following

    async def arun(self) -> TurnResult[Any]:
        """Run all turns, and return the result of the last."""
        turn = self._turn
        while turn is not None:
            result = await turn.arun()
            turn = self._following(result)
        self.result = result
        return result

    async def stream_text(
        self, begin: Callable[[], Awaitable[DurableTurn[TurnResult[Any]]]]
    ) -> AsyncGenerator[str]:
        """Run all turns, and yield their text as it arrives. ``begin`` makes the first turn of a chain
        without one. Raises ``TurnFailed`` at the end of a failed turn."""
        turn = self._turn = self._turn or await begin()
        while True:
            streamed = False
            async for event in turn.events(size=UNREAD):
                if isinstance(event.values, StreamDelta) and event.values.text:
                    streamed = True
                    yield event.values.text
            assert turn.result is not None
            if turn.result.failed:
                raise TurnFailed(turn.result)
            following = self._following(turn.result)
            if following is None:
                if not streamed and turn.result.final_response:
                    yield turn.result.final_response
                return
            turn = self._turn = following

    def leave(self) -> None:
        """Stop the turn that is running where it is, because nothing reads its text any more."""
        if self._turn is not None:
            self._turn.leaving()


class MessageQueue:
    """Runs the turns of one agent in order of arrival, from any thread and event loop. ``how`` is the setting
    ``interrupt.second_message``; with ``None`` nothing waits."""

    def __init__(self, how: SecondMessage | None, inbox: TurnInbox) -> None:
        self._how, self._inbox = how, inbox
        self._lock = threading.Lock()
        self._queue: deque[tuple[HandoffChain, Future[None]]] = deque()  # each with its end

    def run(self, turn: HandoffChain, message: Any) -> Coroutine[Any, Any, TurnResult[Any]]:
        """Run the turn for ``message`` when those before it have ended. A text that a running turn reads as
        steering gets no turn of its own: the result is the running turn's. Raises ``SessionBusy`` when
        another process runs a turn on the session."""
        return turn.arun() if self._how is None else self._run_in_line(turn, message)

    async def _run_in_line(self, turn: HandoffChain, message: Any) -> TurnResult[Any]:
        place = (turn, Future[None]())
        with self._lock:
            running = self._queue[0][0] if self._queue else None
            self._queue.append(place)
        try:
            if running is not None and (read := await self._wait(running, turn, message)):
                return read
            return await turn.arun()
        finally:
            with self._lock:
                self._queue.remove(place)
            place[1].set_result(None)

    async def _wait(self, running: HandoffChain, turn: HandoffChain, message: Any) -> TurnResult[Any] | None:
        """Wait until the turn is first. Return the result of ``running`` if that turn read the message."""
        words = message if isinstance(message, str) else None
        if self._how == "steer" and words:
            self._inbox.steer(words)
        elif self._how == "interrupt":
            self._inbox.interrupt(words)
        while (first := self._queue[0])[0] is not turn:
            await asyncio.shield(asyncio.wrap_future(first[1]))
        if self._how == "interrupt":
            self._inbox.clear()  # the running turn may have ended before it saw the interrupt
        if self._how != "steer" or words is None or running.result is None:
            return None
        unread = [*running.result.pending_steer, *self._inbox.take_steer()]
        return None if words in unread else running.result
