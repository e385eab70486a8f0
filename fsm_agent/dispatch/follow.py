"""The events of a turn for its clients: live ones from this process, kept for a while; for other turns, what
the journal records. A client that reconnects gets the missing events, each exactly once.

Each event has an id, which a reconnecting client sends. ``<seq>.<n>`` is a position in the journal: ``n``
exchanges of the visit after ``seq`` moves are complete. ``<seq>.<n>-<attempt>.<m>`` is the ``m``-th event
after it. Attempt 0 is the journal itself, whose events are the same for everyone; others are live events of
one process, such as a piece of text, which are lost with that process."""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Protocol, Self

from fsm_agent.conversation.effects import RunTool, ToolOutcome
from fsm_agent.conversation.result import TurnResult, VisitedState, next_turn_id
from fsm_agent.errors import ConfigError, TurnSuspended
from fsm_agent.fsm.journal import Exchange
from fsm_agent.fsm.pause_point import PausePoint
from fsm_agent.runtime.events import (
    EVERYWHERE,
    NAMES,
    VOIDED,
    Event,
    EventValues,
    Opened,
    ReasoningText,
    Stopped,
    StreamDelta,
    ToolComplete,
    ToolStart,
    Transition,
    Voided,
    listen,
)
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Effect, TurnInfo, Turns
from fsm_agent.sessions.store.pending import PendingItems
from fsm_agent.sessions.store.queued import QueuedTurn, find_queued

LOOK = 0.1
"""Seconds between polls."""
PATIENT = 3.0
_PLACE = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(?:-([0-9]{1,12})\.([0-9]{1,12}))?")


class Place(NamedTuple):
    """Position of an event in its turn; see the module's docstring."""

    seq: int = 0
    ordinal: int = 0
    attempt: int = 0
    within: int = 0

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse the output of ``str``; empty text is the beginning. Raises ``ConfigError``."""
        if not text:
            return cls()
        if (found := _PLACE.fullmatch(text)) is None:
            raise ConfigError("no id of an event", text[:40], "an id as an event has it")
        return cls(*(int(part or 0) for part in found.groups()))

    def __str__(self) -> str:
        return f"{self.seq}.{self.ordinal}" + (f"-{self.attempt}.{self.within}" if self.within else "")

    @property
    def recorded(self) -> Place:
        """The journal position that this one follows."""
        return Place(self.seq, self.ordinal)


class ServedEvent(NamedTuple):
    """An event of a turn, with its ``id`` and the ``turn``; ``took``: seconds, if known."""

    id: str
    turn: str
    event: Event
    took: float | None = None


def event_at(
    place: Place, turn: str, values: EventValues, at: float, took: float | None = None
) -> ServedEvent:
    """Build an event at a position."""
    return ServedEvent(str(place), turn, Event(NAMES.get(type(values), VOIDED), values, at, turn), took)


def void(place: Place, turn: str) -> ServedEvent:
    """Build the event that voids everything after a position in the journal: its process has ended, and the
    journal's events are sent again."""
    return event_at(place, turn, Voided(str(place)), time.time())


def recorded_events(
    turns: Turns, info: TurnInfo, after: Place, until: Place | None = None
) -> Iterator[ServedEvent]:
    """Yield the events of a turn that the journal has after ``after``, up to ``until``, in order; for a fork,
    from its start. The result of a parallel call waits for the calls before it."""
    after = max(after, Place(info.forked_at or 0))
    for seq in range(after.seq, info.seq + 1):
        ordinal, place, number = -1, 0, 0
        for effect in turns.effects(info.id, seq):
            if (effect.seq, effect.ordinal) == (seq, ordinal):
                place += 1
            else:
                ordinal, place, number = effect.ordinal, 0, 0
            if effect.reply is None or effect.place != place:
                break
            if until is not None and (seq, ordinal) >= until[:2]:
                return
            for values in _tell_effect(effect, effect.reply):
                number += 1
                here = Place(seq, ordinal, 0, number)
                if here > after:
                    yield event_at(here, info.id, values, effect.at, effect.seconds)
        if seq < info.seq:
            if until is not None and (seq + 1, 0) > until[:2]:
                return
            (step,) = turns.steps(info.id, seq + 1, seq + 1)
            here = Place(seq + 1)
            if here > after:
                moved = Transition(info.id, step.source, step.event, step.dest, _counters(step.changes))
                yield event_at(here, info.id, moved, time.time(), step.seconds)


