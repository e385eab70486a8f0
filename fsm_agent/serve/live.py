"""What happens in the turns that this process runs, kept for a while: a client that drops and comes back gets
the rest, and every event once.

A turn never waits for a client: each reads what is kept at its own pace. What was dropped from here, and what
was before this process, is read from the journal (``fsm_agent.dispatch.follow``)."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from fsm_agent.conversation.effects import RunTool, ToolOutcome
from fsm_agent.conversation.result import next_turn_id
from fsm_agent.dispatch.follow import Place, ServedEvent, event_at
from fsm_agent.fsm.journal import Exchange
from fsm_agent.fsm.pause_point import PausePoint
from fsm_agent.runtime.events import (
    EVERYWHERE,
    NAMES,
    Event,
    Opened,
    ReasoningText,
    Stopped,
    StreamDelta,
    ToolComplete,
    ToolStart,
    Transition,
    listen,
)

MOST = 20_000
"""Events of one turn that are kept."""
KEPT, KEPT_SECONDS = 200, 300.0
"""Turns that do not run any more, and are kept; and for how long."""


class Kept(NamedTuple):
    """An event that is kept, and its ``number`` among all of the turn. One that joins several has the number
    of the last, and ``first`` is that of the first."""

    first: int
    number: int
    place: Place
    event: ServedEvent


class LiveTurn:
    """One turn that runs here, or ran here not long ago. ``begin``: the place in the journal behind which its
    events are here. ``how`` it stopped, ``None`` while it runs. ``result`` of one that has ended. ``signals``
    steer and interrupt a running one."""

    def __init__(self, gate: PausePoint, begin: Place) -> None:
        self.id, self.signals, self.begin = gate.turn.turn_id, gate.signals, begin
        self.over_at = 0.0
        self.how: Literal["ended", "suspended", "left"] | None = None
        self.result: Any = None
        self._events: list[Kept] = []
        self._dropped = self._count = 0  # numbers of the last event that was dropped, and of the last of all
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
        """Return the number of an event, if it is here."""
        with self._lock:
            if after == self.begin:
                return self._dropped
            for one in reversed(self._events):
                if one.place == after:
                    return one.number
        return None

    def number_before(self, place: Place) -> int:
        """Return the number of the last event before a place of the journal."""
        with self._lock:
            return next((one.first - 1 for one in self._events if one.place >= place), self._count)

    def read(self, number: int) -> tuple[list[ServedEvent], int] | None:
        """Return the events behind a number, and the number of the last; ``None`` when some were dropped, or
        joined with events before."""
        with self._lock:
            fresh = self._events[bisect_right(self._events, number, key=attrgetter("number")) :]
            if number < self._dropped or (fresh and fresh[0].first <= number):
                return None
            return [one.event for one in fresh], self._count

    async def wait_for_event(self, number: int) -> None:
        """Return when there is an event behind this number, or the turn has stopped."""
        with self._lock:
            if number < self._count or self.how is not None:
                return
            arrived = asyncio.Event()
            self._waiting.append((asyncio.get_running_loop(), arrived))
        await arrived.wait()

    async def wait_for_stop(self) -> None:
        """Return when the turn has stopped."""
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
            told = event_at(place, self.id, event.values, event.at)
            self._events.append(Kept(self._count, self._count, place, told))
            if len(self._events) > MOST:
                self._drop()
            self._wake()

    def _drop(self) -> None:
        """Drop the older half, up to a place that the journal has; pieces of one text become one piece."""
        half = self._events[MOST // 2].place.recorded
        number = next(n for n, one in enumerate(self._events) if one.place.recorded == half)
        if number:
            self.begin, self._dropped = half, self._events[number - 1].number
            del self._events[:number]
        else:
            self._events[: MOST // 2] = _join(self._events[: MOST // 2])

    def _end_exchange(self, exchange: Exchange) -> None:
        """Continue behind an exchange. Calls whose outcome was known, such as those of a process that ended,
        were not run here, and are published now."""
        told = Place(exchange.seq, exchange.ordinal) < self.begin
        replies = exchange.reply if isinstance(exchange.request, list) else [exchange.reply]
        for request, reply in zip(exchange.requests, replies, strict=True):
            if told or not (isinstance(request, RunTool) and isinstance(reply, ToolOutcome)):
                continue
            if request.call_id not in self._completed:
                begun = ToolStart(request.call_id, request.name, request.arguments)
                for values in (begun, ToolComplete(*begun, reply.text, reply.status)):
                    self._hear(Event(NAMES[type(values)], values, time.time(), self.id))
        with self._lock:
            self._place, self._within = Place(exchange.seq, exchange.ordinal + 1), 0
            self._completed.clear()

    def _stop(self, stopped: Stopped) -> None:
        leave, self._leave = self._leave, []  # nothing of the turn is kept by its stream
        for each in leave:
            each()
        with self._lock:
            self.how, self.result, self.over_at = stopped.how, stopped.result, time.monotonic()
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        here = asyncio._get_running_loop() if waiting else None
        for loop, arrived in waiting:
            if loop is here:  # mostly: waking a loop from outside is a system call
                arrived.set()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(arrived.set)


def _join(events: list[Kept]) -> list[Kept]:
    """Join pieces of text that follow each other, under the id of the last one."""
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
    """The turns of one service that run in this process. ``recorded`` says how many exchanges of a visit the
    journal has whole."""

    def __init__(self, recorded: Callable[[str, int], int]) -> None:
        self._recorded = recorded
        self._expected: set[str] = set()
        self._turns: OrderedDict[str, LiveTurn] = OrderedDict()
        self._arrivals: dict[str, list[asyncio.Event]] = {}
        self._leave = EVERYWHERE.subscribe(self._begin, Opened)

    def close(self) -> None:
        """Hear no more."""
        self._leave()

    def expect(self, turn_id: str) -> None:
        """Keep the events of this turn when it runs."""
        self._expected.add(turn_id)

    def get(self, turn_id: str) -> LiveTurn | None:
        """Return the turn, if it runs or ran here."""
        return self._turns.get(turn_id)

    @property
    def running(self) -> list[LiveTurn]:
        """The turns that run now."""
        return [one for one in self._turns.values() if one.how is None]

    async def wait_for_arrival(self, turn_id: str, timeout: float) -> None:
        """Return when the turn begins to run here, or after ``timeout`` seconds."""
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
        """Expect the turn of the agent that a conversation was handed over to."""
        if stopped.how == "ended" and stopped.result.turn_exit_reason == "handed_over":
            self.expect(next_turn_id(stopped.result.session_id, stopped.result.turn_id))
