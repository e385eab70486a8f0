"""Prepare: clean the input, load what the turn runs on, store the user's row."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from fsm_agent.conversation.effects import (
    CheckSignals,
    Opened,
    OpenTurn,
    Persist,
    Prefetch,
    Prefetched,
    ReplaceHistory,
    Request,
    Signals,
    Tell,
)
from fsm_agent.conversation.messages import Message
from fsm_agent.support.texts import clean, with_memory_block, without_memory_block
from fsm_agent_states.protocol import Yields
from fsm_agent_states.turn import TurnState, limits_of


def prepare(turn: TurnState) -> Yields:
    """Reports ``ready``, or ``cancelled`` when an interrupt was already pending: then no request is ever sent."""
    opened: Opened = yield OpenTurn()
    turn.runtime, turn.tools = opened.runtime, opened.tools
    turn.system_prompt, turn.workdir = opened.system_prompt, opened.workdir
    turn.review_due = opened.review_due
    turn.auxiliary, turn.compaction_blocked = opened.auxiliary, opened.compacted.blocked
    turn.compacted_before = opened.compacted.done > 0
    turn.limits = dict(limits_of(turn.settings, opened.runtime))
    stored = turn.supplied_history if turn.supplied_history is not None else opened.session_rows
    turn.history = list(stored)
    if turn.supplied_history is not None:
        yield ReplaceHistory(turn.supplied_history)
    reports = tuple(Message("user", clean(report)) for report in opened.news)
    turn.history.extend(reports)  # no rows of this turn's own: its first one is the person's message
    turn.append((yield from _user_row(turn)))
    yield Persist((*reports, *turn.rows))
    for notice in opened.notices:
        yield Tell("status", (notice,))
    signals: Signals = yield CheckSignals()
    if signals.interrupted:
        turn.interrupt_message = signals.message
        return "cancelled"
    return "ready"


def _user_row(turn: TurnState) -> Generator[Request | list[Any], Any, Message]:
    """The clean text is stored; what was recalled for it is only sent, in the same bytes on every later turn."""
    content = clean_content(turn.user_content)
    if not turn.has_memory or not isinstance(content, str):
        return Message("user", content)
    found: Prefetched = yield Prefetch(content)
    if found.problem:
        yield Tell("status", (found.problem,))
    return Message("user", content, sent=with_memory_block(content, found.text) if found.text.strip() else None)


def clean_content(content: Any) -> Any:
    """The user's text as it is stored: valid UTF-8, without leaked memory blocks. Parts are copied."""
    if isinstance(content, str):
        return without_memory_block(clean(content))
    return [
        {**part, "text": clean_content(part["text"])} if isinstance(part.get("text"), str) else dict(part) for part in content
    ]
