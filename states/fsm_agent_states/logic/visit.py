"""A visit of a state: a generator over the turn that yields requests, receives their replies, and returns one
event."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, TypeVar

from fsm_agent.conversation.arguments import signature
from fsm_agent.conversation.effects import CheckSignals, ExtensionAnswer, Point, Request, Signals
from fsm_agent.errors import ExtensionFailed
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


def at(point: Point, turn: TurnState) -> Asks[None]:
    """Ask what extensions declared for this point, all of it at once: a visit that is run again, perhaps
    without a check that came before, takes no reply for that of another point. No reply leads to an event;
    a failure that ends the turn is raised, so the row for bugs ends it."""
    asked = [
        replace(one, key=signature(f"{turn.turn_id} {turn.seq} {point} {one.listed()[0]}", one.request))
        for one in turn.extended.asks
        if one.point == point
    ]
    if not asked:
        return
    answers: list[ExtensionAnswer] = yield asked
    for request, answer in zip(asked, answers, strict=True):
        turn.extended.note(request, answer)
        if answer.problem and request.ends:
            raise ExtensionFailed(answer.problem)
