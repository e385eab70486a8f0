"""``Runner``: runs the generator of a state, performs its requests, applies the row that the table chooses,
and records the move.

Theory of operation
-------------------
A turn is a state machine whose states are generators. The runner repeats one cycle, a *visit*:

1. It calls the function of ``turn.state``. The function is pure: it reads and changes the turn, and yields
   whatever it needs from the world as a request, or as a list of requests to be performed together.
2. For each request it first asks the journal (``Journal.asked``). The journal returns the replies already
   known and ``UNKNOWN`` for the others. It returns only when everything that has to survive a crash before
   the request leaves is on disk: the intent comes before the effect.
3. Unknown requests go through ``perform``, the pipeline of the turn (``Pipeline``, below). The journal
   gets each reply (``Journal.got``), and the generator gets it as the value of its ``yield``.
4. The generator returns the name of an event. ``Machine`` finds the one row of the table that is open for
   this event and applies it: counters are reset and spent, the state changes, ``seq`` increases by one.
5. The journal records the move (``Journal.moved``), and the next visit begins.

Invariants, and what relies on them:

- *Only rows change counters, limits, the state and* ``seq``. The proofs about a table are about its rows, so
  a state that changed a counter would invalidate them. ``StateGuard`` records these values when a visit
  begins; if a state changed one, it is restored, and the visit ends as ``crashed``.
- *A visit can be run again.* Because a state is pure, a second run makes the same requests in the same order.
  A request is identified by its place in the visit: ``(seq, ordinal, place)``. Resuming after a crash only
  means running the interrupted visit again with the recorded replies; no state has code for it.
- *A request is performed once at a time.* ``_asking`` is set from the ``yield`` until the reply has arrived,
  and ``_step`` from the choice of the row until the move is recorded. A caller that was cancelled in between
  calls ``step_into`` again and continues there: the generator is not advanced twice, no move is made twice.
- *The choice is separate from its application.* ``Machine.choose`` only reads, and ``watch`` may refuse a row
  before it is applied (the properties of a user). A refused row ends the turn by its ``crashed`` row.
- *A state has three kinds of bugs*: it raises, it reports an event that the table does not declare for it, or
  it changes what only rows may change. Each is reported as ``crashed``, for which the table of an agent has a
  row in every state. A table without one raises ``UndeclaredEvent``, and the turn stays where it was.
- *A reply may come later* (``NotYet``). The journal records what the turn waits for, and the turn is
  suspended: no task, no timer, no process has to survive. If that cannot be recorded, the turn continues with
  the fallback reply of ``NotYet``.

What would break: a state that reads a clock, a file or a random number itself makes different requests in its
second run, and a recorded reply goes to the wrong request. A ``perform`` that swallows ``CancelledError``
keeps an interrupted turn alive. A journal that returns from ``asked`` before the intent is safe makes an
unsafe tool run twice after a crash.

The runner knows no model, no tool and no table; any object with the members of ``RunnableTurn`` can be run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from types import GeneratorType
from typing import Any, NamedTuple, Self

from fsm_agent.errors import ForbiddenChange, JournalError, UndeclaredEvent
from fsm_agent.fsm.journal import UNKNOWN, Exchange, Journal, Step
from fsm_agent.fsm.machine import Machine, Move, RunnableTurn
from fsm_agent.fsm.table import CRASHED, Row, Table
from fsm_agent.request import NotYet

__all__ = [
    "CRASHED",
    "Exchange",
    "Layer",
    "Perform",
    "Pipeline",
    "RunnableTurn",
    "Runner",
    "State",
    "Step",
]


class StateGuard(NamedTuple):
    """The values that only rows may change, as they were when a visit began: the state, ``seq``, counters and
    limits."""

    state: str
    seq: int
    counters: dict[str, int]
    limits: dict[str, int]

    @classmethod
    def of(cls, turn: RunnableTurn) -> Self:
        """Read the values from the turn."""
        return cls(turn.state, turn.seq, turn.counters(), dict(turn.limits))

    def restore(self, turn: RunnableTurn, table: Table) -> str:
        """Undo forbidden changes of a state. Return them in words, such as ``counter tries from 2 to 0``;
        empty when there were none.

        A state may set the limits of a turn that has none yet. It may lower the limit of a
        ``Counter(exhaustible=True)`` to the current count if the row that led to it spent the counter."""
        if (turn.state, turn.seq, turn.counters(), turn.limits) == self:  # nearly always; nothing is copied
            return ""
        now = self.of(turn)
        counters = list(_differences("counter", self.counters, now.counters))
        limits = list(_differences("limit", self.limits, self._permitted_limits(now.limits, turn, table)))
        places = {"state": (self.state, now.state), "seq": (self.seq, now.seq)}
        moved = [f"{name} from {was!r} to {found!r}" for name, (was, found) in places.items() if was != found]
        if moved or counters or limits:
            turn.state, turn.seq = self.state, self.seq
            turn.put_back(self.counters, self.limits if limits else now.limits)
        return ", ".join((*moved, *counters, *limits))

    def _permitted_limits(self, found: dict[str, int], turn: RunnableTurn, table: Table) -> dict[str, int]:
        """Return the limits found, with the permitted changes undone."""
        if not self.limits:
            return self.limits
        spent = turn.last_transition.spends if turn.last_transition else ()
        lowered = {
            name: self.limits[name]
            for name in spent
            if name in table.exhaustible and found.get(name) == self.counters[name] <= self.limits[name]
        }
        return {**found, **lowered}


def _differences(what: str, before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[str]:
    for name in {**before, **after}:
        was, found = before.get(name, "nothing"), after.get(name, "nothing")
        if was != found:
            yield f"{what} {name} from {was} to {found}"


log = logging.getLogger(__name__)


State = Callable[[Any], Generator[Any, Any, str | None]]


class Stepping(ABC):
    """Something that can be stepped into or over, and iterated move by move."""

    @abstractmethod
    async def step_into(self) -> Exchange | Step | None:
        """Perform one request and return it with its reply, or return the move at the end of the state;
        ``None`` when the turn has ended."""

    async def step(self) -> Step | None:
        """Run the current state to its end and make one move. Return ``None`` when the turn has ended."""
        while True:
            happened = await self.step_into()
            if not isinstance(happened, Exchange):
                return happened

    async def __aiter__(self) -> AsyncIterator[Step]:
        while (step := await self.step()) is not None:
            yield step


class Runner(Stepping):
    """Runs one turn step by step. ``watch`` is called before each move and may refuse it: then the turn ends
    by its ``crashed`` row. ``machine``, ``states``, ``perform`` and ``journal`` are the constructor's
    arguments, public so that a debugger can run the same turn at a gate.

    ``bugs`` collects exceptions of states and of the handlers of their requests.

    ``suspended``: a reply comes later (``NotYet``), so this runner stops for good; another runner resumes the
    turn when the reply has arrived."""

    def __init__(
        self,
        turn: RunnableTurn,
        machine: Machine,
        states: Mapping[str, State],
        perform: Perform,
        journal: Journal,
        watch: Callable[[Row], Exception | None] | None = None,
        bugs: list[BaseException] | None = None,
    ) -> None:
        self.turn, self.bugs = turn, [] if bugs is None else bugs
        self.ended = self.suspended = False
        self.machine, self.states, self.perform = machine, states, perform
        self.journal, self.watch = journal, watch
        self._visit: Generator[Any, Any, str | None] | None = None
        self._asking: Any = None
        self._step: Step | None = None  # made, but perhaps not recorded yet
        self._reply: Any = None
        self._ordinal = 0
        self._entered = 0.0
        self._state_guard = StateGuard.of(turn)

    async def step_into(self) -> Exchange | Step | None:
        """Perform one request and return it with its reply, or return the move at the end of the state;
        ``None`` when the turn has ended or is suspended."""
        over = self.ended or self.suspended
        if over:
            return None
        if self._step is not None:
            return await self._write_step(self._step)
        if self._asking is None:  # otherwise the caller was cancelled during the request
            try:
                self._asking = (self._visit or self._begun_visit()).send(self._reply)
            except StopIteration as stop:
                return await self._leave(stop.value)
            except Exception as error:
                return await self._crash(error)
        asked, together = self._asking, isinstance(self._asking, list)
        exchange = Exchange(self.turn.seq, self.turn.state, self._ordinal, asked)
        known = await self.journal.asked(exchange)
        try:
            if together:
                reply: Any = await self._perform_together(exchange, known)
            elif (reply := known[0]) is UNKNOWN:
                # inlines ``_perform_one`` to save a stack frame in the usual case
                began = time.perf_counter()
                reply = await self.perform(asked)
                if isinstance(reply, NotYet):
                    reply = await self._put_off(exchange, 0, asked, reply)
                else:
                    await self.journal.got(exchange, 0, asked, reply, time.perf_counter() - began)
        except JournalError:
            raise
        except Exception as error:
            return await self._crash(error)
        if self.suspended:
            return None
        self._asking, self._reply = None, reply
        self._ordinal += 1
        return Exchange(exchange.seq, exchange.state, exchange.ordinal, asked, reply)

    def _begun_visit(self) -> Generator[Any, Any, str | None]:
        """Begin a visit of the turn's current state."""
        self._state_guard, self._entered = StateGuard.of(self.turn), time.perf_counter()
        visit: Any = self.states[self.turn.state](self.turn)
        if isinstance(visit, GeneratorType):
            self._visit, self._reply, self._ordinal = visit, None, 0
            return visit
        raise TypeError(
            f"{self.turn.state} is not a generator function; given: {type(visit).__name__} {visit!r};"
            " allowed: a function with a yield; `yield from ()` when it asks for nothing"
        )

    async def _perform_together(self, exchange: Exchange, known: Sequence[Any]) -> list[Any]:
        """Perform the requests of a list concurrently, except those whose reply is known."""
        if len(known) == 1:
            return [await self._perform_one(exchange, 0, known[0])]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._perform_one(exchange, place, reply))
                    for place, reply in enumerate(known)
                ]
        except ExceptionGroup as failed:
            if (refused := failed.subgroup(JournalError)) is not None:
                raise refused.exceptions[0] from None
            raise
        return [task.result() for task in tasks]

    async def _perform_one(self, exchange: Exchange, place: int, known: Any) -> Any:
        if known is not UNKNOWN:
            return known
        request, began = exchange.request[place], time.perf_counter()
        reply = await self.perform(request)
        if isinstance(reply, NotYet):
            return await self._put_off(exchange, place, request, reply)
        await self.journal.got(exchange, place, request, reply, time.perf_counter() - began)
        return reply

    async def _put_off(self, exchange: Exchange, place: int, request: Any, later: NotYet) -> Any:
        """Suspend the turn until the reply comes, or return the fallback reply if that cannot be recorded."""
        if await self.journal.later(exchange, place, later):
            self.suspended = True
            return later
        await self.journal.got(exchange, place, request, later.otherwise, 0.0)
        return later.otherwise

    async def _crash(self, error: Exception) -> Step | None:
        self._state_guard.restore(self.turn, self.machine.table)
        return await self._leave(None, error)

    async def _leave(self, event: str | None, bug: Exception | None = None) -> Step | None:
        self._visit = self._asking = None
        source, table = self._state_guard.state, self.machine.table
        if changed := self._state_guard.restore(self.turn, table):
            bug = ForbiddenChange(f"{table.name}: {source} changed {changed}; only rows of the table do that")
        if source == table.final:
            if bug is not None:
                self.bugs.append(bug)
                self.turn.crash(bug)
            self.ended = True
            return None
        move = self._move_after_crash(bug) if bug is not None else self._move(event)
        self.turn.arrive(move.row)
        self._step = Step(
            seq=self.turn.seq,
            source=source,
            event=move.row.event,
            dest=move.row.dest,
            row=move.row.id,
            guards=list(move.guards),
            changes=list(move.changes),
            seconds=time.perf_counter() - self._entered,
            exit=move.row.exit,
        )
        return await self._write_step(self._step)

    def _move(self, event: str | None) -> Move:
        try:
            refused = None if self.watch is None else self.watch(self.machine.choose(self.turn, event)[0])
            if refused is None or event == CRASHED:
                return self.machine.advance(self.turn, event)
        except UndeclaredEvent as bug:
            refused = bug
        return self._move_after_crash(refused)

    def _move_after_crash(self, bug: Exception) -> Move:
        self.bugs.append(bug)
        self.turn.crash(bug)
        table, state = self.machine.table, self.turn.state
        if (state, CRASHED) not in table.by_event:
            raise UndeclaredEvent(
                f"{table.name}: {state} failed: {type(bug).__name__}: {bug} (the turn waits until that is"
                f" fixed; with a line for {CRASHED!r} it would end)"
            ) from bug
        from fsm_agent.support.redaction import format_traceback  # few turns crash

        log.error("%s: %s failed:\n%s", table.name, state, format_traceback(bug))
        if self.watch is not None:
            self.watch(self.machine.choose(self.turn, CRASHED)[0])
        return self.machine.advance(self.turn, CRASHED)

    async def _write_step(self, step: Step) -> Step:
        """Record the move; called again if that failed or was cancelled."""
        await self.journal.moved(step)
        self._step = None
        return step


