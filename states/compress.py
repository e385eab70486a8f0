"""Compress: make the conversation shorter, or say that it cannot be done. Progress is a fact, never assumed."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from fsm_agent.compaction import Division, assembled, divide, pruned
from fsm_agent.compaction.carry import carried_todos
from fsm_agent.compaction.divide import size_of
from fsm_agent.compaction.prune import without_images
from fsm_agent.context import ASSUMED_WINDOW, threshold
from fsm_agent.messages import Message
from fsm_agent.requests import CheckSignals, Compacted, NoteCompaction, Replaced, ReplaceHistory, Request, Signals, Tell
from fsm_agent.wire import CHARS_PER_TOKEN, WireCopy
from states.limits import believe_window
from states.protocol import Yields
from states.summarise import Summary, preserved, summarise
from states.turn import TurnState

SUMMARY_CHARS = 8_000
"""What a summary is expected to take, when it is reckoned beforehand whether compaction can succeed at all."""


def compress(turn: TurnState) -> Yields:
    """Reports ``compressed``; else ``unchanged`` when it was only our wish, ``stuck`` or ``outgrown`` when forced."""
    signals: Signals = yield CheckSignals()
    if signals.interrupted:
        turn.interrupt_message = signals.message
        return "cancelled"
    if turn.forced:
        believe_window(turn)
    before, goal = size_of(turn.history), _goal(turn)
    compression = turn.settings.compression
    shorter, summary = pruned(turn.history, compression.tail_floor), Summary()
    if size_of(shorter) > goal:
        division = _divided(turn, shorter, goal)
        if division.middle and _can_help(turn, division, before):
            yield Tell("status", (f"compacting {len(division.middle)} messages",))
            kept = yield from preserved(turn, division.middle)
            summary = yield from summarise(turn, division.middle)
            if summary.interrupted:
                return "cancelled"
            if summary.text:
                shorter = assembled(division, summary.text + kept, carried_todos(division.middle, division.tail))
    if turn.forced and size_of(shorter) > _enough(turn, before):
        shorter = without_images(shorter)
    if size_of(shorter) > _enough(turn, before):
        return (yield from _no_progress(turn))
    yield from _take(turn, shorter, before, signals.at, summary)
    return "compressed"


def _enough(turn: TurnState, before: int) -> float:
    return before * (1 - turn.settings.compression.min_progress)


def _goal(turn: TurnState) -> int:
    """Characters to get below: half of the threshold, so that the next rounds fit too; half of now when forced."""
    wanted = threshold(turn.runtime.window or ASSUMED_WINDOW, turn.settings.compression) * CHARS_PER_TOKEN // 2
    return min(wanted, size_of(turn.history) // 2) if turn.forced else wanted


def _divided(turn: TurnState, history: list[Message], goal: int) -> Division:
    compression, window = turn.settings.compression, turn.runtime.window or ASSUMED_WINDOW
    budget = int(threshold(window, compression) * compression.tail_ratio) * CHARS_PER_TOKEN
    return divide(
        history,
        front=0 if turn.compacted_before else compression.protect_first,
        tail_chars=min(budget, goal),
        tail_rows=min(compression.tail_floor, max(3, len(history) // 2)),
        soft_factor=compression.soft_factor,
    )


def _can_help(turn: TurnState, division: Division, before: int) -> bool:
    """Is a summary worth its price? What stays must leave room for it; found out before a model is paid."""
    kept = size_of([*division.front, *([division.request] if division.request else []), *division.tail])
    return kept + min(SUMMARY_CHARS, size_of(division.middle) // 2) <= _enough(turn, before)


def _no_progress(turn: TurnState) -> Generator[Request | list[Any], Any, str]:
    noted: Compacted = yield NoteCompaction("nothing_gained")
    turn.compaction_blocked = noted.blocked
    if not turn.forced:
        turn.meter.muted = True
        return "unchanged"
    return "outgrown" if turn.runtime.next_is_wider else "stuck"


def _take(
    turn: TurnState, shorter: list[Message], before: int, begun: float, summary: Summary
) -> Generator[Request | list[Any], Any, None]:
    rows_before, turn.history, turn.wire = len(turn.history), shorter, WireCopy()
    turn.meter.forget()
    turn.meter.muted = not turn.forced
    replaced: Replaced = yield ReplaceHistory(tuple(shorter), rotate=turn.settings.compression.mode == "rotate")
    turn.session_id, turn.parent_session_id = replaced.session_id, replaced.parent_session_id
    metrics = {
        "messages_before": rows_before,
        "messages_after": len(shorter),
        "tokens_before": before // CHARS_PER_TOKEN,
        "tokens_after": size_of(shorter) // CHARS_PER_TOKEN,
        "seconds": max(0.0, replaced.at - begun),
        "model": summary.model,
        "trigger": "overflow" if turn.forced else "threshold",
        "fallback_used": bool(summary.text) and not summary.model,
    }
    turn.compressions.append(metrics)
    noted: Compacted = yield NoteCompaction("succeeded", with_model=bool(summary.model) or not summary.text)
    turn.compacted_before = noted.done > 0
    yield Tell("event", ("session:compress", metrics))
    if noted.done >= 2:
        yield Tell("status", (f"compacted {noted.done} times in this session: details may have been lost",))
