"""The gate of a turn: every request and every move passes here, and a debugger may attach to it.

Without a debugger it costs nothing. A debugger in this process attaches through ``PausePoint.attach``; one in
another process is attached by the store (``CommandPoller``), which polls for commands to the turns that run
here.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from fsm_agent.fsm.runner import Layer, Perform, Pipeline, State
from fsm_agent.fsm.table import Table
from fsm_agent.runtime.events import EVERYWHERE, ApprovalAsked, Entered, Opened, Stopped, Stream, running
from fsm_agent.support.threads import Interrupt

# ----------------------------------------------------------------------------------------------------
# ``TurnKind``: what all turns of one table have in common, for viewers and debuggers.


@dataclass(frozen=True)
class TurnKind:
    """``over``: the state at which *step over* stops; without one it stops when the turn leaves the state in
    which the step began, however often that state repeats. ``talks``: its turns have a transcript, requests
    to a model, and tools. ``inner``: the kinds of the turns that its states run, at any depth, by table
    name."""

    table: Table
    states: Mapping[str, State] = field(hash=False)
    over: str | None = None
    talks: bool = False
    inner: Mapping[str, TurnKind] = field(default_factory=dict, hash=False)

    @property
    def holds(self) -> tuple[str, ...]:
        """Kinds of requests that can be held before they are performed."""
        return ("model", "tool") if self.talks else ("request",)

    @property
    def counters(self) -> tuple[str, ...]:
        """Sorted names."""
        return tuple(sorted(counter.name for counter in self.table.counters))


DEBUGGER = "debugger"


class Watched(Protocol):
    """The part of a running turn that a debugger may read."""

    turn_id: str

    @property
    def state(self) -> str:
        """Return the turn's current state."""
        ...

    @property
    def seq(self) -> int:
        """Return the number of moves made."""
        ...

    def counters(self) -> dict[str, int]:
        """Return all counters by name."""
        ...


class DebugHook(Protocol):
    """A debugger at the gate. The event loop that runs the turn calls its methods; the turn's stream reports
    what happens there."""

    async def passing(self) -> None:
        """Wait before each request and each move; the turn continues when this returns."""
        ...

    async def performing(self, request: Any, turn: Any, call_next: Perform) -> Any:
        """Wrap every request: return the reply of ``call_next``, or what a person says instead."""
        ...


class PauseRegistry(Protocol):
    """Registry of the gates of running turns, through which other processes reach them."""

    def opened(self, gate: PausePoint) -> None:
        """Register the gate: the turn can be stopped here from now on."""
        ...

    def closed(self, gate: PausePoint) -> None:
        """Remove the gate: the turn can no longer be stopped here."""