async def drive(visit: Generator[Any, Any, str | None], perform: Perform) -> str | None:
    """Run one state outside of a turn and return the event that it reports."""
    reply: Any = None
    while True:
        try:
            asked = visit.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        reply = [await perform(one) for one in asked] if isinstance(asked, list) else await perform(asked)


# ----------------------------------------------------------------------------------------------------
# ``Pipeline``: how a request of a state becomes a reply.
#
# A state yields a request; the runner asks the journal whether the reply is known, and hands the request to
# the turn's pipeline if it is not. A pipeline is a list of layers around one handler for each type of
# request. A layer is a coroutine function ``around(request, turn, call_next)``: it may inspect the request,
# replace it, change the reply, or answer instead of everything below it. The first layer of the list is
# outermost.
#
#     >>> print(pipeline)
#     1. telemetry: every request
#     2. approvals: AskApproval
#     3. debugger: every request
#     4. handler
#
# A layer for a few types of requests names them. The path of a type is composed from the layers that handle
# it when its first request comes, and cached: a request without layers costs one dict lookup, and
# ``Pipeline`` itself adds no frame to the stack.
#
# Layers, such as a debugger's, may come and go while the turn runs; the next request takes the new path. The
# place of a layer is fixed when the list is composed: ``put`` replaces the layer of the same name.
#
# The journal is not a layer. It is asked once for all requests that a state yields together, so that one
# write to the disk covers their intents, and it identifies a request by its place in the visit, which a layer
# does not see. (Why: decision 113.)


