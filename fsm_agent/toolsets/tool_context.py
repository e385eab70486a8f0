"""Calls of the agent's own tools: the context of a call (the turn, its session, its remaining budget), and
the one place where they run."""

from __future__ import annotations

import asyncio
import contextvars
import re
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from fsm_agent.conversation.effects import AnswerProgram, ProgramAsks, RunTool, ToolOutcome, ToolSpec
from fsm_agent.conversation.result import TRANSFER
from fsm_agent.request import NotYet
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.runtime.ports import Clock
from fsm_agent.sessions import Session
from fsm_agent.support.threads import Interrupt
from fsm_agent.tools import Tool, ToolFailure, ToolRunner, tool
from fsm_agent.tools.decorator import ToolSource

if TYPE_CHECKING:
    from fsm_agent.sessions.store.fence import Fence


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The context of a call. ``window`` of the model in use, in tokens, ``None`` if unknown. ``budget``:
    shared by the turn and its children. ``deps``: the dependencies given to the turn. ``handoffs``: how many
    handoffs the conversation had since the last user message. ``fence``: the turn's right to write."""

    session: Session
    fence: Fence
    call_id: str
    interrupted: Interrupt
    budget: IterationBudget | None = None
    window: int | None = None
    deps: Any = None
    handoffs: int = 0

    @property
    def turn_id(self) -> str:
        """Return the id of the turn."""
        return self.fence.turn_id


TOOL_CONTEXT: ContextVar[ToolContext] = ContextVar("fsm_agent_tool_context")


def enter(scene: ToolContext) -> None:
    """Make this the context of tools called from here on."""
    TOOL_CONTEXT.set(scene)


def here() -> ToolContext:
    """Return the current context. Raises ``RuntimeError`` outside a turn: only ``AgentTools`` runs these."""
    scene = TOOL_CONTEXT.get(None)
    if scene is None:
        raise RuntimeError("a tool of the agent was called outside of its turn")
    return scene


def turn_here() -> str:
    """Return the id of the turn that calls the tool; empty outside of a turn."""
    scene = TOOL_CONTEXT.get(None)
    return "" if scene is None else scene.turn_id


# ----------------------------------------------------------------------------------------------------
# The one interception point: calls of the agent's own tools end here, before they reach the registry.
#
# Bridged calls appear as what they are. With very many tools, the model gets `tool_search` and `tool_call`.
# `tool_call` is unpacked before rules, approvals, limits, and callbacks see it, and reaches only tools that
# no request names. `after_tool` may change a result; nothing may change arguments, because a person approved
# them.


ASKING = frozenset({"ask_page", "ask_image"})
"""Tools whose calls are child turns that only answer."""


class AgentTools:
    """The agent's own tools by name, in a private registry with the same limits, checks, and outcomes.
    ``begin_turns``: the tools that begin child turns."""

    def __init__(self, tools: Sequence[Tool], *, clock: Clock, interrupt_grace: float, poll: float) -> None:
        self._runner = ToolRunner(tools, clock=clock, interrupt_grace=interrupt_grace, poll=poll)
        self.specs: tuple[ToolSpec, ...] = self._runner.specs
        self.names = tuple(spec.name for spec in self.specs)
        self.begin_turns = any(spec.delegates or spec.name in ASKING for spec in self.specs)

    def handles(self, name: str) -> bool:
        """Return whether this is one of the agent's own tools."""
        return name in self.names

    def close(self) -> None:
        """Release what the tools hold."""
        self._runner.close()

    async def finish_late(self, request: RunTool, value: object) -> ToolOutcome:
        """See ``ToolRunner.brought``."""
        return await self._runner.finish_late(request, value)

    async def run(self, request: RunTool, scene: ToolContext) -> ToolOutcome | NotYet:
        """Run a call in its context."""
        context = contextvars.copy_context()
        context.run(enter, scene)
        work = asyncio.get_running_loop().create_task(
            self._runner.run(request, scene.interrupted), context=context
        )
        try:
            outcome = await asyncio.shield(work)
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.wait({work})
            raise
        if isinstance(outcome, NotYet):
            return outcome
        if outcome.status == "ok" and request.name.startswith(TRANSFER):
            return replace(outcome, hands_to=request.name.removeprefix(TRANSFER))
        return outcome


# ----------------------------------------------------------------------------------------------------
# Tools that no request names, because there are too many: the model searches for them and calls them through
# one tool (EXEC-34).
#
# ``tool_call`` never runs: the turn unpacks the inner call first, so that rules, approvals, limits and
# callbacks see the tool itself.


