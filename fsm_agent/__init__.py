"""An agent engine whose turn is an explicit finite-state machine.

>>> from fsm_agent import Agent, Settings, TurnResult, tool

The names are loaded on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsm_agent.support import load_module

if TYPE_CHECKING:
    from fsm_agent.agent import Agent, Turn
    from fsm_agent.conversation.parts import AudioPart, FilePart, ImagePart
    from fsm_agent.conversation.result import TurnResult
    from fsm_agent.errors import TurnFailed, TurnSuspended
    from fsm_agent.features.other_agents import Handoff
    from fsm_agent.fsm.base_turn import BaseTurn
    from fsm_agent.fsm.runner import Step
    from fsm_agent.hooks import Answer, Block, Guardrail, Hooks, RequestChange, Retry, Rewrite
    from fsm_agent.sessions.store.pending import Pending
    from fsm_agent.settings import Limits, Settings
    from fsm_agent.support import __version__
    from fsm_agent.tools import ResultLater, RunContext, WakeAt, tool
    from fsm_agent.workflow import Nested, Workflow, WorkflowResult

_HOMES = {
    "Agent": "fsm_agent.agent",
    "AudioPart": "fsm_agent.conversation.parts",
    "BaseTurn": "fsm_agent.fsm.base_turn",
    "FilePart": "fsm_agent.conversation.parts",
    "Handoff": "fsm_agent.features.other_agents",
    "ImagePart": "fsm_agent.conversation.parts",
    "Pending": "fsm_agent.sessions.store.pending",
    "ResultLater": "fsm_agent.tools",
    **dict.fromkeys(
        ("Answer", "Block", "Guardrail", "Hooks", "RequestChange", "Retry", "Rewrite"), "fsm_agent.hooks"
    ),
    "Nested": "fsm_agent.workflow",
    "RunContext": "fsm_agent.tools",
    "Limits": "fsm_agent.settings",
    "Settings": "fsm_agent.settings",
    "Step": "fsm_agent.fsm.runner",
    "Turn": "fsm_agent.agent",
    "TurnFailed": "fsm_agent.errors",
    "TurnResult": "fsm_agent.conversation.result",
    "TurnSuspended": "fsm_agent.errors",
    "WakeAt": "fsm_agent.tools",
    "Workflow": "fsm_agent.workflow",
    "WorkflowResult": "fsm_agent.workflow",
    "__version__": "fsm_agent.support",
    "tool": "fsm_agent.tools",
}

__all__ = [
    "Agent", "Answer", "AudioPart", "BaseTurn", "Block", "FilePart", "Guardrail", "Handoff", "Hooks",
    "ImagePart", "Limits", "Nested", "Pending", "RequestChange", "ResultLater", "Retry", "Rewrite",
    "RunContext",
    "Settings", "Step", "Turn", "TurnFailed", "TurnResult", "TurnSuspended", "WakeAt",
    "Workflow", "WorkflowResult", "__version__", "tool",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fsm_agent' has no attribute {name!r}")
    value = getattr(load_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
