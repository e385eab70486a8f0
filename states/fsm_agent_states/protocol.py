"""The type of a state: a generator over the turn that yields requests, receives replies, and returns one event."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from fsm_agent.conversation.effects import Request
from fsm_agent_states.turn import TurnState

Yields = Generator[Request | list[Any], Any, str]
Steps = Generator[Request | list[Any], Any, None]
State = Callable[[TurnState], Generator[Request | list[Any], Any, Any]]
