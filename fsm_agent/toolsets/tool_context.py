"""Where a tool of the agent is called: the turn, its session, and what is left of its budget."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.sessions.session import Session

if TYPE_CHECKING:
    from fsm_agent.sessions.store.fence import Fence


@dataclass(frozen=True, slots=True)
class ToolContext:
    """``window`` of the model in use, in tokens, ``None`` when unknown. ``budget``: what the turn and its
    children share. ``deps``: what the turn was started with. ``handoffs``: how often the conversation went
    from agent to agent since the user spoke. ``fence``: the turn's right to write."""

    session: Session
    fence: Fence
    call_id: str
    interrupted: asyncio.Event
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
    """The tools that run in this context are called here."""
    TOOL_CONTEXT.set(scene)


def here() -> ToolContext:
    """Raises ``RuntimeError`` outside of a turn: only ``AgentTools`` runs these tools."""
    scene = TOOL_CONTEXT.get(None)
    if scene is None:
        raise RuntimeError("a tool of the agent was called outside of its turn")
    return scene


def turn_here() -> str:
    """The id of the turn that a tool is called in; empty outside of a turn."""
    scene = TOOL_CONTEXT.get(None)
    return "" if scene is None else scene.turn_id
