"""The gate of a turn: every request and every move passes here, and a debugger may stand at it.

Nobody there costs one comparison. A debugger in this process takes its place with ``PausePoint.watcher``; one
in another process is let in by ``fsm_agent.sessions.remote_commands``, which looks for what people ask of the
turns that run here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from fsm_agent.fsm.journal import Exchange, Step
from fsm_agent.fsm.turn_kind import TurnKind
from fsm_agent.runtime.events import SIZE, Events
from fsm_agent.runtime.not_yet import NotYet
from fsm_agent.runtime.turn_inbox import TurnInbox

Perform = Callable[[Any], Awaitable[Any]]
UNOBSERVED = nullcontext()


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

    async def performing(self, request: Any, perform: Perform) -> Any:
        """The reply of a request: what ``perform`` says, or what a person says instead."""
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

    def performing(self, request: Any, perform: Perform) -> Awaitable[Any]:
        """The reply of a request, which is what ``perform`` says."""
        ...

    def moved(self, step: Step) -> None:
        """A move was made and journalled."""
        ...

    def closed(self, ended: bool, result: Any) -> None:
        """Nobody runs the turn any more; ``result`` is that of a turn that has ended."""
        ...


class QuestionDesk(Protocol):
    """Who knows what a question looks like to a person, and what follows from its answer."""

    def posed(self, question: Any) -> Any:
        """Return the question as whoever is asked sees it."""
        ...

    async def answered(self, question: Any, answer: Any, *, by_debugger: bool) -> Any:
        """Hear an answer before the turn does, and return the one that counts. ``by_debugger``: it is not
        what ``perform`` said."""
        ...


class PauseRegistry(Protocol):
    """Where the gates of running turns are known, so that other processes can ask something of them."""

    def opened(self, gate: PausePoint) -> None:
        """Hear that a turn can be stopped here from now on."""
        ...

    def closed(self, gate: PausePoint) -> None: ...


class PausePoint:
    """One turn's gate. ``running`` while somebody runs the turn. ``questions``: requests that a person
    answers (they have a ``question_id``), by that id; the event is set as soon as a person is asked, that is
    when no rule forbids it. ``inner``: the gates of turns that the state runs now; ``entering`` is told of
    each that comes. ``observer`` is told of all that passes here, a debugger's part in it included."""

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
        self.questions: dict[str, asyncio.Event] = {}
        self.inner = [] if inner is None else inner
        self.entering: Callable[[PausePoint], None] = lambda inner: None
        self._watcher: DebugHook | None = None
        self._observer = observer
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._registry = registry

    def through(self, perform: Perform, desk: QuestionDesk | None = None) -> Perform:
        """``perform``, by way of whoever stands here. ``desk`` poses each question and is told its answer,
        whoever gave it."""

        def by_way(request: Any) -> Awaitable[Any]:  # returns what is awaited: no frame stays of it
            if (question := getattr(request, "question_id", None)) is not None:
                posed = request if desk is None else desk.posed(request)
                return self._asked(posed, question, perform, desk)
            return perform(request) if self._watcher is None else self._watcher.performing(request, perform)

        if (observer := self._observer) is None:
            return by_way
        return lambda request: observer.performing(request, by_way)

    def stepping(self) -> AbstractContextManager[None]:
        """Around each step into the turn."""
        return UNOBSERVED if self._observer is None else self._observer.stepping()

    @property
    def watcher(self) -> DebugHook | None:
        """Who stands here."""
        return self._watcher

    @watcher.setter
    def watcher(self, watcher: DebugHook | None) -> None:
        self._watcher = watcher
        for loop, arrived in self._waiting:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
                loop.call_soon_threadsafe(arrived.set)

    async def _asked(self, request: Any, question: str, perform: Perform, desk: QuestionDesk | None) -> Any:
        """A question may wait for long: a debugger that comes meanwhile may answer it as well."""
        self.questions[question] = asyncio.Event()
        listening = asyncio.ensure_future(self._listen(question))
        await asyncio.sleep(0)  # it listens before anybody is asked
        own = asyncio.ensure_future(perform(request))
        here = (asyncio.get_running_loop(), asyncio.Event())
        arriving = asyncio.ensure_future(here[1].wait())
        self._waiting.append(here)
        try:
            while self._watcher is None and not own.done():
                await asyncio.wait({own, arriving}, return_when=asyncio.FIRST_COMPLETED)
            watcher = None if own.done() else self._watcher
            reply = own.result() if watcher is None else await watcher.performing(request, lambda _: own)
            if desk is None or isinstance(reply, NotYet):
                return reply
            return await desk.answered(request, reply, by_debugger=not _said(own, reply))
        finally:
            self._waiting.remove(here)
            self.questions.pop(question, None)
            for task in (listening, arriving, own):
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
        if self.watcher is not None:
            self.watcher.closed(ended)

    def happened(self, what: Exchange | Step) -> None:
        if self._observer is not None and isinstance(what, Step):
            self._observer.moved(what)
        if self.watcher is not None:
            self.watcher.happened(what)


def _said(own: asyncio.Future[Any], reply: Any) -> bool:
    return own.done() and not own.cancelled() and own.exception() is None and own.result() is reply
