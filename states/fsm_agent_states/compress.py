"""Compress: make the conversation shorter, or say that it cannot be done. Progress is a fact, never assumed.

A compaction that we wish for protects what the settings say. When the provider has refused the request and no
wider model is next, it protects less and less (``fsm_agent.conversation.compaction.protect``), as far as the
refusal asks for, and the last time that the call block allows as far as it goes: only system prompt, tools
and the newest request that do not fit alone end the turn. (Why: decision 18.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from fsm_agent.conversation.compaction.cut import cut_row, is_longer, whole
from fsm_agent.conversation.compaction.divide import size_of
from fsm_agent.conversation.compaction.prune import without_parts
from fsm_agent.conversation.effects import (
    Compacted,
    LongContext,
    NoteCompaction,
    Replaced,
    ReplaceHistory,
    Saved,
    Spill,
    Tell,
)
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.token_meter import ASSUMED_WINDOW, threshold
from fsm_agent.conversation.wire import CHARS_PER_TOKEN, tokens_of
from fsm_agent_states.logic import context_engine, facts
from fsm_agent_states.logic.checks import Over, check_limits
from fsm_agent_states.logic.limits import believe_window
from fsm_agent_states.logic.refusal import hopeless, insists, room_left
from fsm_agent_states.logic.said import compacted, say, tell_blocked
from fsm_agent_states.logic.summarise import Summary, keeps_history, preserved, summarise
from fsm_agent_states.logic.visit import Asks, check_signals
from fsm_agent_states.turn import TurnState

Event = Literal[
    "unsummarised", "lost", "unaffordable", "compressed", "unchanged", "stuck", "outgrown", "cancelled"
]

LEAST_GAIN = 1_000
"""Characters less with which a request that was refused is worth another try, however long it is."""


def compress(turn: TurnState) -> Asks[Event]:
    """Reports ``unsummarised`` when a summary is needed, or the model that was asked gave none (``lost``: its
    process ended; ``unaffordable``: a limit forbids to ask); ``compressed``; else ``unchanged`` when it was
    only our wish, ``stuck`` or ``outgrown`` when forced."""
    begins = not (facts.asks_summary(turn) or facts.goes_without_model(turn))
    if begins:
        signals = yield from check_signals(turn)
        if signals.interrupted:
            return "cancelled"
        turn.compaction.start(signals.at)
        if facts.forced(turn):
            believe_window(turn)
    context, summary = _context(turn), Summary()
    goes = yield from context_engine.cut(turn, context, begins=begins)
    if goes and begins and (yield from _over_limit(turn)):
        yield from say(f"no model is asked for a summary: {turn.recovery.error}")
        return "unaffordable"
    if goes and begins:
        why = "" if facts.forced(turn) else "the window fills up: "
        why = "too long for the model: " if turn.count("overflows") else why
        yield from say(f"{why}{len(goes)} of {len(turn.history)} messages are summed up")
        return "unsummarised"
    if goes and facts.asks_summary(turn):
        found = yield from summarise(turn, context, goes)
        if isinstance(found, str):
            return found
        summary = found
    elif keeps_history(turn):
        goes = ()
    elif goes:
        yield from say("the summary is made without a model: a list of what was done")
    shorter = yield from _shortened(turn, context, goes, summary.text)
    if size_of(shorter) > context.most:
        return (yield from _no_progress(turn))
    yield from _take(turn, shorter, context.size, summary.model, aided=bool(summary.model) or not goes)
    return "compressed"


def _over_limit(turn: TurnState) -> Asks[Over | None]:
    turn.call.afford(None)
    return (yield from check_limits(turn, tokens_of(size_of(turn.history)), None, summary=True))


def _shortened(
    turn: TurnState, context: LongContext, goes: tuple[int, ...], summary: str
) -> Asks[list[Message]]:
    """The history as it is planned, with the summary of its middle; only pruned, when nothing goes. When it
    is forced and not short enough, without images, audio and files."""
    if goes:
        kept = yield from preserved(turn, [context.rows[place] for place in goes])
        context = replace(context, preserved=kept)
    shorter = yield from context_engine.rows(turn, context, goes, summary)
    length = context_engine.built_in(turn).plan(context).cut
    if length is not None and (not turn.setup.has_engine or size_of(shorter) > (context.room or 0)):
        shorter = yield from _cut_rows(turn, shorter, length)
    if facts.forced(turn) and size_of(shorter) > context.most:
        shorter = without_parts(shorter)
    return shorter


def _context(turn: TurnState) -> LongContext:
    """What an engine is told: how long the history is, and how long it may be."""
    before, window = size_of(turn.history), turn.setup.runtime.window or ASSUMED_WINDOW
    room, goal = None, _goal(turn, before)
    if insists(turn):
        room, goal = (None, before) if hopeless(turn, before) else (room_left(turn, before), goal)
    return LongContext(
        tuple(turn.history),
        window,
        before,
        goal,
        _enough(turn, before),
        room,
        facts.forced(turn),
        facts.compacted_before(turn),
        turn.compaction.focus,
    )


def _enough(turn: TurnState, before: int) -> float:
    least = before * turn.settings.compression.min_progress
    return before - (min(least, LEAST_GAIN) if insists(turn) else least)


def _goal(turn: TurnState, before: int) -> int:
    """Characters to get below: half of the threshold, so that the next rounds fit too; half of now when
    forced."""
    wanted = (
        threshold(turn.setup.runtime.window or ASSUMED_WINDOW, turn.settings.compression)
        * CHARS_PER_TOKEN
        // 2
    )
    return min(wanted, before // 2) if facts.forced(turn) else wanted


def _cut_rows(turn: TurnState, rows: Sequence[Message], length: int) -> Asks[list[Message]]:
    """The rows, those of the model and its tools with no longer texts than this; the whole of each goes to a
    file that is named where it was cut."""
    shorter = []
    for number, row in enumerate(rows):
        if row.role == "user" or not is_longer(row, length):
            shorter.append(row)
            continue
        saved: Saved = yield Spill(row.tool_call_id or f"{turn.turn_id}-{turn.seq}-{number}", whole(row))
        where = f"the whole is in {saved.path}" if saved.path else f"it could not be saved: {saved.error}"
        shorter.append(cut_row(row, length, where))
    return shorter


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
    yield from say(compacted(metrics, noted.done))
    yield from tell_blocked(turn.compaction.compaction_blocked, noted)