SEARCH, CALL = "tool_search", "tool_call"
MOST = 20
"""Maximum number of tools in one answer."""


class Bridge:
    """A bridge to the tools of a source."""

    def __init__(self, source: ToolSource) -> None:
        self._source = source

    def tool_search(self, query: str = "", limit: Annotated[int, Field(ge=1, le=MOST)] = 5) -> dict[str, Any]:
        """Find more tools: there are some that you do not see. Call what you find with tool_call.

        Args:
            query: Words that say what the tool should do, or parts of its name. Empty for the names of all.
            limit: How many tools, with their parameters.
        """
        specs = [one.spec for one in self._source.tools()]
        if not query.strip():
            return {"names": [spec.name for spec in specs]}
        words = _words(query)
        ranked = sorted(specs, key=lambda spec: -_score(spec, words))
        found = [spec for spec in ranked[:limit] if _score(spec, words) > 0]
        tools = [
            {"name": one.name, "description": one.description, "parameters": dict(one.parameters)}
            for one in found
        ]
        return {"tools": tools, "of": len(specs)}

    def tool_call(self, name: str, arguments: dict[str, Any] | None = None) -> str:
        """Call a tool that tool_search has found.

        Args:
            name: The name that tool_search gave.
            arguments: Its arguments, as its parameters ask for them.
        """
        raise ToolFailure(f"{name} cannot be called here.")


def bridge_tools(source: ToolSource) -> tuple[Tool, ...]:
    """Return tool_search and tool_call."""
    bridge = Bridge(source)
    return (tool(concurrency="parallel", effect="pure")(bridge.tool_search), tool()(bridge.tool_call))


def apply_bridge(specs: Sequence[ToolSpec], late: Collection[str], above: int | None) -> tuple[ToolSpec, ...]:
    """Return the tools of a turn. With more than ``above`` tools, those of ``late`` are available only
    through the bridge; otherwise there is no bridge."""
    plain = tuple(spec for spec in specs if spec.name not in (SEARCH, CALL))
    if above is None:
        return tuple(specs)
    if len(plain) <= above:
        return plain
    return tuple(replace(spec, deferred=True) if spec.name in late else spec for spec in specs)


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\W_]+", text.lower()))


def _score(spec: ToolSpec, words: set[str]) -> int:
    """Score a match: a word of the name counts three times one of the description, a part less."""
    name, described = _words(spec.name), _words(spec.description)
    whole = sum(3 * (word in name) + (word in described) for word in words)
    return 2 * whole + sum(
        any(word in known for known in (*name, *described)) for word in words if len(word) > 2
    )


# ----------------------------------------------------------------------------------------------------
# Model-written programs that run while the turn makes the tool calls they request.
#
# A program never calls a tool itself. Its request leaves through its door as the reply to the request that
# runs it; the state judges it like every other call, has it run, and returns the outcome with the next
# request. (Why: decision 92.)


GONE = (
    "Unknown outcome: the process ended while this program waited for a tool, and the program with it. The"
    " calls that it had made before took effect. It was not run again."
)
Ended = ToolOutcome | NotYet
Running = Callable[[], Coroutine[Any, Any, Ended]]


PROGRAM_DOOR: contextvars.ContextVar[ProgramDoor] = contextvars.ContextVar("fsm_agent_program_door")
"""The door of the program that runs in this context."""


class ProgramDoor:
    """Passes the calls of one program out, one at a time, and their outcomes in. ``closed`` while no program
    uses it."""

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
    """The programs of one agent, by turn and call id. A program lives in the event loop that started it, and
    ends with that loop or when it is no longer awaited."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], _Program] = {}

    async def begin(self, turn: str, request: RunTool, run: Running) -> Ended | ProgramAsks:
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

    async def answer(self, turn: str, request: AnswerProgram) -> Ended | ProgramAsks:
        """Send the answer and resume the program; if it has exited, the outcome is unknown."""
        found = self._running.get((turn, request.call_id))
        if found is None or found.work.get_loop() is not asyncio.get_running_loop():
            self._running.pop((turn, request.call_id), None)
            return ToolOutcome(request.call_id, "unknown", GONE)
        found.door.answer(request.outcome)
        return await self._next(turn, found)

    async def end(self, turn: str | None = None) -> None:
        """End the programs of this turn, or all. They are gone when this returns, except those of other event
        loops, which are asked to end."""
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
