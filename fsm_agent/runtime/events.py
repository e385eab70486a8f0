"""Everything that happens in a turn, as one union of frozen, typed events, and the stream that carries them.

``async for event in turn.events()``, or a plain ``for`` in a thread of your own, yields what callbacks
receive. A turn never waits for a listener. Each listener has a queue of fixed size. When it is full, the
oldest small events (``CHATTY``: text as it arrives, thoughts, progress) make room, and after them the oldest
of the rest. A listener that missed events receives an event ``dropped`` with their number before the next.
"""

# Events never slow a turn. A slow consumer first loses text and progress, then the oldest other events, and
# receives the number lost.

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

from fsm_agent.support.threads import LOOP

if TYPE_CHECKING:
    from fsm_agent.fsm.journal import Exchange, Step
    from fsm_agent.fsm.pause_point import PausePoint
    from fsm_agent.fsm.table import Row, Table


# ``Stream``: publishes events to subscribers.
#
# Theory of operation. Each event is published once, as one value, where it happens; subscribers name the
# types of events that they want. Callbacks, ``turn.events()``, notified hooks, telemetry, debuggers, and the
# coverage of rows are subscribers, and publishers know none of them.
#
# Each turn has a stream (``turn.gate.stream``). While the turn runs, ``TURN`` holds it, so that code without
# access to the turn, such as a model port, publishes into the right one. Streams of turns forward to
# ``EVERYWHERE``, the one place to subscribe to all turns of this process. Events that belong to no turn (how
# long a commit took, what a machine without a turn did) are published there.
#
# A subscriber is called at once, in the order of subscription, in the task or thread of the publisher. It
# must not block, and its exceptions reach the publisher: user code runs behind ``Callbacks`` and
# ``EventQueue``, which let none through. Functions that answer (``approval``, ``clarify``, ``before_tool``,
# ``after_tool``, ``context``, ``transform``, hooks, guardrails) are waited for, so they are not subscribers.
#
# An event without a subscriber costs a tuple and two dict lookups; if building it costs more, the publisher
# checks ``hears`` first.


class Stream:
    """The events of one turn, or with an empty ``turn_id`` those outside any turn. ``beyond`` receives them,
    too."""

    def __init__(self, turn_id: str = "", beyond: Stream | None = None) -> None:
        self.turn_id = turn_id
        self._hearers: dict[type, tuple[Callable[[Any], None], ...]] = {}
        self._beyond = {} if beyond is None else beyond._hearers
        self._lock = threading.Lock()

    def subscribe(self, hear: Callable[[Any], None], *kinds: type) -> Callable[[], None]:
        """Call ``hear`` with every event of these types from now on, until the returned function is called.
        Safe from any thread."""
        with self._lock:
            for kind in kinds:
                self._hearers[kind] = (*self._hearers.get(kind, ()), hear)
        return partial(self._unsubscribe, hear, kinds)

    def _unsubscribe(self, hear: Callable[[Any], None], kinds: tuple[type, ...]) -> None:
        with self._lock:
            for kind in kinds:
                left = tuple(one for one in self._hearers.get(kind, ()) if one is not hear)
                self._hearers.pop(kind, None)
                if left:
                    self._hearers[kind] = left

    def hears(self, kind: type) -> bool:
        """Return whether events of this type have a subscriber; costly ones are built only then."""
        return kind in self._hearers or kind in self._beyond

    def publish(self, event: Any) -> None:
        """Call all subscribers to events of this type."""
        kind = type(event)
        if kind in self._hearers:
            for hear in self._hearers.get(kind, ()):
                hear(event)
        if kind in self._beyond:
            for hear in self._beyond.get(kind, ()):
                hear(event)


EVERYWHERE = Stream()
TURN: ContextVar[Stream] = ContextVar("fsm_agent_turn", default=EVERYWHERE)


