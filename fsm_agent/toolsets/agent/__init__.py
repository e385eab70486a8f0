"""The agent's own tools: they use its session and notes, ask its user, or start turns.

``AgentTools`` is the one place where they run (AGT-01). The registry of other tools refuses their
names, so nothing else, such as a program that calls tools, can reach them without the turn.

==========  ==========================================================================================
todo        todo: the list of things to do of this session
sessions    session_search: earlier sessions, by words, around a message, or the most recent ones
context     look_back: what compactions took out of this session
clarify     clarify: a question to the person, through the ``clarify`` callback
delegate    delegate_task: child turns with a history and a budget of their own, in the background where that
            is set
ask         ask_page: what another model finds on a page of the web
vision      ask_image: what another model sees in an image
==========  ==========================================================================================

``memory`` and ``skill_view`` belong to them too and are made by ``fsm_agent.toolsets``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.ports import Clock
from fsm_agent.sessions.store import Store
from fsm_agent.settings import Settings
from fsm_agent.tools import Tool
from fsm_agent.toolsets.agent.background import Background
from fsm_agent.toolsets.agent.child import ChildFactory, ChildTask, Delegation, delegate_tool
from fsm_agent.toolsets.agent.recall import recall_tool
from fsm_agent.toolsets.agent.todo import todo_tool
from fsm_agent.toolsets.tool_context import AgentTools, ToolContext, apply_bridge

__all__ = [
    "AGENT_LEVEL",
    "AGENT_TOOLSETS",
    "BEGIN_TURNS",
    "AgentTools",
    "Background",
    "ChildTask",
    "Parts",
    "ToolContext",
    "agent_tools",
    "apply_bridge",
]

AGENT_LEVEL = frozenset({
    "todo", "memory", "session_search", "look_back", "delegate_task", "ask_page", "ask_image", "clarify",
    "skill_view", "tool_search", "tool_call",
})  # fmt: skip
"""Names that only ``AgentTools`` runs, unless a user brings a tool of that name."""


class Parts(Protocol):
    """The agent's services that these tools use. ``background``: tasks without a waiting caller, ``None``
    if unavailable."""

    store: Store
    workdir: Path
    callbacks: Callbacks
    clock: Clock
    settings: Settings
    background: Background | None

    @property
    def child_factory(self) -> ChildFactory:
        """Creates child agents."""
        ...


BEGIN_TURNS = frozenset({"delegate", "ask", "vision"})
"""Toolsets whose tools begin child turns."""
AGENT_TOOLSETS: dict[str, Callable[[Parts], Tool]] = {
    "todo": lambda parts: todo_tool(parts.store),
    "sessions": lambda parts: recall_tool(parts.store),
    "context": lambda parts: _look_back(parts),
    "clarify": lambda parts: _clarify(parts),
    "delegate": lambda parts: delegate_tool(
        parts.child_factory,
        parts.store,
        parts.callbacks,
        parts.clock,
        parts.settings,
        parts.background if parts.settings.delegation.background else None,
    ),
    "ask": lambda parts: _ask(parts),
    "vision": lambda parts: _ask_image(parts),
}


def _look_back(parts: Parts) -> Tool:
    from fsm_agent.toolsets.agent.recall import lookback_tool

    return lookback_tool(parts.store)


def _clarify(parts: Parts) -> Tool:
    from fsm_agent.toolsets.agent.ask import clarify_tool

    return clarify_tool(parts.callbacks, parts.clock, parts.settings, parts.store)


def _ask(parts: Parts) -> Tool:
    from fsm_agent.toolsets.agent.ask import ask_tool

    return ask_tool(_delegation(parts), parts.settings.web)


def _ask_image(parts: Parts) -> Tool:
    from fsm_agent.toolsets.agent.ask import ask_image_tool

    return ask_image_tool(_delegation(parts), parts.workdir, parts.settings.parts)


def _delegation(parts: Parts) -> Delegation:
    return Delegation(parts.child_factory, parts.store, parts.callbacks, parts.clock, parts.settings)


def agent_tools(names: Sequence[str], parts: Parts) -> list[Tool]:
    """Return the tools of these toolsets; ignore unknown names."""
    return [AGENT_TOOLSETS[name](parts) for name in dict.fromkeys(names) if name in AGENT_TOOLSETS]
