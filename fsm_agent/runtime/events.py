"""What callbacks are told, as values: ``async for event in turn.events()``, or a plain ``for`` in a thread of
your own.

A turn never waits for who listens. Each listener has a queue of a fixed size; when it is full the oldest of
the small signs of life (``CHATTY``: text as it arrives, thoughts, progress) make room, and only when there
are none left the oldest of the rest. A listener that missed something is told how much by an event
``dropped`` with the number, before what comes next. (Why: decision 44.)"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from fsm_agent.runtime.event_values import Dropped, EventValues, shaped
from fsm_agent.runtime.registry import LISTENERS, LOCK, TURN
from fsm_agent.support.threads import LOOP

SIZE = 1_000
"""Events that a listener may be behind."""
CHATTY = frozenset({"stream_delta", "reasoning", "thinking", "tool_gen", "tool_progress", "output_partial"})
DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Event:
    """``name`` and ``values`` are a channel of ``fsm_agent.runtime.callbacks`` and its arguments, which have
    names and types too (``fsm_agent.runtime.event_values``); ``at`` in seconds since the epoch."""

    name: str
    values: EventValues
    at: float
    turn_id: str


class EventQueue:
    """One listener's queue. ``put`` and ``close`` from any thread; one consumer, in a loop or in a thread."""

    def __init__(self, turn_id: str, size: int = SIZE) -> None:
        self.turn_id = turn_id
        self._size, self._number, self._dropped, self._closed = max(1, size), 0, 0, False
        self._chatty: deque[tuple[int, Event]] = deque()
        self._weighty: deque[tuple[int, Event]] = deque()
        self._changed = threading.Condition()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def put(self, event: Event) -> None:
        """Add an event, from any thread; when the queue is full, the least important one makes room."""
        with self._changed:
            if self._closed:
                return
            if len(self._chatty) + len(self._weighty) >= self._size:
                (self._chatty or self._weighty).popleft()
                self._dropped += 1
            self._number += 1
            (self._chatty if event.name in CHATTY else self._weighty).append((self._number, event))
            self._wake()

    def close(self) -> None:
        """Nothing comes any more; what is there can still be read."""
        with self._changed:
            self._closed = True
            self._wake()

    async def next(self) -> Event | None:
        """The next event; ``None`` when there will be none."""
        while True:
            with self._changed:
                event = self._taken()
                if event is not None or self._closed:
                    return event
                waiting = asyncio.Event()
                self._waiter = (asyncio.get_running_loop(), waiting)
            await waiting.wait()

    def wait(self) -> Event | None:
        """``next`` for a thread."""
        with self._changed:
            while (event := self._taken()) is None and not self._closed:
                self._changed.wait()
            return event

    def _taken(self) -> Event | None:
        if self._dropped:
            event, self._dropped = Event(DROPPED, Dropped(self._dropped), time.time(), self.turn_id), 0
            return event
        queues = [queue for queue in (self._chatty, self._weighty) if queue]
        return min(queues, key=lambda queue: queue[0][0]).popleft()[1] if queues else None

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._waiter is not None:
            (loop, waiting), self._waiter = self._waiter, None
            if not loop.is_closed():
                loop.call_soon_threadsafe(waiting.set)


def listened_to() -> bool:
    """Is there anybody to tell? Costs nothing when not."""
    return bool(LISTENERS)


def publish(name: str, values: tuple[Any, ...]) -> None:
    """Tell those who listen to the turn that the caller belongs to."""
    queues = LISTENERS.get(turn_id := TURN.get())
    if queues:
        event = Event(name, shaped(name, values), time.time(), turn_id)
        for queue in list(queues):
            queue.put(event)


def ended(turn_id: str) -> None:
    """The turn has ended: nobody hears of it any more."""
    for queue in list(LISTENERS.get(turn_id, ())):
        queue.close()


class Events:
    """Iterating listens from then on, and runs the turn with ``run`` unless that is ``None``; leaving the
    loop early stops it where it is. What ``run`` raises is raised at the end of the events."""

    def __init__(
        self, turn_id: str, run: Callable[[], Coroutine[Any, Any, object]] | None, size: int, over: bool
    ) -> None:
        self._turn_id, self._run, self._size, self._over = turn_id, run, size, over

    async def __aiter__(self) -> AsyncIterator[Event]:
        queue = self._open()
        work = None if self._run is None else asyncio.ensure_future(self._run())
        if work is not None:
            work.add_done_callback(lambda done: queue.close())
        try:
            while (event := await queue.next()) is not None:
                yield event
            if work is not None:
                await work
        finally:
            self._close(queue)
            if work is not None and not work.done():
                work.cancel()
                await asyncio.wait({work})

    def __iter__(self) -> Iterator[Event]:
        """For a thread; the turn runs on the engine's own loop, which must not be the caller's."""
        queue = self._open()
        work = None if self._run is None else LOOP.submit(self._run())
        if work is not None:
            work.add_done_callback(lambda done: queue.close())
        try:
            while (event := queue.wait()) is not None:
                yield event
            if work is not None:
                work.result()
        finally:
            self._close(queue)
            if work is not None:
                work.cancel()

    def _open(self) -> EventQueue:
        queue = EventQueue(self._turn_id, self._size)
        if self._over:
            queue.close()
        with LOCK:
            LISTENERS.setdefault(self._turn_id, []).append(queue)
        return queue

    def _close(self, queue: EventQueue) -> None:
        queue.close()
        with LOCK:
            rest = [one for one in LISTENERS.get(self._turn_id, ()) if one is not queue]
            if rest:
                LISTENERS[self._turn_id] = rest
            else:
                LISTENERS.pop(self._turn_id, None)
