"""A visit of a state: a generator over the turn that yields requests, receives their replies, and returns one
event."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from fsm_agent.conversation.effects import CheckSignals, Request, Signals
from fsm_agent_states.turn import TurnState

T = TypeVar("T")
Asks = Generator[Request | list[Any], Any, T]
"""Yields requests, or a list of them that run at the same time, and returns a ``T``; for a state that is its
``Event``."""


def check_signals(turn: TurnState, request: CheckSignals | None = None) -> Asks[Signals]:
    """Ask whether a person interrupts. What they said is kept for the result; the state is to report that it
    was cancelled."""
    signals: Signals = yield request or CheckSignals()
    if signals.interrupted:
        turn.ending.hear(signals)
    return signals