def _counters(changes: list[tuple[str, int, int]]) -> dict[str, int]:
    return {name: now for name, _, now in changes}


def _tell_effect(effect: Effect, reply: Mapping[str, Any]) -> Iterator[EventValues]:
    asked = effect.request
    if effect.kind == "RunTool":
        call, name = str(asked.get("call_id", "")), str(asked.get("name", effect.name))
        arguments = asked.get("arguments") or {}
        yield ToolStart(call, name, arguments)
        said, status = str(reply.get("text", "")), str(reply.get("status", effect.status))
        yield ToolComplete(call, name, arguments, said, status)
    elif effect.kind == "CallModel" and effect.state == "CallLLM":
        if thought := reply.get("reasoning"):
            yield ReasoningText(str(thought))
        if text := reply.get("text"):
            yield StreamDelta(str(text))
            yield StreamDelta(None)


class Listener(Protocol):
    """Receives the events of a turn."""

    def transition(
        self, turn_id: str, source: str, event: str, dest: str, *, took: float | None = None
    ) -> None:
        """Handle a move; ``took``: the seconds that the state took."""
        ...

    def tool_complete(
        self,
        call_id: str,
        name: str,
        arguments: Mapping[str, Any],
        result: str,
        status: str,
        *,
        took: float | None = None,
    ) -> None:
        """Handle the end of a tool call; ``took``: its seconds."""
        ...

    def status(self, line: str) -> None:
        """Handle a status line about the turn."""
        ...


@dataclass(slots=True)
class Silent:
    """Ignores all events."""

    def transition(self, *what: Any, **more: Any) -> None:
        """Ignore a move."""

    def tool_complete(self, *what: Any, **more: Any) -> None:
        """Ignore a call."""

    def status(self, line: str) -> None:
        """Ignore a line."""


def still_queued(store: Store, turn_id: str) -> QueuedTurn:
    """Return the row of a turn that has not begun. Raises ``ConfigError`` if it never will."""
    queued = find_queued(store, turn_id)
    if queued is None or (queued.withdrawn is not None and not queued.problem):
        raise ConfigError("the turn was taken back before it began", turn_id)
    if queued.withdrawn is not None:
        raise ConfigError(f"the turn cannot begin: {queued.problem}")
    return queued


