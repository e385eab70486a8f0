"""Where a tool of the agent is called: the turn, its session, and what is left of its budget."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass

from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.sessions.session import Session

_SCENE: ContextVar[ToolContext] = ContextVar("fsm_agent_scene")


@dataclass(frozen=True, slots=True)
class ToolContext:
    """``window`` of the model in use, in tokens, ``None`` when unknown. ``budget``: what the turn and its
    children share."""

    session: Session
    turn_id: str
    call_id: str
    interrupted: asyncio.Event
    budget: IterationBudget | None = None
    window: int | None = None


def enter(scene: ToolContext) -> None:
    """The tools that run in this context are called here."""
    _SCENE.set(scene)


def here() -> ToolContext:
    """Raises ``RuntimeError`` outside of a turn: only ``AgentTools`` runs these tools."""
    scene = _SCENE.get(None)
    if scene is None:
        raise RuntimeError("a tool of the agent was called outside of its turn")
    return scene
