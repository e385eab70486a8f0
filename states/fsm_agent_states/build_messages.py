"""BuildMessages: perform the recovery that was ordered, then compose the request. The only door to the
model."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fsm_agent.conversation.effects import CheckSignals, Failure, ModelRequest, Tell
from fsm_agent.conversation.wire import Ask, View, format_of
from fsm_agent_states.logic import facts
from fsm_agent_states.logic.limits import output_cap
from fsm_agent_states.logic.recover import recover
from fsm_agent_states.logic.scaffolds import last_word
from fsm_agent_states.logic.visit import Asks, check_signals
from fsm_agent_states.turn import TurnState

Event = Literal[
    "built", "oversized", "starved", "spoken", "window_too_small", "failed", "cancelled_waiting", "cancelled"
]


def build_messages(turn: TurnState) -> Asks[Event]:
    """Reports ``built`` or ``oversized``; or why no request can go out."""
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
    if call.stepped == turn.iterations and not turn.block.opened and not facts.toolless(turn):
        call.stepped += 1
        yield Tell("step", (turn.iterations + 1, tuple(turn.tooling.last_round)))
    call.request = compose(turn)
    if facts.window_too_small(turn):
        return "window_too_small"
    return (
        "oversized"
        if facts.compactable(turn) and facts.over_threshold(turn, call.request.estimate)
        else "built"
    )


def compose(turn: TurnState) -> ModelRequest:
    """The request as a pure function of history, runtime and scaffolding."""
    setup, recovery, toolless = turn.setup, turn.recovery, facts.toolless(turn)
    scaffold = (*recovery.scaffold, last_word(turn)) if toolless else recovery.scaffold
    prompt = "\n\n".join(
        text.strip() for text in (setup.system_prompt, setup.ephemeral_prompt) if text.strip()
    )
    view = View.of(setup.runtime, recovery.repairs_done, turn.settings.cache.ttl)
    messages = turn.wire.messages(prompt, turn.history, scaffold, view)
    ask = Ask(
        setup.runtime,
        prompt,
        tools=_tools(turn) if setup.tools and not toolless else None,
        output_cap=output_cap(turn),
        raised=recovery.output_cap is None and turn.settings.max_output_tokens is None,
        temperature=turn.settings.temperature,
        effort=None if "thinking_signature" in recovery.repairs_done else turn.settings.reasoning_effort,
        ttl=turn.settings.cache.ttl,
    )
    body = format_of(setup.runtime.api_mode).body(ask, messages)
    chars = len(body) - turn.wire.image_bytes
    return ModelRequest(
        body, setup.runtime.streaming, toolless, estimate=turn.accounting.meter.estimate(chars), chars=chars
    )


def recompose(turn: TurnState) -> None:
    """Make the body of the request again that was about to go out: it follows from the rest, so none is
    stored."""
    if turn.call.request is not None and turn.state in ("CallLLM", "ClassifyError"):
        turn.call.request = replace(turn.call.request, body=compose(turn).body)


def _tools(turn: TurnState) -> bytes:
    """The tool list, written once for each shape it had in this turn."""
    setup, repairs = turn.setup, turn.recovery.repairs_done
    shape = f"{setup.runtime.api_mode} {'grammar' in repairs}"
    if shape in setup.tools_written:
        return setup.tools_written[shape]
    listed = [tool for tool in setup.tools if not tool.deferred]
    return setup.keep_written(shape, format_of(setup.runtime.api_mode).tools(listed, repairs))
