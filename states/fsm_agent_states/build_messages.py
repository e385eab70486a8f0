"""BuildMessages: perform the recovery that was ordered, then compose the request. The only door to the model."""

from __future__ import annotations

from fsm_agent.conversation.effects import CheckSignals, ModelRequest, Signals, Tell
from fsm_agent.conversation.token_meter import fits_at_all, threshold
from fsm_agent.conversation.wire import Ask, View, format_of
from fsm_agent_states.logic.recover import recover
from fsm_agent_states.logic.scaffolds import last_word
from fsm_agent_states.protocol import Yields
from fsm_agent_states.turn import TurnState


def build_messages(turn: TurnState) -> Yields:
    """Reports ``built`` or ``oversized``; or why no request can go out."""
    opens = _opens_iteration(turn)
    signals: Signals = yield CheckSignals(charge=opens)
    turn.prepaid = turn.prepaid or (opens and not signals.starved)
    if signals.interrupted:
        turn.interrupt_message = signals.message
        return "cancelled_waiting" if turn.spent & {"retries", "rebuilds"} else "cancelled"
    if event := (yield from recover(turn)):
        return event
    if turn.toolless and turn.block.sends == 0 and (turn.held or turn.fragments):
        return "spoken"
    if signals.starved and not turn.toolless:
        return "starved"
    if turn.stepped == turn.iterations and not turn.block.opened and not turn.toolless:
        turn.stepped += 1
        yield Tell("step", (turn.iterations + 1, tuple(turn.last_round)))
    turn.request = compose(turn)
    return _size_event(turn, turn.request)


def _opens_iteration(turn: TurnState) -> bool:
    """Will the request be charged as a new iteration? Once charged it stays paid until it is sent."""
    return not turn.block.opened and not turn.prepaid and not turn.toolless and turn.iterations < turn.limit("iterations")


def compose(turn: TurnState) -> ModelRequest:
    """The request as a pure function of history, runtime and scaffolding."""
    scaffold = (*turn.scaffold, last_word(turn)) if turn.toolless else turn.scaffold
    prompt = "\n\n".join(text.strip() for text in (turn.system_prompt, turn.ephemeral_prompt) if text.strip())
    view = View.of(turn.runtime, turn.repairs_done, turn.settings.cache.ttl)
    messages = turn.wire.messages(prompt, turn.history, scaffold, view)
    ask = Ask(
        turn.runtime,
        prompt,
        tools=_tools(turn) if turn.tools and not turn.toolless else None,
        output_cap=output_cap(turn),
        raised=turn.output_cap is None and turn.settings.max_output_tokens is None,
        temperature=turn.settings.temperature,
        effort=None if "thinking_signature" in turn.repairs_done else turn.settings.reasoning_effort,
        ttl=turn.settings.cache.ttl,
    )
    body = format_of(turn.runtime.api_mode).body(ask, messages)
    chars = len(body) - turn.wire.image_bytes
    return ModelRequest(body, turn.runtime.streaming, turn.toolless, estimate=turn.meter.estimate(chars), chars=chars)


def _tools(turn: TurnState) -> bytes:
    """The tool list, written once for each shape it had in this turn."""
    shape = f"{turn.runtime.api_mode} {'grammar' in turn.repairs_done}"
    if shape not in turn.tools_written:
        turn.tools_written[shape] = format_of(turn.runtime.api_mode).tools(
            [tool for tool in turn.tools if not tool.deferred], turn.repairs_done
        )
    return turn.tools_written[shape]


def output_cap(turn: TurnState) -> int | None:
    """Tokens that the reply may have: what a refusal named, else twice as many for each truncation, else as configured."""
    configured, length = turn.settings.max_output_tokens, turn.settings.length
    if turn.output_cap is not None:
        return turn.output_cap
    if not turn.continuations:
        return configured
    base = configured or length.cap_base
    doubled: int = base * 2**turn.continuations
    return min(doubled, max(length.cap_max, base))


def _size_event(turn: TurnState, request: ModelRequest) -> str:
    window, compression = turn.runtime.window, turn.settings.compression
    if window is None:
        return "built"
    fixed = len(turn.system_prompt) + len(turn.rows[0].text) + max(map(len, turn.tools_written.values()), default=0)
    if turn.runtime.local and not fits_at_all(fixed, window):
        return "window_too_small"
    if not compression.enabled or turn.compaction_blocked or turn.meter.muted or len(turn.history) < 2:
        return "built"
    return "oversized" if request.estimate >= threshold(window, compression) else "built"
