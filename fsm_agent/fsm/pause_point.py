"""The gate of a turn: every request and every move passes here, and a debugger may stand at it.

Nobody there costs nothing. A debugger in this process takes its place with ``PausePoint.attach``; one in
another process is let in by ``fsm_agent.sessions.remote_commands``, which looks for what people ask of the
turns that run here."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from fsm_agent.fsm.journal import Exchange, Step
from fsm_agent.fsm.pipeline import Layer, Perform, Pipeline
from fsm_agent.fsm.turn_kind import TurnKind
from fsm_agent.runtime.events import SIZE, Events
from fsm_agent.runtime.turn_inbox import TurnInbox

UNOBSERVED = nullcontext()
DEBUGGER = "debugger"


class Watched(Protocol):
    """What a debugger may know of a running turn."""

    turn_id: str

    @property
    def state(self) -> str:
        """Return the state that the turn is in."""
        ...

    @property
    def seq(self) -> int:
        """Return how many moves were made."""
        ...

    def counters(self) -> dict[str, int]:
        """Return all counters by their names."""
        ...


class DebugHook(Protocol):
    """Who stands at the gate. All methods but ``closed`` are called in the event loop that runs the turn."""

    async def passing(self) -> None:
        """Before each request and each move; the turn goes on when this returns."""
        ...

    async def performing(self, request: Any, turn: Any, call_next: Perform) -> Any:
        """A layer around every request: the reply of ``call_next``, or what a person says instead."""
        ...

    def happened(self, what: Exchange | Step) -> None:
        """A request has its reply, or a move was made and journalled."""
        ...

    def closed(self, ended: bool) -> None:
        """Nobody runs the turn any more: it has ended, or whoever ran it has stopped."""
        ...


class TurnObserver(Protocol):
    """Who is told of a turn and has no say in it. All methods are called in the event loop that runs the
    turn; what is awaited or run inside of them is the turn's own."""

    def stepping(self) -> AbstractContextManager[None]:
        """Around one step into the turn, also the first; what the step raises passes through."""
        ...

    def opened(self) -> None:
        """The turn has its session: from here on it can be stored."""
        ...

    def moved(self, step: Step) -> None:
        """A move was made and journalled."""
        ...

    def closed(self, ended: bool, result: Any) -> None:
        """Nobody runs the turn any more; ``result`` is that of a turn that has ended."""
        ...


class PauseRegistry(Protocol):
    """Where the gates of running turns are known, so that other processes can ask something of them."""

    def opened(self, gate: PausePoint) -> None:
        """Hear that a turn can be stopped here from now on."""
        ...

    def closed(self, gate: PausePoint) -> None: ...


class PausePoint:
    """One turn's gate. ``running`` while somebody runs the turn. ``debugger`` stands at it; ``attach`` lets
    one in. ``questions``: requests that a person answers (they have a ``question_id``), by that id; the event
    is set as soon as a person is asked, that is when no rule forbids it. ``inner``: the gates of turns that
    the state runs now; ``entering`` is told of each that comes. ``observer`` is told of all that passes here,
    a debugger's part in it included."""

    def __init__(
        self,
        turn: Watched,
        kind: TurnKind,
        signals: TurnInbox,
        registry: PauseRegistry | None = None,
        inner: list[PausePoint] | None = None,
        observer: TurnObserver | None = None,
    ) -> None:
        self.turn, self.kind, self.signals = turn, kind, signals
        self.running = False
        self.debugger: DebugHook | None = None
        self.questions: dict[str, asyncio.Event] = {}
        self.inner = [] if inner is None else inner
        self.entering: Callable[[PausePoint], None] = lambda inner: None
        self._observer = observer
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._registry = registry
        self._pipeline: Callable[[], Pipeline | None] = lambda: None

    @property
    def layer(self) -> Layer:
        """The place of a debugger among the layers. Nobody there costs only questions, which wait for long: a
        debugger that comes meanwhile may answer them."""
        return Layer(DEBUGGER, self._performed, questions if self.debugger is None else None)

    def stepping(self) -> AbstractContextManager[None]:
        """Around each step into the turn."""
        return UNOBSERVED if self._observer is None else self._observer.stepping()

    def joins(self, pipeline: Pipeline) -> None:
        """Stand in this pipeline, which has ``layer`` among its layers. It is not kept alive from here, so a
        turn that is dropped lets go of its session at once."""
        self._pipeline = weakref.ref(pipeline)

    def attach(self, debugger: DebugHook | None) -> None:
        """Let a debugger stand here, or with ``None`` nobody. Safe from any thread."""
        self.debugger = debugger
        if (pipeline := self._pipeline()) is not None:
            pipeline.put(self.layer)
        for loop, arrived in self._waiting:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
                loop.call_soon_threadsafe(arrived.set)

    def _performed(self, request: Any, turn: Any, call_next: Perform) -> Awaitable[Any]:
        if (question := getattr(request, "question_id", None)) is not None:
            return self._asked(request, question, call_next)
        debugger = self.debugger  # it may have left since the request's way was composed
        return call_next(request) if debugger is None else debugger.performing(request, turn, call_next)

    async def _asked(self, request: Any, question: str, call_next: Perform) -> Any:
        self.questions[question] = asyncio.Event()
        listening = asyncio.ensure_future(self._listen(question))
        await asyncio.sleep(0)  # it listens before anybody is asked
        own = asyncio.ensure_future(call_next(request))
        here = (asyncio.get_running_loop(), asyncio.Event())
        self._waiting.append(here)
        try:
            while (debugger := self.debugger) is None and not own.done():
                here[1].clear()  # one may have come, and left again
                arriving = asyncio.ensure_future(here[1].wait())
                await asyncio.wait({own, arriving}, return_when=asyncio.FIRST_COMPLETED)
                arriving.cancel()
            if debugger is None or own.done():
                return own.result()
            return await debugger.performing(request, self.turn, lambda _: own)
        finally:
            self._waiting.remove(here)
            self.questions.pop(question, None)
            for task in (listening, own):
                task.cancel()

    async def _listen(self, question: str) -> None:
        async for event in Events(self.turn.turn_id, None, SIZE, over=False):
            asked: tuple[Any, ...] = event.values
            if event.name == "approval" and asked[0].call_id == question:
                self.questions[question].set()
                return

    @contextlib.contextmanager
    def around(self, inner: PausePoint) -> Iterator[None]:
        """Meanwhile the state runs the turn behind this gate."""
        self.inner.append(inner)
        self.entering(inner)
        try:
            yield
        finally:
            self.inner.remove(inner)

    def opened(self) -> None:
        """Somebody runs the turn now."""
        if self._registry is not None:
            self._registry.opened(self)
        self.running = True  # only now: who hears of it looks for it there
        if self._observer is not None:
            self._observer.opened()

    def closed(self, ended: bool, result: Any = None) -> None:
        """Nobody runs it any more; ``result`` is that of a turn that has ended."""
        self.running = False
        if self._observer is not None:
            self._observer.closed(ended, result)
        if self._registry is not None:
            self._registry.closed(self)
        if self.debugger is not None:
            self.debugger.closed(ended)

    def happened(self, what: Exchange | Step) -> None:
        if self._observer is not None and isinstance(what, Step):
            self._observer.moved(what)
        if self.debugger is not None:
            self.debugger.happened(what)


def questions(kind: type) -> bool:
    """Are requests of this type answered by a person?"""
    return hasattr(kind, "question_id") or "question_id" in getattr(kind, "__dataclass_fields__", ())
