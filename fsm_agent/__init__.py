"""An agent engine whose turn is an explicit finite-state machine.

>>> from fsm_agent import Agent, Settings, TurnResult, tool

The names are loaded on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsm_agent.agent import Agent
    from fsm_agent.conversation.result import TurnResult
    from fsm_agent.fsm.base_turn import BaseTurn
    from fsm_agent.fsm.runner import Step
    from fsm_agent.sessions.turn import Turn
    from fsm_agent.settings.model import Settings
    from fsm_agent.tools import tool
    from fsm_agent.workflow import Workflow, WorkflowResult

_HOMES = {
    "Agent": "fsm_agent.agent",
    "BaseTurn": "fsm_agent.fsm.base_turn",
    "Settings": "fsm_agent.settings.model",
    "Step": "fsm_agent.fsm.runner",
    "Turn": "fsm_agent.sessions.turn",
    "TurnResult": "fsm_agent.conversation.result",
    "Workflow": "fsm_agent.workflow",
    "WorkflowResult": "fsm_agent.workflow",
    "tool": "fsm_agent.tools",
}

__version__ = "0.1.0"
__all__ = [
    "Agent", "BaseTurn", "Settings", "Step", "Turn", "TurnResult", "Workflow", "WorkflowResult", "__version__", "tool",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fsm_agent' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