Perform = Callable[[Any], Awaitable[Any]]
"""Takes a request and returns an awaitable of the reply."""
Around = Callable[[Any, Any, Perform], Awaitable[Any]]
"""``async def around(request, turn, call_next)``."""


@dataclass(frozen=True, slots=True)
class Layer:
    """``requests``: the types of requests that the layer handles, as a collection or as a predicate, whose
    name ``str()`` shows; ``None`` for all."""

    name: str
    around: Around
    requests: Collection[type] | Callable[[type], bool] | None = None

    def cares_for(self, kind: type) -> bool:
        """Return whether the layer handles requests of this type."""
        if self.requests is None:
            return True
        return self.requests(kind) if callable(self.requests) else kind in self.requests

    def __str__(self) -> str:
        if self.requests is None:
            return f"{self.name}: every request"
        if callable(self.requests):
            return f"{self.name}: {self.requests.__name__}"
        return f"{self.name}: {', '.join(sorted(kind.__name__ for kind in self.requests))}"


class Pipeline:
    """The layers of one turn around its handlers. ``handler_of`` returns the handler for a type of requests,
    and raises ``LookupError`` for a type without one."""

    def __init__(
        self, turn: Any, handler_of: Callable[[type], Perform], layers: Sequence[Layer] = ()
    ) -> None:
        self._turn, self._handler_of = turn, handler_of
        self.layers = tuple(layers)
        self._ways: dict[type, Perform] = {}

    def __call__(self, request: Any) -> Awaitable[Any]:
        way = self._ways.get(kind := type(request))
        return (way or self._compose(kind))(request)

    def put(self, layer: Layer) -> None:
        """Replace the layer of the same name; takes effect with the next request. Safe from any thread."""
        self.layers = tuple(layer if one.name == layer.name else one for one in self.layers)
        self._ways = {}

    def _compose(self, kind: type) -> Perform:
        ways, way = self._ways, self._handler(kind)
        for layer in reversed(self.layers):
            if layer.cares_for(kind):
                way = _inside(layer.around, self._turn, way)
        ways[kind] = way  # if ``put`` cleared the cache meanwhile, this fills the old one
        return way

    def _handler(self, kind: type) -> Perform:
        try:
            return self._handler_of(kind)
        except LookupError:  # a layer may answer it; otherwise the error is raised
            return lambda request: self._handler_of(kind)(request)

    def __str__(self) -> str:
        names = [*map(str, self.layers), "handler"]
        return "\n".join(f"{number}. {name}" for number, name in enumerate(names, 1))


def _inside(around: Around, turn: Any, call_next: Perform) -> Perform:
    def perform(request: Any) -> Awaitable[Any]:  # returns the awaitable itself, so no frame remains
        return around(request, turn, call_next)

    return perform