class Follower:
    """Follows queued turns of a store. ``patient``: seconds after which it reports that no worker has taken a
    turn yet."""

    def __init__(self, store: Store, listener: Listener | None = None, patient: float = PATIENT) -> None:
        self._store, self._listener, self._patient = store, listener or Silent(), patient
        self._turns = Turns(store.database)

    async def follow(self, turn_id: str) -> TurnResult:
        """Report the events of a turn, and of those that it hands the conversation over to, until the end;
        return the result. Raises ``TurnSuspended`` if it waits for an answer, ``ConfigError`` if it was
        withdrawn or cannot begin."""
        await self.wait_for_start(turn_id)
        while True:
            async for one in self.events(turn_id, Place()):
                self._tell(one)
            info = self._turns.info(turn_id)
            if info.exit != "handed_over":
                return read_result(self._turns, info)
            turn_id = next_turn_id(info.session, turn_id)
            while not self._exists(turn_id):  # noqa: ASYNC110 - another process begins it
                await asyncio.sleep(LOOK)

    async def wait_for_start(self, turn_id: str) -> None:
        """Wait until a queued turn has begun. Raises ``ConfigError`` if it never will."""
        waited, problem = 0.0, ""
        while not self._exists(turn_id):
            queued = still_queued(self._store, turn_id)
            if queued.problem != problem:
                problem = queued.problem
                self._listener.status(f"a worker could not run it, it is tried again: {problem}")
            if waited <= self._patient < waited + LOOK:
                self._listener.status(f"queued; it waits for a worker with table {queued.digest}")
            waited += LOOK
            await asyncio.sleep(LOOK)

    async def events(self, turn_id: str, after: Place) -> AsyncIterator[ServedEvent]:
        """Yield the events that the journal records for a turn after ``after``, until it has ended. Raises
        ``TurnSuspended``."""
        while True:
            info = self._turns.info(turn_id)
            for one in recorded_events(self._turns, info, after):
                yield one
                after = Place.read(one.id)
            if info.ended is not None:
                return
            self.refuse_if_suspended(info)
            await asyncio.sleep(LOOK)

    def refuse_if_suspended(self, info: TurnInfo) -> None:
        """Raise ``TurnSuspended`` if no process runs the turn and a question is unanswered. Not for a
        withdrawn turn, which is resumed to end."""
        if info.owner is not None or self._is_withdrawn(info.id):
            return
        waits = PendingItems(lambda: self._store.database, self._store.now).of_turn(info.id)
        if waits and not all(one.is_settled(self._store.now()) for one in waits):
            raise TurnSuspended(info.id, [one for one in waits if one.answered is None])

    def _exists(self, turn_id: str) -> bool:
        return bool(self._store.database.select("SELECT 1 FROM turns WHERE id = ?", turn_id))

    def _is_withdrawn(self, turn_id: str) -> bool:
        queued = find_queued(self._store, turn_id)
        return queued is not None and queued.withdrawn is not None

    def _tell(self, one: ServedEvent) -> None:
        match one.event.values:
            case Transition(turn_id, source, event, dest):
                self._listener.transition(turn_id, source, event, dest, took=one.took)
            case ToolComplete(call_id, name, arguments, result, status):
                self._listener.tool_complete(call_id, name, arguments, result, status, took=one.took)


def read_result(turns: Turns, info: TurnInfo) -> TurnResult:
    """Return the result of an ended turn, as its process returned it, but without the parsed value of a typed
    answer. Raises ``ConfigError`` for an abandoned turn, which has none."""
    if (result := turns.result(info.id)) is None:
        raise ConfigError("the turn has no result", info.id, f"it ended with {info.exit}")
    steps = turns.steps(info.id)
    states = [VisitedState(state=s.source, event=s.event, row=s.row, seconds=s.seconds) for s in steps]
    last = VisitedState(state=info.state, event=None, row=None, seconds=0.0)
    whole = result | {"messages": turns.messages(info.id), "states": [*states, last], "output": None}
    return TurnResult.model_validate(whole)


# Turns that this process runs. A turn never waits for a client: each client reads the buffer at its own pace.
# Events that were dropped from it, or that precede this process, are read from the journal.


MOST = 20_000
"""Maximum number of events kept of one turn."""
KEPT, KEPT_SECONDS = 200, 300.0
"""Maximum number of stopped turns that are kept, and for how many seconds."""


class Kept(NamedTuple):
    """A kept event, and its ``number`` within the turn. If it joins several events, ``number`` is the last
    one's and ``first`` the first one's."""

    first: int
    number: int
    place: Place
    event: ServedEvent


