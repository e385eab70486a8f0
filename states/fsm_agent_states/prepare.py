"""Prepare: clean the input, load what the turn runs on, store the user's row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from fsm_agent.conversation.effects import (
    Opened,
    OpenTurn,
    Persist,
    Prefetch,
    Prefetched,
    ReplaceHistory,
    Tell,
)
from fsm_agent.conversation.messages import Message
from fsm_agent.support.texts import clean, with_memory_block, without_memory_block
from fsm_agent_states.logic.visit import Asks, at, check_message, check_signals, tell_parts
from fsm_agent_states.turn import TurnState, limits_of

Event = Literal["ready", "blocked", "cancelled"]


def prepare(turn: TurnState) -> Asks[Event]:
    """Report ``ready``; ``blocked`` when a guardrail refuses the message, or ``cancelled`` when an interrupt
    was already pending: then no request is ever sent."""
    opened: Opened = yield OpenTurn()
    turn.setup.open(opened)
    turn.compaction.begin(opened.compacted)
    turn.recovery.begin(opened.silences, opened.runtime.repairs)
    turn.set_limits(limits_of(turn.settings, opened.runtime, len(opened.auxiliary)))
    stored = opened.session_rows
    if turn.supplied_history is not None:
        stored = turn.supplied_history
        yield ReplaceHistory(stored)
    reports = tuple(Message("user", clean(report)) for report in opened.news)
    turn.load((*stored, *reports))  # no rows of this turn's own: its first one is the user's message
    turn.append((yield from _user_row(turn)))
    yield Persist((*reports, *turn.rows))
    yield from tell_parts(turn)
    for notice in opened.notices:
        yield Tell("status", (notice,))
    if (yield from check_signals(turn)).interrupted:
        return "cancelled"
    if turn.ending.blocked:
        return "blocked"
    yield from at("Prepare.ready", turn)
    return "ready"


def _user_row(turn: TurnState) -> Asks[Message]:
    """Build the user's row. The clean text is stored; the text recalled for it is only sent, byte for byte
    the same on every later turn."""
    row = Message("user", clean_content(turn.user_content))
    checked = yield from check_message(turn, row.text)
    if checked is None:
        return row
    if checked != row.text:
        row = replace(row, content=_with_text(row.content, checked))
    if not turn.setup.has_memory or not row.text.strip():
        return row
    found: Prefetched = yield Prefetch(row.text)
    if found.problem:
        yield Tell("status", (found.problem,))
    return replace(row, sent=with_memory_block(row.text, found.text)) if found.text.strip() else row


def _with_text(content: Any, text: str) -> Any:
    """Replace the text of the message; its other parts stay."""
    if isinstance(content, str):
        return text
    return [
        {"type": "text", "text": text},
        *(part for part in content if not isinstance(part.get("text"), str)),
    ]


def clean_content(content: Any) -> Any:
    """Return the user's text in its stored form: valid UTF-8, without leaked memory blocks. Parts are
    copied."""
    if isinstance(content, str):
        return without_memory_block(clean(content))
    return [
        {**part, "text": clean_content(part["text"])} if isinstance(part.get("text"), str) else dict(part)
        for part in content
    ]
