"""Compress: make the conversation shorter, or say that it cannot be done. Progress is a fact, never assumed.

A compaction that we wish for protects what the settings say. When the provider has refused the request and no
wider model is next, it protects less and less (``fsm_agent.conversation.compaction.protect``), as far as the
refusal asks for, and the last time that the call block allows as far as it goes: only system prompt, tools
and the newest request that do not fit alone end the turn. (Why: decision 18.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fsm_agent.conversation.compaction import Plan, Protection, assembled, insisted, planned, pruned
from fsm_agent.conversation.compaction.carry import carried_todos
from fsm_agent.conversation.compaction.cut import cut_row, is_longer, whole
from fsm_agent.conversation.compaction.divide import size_of
from fsm_agent.conversation.compaction.prune import without_parts
from fsm_agent.conversation.effects import (
    Compacted,
    NoteCompaction,
    Replaced,
    ReplaceHistory,
    Saved,
    Spill,
    Tell,
)
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.token_meter import ASSUMED_WINDOW, threshold
from fsm_agent.conversation.wire import CHARS_PER_TOKEN
from fsm_agent.support.texts import shorten
from fsm_agent_states.logic import facts
from fsm_agent_states.logic.limits import believe_window
from fsm_agent_states.logic.refusal import hopeless, insists, room_left
from fsm_agent_states.logic.said import compacted, say, tell_blocked
from fsm_agent_states.logic.summarise import Summary, preserved, summarise, without_model
from fsm_agent_states.logic.visit import Asks, check_signals
from fsm_agent_states.turn import TurnState

Event = Literal["unsummarised", "lost", "compressed", "unchanged", "stuck", "outgrown", "cancelled"]

LEAST_GAIN = 1_000
"""Characters less with which a request that was refused is worth another try, however long it is."""


def compress(turn: TurnState) -> Asks[Event]:
    """Reports ``unsummarised`` when a summary is needed, or the model that was asked gave none (``lost``: its
    process ended); ``compressed``; else ``unchanged`` when it was only our wish, ``stuck`` or ``outgrown``
    when forced."""
    before = size_of(turn.history)
    begins = not (facts.asks_summary(turn) or facts.goes_without_model(turn))
    if begins:
        signals = yield from check_signals(turn)
        if signals.interrupted:
            return "cancelled"
        turn.compaction.start(signals.at)
        if facts.forced(turn):
            believe_window(turn)
    plan, summary = _plan(turn, before), Summary()
    if middle := plan.division.middle:
        if begins:
            why = "" if facts.forced(turn) else "the window fills up: "
            why = "too long for the model: " if turn.block.overflows else why
            yield from say(f"{why}{len(middle)} of {len(turn.history)} messages are summed up")
            return "unsummarised"
        summary = yield from (summarise if facts.asks_summary(turn) else without_model)(turn, middle)
        match summary.failed:
            case "unsummarised":
                return "unsummarised"
            case "lost":
                return "lost"
            case "cancelled":
                return "cancelled"
    shorter = yield from _shortened(turn, plan, summary)
    if facts.forced(turn) and size_of(shorter) > _enough(turn, before):
        shorter = without_parts(shorter)
    if size_of(shorter) > _enough(turn, before):
        return (yield from _no_progress(turn))
    yield from _take(turn, shorter, before, summary)
    return "compressed"


def _shortened(turn: TurnState, plan: Plan, summary: Summary) -> Asks[list[Message]]:
    """The history as it is planned, with the summary of its middle; only pruned, when there is none. What is
    said without a model is no longer than was planned."""
    division = plan.division
    if division.middle and not summary.text:
        return pruned(turn.history, turn.settings.compression.tail_floor)
    if plan.cut is not None:
        division = replace(division, tail=(yield from _cut_rows(turn, division.tail, plan.cut)))
    if not division.middle:
        return division.kept
    kept = yield from preserved(turn, division.middle)
    carried = carried_todos(division.middle, division.tail)
    most = plan.summary if summary.model else plan.expected
    return assembled(division, *_fitted(summary.text + kept, carried, most))


def _plan(turn: TurnState, before: int) -> Plan:
    """What to do, by what can be known before it is paid for; pruning at least."""
    compression, window, goal = (
        turn.settings.compression,
        turn.setup.runtime.window or ASSUMED_WINDOW,
        _goal(turn, before),
    )
    usual = Protection(
        front=0 if facts.compacted_before(turn) else compression.protect_first,
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
    wanted = (
        threshold(turn.setup.runtime.window or ASSUMED_WINDOW, turn.settings.compression)
        * CHARS_PER_TOKEN
        // 2
    )
    return min(wanted, before // 2) if facts.forced(turn) else wanted


def _fitted(summary: str, carried: str, most: int | None) -> tuple[str, str]:
    """The summary and what it carries over, in as many characters as they may have together."""
    if most is None:
        return summary, carried
    carried = shorten(carried, most // 3)
    return shorten(summary, most - len(carried)), carried


def _cut_rows(turn: TurnState, rows: tuple[Message, ...], length: int) -> Asks[tuple[Message, ...]]:
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


def _no_progress(turn: TurnState) -> Asks[Event]:
    noted: Compacted = yield NoteCompaction("nothing_gained")
    yield from say("compacting gained nothing: what is left must stay as it is")
    yield from tell_blocked(turn.compaction.compaction_blocked, noted)
    turn.compaction.judge(noted)
    if not facts.forced(turn):
        turn.accounting.mute(True)
        return "unchanged"
    return "outgrown" if facts.next_is_wider(turn) else "stuck"


def _take(turn: TurnState, shorter: list[Message], before: int, summary: Summary) -> Asks[None]:
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
        "model": summary.model,
        "trigger": "overflow" if forced else "threshold",
        "fallback_used": bool(summary.text) and not summary.model,
    }
    turn.compaction.compressions.append(metrics)
    noted: Compacted = yield NoteCompaction("succeeded", with_model=bool(summary.model) or not summary.text)
    turn.compaction.compacted_before = noted.done > 0
    yield Tell("event", ("session:compress", metrics))
    yield from say(compacted(metrics, noted.done))
    yield from tell_blocked(turn.compaction.compaction_blocked, noted)
