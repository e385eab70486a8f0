"""A turn that another process runs, as its sender sees it: read from the journal while it runs.

Each event has an id, which a client that drops names when it comes back. ``<seq>.<n>`` is a place that the
journal has: ``n`` exchanges of the visit after ``seq`` moves are complete. ``<seq>.<n>-<attempt>.<m>`` is the
``m``-th event behind it. Attempt 0 is the journal itself, which tells everybody the same events; others are
live events of one process, such as a piece of text, which end with that process."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from fsm_agent.conversation.result import TurnResult, VisitedState, next_turn_id
from fsm_agent.errors import ConfigError, TurnSuspended
from fsm_agent.runtime.events import (
    NAMES,
    VOIDED,
    Event,
    EventValues,
    ReasoningText,
    StreamDelta,
    ToolComplete,
    ToolStart,
    Transition,
    Voided,
)
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Effect, TurnInfo, Turns
from fsm_agent.sessions.store.pending import PendingItems
from fsm_agent.sessions.store.queued import QueuedTurn, found

LOOK = 0.1
"""Seconds between two looks."""
PATIENT = 3.0
_PLACE = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(?:-([0-9]{1,12})\.([0-9]{1,12}))?")


class Place(NamedTuple):
    """Where an event is in its turn; see the module."""

    seq: int = 0
    ordinal: int = 0
    attempt: int = 0
    within: int = 0

    @classmethod
    def read(cls, text: str) -> Self:
        """Read what ``str`` writes; the beginning for an empty text. Raises ``ConfigError``."""
        if not text:
            return cls()
        if (found := _PLACE.fullmatch(text)) is None:
            raise ConfigError("no id of an event", text[:40], "an id as an event has it")
        return cls(*(int(part or 0) for part in found.groups()))

    def __str__(self) -> str:
        return f"{self.seq}.{self.ordinal}" + (f"-{self.attempt}.{self.within}" if self.within else "")

    @property
    def recorded(self) -> Place:
        """The place in the journal that this one is behind."""
        return Place(self.seq, self.ordinal)


class ServedEvent(NamedTuple):
    """What happens in a turn, with its ``id`` and the ``turn``; ``took``: seconds, where they are known."""

    id: str
    turn: str
    event: Event
    took: float | None = None


def event_at(
    place: Place, turn: str, values: EventValues, at: float, took: float | None = None
) -> ServedEvent:
    """Return an event at a place."""
    return ServedEvent(str(place), turn, Event(NAMES.get(type(values), VOIDED), values, at, turn), took)


def void(place: Place, turn: str) -> ServedEvent:
    """Say that everything behind a place of the journal is void: its process has ended, and what
    the journal gets is sent again."""
    return event_at(place, turn, Voided(str(place)), time.time())


def recorded_events(
    turns: Turns, info: TurnInfo, after: Place, until: Place | None = None
) -> Iterator[ServedEvent]:
    """Yield what the journal has of a turn behind ``after``, up to ``until``, in order; of a fork, from where
    it begins. What a parallel call returned waits for the calls before it."""
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
    """Receives what happens in a turn."""

    def transition(
        self, turn_id: str, source: str, event: str, dest: str, *, took: float | None = None
    ) -> None:
        """Hear of a move, and the seconds that the state took."""
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
        """Hear how a call of a tool ended, and the seconds that it took."""
        ...

    def status(self, line: str) -> None:
        """Hear a line about the turn."""
        ...


@dataclass(slots=True)
class Silent:
    """Hears of nothing."""

    def transition(self, *what: Any, **more: Any) -> None:
        """Ignore a move."""

    def tool_complete(self, *what: Any, **more: Any) -> None:
        """Ignore a call."""

    def status(self, line: str) -> None:
        """Ignore a line."""


def still_queued(store: Store, turn_id: str) -> QueuedTurn:
    """Return the row of a turn that has not begun. Raises ``ConfigError`` for one that never will."""
    queued = found(store, turn_id)
    if queued is None or (queued.withdrawn is not None and not queued.problem):
        raise ConfigError("the turn was taken back before it began", turn_id)
    if queued.withdrawn is not None:
        raise ConfigError(f"the turn cannot begin: {queued.problem}")
    return queued


class Follower:
    """Follows queued turns of a store. ``patient``: seconds after which it is said that no worker has taken a
    turn yet."""

    def __init__(self, store: Store, listener: Listener | None = None, patient: float = PATIENT) -> None:
        self._store, self._listener, self._patient = store, listener or Silent(), patient
        self._turns = Turns(store.database)

    async def follow(self, turn_id: str) -> TurnResult:
        """Tell what happens to a turn until it has ended, and to those that it hands the conversation over
        to; the result. Raises ``TurnSuspended`` when it waits for an answer, ``ConfigError`` when it was
        taken back or cannot begin."""
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
        """Wait until a queued turn has begun. Raises ``ConfigError`` for one that never will."""
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
        """Yield what the journal gets of a turn behind ``after``, until it has ended. Raises
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
        """Raise ``TurnSuspended`` when no process runs the turn, and something has no answer. One that was
        interrupted is resumed for that."""
        if info.owner is not None or self._is_withdrawn(info.id):
            return
        waits = PendingItems(lambda: self._store.database, self._store.now).of_turn(info.id)
        if waits and not all(one.settled(self._store.now()) for one in waits):
            raise TurnSuspended(info.id, [one for one in waits if one.answered is None])

    def _exists(self, turn_id: str) -> bool:
        return bool(self._store.database.select("SELECT 1 FROM turns WHERE id = ?", turn_id))

    def _is_withdrawn(self, turn_id: str) -> bool:
        queued = found(self._store, turn_id)
        return queued is not None and queued.withdrawn is not None

    def _tell(self, one: ServedEvent) -> None:
        match one.event.values:
            case Transition(turn_id, source, event, dest):
                self._listener.transition(turn_id, source, event, dest, took=one.took)
            case ToolComplete(call_id, name, arguments, result, status):
                self._listener.tool_complete(call_id, name, arguments, result, status, took=one.took)


def read_result(turns: Turns, info: TurnInfo) -> TurnResult:
    """Return the result of a turn that has ended, as its process returned it; without a value for an answer
    of a type. Raises ``ConfigError`` for a turn that was given up, which has none."""
    if (said := turns.result(info.id)) is None:
        raise ConfigError("the turn has no result", info.id, f"it ended with {info.exit}")
    steps = turns.steps(info.id)
    states = [VisitedState(state=s.source, event=s.event, row=s.row, seconds=s.seconds) for s in steps]
    last = VisitedState(state=info.state, event=None, row=None, seconds=0.0)
    whole = said | {"messages": turns.messages(info.id), "states": [*states, last], "output": None}
    return TurnResult.model_validate(whole)
