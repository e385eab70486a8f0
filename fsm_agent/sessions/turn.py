"""``Turn``: a turn of an ``Agent``."""

from __future__ import annotations

from fsm_agent.conversation.result import TurnResult
from fsm_agent.sessions.durable_turn import DurableTurn


class Turn(DurableTurn[TurnResult]):
    """One message of a user and what becomes of it. ``result`` is a ``TurnResult`` once it has ended,
    ``None`` before."""
