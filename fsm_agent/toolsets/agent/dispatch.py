"""The one interception point: calls of the agent's own tools end here, before the registry sees them."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from dataclasses import replace

from fsm_agent.conversation.effects import RunTool, ToolOutcome, ToolSpec
from fsm_agent.conversation.handover import TRANSFER
from fsm_agent.runtime.not_yet import NotYet
from fsm_agent.runtime.ports import Clock
from fsm_agent.tools import Tool, ToolRunner
from fsm_agent.toolsets.tool_context import ToolContext, enter

ASKING = frozenset({"ask_page", "ask_image"})
"""Tools whose calls are child turns that only answer."""


class AgentTools:
    """The agent's own tools by name, with a registry that nobody else can reach: the same limits, checks and
    outcomes. ``begin_turns``: some of them begin child turns."""

    def __init__(self, tools: Sequence[Tool], *, clock: Clock, interrupt_grace: float, poll: float) -> None:
        self._runner = ToolRunner(tools, clock=clock, interrupt_grace=interrupt_grace, poll=poll)
        self.specs: tuple[ToolSpec, ...] = self._runner.specs
        self.names = tuple(spec.name for spec in self.specs)
        self.begin_turns = any(spec.delegates or spec.name in ASKING for spec in self.specs)

    def handles(self, name: str) -> bool:
        """Say whether a tool is a part of the agent."""
        return name in self.names

    def close(self) -> None:
        """Release what the tools hold."""
        self._runner.close()

    async def brought(self, request: RunTool, value: object) -> ToolOutcome:
        """See ``ToolRunner.brought``."""
        return await self._runner.brought(request, value)

    async def run(self, request: RunTool, scene: ToolContext) -> ToolOutcome | NotYet:
        """Run a call of one in its surroundings."""
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
