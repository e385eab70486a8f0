"""Prepare: clean the input, load what the turn runs on, store the user's row."""

from __future__ import annotations

from typing import Any

from fsm_agent.messages import Message
from fsm_agent.requests import CheckSignals, Opened, OpenTurn, Persist, ReplaceHistory, Signals, Tell
from fsm_agent.texts import clean, without_memory_block
from states.protocol import Yields
from states.turn import TurnState, limits_of


def prepare(turn: TurnState) -> Yields:
    """Reports ``ready``, or ``cancelled`` when an interrupt was already pending: then no request is ever sent."""
    opened: Opened = yield OpenTurn()
    turn.runtime, turn.tools = opened.runtime, opened.tools
    turn.system_prompt, turn.workdir = opened.system_prompt, opened.workdir
    turn.limits = dict(limits_of(turn.settings, opened.runtime))
    stored = turn.supplied_history if turn.supplied_history is not None else opened.session_rows
    turn.history = list(stored)
    if turn.supplied_history is not None:
        yield ReplaceHistory(turn.supplied_history)
    turn.append(Message("user", clean_content(turn.user_content)))
    yield Persist(tuple(turn.rows))
    for notice in opened.notices:
        yield Tell("status", (notice,))
    signals: Signals = yield CheckSignals()
    if signals.interrupted:
        turn.interrupt_message = signals.message
        return "cancelled"
    return "ready"


def clean_content(content: Any) -> Any:
    """The user's text as it is stored: valid UTF-8, without leaked memory blocks. Parts are copied."""
    if isinstance(content, str):
        return without_memory_block(clean(content))
    return [
        {**part, "text": clean_content(part["text"])} if isinstance(part.get("text"), str) else dict(part) for part in content
    ]
