"""The runner: run the state's generator, perform what it asks for, let the table choose, write it down. Nothing else.

It knows no model, no tool and no table of its own; any turn with the members of ``RunnableTurn`` can be run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, Protocol

from fsm_agent.journal import Exchange, Journal, Step
from fsm_agent.machine import Machine
from fsm_agent.table import Row
from fsm_agent.turn import TurnLike

__all__ = ["CRASHED", "Exchange", "Perform", "RunnableTurn", "Runner", "State", "Step"]

CRASHED = "crashed"
"""The event that every state has for a bug of ours."""

State = Callable[[Any], Generator[Any, Any, str | None]]
Perform = Callable[[Any], Awaitable[Any]]


class RunnableTurn(TurnLike, Protocol):
    """What the runner needs besides what the machine needs."""

    turn_id: str

    def arrive(self, row: Row) -> None:
        """The row that was just taken: what it spent is what the new state does first."""

    def crash(self, error: BaseException) -> None:
        """A bug of ours, kept for the explanation at the end."""


class Runner:
    """One turn, moved step by step. ``on_move`` is told of every step after it was journalled."""

    def __init__(
        self,
        turn: RunnableTurn,
        machine: Machine,
        states: Mapping[str, State],
        perform: Perform,
        journal: Journal,
        on_move: Callable[[Step], None] = lambda step: None,
    ) -> None:
        self.turn = turn
        self.ended = False
        self._machine, self._states, self._perform = machine, states, perform
        self._journal, self._on_move = journal, on_move
        self._visit: Generator[Any, Any, str | None] | None = None
        self._reply: Any = None
        self._ordinal = 0
        self._entered = 0.0

    async def step(self) -> Step | None:
        """Run the state to its end and make one move. ``None`` when the final state has done its work."""
        while True:
            happened = await self.step_into()
            if not isinstance(happened, Exchange):
                return happened

    async def step_into(self) -> Exchange | Step | None:
        """One request and its reply, or the move at the end of the state; ``None`` when the turn has ended."""
        if self.ended:
            return None
        if self._visit is None:
            self._visit, self._reply, self._ordinal = self._states[self.turn.state](self.turn), None, 0
            self._entered = time.perf_counter()
        try:
            asked = self._visit.send(self._reply)
        except StopIteration as stop:
            return self._leave(stop.value)
        except Exception as error:
            return self._crash(error)
        return await self._exchange(asked)

    async def _exchange(self, asked: Any) -> Exchange | Step | None:
        exchange = Exchange(self.turn.seq, self.turn.state, self._ordinal, asked)
        self._journal.asked(self.turn.turn_id, exchange)
        try:
            self._reply = await self._perform_all(asked)
        except Exception as error:
            return self._crash(error)
        exchange = Exchange(exchange.seq, exchange.state, exchange.ordinal, asked, self._reply)
        self._journal.got(self.turn.turn_id, exchange)
        self._ordinal += 1
        return exchange

    async def _perform_all(self, asked: Any) -> Any:
        if not isinstance(asked, list):
            return await self._perform(asked)
        if len(asked) == 1:
            return [await self._perform(asked[0])]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_as_coroutine(self._perform(one))) for one in asked]
        return [task.result() for task in tasks]

    def _crash(self, error: Exception) -> Step | None:
        self.turn.crash(error)
        return self._leave(CRASHED)

    def _leave(self, event: str | None) -> Step | None:
        self._visit = None
        if self.turn.state == self._machine.table.final:
            self.ended = True
            return None
        source = self.turn.state
        move = self._machine.advance(self.turn, event or "")
        self.turn.arrive(move.row)
        step = Step(
            seq=self.turn.seq,
            source=source,
            event=event or "",
            dest=move.row.dest,
            row=move.row.id,
            guards=list(move.guards),
            changes=list(move.changes),
            seconds=time.perf_counter() - self._entered,
            exit=move.row.exit,
        )
        self._journal.moved(self.turn.turn_id, step)
        self._on_move(step)
        return step


async def drive(visit: Generator[Any, Any, str | None], perform: Perform) -> str | None:
    """Run one state outside of a turn; the event that it reports."""
    reply: Any = None
    while True:
        try:
            asked = visit.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        reply = [await perform(one) for one in asked] if isinstance(asked, list) else await perform(asked)


async def _as_coroutine(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
