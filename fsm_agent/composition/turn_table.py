"""The table of this agent's turn, for those who draw, prove or count it and run none: it is loaded without
the turn's states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsm_agent_states.table import TURN

__all__ = ["TURN", "limits_for"]


def limits_for(settings: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the maximum of every counter for ``settings`` (values by the names of ``Settings``; the rest as
    the environment has it), with no fallback and no second key. Raises ``ConfigError`` for a value that is
    not allowed."""
    from fsm_agent.conversation.effects import Runtime
    from fsm_agent.settings.model import Settings
    from fsm_agent_states.turn import limits_of

    return limits_of(Settings.of(settings), Runtime("any", "any"))
