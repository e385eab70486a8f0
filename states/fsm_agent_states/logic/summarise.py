"""The summary of a compaction: by the auxiliary models first, then by the main one, each paid for by a row of
its own; then without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fsm_agent.conversation.compaction.guard import fault_of
from fsm_agent.conversation.effects import (
    CallModel,
    Cancelled,
    Compacted,
    Failure,
    LongContext,
    ModelRequest,
    NoteCompaction,
    Runtime,
)
from fsm_agent.conversation.messages import Message, ModelReply
from fsm_agent.conversation.token_meter import ASSUMED_WINDOW
from fsm_agent.conversation.wire import Ask, View, WireCopy, format_of, tokens_of
from fsm_agent.support.texts import split_reasoning
from fsm_agent_states.logic import context_engine, facts
from fsm_agent_states.logic.detect import detect
from fsm_agent_states.logic.status_lines import say, tell_blocked
from fsm_agent_states.logic.visit import Asks
from fsm_agent_states.turn import TurnState

KEEPS_HISTORY = {
    "auth",
    "auth_permanent",
    "billing",
    "rate_limit",
    "upstream_rate_limit",
    "timeout",
    "stale",
    "stale_breaker",
}
"""Failures of access and network, after which an automatic compaction leaves the history as it is
(COMP-26)."""


Without = Literal["unsummarised", "lost", "cancelled"]
"""The event to report when the model that was asked gave no summary."""


@dataclass(frozen=True, slots=True)
class Summary:
    """``text`` and ``model`` are empty when no model gave one."""

    text: str = ""
    model: str = ""


def summarise(turn: TurnState, context: LongContext, goes: tuple[int, ...]) -> Asks[Summary | Without]:
    """A summary of these rows by the model whose turn it is: one request."""
    number, runtime = _summariser(turn)
    prompt = yield from context_engine.prompt(turn, context, goes, runtime.window or ASSUMED_WINDOW)
    reply: ModelReply | Failure | Cancelled = yield _call(turn, runtime, prompt, number)
    turn.accounting.charge(reply, runtime)
    match reply:
        case Cancelled():
            return "cancelled"
        case Failure(kind="lost"):
            return "lost"
        case Failure():
            why = detect(reply).name
        case ModelReply():
            if text := split_reasoning(reply.text)[0].strip():
                return Summary(text, runtime.model)
            why = "empty"
    yield from say(f"{runtime.model} gave no summary ({why.replace('_', ' ')})")
    turn.compaction.not_summarised(why)
    if number is None:  # the last that can be asked
        noted: Compacted = yield NoteCompaction("summary_failed", fault=fault_of(why))
        yield from tell_blocked(turn.compaction.compaction_blocked, noted)
        turn.compaction.judge(noted)
    return "unsummarised"


def keeps_history(turn: TurnState) -> bool:
    """No model gave a summary for a reason that passes: nothing is summed up without one. A forced compaction
    always gets a summary: the provider has refused what there is."""
    left = facts.goes_without_model(turn) and turn.compaction.unsummarised in KEEPS_HISTORY
    return left and not facts.forced(turn)


def _summariser(turn: TurnState) -> tuple[int | None, Runtime]:
    """The model that the row which led here paid for: its number among the auxiliary ones, or ``None`` for
    the main one. A turn that goes on elsewhere may find fewer."""
    place = turn.count("summarisers") - 1
    auxiliary = turn.setup.auxiliary
    return (place, auxiliary[place]) if place < len(auxiliary) else (None, turn.setup.runtime)


def _call(turn: TurnState, runtime: Runtime, prompt: str, number: int | None) -> CallModel:
    form = format_of(runtime.api_mode)
    messages = WireCopy().messages("", [Message("user", prompt)], (), View(runtime.api_mode))
    plain = runtime.repairs if number is not None else turn.recovery.repairs_done
    temperature = None if "temperature" in plain else turn.settings.temperature
    cap = turn.call.affordable
    ask = Ask(runtime, temperature=temperature, output_cap=cap, firm=cap is not None)
    body = form.body(ask, messages)
    request = ModelRequest(
        body, runtime.streaming, toolless=True, purpose="summary", estimate=tokens_of(len(body))
    )
    return CallModel(
        request,
        turn.stale_after(request),
        turn.settings.timeout.total,
        auxiliary=number,
        attempt=turn.count("summarisers"),
        most=turn.limit("summarisers"),
    )
