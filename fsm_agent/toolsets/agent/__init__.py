"""Tools that are a part of the agent itself: they work on its session, its notes, its person, or start turns
of their own.

``AgentTools`` is the one place where they run (AGT-01). The registry of other tools refuses their
names, so nothing else, a program that calls tools for instance, reaches them past the turn.

==========  ==========================================================================================
todo        todo: the list of things to do of this session
sessions    session_search: earlier sessions, by words, around a message, or the most recent ones
context     look_back: what compactions took out of this session
clarify     clarify: a question to the person, through the ``clarify`` callback
delegate    delegate_task: child turns with a history and a budget of their own, in the background where that
            is set
==========  ==========================================================================================

``memory`` and ``skill_view`` belong to them too and are made by ``fsm_agent.toolsets``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.ports import Clock
from fsm_agent.sessions.store import Store
from fsm_agent.settings.model import Settings
from fsm_agent.tools import Tool
from fsm_agent.toolsets.agent.background import Background
from fsm_agent.toolsets.agent.bridge import bridged
from fsm_agent.toolsets.agent.child import ChildFactory, ChildTask
from fsm_agent.toolsets.agent.clarify import clarify_tool
from fsm_agent.toolsets.agent.delegate import delegate_tool
from fsm_agent.toolsets.agent.dispatch import AgentTools
from fsm_agent.toolsets.agent.lookback import lookback_tool
from fsm_agent.toolsets.agent.recall import recall_tool
from fsm_agent.toolsets.agent.todo import todo_tool
from fsm_agent.toolsets.tool_context import ToolContext

__all__ = [
    "AGENT_LEVEL",
    "AGENT_TOOLSETS",
    "AgentTools",
    "Background",
    "ChildTask",
    "Parts",
    "ToolContext",
    "agent_tools",
    "bridged",
]

AGENT_LEVEL = frozenset(
    (
        *("todo", "memory", "session_search", "look_back", "delegate_task", "clarify", "skill_view"),
        *("tool_search", "tool_call"),
    )
)
"""Names that only ``AgentTools`` runs, unless a user brings a tool of that name."""


class Parts(Protocol):
    """The services of the agent that these tools are made of. ``background``: tasks that nobody waits for,
    ``None`` where there are none."""

    store: Store
    callbacks: Callbacks
    clock: Clock
    settings: Settings
    child_factory: ChildFactory
    background: Background | None


AGENT_TOOLSETS: dict[str, Callable[[Parts], Tool]] = {
    "todo": lambda parts: todo_tool(parts.store),
    "sessions": lambda parts: recall_tool(parts.store),
    "context": lambda parts: lookback_tool(parts.store),
    "clarify": lambda parts: clarify_tool(parts.callbacks, parts.clock, parts.settings),
    "delegate": lambda parts: delegate_tool(
        parts.child_factory,
        parts.store,
        parts.callbacks,
        parts.clock,
        parts.settings,
        parts.background if parts.settings.delegation.background else None,
    ),
}


def agent_tools(names: Sequence[str], parts: Parts) -> list[Tool]:
    """The tools of these toolsets; names of others are passed over."""
    return [AGENT_TOOLSETS[name](parts) for name in dict.fromkeys(names) if name in AGENT_TOOLSETS]
