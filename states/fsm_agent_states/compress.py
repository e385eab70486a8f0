"""Compress: make the conversation shorter, or say that it cannot be done. Progress is a fact, never assumed.

A compaction that we wish for protects what the settings say. When the provider has refused the request and no wider model is
next, it protects less and less (``fsm_agent.conversation.compaction.protect``), as far as the refusal asks for, and the last time
that the call block allows as far as it goes: only system prompt, tools and the newest request that do not fit alone end the turn.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from fsm_agent.conversation.compaction import Plan, Protection, assembled, insisted, planned, pruned
from fsm_agent.conversation.compaction.carry import carried_todos
from fsm_agent.conversation.compaction.cut import cut_row, is_longer, whole
from fsm_agent.conversation.compaction.divide import size_of
from fsm_agent.conversation.compaction.prune import without_images
from fsm_agent.conversation.effects import (
    CheckSignals,
    Compacted,
    NoteCompaction,
    Replaced,
    ReplaceHistory,
    Request,
    Saved,
    Signals,
    Spill,
    Tell,
)
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.token_meter import ASSUMED_WINDOW, threshold
from fsm_agent.conversation.wire import CHARS_PER_TOKEN, WireCopy
from fsm_agent.support.texts import shorten
from fsm_agent_states.logic.limits import believe_window
from fsm_agent_states.logic.refusal import hopeless, insists, room_left
from fsm_agent_states.logic.summarise import Summary, preserved, summarise
from fsm_agent_states.protocol import Yields
from fsm_agent_states.turn import TurnState

LEAST_GAIN = 1_000
"""Characters less with which a request that was refused is worth another try, however long it is."""


def compress(turn: TurnState) -> Yields:
    """Reports ``compressed``; else ``unchanged`` when it was only our wish, ``stuck`` or ``outgrown`` when
    forced."""
    signals: Signals = yield CheckSignals()
    if signals.interrupted:
        turn.interrupt_message = signals.message
        return "cancelled"
    if turn.forced:
        believe_window(turn)
    before = size_of(turn.history)
    plan, summary = _plan(turn, before), Summary()
    division = plan.division
    if division.middle:
        yield Tell("status", (f"compacting {len(division.middle)} messages",))
        kept = yield from preserved(turn, division.middle)
        summary = yield from summarise(turn, division.middle)
        if summary.interrupted:
            return "cancelled"
    if plan.cut is not None:
        division = replace(division, tail=(yield from _cut_rows(turn, division.tail, plan.cut)))
    shorter = division.kept
    if summary.text:
        carried = carried_todos(division.middle, division.tail)
        shorter = assembled(division, *_fitted(summary.text + kept, carried, plan.summary))
    elif division.middle:
        shorter = pruned(turn.history, turn.settings.compression.tail_floor)
    if turn.forced and size_of(shorter) > _enough(turn, before):
        shorter = without_images(shorter)
    if size_of(shorter) > _enough(turn, before):
        return (yield from _no_progress(turn))
    yield from _take(turn, shorter, before, signals.at, summary)
    return "compressed"


def _plan(turn: TurnState, before: int) -> Plan:
    """What to do, by what can be known before it is paid for; pruning at least."""
    compression, window, goal = turn.settings.compression, turn.runtime.window or ASSUMED_WINDOW, _goal(turn, before)
    usual = Protection(
        front=0 if turn.compacted_before else compression.protect_first,
        tail_rows=min(compression.tail_floor, max(3, len(turn.history) // 2)),
        tail_chars=min(int(threshold(window, compression) * compression.tail_ratio) * CHARS_PER_TOKEN, goal),
        unpruned=compression.tail_floor,
        soft_factor=compression.soft_factor,
    )
    pruning = planned(turn.history, usual, before)
    if not insists(turn):
        plan = planned(turn.history, usual, goal)
    elif hopeless(turn, before):
        plan = pruning
    else:
        plan = insisted(turn.history, usual, goal, room_left(turn, before))
    return plan if plan.size <= _enough(turn, before) else pruning


def _enough(turn: TurnState, before: int) -> float:
    least = before * turn.settings.compression.min_progress
    return before - (min(least, LEAST_GAIN) if insists(turn) else least)


def _goal(turn: TurnState, before: int) -> int:
    """Characters to get below: half of the threshold, so that the next rounds fit too; half of now when
    forced."""
    wanted = threshold(turn.runtime.window or ASSUMED_WINDOW, turn.settings.compression) * CHARS_PER_TOKEN // 2
    return min(wanted, before // 2) if turn.forced else wanted


def _fitted(summary: str, carried: str, most: int | None) -> tuple[str, str]:
    """The summary and what it carries over, in as many characters as they may have together."""
    if most is None:
        return summary, carried
    carried = shorten(carried, most // 3)
    return shorten(summary, most - len(carried)), carried


def _cut_rows(
    turn: TurnState, rows: tuple[Message, ...], length: int
) -> Generator[Request | list[Any], Any, tuple[Message, ...]]:
    """Rows whose long texts are cut; the whole of each goes to a file that is named where it was cut."""
    shorter = []
    for number, row in enumerate(rows):
        if not is_longer(row, length):
            shorter.append(row)
            continue
        saved: Saved = yield Spill(row.tool_call_id or f"{turn.turn_id}-{turn.seq}-{number}", whole(row))
        where = f"the whole is in {saved.path}" if saved.path else f"it could not be saved: {saved.error}"
        shorter.append(cut_row(row, length, where))
    return tuple(shorter)


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
