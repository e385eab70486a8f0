"""What happens in the turns that this process runs, kept for a while: a client that drops and comes back gets
the rest, and every event once.

A turn never waits for a client: each reads what is kept at its own pace. What was dropped from here, and what
was before this process, is read from the journal (``fsm_agent.dispatch.follow``)."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal

from fsm_agent.conversation.effects import RunTool, ToolOutcome
from fsm_agent.conversation.handover import next_turn_id
from fsm_agent.dispatch.follow import Place, ServedEvent, served
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


class LiveTurn:
    """One turn that runs here, or ran here not long ago. ``begin``: the place in the journal behind which its
    events are here. ``how`` it stopped, ``None`` while it runs. ``result`` of one that has ended. ``signals``
    steer and interrupt a running one."""

    def __init__(self, gate: PausePoint, begin: Place) -> None:
        self.id, self.signals, self.begin = gate.turn.turn_id, gate.signals, begin
        self.over_at = 0.0
        self.how: Literal["ended", "suspended", "left"] | None = None
        self.result: Any = None
        self._events: list[tuple[Place, ServedEvent]] = []
        self._first = 0  # how many were dropped before those that are kept
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
        """Return the number of the event behind ``after``, if that one is here."""
        with self._lock:
            if after == self.begin:
                return self._first
            for number in range(len(self._events) - 1, -1, -1):
                if self._events[number][0] == after:
                    return self._first + number + 1
        return None

    def number_from(self, place: Place) -> int:
        """Return the number of the first event that is not before a place of the journal."""
        with self._lock:
            for number, (here, _) in enumerate(self._events):
                if here > place or here == place:
                    return self._first + number
            return self._first + len(self._events)

    def read(self, number: int) -> tuple[list[ServedEvent], int] | None:
        """Return the events from a number on, and the number behind them; ``None`` when some were dropped."""
        with self._lock:
            if number < self._first:
                return None
            return [one for _, one in self._events[number - self._first :]], self._first + len(self._events)

    async def wait_for_event(self, number: int) -> None:
        """Return when there is an event of this number, or the turn has stopped."""
        with self._lock:
            if number < self._first + len(self._events) or self.how is not None:
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
            self._events.append((place, served(place, self.id, event.values, event.at)))
            if len(self._events) > MOST:
                self._drop()
            self._wake()

    def _drop(self) -> None:
        """Drop the older half, up to a place that the journal has; pieces of one text become one piece."""
        half = self._events[MOST // 2][0].recorded
        number = next(n for n, (here, _) in enumerate(self._events) if here.recorded == half)
        if number:
            self.begin = half
        else:
            joined = _join(self._events[: MOST // 2])
            number = MOST // 2 - len(joined)
            self._events[number : MOST // 2] = joined
        self._first += number
        del self._events[:number]

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
        for loop, arrived in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrived.set)


def _join(events: list[tuple[Place, ServedEvent]]) -> list[tuple[Place, ServedEvent]]:
    """Join pieces of text that follow each other, under the id of the last one."""
    joined: list[tuple[Place, ServedEvent]] = []
    for place, one in events:
        values = one.event.values
        before = joined[-1][1].event.values if joined else None
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
            joined.append((place, one))
            continue
        joined[-1] = place, served(place, one.turn, values, one.event.at)
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
