"""Compress: shorten the conversation, or report that it cannot be done. Progress is measured, never assumed.

A proactive compaction protects what the settings say. When the provider has refused the request and no wider
model is next, it protects less and less (``fsm_agent.conversation.compaction.plan``), as far as the refusal
requires; the last one that the call block allows cuts as much as it can. The turn ends only if system prompt,
tools and the newest request alone do not fit.
"""

# Prune first, summarize if needed. Pruning comes first. A summary follows only if pruning is not enough, and
# only if the rest leaves room for it, so "cannot fit" is detected before a model is paid. The table allows
# three visits per call block.

from __future__ import annotations

from typing import Literal

from fsm_agent.conversation.compaction.plan import size_of
from fsm_agent.conversation.effects import (
    Compacted,
    NoteCompaction,
    Replaced,
    ReplaceHistory,
    Tell,
)
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.token_meter import CHARS_PER_TOKEN, tokens_of
from fsm_agent_states.logic import context_engine, facts
from fsm_agent_states.logic.context_engine import Summary, keeps_history, summarize
from fsm_agent_states.logic.facts import believe_window
from fsm_agent_states.logic.visit import (
    Asks,
    Over,
    check_limits,
    check_signals,
    compaction_line,
    say,
    tell_blocked,
)
from fsm_agent_states.turn import TurnState

Event = Literal[
    "unsummarized", "lost", "unaffordable", "compressed", "unchanged", "stuck", "outgrown", "cancelled"
]


def compress(turn: TurnState) -> Asks[Event]:
    """Report ``unsummarized`` when a summary is needed, or when the model that was asked gave none (``lost``:
    its process ended; ``unaffordable``: a limit forbids the request); ``compressed``; otherwise ``unchanged``
    for a proactive compaction, ``stuck`` or ``outgrown`` for a forced one."""
    begins = not (facts.asks_summary(turn) or facts.goes_without_model(turn))
    if begins:
        signals = yield from check_signals(turn)
        if signals.interrupted:
            return "cancelled"
        turn.compaction.start(signals.at)
        if facts.forced(turn):
            believe_window(turn)
    context, summary = context_engine.context_of(turn), Summary()
    goes = yield from context_engine.cut(turn, context, begins=begins)
    if goes and begins and (yield from _over_limit(turn)):
        yield from say(f"no model is asked for a summary: {turn.recovery.error}")
        return "unaffordable"
    if goes and begins:
        why = "" if facts.forced(turn) else "the window fills up: "
        why = "too long for the model: " if turn.count("overflows") else why
        yield from say(f"{why}{len(goes)} of {len(turn.history)} messages are summed up")
        return "unsummarized"
    if goes and facts.asks_summary(turn):
        found = yield from summarize(turn, context, goes)
        if isinstance(found, str):
            return found
        summary = found
    elif keeps_history(turn):
        goes = ()
    elif goes:
        yield from say("the summary is made without a model: a list of what was done")
    shorter = yield from context_engine.shorten_history(turn, context, goes, summary.text)
    if size_of(shorter) > context.most:
        return (yield from _no_progress(turn))
    yield from _take(turn, shorter, context.size, summary.model, aided=bool(summary.model) or not goes)
    return "compressed"


def _over_limit(turn: TurnState) -> Asks[Over | None]:
    turn.call.set_budget(None)
    return (yield from check_limits(turn, tokens_of(size_of(turn.history)), None, summary=True))


def _no_progress(turn: TurnState) -> Asks[Event]:
    noted: Compacted = yield NoteCompaction("nothing_gained")
    yield from say("compacting gained nothing: what is left must stay as it is")
    yield from tell_blocked(turn.compaction.compaction_blocked, noted)
    turn.compaction.judge(noted)
    if not facts.forced(turn):
        turn.accounting.mute(True)
        return "unchanged"
    return "outgrown" if facts.next_is_wider(turn) else "stuck"


def _take(turn: TurnState, shorter: list[Message], before: int, model: str, *, aided: bool) -> Asks[None]:
    rows_before, forced = len(turn.history), facts.forced(turn)
    turn.shorten(shorter)
    turn.accounting.forget()
    turn.accounting.mute(not forced)
    replaced: Replaced = yield ReplaceHistory(
        tuple(shorter), rotate=turn.settings.compression.mode == "rotate"
    )
    turn.move_to(replaced.session_id, replaced.parent_session_id)
    metrics = {
        "messages_before": rows_before,
        "messages_after": len(shorter),
        "tokens_before": before // CHARS_PER_TOKEN,
        "tokens_after": size_of(shorter) // CHARS_PER_TOKEN,
        "seconds": max(0.0, replaced.at - turn.compaction.begun_at),
        "model": model,
        "trigger": "overflow" if forced else "threshold",
        "fallback_used": not aided,
    }
    turn.compaction.compressions.append(metrics)
    noted: Compacted = yield NoteCompaction("succeeded", with_model=aided)
    turn.compaction.compacted_before = noted.done > 0
    yield Tell("event", ("session:compress", metrics))
    yield from say(compaction_line(metrics, noted.done))
    yield from tell_blocked(turn.compaction.compaction_blocked, noted)