class LiveTurn:
    """A turn that runs here, or ran here recently. ``begin``: the position in the journal after which its
    events are kept here. ``how`` it stopped, ``None`` while it runs. ``result`` of an ended turn. ``signals``
    steer and interrupt a running one."""

    def __init__(self, gate: PausePoint, begin: Place) -> None:
        self.id, self.signals, self.begin = gate.turn.turn_id, gate.signals, begin
        self.over_at = 0.0
        self.how: Literal["ended", "suspended", "left"] | None = None
        self.result: Any = None
        self._events: list[Kept] = []
        self._dropped = self._count = 0  # numbers of the last dropped event, and of the last event
        self._place, self._attempt, self._within = begin, secrets.randbelow(2**31) + 1, 0
        self._completed: set[str] = set()
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        stream = gate.stream
        self._leave = [
            listen(stream, self._hear),
            stream.subscribe(self._end_exchange, Exchange),
            stream.subscribe(self._stop, Stopped),
        ]

    def number_behind(self, after: Place) -> int | None:
        """Return the number of the event at a position, or ``None`` if it is not kept here."""
        with self._lock:
            if after == self.begin:
                return self._dropped
            for one in reversed(self._events):
                if one.place == after:
                    return one.number
        return None

    def number_before(self, place: Place) -> int:
        """Return the number of the last event before a position in the journal."""
        with self._lock:
            return next((one.first - 1 for one in self._events if one.place >= place), self._count)

    def read(self, number: int) -> tuple[list[ServedEvent], int] | None:
        """Return the events after a number, and the number of the last; ``None`` if some were dropped, or
        joined with earlier ones."""
        with self._lock:
            fresh = self._events[bisect_right(self._events, number, key=attrgetter("number")) :]
            if number < self._dropped or (fresh and fresh[0].first <= number):
                return None
            return [one.event for one in fresh], self._count

    async def wait_for_event(self, number: int) -> None:
        """Wait until there is an event after this number, or the turn has stopped."""
        with self._lock:
            if number < self._count or self.how is not None:
                return
            arrived = asyncio.Event()
            self._waiting.append((asyncio.get_running_loop(), arrived))
        await arrived.wait()

    async def wait_for_stop(self) -> None:
        """Wait until the turn has stopped."""
        while self.how is None:
            await self.wait_for_event(2**62)

    def _hear(self, event: Event) -> None:
        with self._lock:
            if isinstance(event.values, Transition):
                self._place, self._within = Place(self._place.seq + 1), 0
                place = self._place
            else:
                if isinstance(event.values, ToolComplete):
                    self._completed.add(event.values.call_id)
                self._within += 1
                place = self._place._replace(attempt=self._attempt, within=self._within)
            self._count += 1
            served = event_at(place, self.id, event.values, event.at)
            self._events.append(Kept(self._count, self._count, place, served))
            if len(self._events) > MOST:
                self._drop()
            self._wake()

    def _drop(self) -> None:
        """Drop the older half, up to a journal position; without one, join consecutive pieces of text."""
        half = self._events[MOST // 2].place.recorded
        number = next(n for n, one in enumerate(self._events) if one.place.recorded == half)
        if number:
            self.begin, self._dropped = half, self._events[number - 1].number
            del self._events[:number]
        else:
            self._events[: MOST // 2] = _join(self._events[: MOST // 2])

    def _end_exchange(self, exchange: Exchange) -> None:
        """Advance past an exchange. Calls with an outcome known beforehand, such as those of a dead process,
        did not run here and are published now."""
        earlier = Place(exchange.seq, exchange.ordinal) < self.begin
        replies = exchange.reply if isinstance(exchange.request, list) else [exchange.reply]
        for request, reply in zip(exchange.requests, replies, strict=True):
            if earlier or not (isinstance(request, RunTool) and isinstance(reply, ToolOutcome)):
                continue
            if request.call_id not in self._completed:
                begun = ToolStart(request.call_id, request.name, request.arguments)
                for values in (begun, ToolComplete(*begun, reply.text, reply.status)):
                    self._hear(Event(NAMES[type(values)], values, time.time(), self.id))
        with self._lock:
            self._place, self._within = Place(exchange.seq, exchange.ordinal + 1), 0
            self._completed.clear()

    def _stop(self, stopped: Stopped) -> None:
        leave, self._leave = self._leave, []  # free the stream's references to this turn
        for each in leave:
            each()
        with self._lock:
            self.how, self.result, self.over_at = stopped.how, stopped.result, time.monotonic()
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        here = asyncio._get_running_loop() if waiting else None
        for loop, arrived in waiting:
            if loop is here:  # the usual case: waking a loop from outside is a system call
                arrived.set()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(arrived.set)


def _join(events: list[Kept]) -> list[Kept]:
    """Join consecutive pieces of text, under the id of the last one."""
    joined: list[Kept] = []
    for one in events:
        values = one.event.event.values
        before = joined[-1].event.event.values if joined else None
        if (
            isinstance(values, StreamDelta)
            and isinstance(before, StreamDelta)
            and values.text
            and before.text
        ):
            values = StreamDelta(before.text + values.text)
        elif isinstance(values, ReasoningText) and isinstance(before, ReasoningText):
            values = ReasoningText(before.text + values.text)
        else:
            joined.append(one)
            continue
        whole = event_at(one.place, one.event.turn, values, one.event.event.at)
        joined[-1] = one._replace(first=joined[-1].first, event=whole)
    return joined


class LiveTurns:
    """The turns of one service that run in this process. ``recorded`` returns the number of exchanges of a
    visit that are complete in the journal."""

    def __init__(self, recorded: Callable[[str, int], int]) -> None:
        self._recorded = recorded
        self._expected: set[str] = set()
        self._turns: OrderedDict[str, LiveTurn] = OrderedDict()
        self._arrivals: dict[str, list[asyncio.Event]] = {}
        self._leave = EVERYWHERE.subscribe(self._begin, Opened)

    def close(self) -> None:
        """Stop listening."""
        self._leave()

    def expect(self, turn_id: str) -> None:
        """Keep the events of this turn once it runs."""
        self._expected.add(turn_id)

    def get(self, turn_id: str) -> LiveTurn | None:
        """Return the turn if it runs or ran here."""
        return self._turns.get(turn_id)

    @property
    def running(self) -> list[LiveTurn]:
        """The currently running turns."""
        return [one for one in self._turns.values() if one.how is None]

    async def wait_for_arrival(self, turn_id: str, timeout: float) -> None:
        """Wait until the turn begins to run here, at most ``timeout`` seconds."""
        arrived = asyncio.Event()
        waiting = self._arrivals.setdefault(turn_id, [])
        waiting.append(arrived)
        try:
            await asyncio.wait_for(arrived.wait(), timeout)
        except TimeoutError:
            return
        finally:
            waiting.remove(arrived)
            if not waiting:
                self._arrivals.pop(turn_id, None)

    def _begin(self, opened: Opened) -> None:
        gate = opened.gate
        turn_id = gate.turn.turn_id
        if turn_id not in self._expected:
            return
        self._expected.discard(turn_id)
        seq = gate.turn.seq
        ordinal = self._recorded(turn_id, seq) if turn_id in self._turns or seq else 0
        self._turns[turn_id] = LiveTurn(gate, Place(seq, ordinal))
        self._turns.move_to_end(turn_id)
        gate.stream.subscribe(self._follow, Stopped)
        over = [one for one in self._turns.values() if one.how is not None]
        for place, old in enumerate(over):
            if place < len(over) - KEPT or time.monotonic() - old.over_at > KEPT_SECONDS:
                del self._turns[old.id]
        for one in self._arrivals.get(turn_id, ()):
            one.set()

    def _follow(self, stopped: Stopped) -> None:
        """Expect the next turn if the conversation was handed over to another agent."""
        if stopped.how == "ended" and stopped.result.turn_exit_reason == "handed_over":
            self.expect(next_turn_id(stopped.result.session_id, stopped.result.turn_id))