class PausePoint:
    """One turn's gate. ``running`` while the turn is run. ``debugger``: the attached debugger, set by
    ``attach``. ``questions``: events by ``question_id`` of the requests that a person answers; each is set as
    soon as a person is asked, which is when no rule forbids it. ``inner``: the gates of turns that the
    current state runs. ``stream``: the turn's events. ``stepping``: a context manager around each step into
    the turn."""

    def __init__(
        self,
        turn: Watched,
        kind: TurnKind,
        signals: TurnInbox,
        registry: PauseRegistry | None = None,
        inner: list[PausePoint] | None = None,
    ) -> None:
        self.turn, self.kind, self.signals = turn, kind, signals
        self.running = False
        self.debugger: DebugHook | None = None
        self.questions: dict[str, asyncio.Event] = {}
        self.inner = [] if inner is None else inner
        self.stepping: Callable[[], AbstractContextManager[None]] = nullcontext
        self.stream = Stream(turn.turn_id, EVERYWHERE)
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._registry = registry
        self._pipeline: Callable[[], Pipeline | None] = lambda: None

    @property
    def layer(self) -> Layer:
        """The debugger's layer. Without a debugger only questions pass through it: they wait for long, and a
        debugger that attaches meanwhile may answer them."""
        return Layer(DEBUGGER, self._perform, questions if self.debugger is None else None)

    def joins(self, pipeline: Pipeline) -> None:
        """Join this pipeline, which has ``layer`` among its layers. The reference is weak, so that a dropped
        turn releases its session at once."""
        self._pipeline = weakref.ref(pipeline)

    def attach(self, debugger: DebugHook | None) -> None:
        """Attach a debugger, or detach it with ``None``. Safe from any thread."""
        self.debugger = debugger
        if (pipeline := self._pipeline()) is not None:
            pipeline.put(self.layer)
        for loop, arrived in self._waiting:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no question is open
                loop.call_soon_threadsafe(arrived.set)

    def _perform(self, request: Any, turn: Any, call_next: Perform) -> Awaitable[Any]:
        if (question := getattr(request, "question_id", None)) is not None:
            return self._ask_debugger(request, question, call_next)
        debugger = self.debugger  # it may have detached since the pipeline was composed
        return call_next(request) if debugger is None else debugger.performing(request, turn, call_next)

    async def _ask_debugger(self, request: Any, question: str, call_next: Perform) -> Any:
        person = self.questions[question] = asyncio.Event()

        def hear(event: ApprovalAsked) -> None:
            if event.question.question_id == question:
                person.set()

        deaf = self.stream.subscribe(hear, ApprovalAsked)
        own = asyncio.ensure_future(call_next(request))
        here = (asyncio.get_running_loop(), asyncio.Event())
        self._waiting.append(here)
        try:
            while (debugger := self.debugger) is None and not own.done():
                here[1].clear()  # a debugger may have attached and detached again
                arriving = asyncio.ensure_future(here[1].wait())
                await asyncio.wait({own, arriving}, return_when=asyncio.FIRST_COMPLETED)
                arriving.cancel()
            if debugger is None or own.done():
                return own.result()
            return await debugger.performing(request, self.turn, lambda _: own)
        finally:
            self._waiting.remove(here)
            self.questions.pop(question, None)
            deaf()
            own.cancel()

    @contextlib.contextmanager
    def around(self, inner: PausePoint) -> Iterator[None]:
        """Register the gate of a turn that the state runs, for the duration of the context."""
        self.inner.append(inner)
        self.stream.publish(Entered(inner))
        try:
            yield
        finally:
            self.inner.remove(inner)

    def opened(self) -> None:
        """Announce that the turn is running."""
        if self._registry is not None:
            self._registry.opened(self)
        self.running = True  # only now: listeners look the gate up in the registry
        self.stream.publish(Opened(self))

    def closed(self, how: Literal["ended", "suspended", "left"], result: Any = None) -> None:
        """Announce that the turn is no longer running; ``result`` is that of a turn that has ended."""
        self.running = False
        if self._registry is not None:
            self._registry.closed(self)
        with running(self.stream):
            self.stream.publish(Stopped(how, result))


def questions(kind: type) -> bool:
    """Return whether a person answers requests of this type."""
    return hasattr(kind, "question_id") or "question_id" in getattr(kind, "__dataclass_fields__", ())


# ----------------------------------------------------------------------------------------------------
# Messages to a running turn from any thread: interrupts and steering texts.


class TurnInbox:
    """Holds an interrupt and steering texts until a turn takes them. Idempotent and thread-safe. Each
    interrupt calls ``listeners``, even when no turn runs.

    An interrupt before the start of a turn is kept and ends that turn at its first gate."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._interrupted = False
        self.message: str | None = None
        self._steer: list[str] = []
        self._event: Interrupt | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.listeners: list[Callable[[], None]] = []

    def interrupt(self, message: str | None = None) -> None:
        """Ask the turn to stop, from any thread. ``message``: the user's text, if any."""
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
        """Whether an interrupt was requested."""
        return self._interrupted

    def take_steer(self) -> tuple[str, ...]:
        """Return and clear the messages, oldest first."""
        with self._lock:
            texts, self._steer = tuple(self._steer), []
            return texts

    def event(self) -> Interrupt:
        """Return an event of the running loop that is set by an interrupt."""
        with self._lock:
            loop = asyncio.get_running_loop()
            if self._event is None or self._loop is not loop:
                self._event, self._loop = Interrupt(), loop
            if self._interrupted:
                self._event.set()
            return self._event

    def clear(self) -> None:
        """Clear the interrupt; called only at the end of a turn."""
        with self._lock:
            self._interrupted, self.message = False, None
            self._event = self._loop = None
