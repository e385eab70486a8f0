"""Compress: make the conversation shorter, or say that it cannot be done. Progress is a fact, never assumed."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from fsm_agent.compaction import (
    Plan,
    assembled,
    plan,
    pruned,
    size_of,
    summary_prompt,
    summary_without_model,
)
from fsm_agent.context import threshold
from fsm_agent.messages import Message, ModelReply
from fsm_agent.requests import (
    CallModel,
    Cancelled,
    CheckSignals,
    Failure,
    ModelRequest,
    ReplaceHistory,
    Request,
    Signals,
    Tell,
)
from fsm_agent.texts import split_reasoning
from fsm_agent.wire import CHARS_PER_TOKEN, Ask, View, WireCopy, format_of, tokens_of
from states.limits import window_from
from states.protocol import Yields
from states.turn import TurnState

DEFAULT_WINDOW = 128_000


def compress(turn: TurnState) -> Yields:
    """Reports ``compressed``; else ``unchanged`` when it was only our wish, ``stuck`` or ``outgrown`` when forced."""
    signals: Signals = yield CheckSignals()
    if signals.interrupted:
        turn.interrupt_message = signals.message
        return "cancelled"
    _lower_window(turn)
    before, target = size_of(turn.history), _target(turn)
    shorter = pruned(turn.history, turn.settings.compression.tail_floor)
    divided = plan(shorter, turn.rows[0] if turn.rows else None, _tail_chars(turn), turn.settings.compression.tail_floor)
    if size_of(shorter) > target and divided.middle:
        yield Tell("status", (f"compacting {len(divided.middle)} messages",))
        summary = yield from _summary(turn, divided)
        if summary is None:
            return "cancelled"
        shorter = assembled(divided, summary)
    after = size_of(shorter)
    if after > before * (1 - turn.settings.compression.min_progress):
        return _no_progress(turn)
    yield from _take(turn, shorter, before, after)
    return "compressed"


def _no_progress(turn: TurnState) -> str:
    if not turn.forced:
        turn.meter_muted = True
        return "unchanged"
    wider = turn.runtime.next_window and turn.runtime.window and turn.runtime.next_window > turn.runtime.window
    return "outgrown" if wider else "stuck"


def _lower_window(turn: TurnState) -> None:
    """Believe an overflow that names a smaller window than we knew of; it is never guessed."""
    named = window_from(turn.failure.detail) if turn.forced and turn.failure else None
    if named is not None and (turn.runtime.window is None or named < turn.runtime.window):
        turn.runtime = replace(turn.runtime, window=named)


def _target(turn: TurnState) -> int:
    """Characters to get below: half of the threshold, so that the next rounds fit too; half of now when forced."""
    wanted = threshold(turn.runtime.window or DEFAULT_WINDOW, turn.settings.compression) * CHARS_PER_TOKEN // 2
    return min(wanted, size_of(turn.history) // 2) if turn.forced else wanted


def _tail_chars(turn: TurnState) -> int:
    compression, window = turn.settings.compression, turn.runtime.window or DEFAULT_WINDOW
    budget = int(threshold(window, compression) * compression.tail_ratio) * CHARS_PER_TOKEN
    return min(budget, size_of(turn.history) // 3)


def _summary(turn: TurnState, divided: Plan) -> Generator[Request | list[Any], Any, str | None]:
    """The model's summary; ours when it gives none; ``None`` when the user interrupted."""
    request = _summary_request(turn, divided.middle)
    reply: ModelReply | Failure | Cancelled = yield CallModel(request, turn.stale_after(request), turn.settings.timeout.total)
    if isinstance(reply, ModelReply) or reply.sent:
        turn.sent += 1
    turn.account(reply.usage)
    if isinstance(reply, Cancelled):
        return None
    text = split_reasoning(reply.text)[0].strip() if isinstance(reply, ModelReply) else ""
    if not text:
        yield Tell("status", ("the summary call failed; the summary was made without a model",))
    return text or summary_without_model(divided.middle)


def _summary_request(turn: TurnState, middle: Sequence[Message]) -> ModelRequest:
    rows = [Message("user", summary_prompt(middle))]
    messages = WireCopy().messages("", rows, (), View(turn.runtime.api_mode))
    body = format_of(turn.runtime.api_mode).body(Ask(turn.runtime, temperature=turn.settings.temperature), messages)
    return ModelRequest(body, turn.runtime.streaming, toolless=True, purpose="summary", estimate=tokens_of(len(body)))


def _take(turn: TurnState, shorter: list[Message], before: int, after: int) -> Generator[Request | list[Any], Any, None]:
    metrics = {
        "messages_before": len(turn.history),
        "messages_after": len(shorter),
        "tokens_before": before // CHARS_PER_TOKEN,
        "tokens_after": after // CHARS_PER_TOKEN,
        "trigger": "overflow" if turn.forced else "threshold",
    }
    turn.history, turn.last_prompt_tokens, turn.meter_muted = shorter, 0, True
    turn.wire = WireCopy()
    turn.compressions.append(metrics)
    yield ReplaceHistory(tuple(shorter))
    yield Tell("event", ("session:compress", metrics))
