"""A turn that another process runs, as its sender sees it: read from the journal while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fsm_agent.conversation.handover import next_turn_id
from fsm_agent.conversation.result import TurnResult, VisitedState
from fsm_agent.errors import ConfigError, TurnSuspended
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns
from fsm_agent.sessions.store.pending import PendingItems
from fsm_agent.sessions.store.queued import found

LOOK = 0.1
"""Seconds between two looks."""
PATIENT = 3.0


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
class _Seen:
    """What of a turn was reported already."""

    seq: int = 0
    effects: set[tuple[int, int, int]] = field(default_factory=set)


class Follower:
    """Follows queued turns of a store. ``patient``: seconds after which it is said that no worker has taken a
    turn yet."""

    def __init__(self, store: Store, listener: Listener, patient: float = PATIENT) -> None:
        self._store, self._listener, self._patient = store, listener, patient
        self._turns = Turns(store.database)

    async def followed(self, turn_id: str) -> TurnResult:
        """Tell what happens to a turn until it has ended, and to those that it hands the conversation over
        to; the result. Raises ``TurnSuspended`` when it waits for an answer, ``ConfigError`` when it was
        taken back or cannot begin."""
        await self._wait_for_start(turn_id)
        while True:
            info = await self._wait_for_end(turn_id)
            if info.exit != "handed_over":
                return read_result(self._turns, info)
            turn_id = next_turn_id(info.session, turn_id)
            await self._there(turn_id)

    async def _wait_for_start(self, turn_id: str) -> None:
        waited, problem = 0.0, ""
        while not self._exists(turn_id):
            queued = found(self._store, turn_id)
            if queued is None or (queued.withdrawn is not None and not queued.problem):
                raise ConfigError("the turn was taken back before it began", turn_id)
            if queued.withdrawn is not None:
                raise ConfigError(f"the turn cannot begin: {queued.problem}")
            if queued.problem != problem:
                problem = queued.problem
                self._listener.status(f"a worker could not run it, it is tried again: {problem}")
            if waited <= self._patient < waited + LOOK:
                self._listener.status(f"queued; it waits for a worker with table {queued.digest}")
            waited += LOOK
            await asyncio.sleep(LOOK)

    async def _there(self, turn_id: str) -> None:
        while not self._exists(turn_id):  # noqa: ASYNC110 - another process begins it
            await asyncio.sleep(LOOK)

    def _exists(self, turn_id: str) -> bool:
        return bool(self._store.database.select("SELECT 1 FROM turns WHERE id = ?", turn_id))

    async def _wait_for_end(self, turn_id: str) -> TurnInfo:
        seen = _Seen()
        while True:
            info = self._turns.info(turn_id)
            self._tell(info, seen)
            if info.ended is not None:
                return info
            self._refuse_if_suspended(info)
            await asyncio.sleep(LOOK)

    def _refuse_if_suspended(self, info: TurnInfo) -> None:
        """No process runs it, and something has no answer."""
        if info.owner is not None:
            return
        waits = PendingItems(lambda: self._store.database, self._store.now).of_turn(info.id)
        if waits and not all(one.settled(self._store.now()) for one in waits):
            raise TurnSuspended(info.id, [one for one in waits if one.answered is None])

    def _tell(self, info: TurnInfo, seen: _Seen) -> None:
        for seq in range(seen.seq, info.seq + 1):
            self._tell_tools(info.id, seq, seen)
            if seq < info.seq:
                (step,) = self._turns.steps(info.id, seq + 1, seq + 1)
                self._listener.transition(info.id, step.source, step.event, step.dest, took=step.seconds)
        seen.seq = info.seq

    def _tell_tools(self, turn_id: str, seq: int, seen: _Seen) -> None:
        for one in self._turns.effects(turn_id, seq):
            place = (one.seq, one.ordinal, one.place)
            if one.kind == "RunTool" and one.reply is not None and place not in seen.effects:
                seen.effects.add(place)
                asked, said = one.request, one.reply
                self._listener.tool_complete(
                    str(asked.get("call_id", "")),
                    str(asked.get("name", one.name)),
                    asked.get("arguments") or {},
                    str(said.get("text", "")),
                    str(said.get("status", one.status)),
                    took=one.seconds,
                )


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
