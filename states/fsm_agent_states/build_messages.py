"""BuildMessages: perform the recovery that was ordered, then compose the request. The only door to the
model."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fsm_agent.conversation.effects import CheckSignals, Failure, ModelRequest, Runtime, Tell
from fsm_agent.conversation.wire import format_of
from fsm_agent.conversation.wire.form import Ask, View
from fsm_agent_states.logic import facts
from fsm_agent_states.logic.facts import output_cap
from fsm_agent_states.logic.recover import recover
from fsm_agent_states.logic.request_context import (
    ephemeral_for,
    hint_for,
    prompt_for,
    schema_to_enforce,
    tools_for,
)
from fsm_agent_states.logic.visit import Asks, Over, at, check_limits, check_signals
from fsm_agent_states.replies import last_word
from fsm_agent_states.turn import TurnState

Event = Literal[
    "built", "oversized", "starved", "spoken", "window_too_small", Over, "failed",
    "cancelled_waiting", "cancelled",
]  # fmt: skip


def build_messages(turn: TurnState) -> Asks[Event]:
    """Report ``built`` or ``oversized``, or the reason why no request can be sent."""
    call, opens = turn.call, facts.opens_iteration(turn)
    signals = yield from check_signals(turn, CheckSignals(charge=opens))
    call.prepaid = call.prepaid or (opens and not signals.starved)
    if signals.interrupted:
        return "cancelled_waiting" if facts.waits_at_once(turn) else "cancelled"
    if event := (yield from recover(turn)):
        return event
    if facts.has_spoken(turn):
        return "spoken"
    if signals.starved and not facts.toolless(turn):
        return "starved"
    if facts.breaker_open(turn):
        why = f"{turn.settings.stale.giveup} requests in a row went silent; not sent"
        turn.recovery.give_up(Failure("breaker", why, sent=False))
        return "failed"
    if call.stepped == turn.count("iterations") and not turn.count("opened") and not facts.toolless(turn):
        call.stepped += 1
        yield Tell("step", (turn.count("iterations") + 1, tuple(turn.tooling.last_round)))
    call.hint = ""
    call.set_budget(None)
    call.request = compose(turn)
    if hint := hint_for(turn, call.request):
        call.hint = hint
        call.request = compose(turn)
    if facts.window_too_small(turn):
        return "window_too_small"
    if over := (yield from check_limits(turn, call.request.estimate, output_cap(turn))):
        return over
    if call.affordable is not None:
        call.request = compose(turn)
    if facts.compactable(turn) and facts.over_threshold(turn, call.request.estimate):
        return "oversized"
    yield from at("BuildMessages.built", turn)
    return "built"


def compose(turn: TurnState) -> ModelRequest:
    """Compose the request, as a pure function of the history, the runtime and the text around the history."""
    setup, recovery, toolless = turn.setup, turn.recovery, facts.toolless(turn)
    scaffold = (*recovery.scaffold, last_word(turn)) if toolless else recovery.scaffold
    prompt, ephemeral = prompt_for(turn), ephemeral_for(turn)
    view = View.of(setup.runtime, recovery.repairs_done, turn.settings.cache.ttl)
    messages = turn.wire.messages(
        prompt,
        turn.history,
        scaffold,
        view,
        ephemeral=ephemeral,
        prefill=turn.settings.prompt.prefill,
        hint=turn.call.hint,
    )
    ask = Ask(
        rename_cap(setup.runtime) if "output_key" in recovery.repairs_done else setup.runtime,
        prompt,
        ephemeral,
        tools=None if toolless else tools_for(turn),
        output_cap=output_cap(turn),
        raised=recovery.output_cap is None
        and turn.settings.max_output_tokens is None
        and turn.call.affordable is None,
        firm=turn.call.affordable is not None,
        temperature=None if "temperature" in recovery.repairs_done else turn.settings.temperature,
        effort=None
        if recovery.repairs_done & {"thinking_signature", "effort"}
        else turn.settings.reasoning_effort,
        options=turn.settings.request.without_hosted() if toolless else turn.settings.request,
        free=any(row.role == "tool" for row in turn.rows),
        answer=schema_to_enforce(turn),
        ttl=turn.settings.cache.ttl,
    )
    body = format_of(setup.runtime.api_mode).body(ask, messages)
    chars = len(body) - turn.wire.part_bytes
    return ModelRequest(
        body, setup.runtime.streaming, toolless, estimate=turn.accounting.meter.estimate(chars), chars=chars
    )


def rename_cap(runtime: Runtime) -> Runtime:
    """Return the runtime for a model that uses the other name of the output cap."""
    long = runtime.output_key == "max_completion_tokens"
    return replace(runtime, output_key="max_tokens" if long else "max_completion_tokens")


def recompose(turn: TurnState) -> None:
    """Compose the body of the pending request again: it is derived from the rest of the turn, so it is not
    stored."""
    if turn.call.request is not None and turn.state in ("CallLLM", "ClassifyError"):
        turn.call.request = replace(turn.call.request, body=compose(turn).body)
