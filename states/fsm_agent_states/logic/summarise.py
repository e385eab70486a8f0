"""The summary call of a compaction: the auxiliary models first, then the main one, then ourselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsm_agent.conversation.compaction import summary_prompt, summary_without_model
from fsm_agent.conversation.compaction.guard import fault_of
from fsm_agent.conversation.effects import (
    CallModel,
    Cancelled,
    Failure,
    ModelRequest,
    NoteCompaction,
    Prefetched,
    Preserve,
    Runtime,
    Tell,
)
from fsm_agent.conversation.messages import Message, ModelReply
from fsm_agent.conversation.token_meter import ASSUMED_WINDOW
from fsm_agent.conversation.wire import CHARS_PER_TOKEN, Ask, View, WireCopy, format_of, tokens_of
from fsm_agent.support.texts import shorten, split_reasoning
from fsm_agent_states.logic import facts
from fsm_agent_states.logic.detect import detect
from fsm_agent_states.logic.visit import Asks
from fsm_agent_states.turn import TurnState

MOST_PRESERVED = 4_000
"""Characters that an external memory may add to a summary."""
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


@dataclass(slots=True)
class Summary:
    """``model`` is empty for a summary made without one, ``text`` when there is none."""

    text: str = ""
    model: str = ""
    interrupted: bool = False


def summarise(turn: TurnState, middle: Sequence[Message]) -> Asks[Summary]:
    """A summary of these rows. A forced compaction always gets one: the provider has refused what there
    is."""
    failed = ""
    for number, runtime in (*enumerate(turn.setup.auxiliary), (None, turn.setup.runtime)):
        reply: ModelReply | Failure | Cancelled = yield _call(turn, runtime, middle, number)
        turn.accounting.charge(reply, runtime)
        if isinstance(reply, Cancelled):
            return Summary(interrupted=True)
        if isinstance(reply, ModelReply):
            text = split_reasoning(reply.text)[0].strip()
            if text:
                return Summary(text, runtime.model)
            failed = "empty"
        else:
            failed = detect(reply).name
        yield Tell("status", (f"{runtime.model} gave no summary ({failed.replace('_', ' ')})",))
    yield NoteCompaction("summary_failed", fault=fault_of(failed))
    if failed in KEEPS_HISTORY and not facts.forced(turn):
        return Summary()
    yield Tell("status", ("the summary was made without a model",))
    return Summary(summary_without_model(middle))


def preserved(turn: TurnState, middle: Sequence[Message]) -> Asks[str]:
    """What an external memory wants to stay known of these rows (COMP-34), to be put behind their summary."""
    if not turn.setup.has_memory:
        return ""
    found: Prefetched = yield Preserve(tuple(middle))
    return f"\n\n## From memory\n{shorten(found.text.strip(), MOST_PRESERVED)}" if found.text.strip() else ""


def _call(turn: TurnState, runtime: Runtime, middle: Sequence[Message], number: int | None) -> CallModel:
    window = runtime.window or ASSUMED_WINDOW
    prompt = summary_prompt(
        middle, window=window, focus=turn.compaction.focus, most_chars=int(window * 0.7) * CHARS_PER_TOKEN
    )
    form = format_of(runtime.api_mode)
    messages = WireCopy().messages("", [Message("user", prompt)], (), View(runtime.api_mode))
    body = form.body(Ask(runtime, temperature=turn.settings.temperature), messages)
    request = ModelRequest(
        body, runtime.streaming, toolless=True, purpose="summary", estimate=tokens_of(len(body))
    )
    return CallModel(request, turn.stale_after(request), turn.settings.timeout.total, auxiliary=number)
