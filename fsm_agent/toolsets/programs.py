"""Programs written by a model that run while the turn makes the tool calls they request.

A program never calls a tool itself. Its request leaves through its door as the reply to the request that
runs it; the state judges it like every other call, has it run, and returns the outcome with the next
request. (Why: decision 92.)"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from fsm_agent.conversation.effects import AnswerProgram, ProgramAsks, RunTool, ToolOutcome
from fsm_agent.request import NotYet

GONE = (
    "Unknown outcome: the process ended while this program waited for a tool, and the program with it. The"
    " calls that it had made before took effect. It was not run again."
)
Ended = ToolOutcome | NotYet
Running = Callable[[], Coroutine[Any, Any, Ended]]


PROGRAM_DOOR: contextvars.ContextVar[ProgramDoor] = contextvars.ContextVar("fsm_agent_program_door")
"""The door of the program that runs in this context."""


class ProgramDoor:
    """Passes the calls of one program out, one at a time, and their outcomes in. ``closed`` while no
    program is behind it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.closed = asyncio.Event()
        self.closed.set()
        self.asked: asyncio.Future[tuple[str, str]] = self._loop.create_future()
        self._answered: asyncio.Future[ToolOutcome] = self._loop.create_future()

    async def call(self, name: str, arguments: str) -> ToolOutcome:
        """Request a call and wait for its outcome."""
        self._answered = self._loop.create_future()
        self.asked.set_result((name, arguments))
        return await self._answered

    def answer(self, outcome: ToolOutcome) -> None:
        """Deliver the outcome of the requested call."""
        self.asked = self._loop.create_future()
        if not self._answered.done():
            self._answered.set_result(outcome)


@dataclass(frozen=True, slots=True)
class _Program:
    request: RunTool
    door: ProgramDoor
    work: asyncio.Task[Ended]


class Programs:
    """The programs of one agent, by turn and call id. A program lives in the event loop that began it, and
    ends with that loop or when it is no longer awaited."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], _Program] = {}

    async def begun(self, turn: str, request: RunTool, run: Running) -> Ended | ProgramAsks:
        """Run the program until it ends or requests a call."""
        door, context = ProgramDoor(), contextvars.copy_context()
        context.run(PROGRAM_DOOR.set, door)
        work = asyncio.get_running_loop().create_task(run(), context=context)
        self._running[turn, request.call_id] = program = _Program(request, door, work)
        return await self._next(turn, program)

    def of(self, turn: str, call_id: str) -> RunTool | None:
        """Return the request that runs this program, if any."""
        found = self._running.get((turn, call_id))
        return None if found is None else found.request

    async def answered(self, turn: str, request: AnswerProgram) -> Ended | ProgramAsks:
        """Send the answer and resume the program; if it has exited, the outcome is unknown."""
        found = self._running.get((turn, request.call_id))
        if found is None or found.work.get_loop() is not asyncio.get_running_loop():
            self._running.pop((turn, request.call_id), None)
            return ToolOutcome(request.call_id, "unknown", GONE)
        found.door.answer(request.outcome)
        return await self._next(turn, found)

    async def end(self, turn: str | None = None) -> None:
        """End the programs of this turn, or all; they are gone when this returns, except those of other
        event loops, which are asked to end."""
        ended = [key for key in self._running if turn in (None, key[0])]
        for program in [self._running.pop(key) for key in ended]:
            loop = program.work.get_loop()
            if loop is asyncio.get_running_loop():
                program.work.cancel()
                await asyncio.wait({program.work})
                await program.door.closed.wait()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(program.work.cancel)

    async def _next(self, turn: str, program: _Program) -> Ended | ProgramAsks:
        work, asked, call_id = program.work, program.door.asked, program.request.call_id
        try:
            first: set[asyncio.Future[Any]] = {work, asked}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.end(turn)
            raise
        if not work.done():
            return ProgramAsks(call_id, *asked.result())
        self._running.pop((turn, call_id), None)
        return ToolOutcome(call_id, "unknown", GONE) if work.cancelled() else work.result()