class running:  # noqa: N801 - it is used as a function is; a generator would cost each request more
    """Publish everything in this block as part of that turn."""

    __slots__ = ("_before", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        self._before = TURN.set(self._stream)

    def __exit__(self, *_: object) -> None:
        try:
            TURN.reset(self._before)
        except ValueError:  # an abandoned turn is closed in another context than it ran in
            return


# Events for people: the arguments of a callback, with names


class ToolStart(NamedTuple):
    """The beginning of a call."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]


class ToolComplete(NamedTuple):
    """The end of a call. ``status``: ok, error, denied, …"""

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    result: str
    status: str


class ToolProgress(NamedTuple):
    """``kind``: started, completed, said, or risk."""

    kind: str
    name: str
    preview: str


class Transition(NamedTuple):
    """A move of the turn, and the counters after it."""

    turn_id: str
    source: str
    event: str
    dest: str
    counters: Mapping[str, int]


class StreamDelta(NamedTuple):
    """A piece of the answer; ``None`` at a boundary."""

    text: str | None


class ReasoningText(NamedTuple):
    """A piece of the model's reasoning."""

    text: str


class InterimText(NamedTuple):
    """Text beside tool calls."""

    text: str


class StatusText(NamedTuple):
    """A line for people."""

    text: str


class Thinking(NamedTuple):
    """``active``: the turn is waiting for the model."""

    active: bool


class Named(NamedTuple):
    """An event of another kind, such as ``child:start``."""

    name: str
    data: Mapping[str, Any]


class PartialOutput(NamedTuple):
    """A typed answer so far."""

    value: Any


class CallBegun(NamedTuple):
    """The model began to write a call of this tool."""

    name: str


class IterationBegun(NamedTuple):
    """``iteration`` from 1; ``before``: what the previous iteration's tools did."""

    iteration: int
    before: Any


class ApprovalAsked(NamedTuple):
    """A person is asked whether a call may run: an ``AskApproval``."""

    question: Any


class ClarifyAsked(NamedTuple):
    """A person is asked a question of the model's, with choices."""

    question: str
    choices: list[str]


class Dropped(NamedTuple):
    """The number of events dropped because the listener was too slow."""

    number: int


class Voided(NamedTuple):
    """Tells a client to discard what it received after the event with the id ``after``: the sending process
    has ended, and the next one sends the current state again."""

    after: str


# Events of the engine; ``Step`` and ``Exchange`` of ``fsm_agent.fsm.journal`` are events, too


class Opened(NamedTuple):
    """The turn at this gate has acquired its session and begins to run."""

    gate: PausePoint


class Entered(NamedTuple):
    """A state runs the inner turn at this gate."""

    gate: PausePoint


class Stopped(NamedTuple):
    """The turn no longer runs here. ``how``: ``ended`` with this result, ``suspended``, or ``left`` where it
    is."""

    how: Literal["ended", "suspended", "left"]
    result: Any = None


class FirstChunk(NamedTuple):
    """The model begins to answer the current request."""


class RowTaken(NamedTuple):
    """A machine took this row of its table, with or without a turn."""

    table: Table
    row: Row


Measure = Literal["queue_wait", "takeover", "fenced_write", "commit"]
"""``queue_wait``: seconds that a turn waited for its place; ``takeover``: a turn of another process was
resumed; ``fenced_write``: a write was refused because its turn has another owner; ``commit``: seconds that a
commit of the store took. The last two are published in the writing thread."""


class Measured(NamedTuple):
    """A figure of the engine that belongs to no turn."""

    name: Measure
    value: float


EventValues: TypeAlias = (
    ToolStart | ToolComplete | ToolProgress | Transition | StreamDelta | ReasoningText | InterimText
    | StatusText | Thinking | Named | PartialOutput | CallBegun | IterationBegun | ApprovalAsked
    | ClarifyAsked | Dropped | Voided
)  # fmt: skip
if TYPE_CHECKING:
    TurnEvent: TypeAlias = (
        EventValues | Step | Exchange | Opened | Entered | Stopped | FirstChunk | RowTaken | Measured
    )
CHANNELS: Mapping[str, type[EventValues]] = {
    "tool_start": ToolStart, "tool_complete": ToolComplete, "tool_progress": ToolProgress,
    "thinking": Thinking, "reasoning": ReasoningText, "stream_delta": StreamDelta,
    "output_partial": PartialOutput,
    "tool_gen": CallBegun, "interim_assistant": InterimText, "step": IterationBegun, "status": StatusText,
    "transition": Transition, "event": Named, "approval": ApprovalAsked, "clarify": ClarifyAsked,
}  # fmt: skip
"""Event types of listeners, by channel."""
NAMES = {kind: name for name, kind in CHANNELS.items()}
CHATTY = frozenset({"stream_delta", "reasoning", "thinking", "tool_gen", "tool_progress", "output_partial"})
DROPPED, VOIDED = "dropped", "voided"
SIZE = 1_000
"""Maximum events that a listener may lag behind."""


# Listeners that may be slow


@dataclass(frozen=True, slots=True)
class Event:
    """``values`` is one of the events above, ``name`` its channel, so that
    ``case Event(values=ToolStart(name=name))`` matches it; ``at`` in seconds since the epoch."""

    name: str
    values: EventValues
    at: float
    turn_id: str


def listen(stream: Stream, hear: Callable[[Event], None]) -> Callable[[], None]:
    """Call ``hear`` with the callback events of a turn, until the returned function is called."""

    def happened(event: EventValues) -> None:
        hear(Event(NAMES[type(event)], event, time.time(), stream.turn_id))

    return stream.subscribe(happened, *NAMES)


def _nothing() -> None:
    pass


class EventQueue:
    """One listener's queue. Call ``put`` and ``close`` from any thread; one consumer, in a loop or thread."""

    def __init__(self, turn_id: str, size: int = SIZE) -> None:
        self.turn_id = turn_id
        self._size, self._number, self._dropped, self._closed = max(1, size), 0, 0, False
        self._chatty: deque[tuple[int, Event]] = deque()
        self._weighty: deque[tuple[int, Event]] = deque()
        self._changed = threading.Condition()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def over(self, stopped: Stopped) -> None:
        """Close, unless the turn may continue here."""
        if stopped.how != "left":
            self.close()

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
        """Accept no more events; those in the queue can still be read."""
        with self._changed:
            self._closed = True
            self._wake()

    async def next(self) -> Event | None:
        """Return the next event; ``None`` when there will be none."""
        while True:
            with self._changed:
                event = self._take_next()
                if event is not None or self._closed:
                    return event
                waiting = asyncio.Event()
                self._waiter = (asyncio.get_running_loop(), waiting)
            await waiting.wait()

    def wait(self) -> Event | None:
        """Like ``next``, for a thread."""
        with self._changed:
            while (event := self._take_next()) is None and not self._closed:
                self._changed.wait()
            return event

    def _take_next(self) -> Event | None:
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


T = TypeVar("T")


class Pieces(AsyncGenerator[T]):
    """An asynchronous generator that calls ``left`` at once when its reader leaves the loop: Python closes a
    generator that was left only some passes of the event loop later."""

    def __init__(self, generator: AsyncGenerator[T], left: Callable[[], None]) -> None:
        self._generator, self._left = generator, left

    async def asend(self, value: None) -> T:
        """Return the next piece."""
        return await self._generator.asend(value)

    async def athrow(self, *error: Any) -> T:
        """Raise an error where the generator waits."""
        return await self._generator.athrow(*error)

    async def aclose(self) -> None:
        """Close the generator."""
        await self._generator.aclose()

    def __del__(self) -> None:
        self._left()


class Events:
    """The events of a turn from the start of iteration on. Iterating runs the turn with ``run`` unless that
    is ``None``; leaving the loop early stops the turn where it is, and calls ``left`` before that. An
    exception of ``run`` is raised after the last event."""

    def __init__(
        self,
        stream: Stream,
        run: Callable[[], Coroutine[Any, Any, object]] | None,
        size: int,
        over: bool,
        left: Callable[[], None],
    ) -> None:
        self._stream, self._run, self._size, self._over = stream, run, size, over
        self._left = left if run is not None else _nothing

    def __aiter__(self) -> AsyncGenerator[Event]:
        return Pieces(self._all(), self._left)

    async def _all(self) -> AsyncGenerator[Event]:
        with self._listening() as queue:
            work = None if self._run is None else asyncio.ensure_future(self._run())
            if work is not None:
                work.add_done_callback(lambda done: queue.close())
            try:
                while (event := await queue.next()) is not None:
                    yield event
                if work is not None:
                    await work
            finally:
                if work is not None and not work.done():
                    work.cancel()
                    await asyncio.wait({work})

    def __iter__(self) -> Iterator[Event]:
        """Iterate in a thread. The turn runs on the engine's own loop, which must not be the caller's."""
        with self._listening() as queue:
            work = None if self._run is None else LOOP.submit(self._run())
            if work is not None:
                work.add_done_callback(lambda done: queue.close())
            try:
                while (event := queue.wait()) is not None:
                    yield event
                if work is not None:
                    work.result()
            finally:
                self._left()
                if work is not None:
                    work.cancel()

    @contextmanager
    def _listening(self) -> Iterator[EventQueue]:
        queue = EventQueue(self._stream.turn_id, self._size)
        if self._over:
            queue.close()
        leave = listen(self._stream, queue.put), self._stream.subscribe(queue.over, Stopped)
        try:
            yield queue
        finally:
            queue.close()
            for each in leave:
                each()


# Figures of the engine that belong to no turn.


def measure(name: Measure, value: float = 1) -> None:
    """Publish a figure."""
    if EVERYWHERE.hears(Measured):
        EVERYWHERE.publish(Measured(name, value))
