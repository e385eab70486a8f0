"""ClassifyError: from a failure to the family of its remedies. The table holds the order of the remedies."""

from __future__ import annotations

from dataclasses import replace

from fsm_agent.conversation.effects import CheckSignals, Failure, Signals
from fsm_agent.conversation.token_meter import LEAST_REPLY
from fsm_agent.support.texts import one_line
from fsm_agent_states.logic.detect import Size, detect, status_of
from fsm_agent_states.logic.limits import output_cap_from
from fsm_agent_states.protocol import Yields
from fsm_agent_states.turn import TurnState

REPAIRS = {
    "thinking_signature": "thinking_signature",
    "invalid_encrypted_content": "encrypted_replay",
    "long_context_beta_forbidden": "long_context_beta",
    "grammar_pattern": "grammar",
    "streaming_unsupported": "no_streaming",
    "image_too_large": "vision",
    "images_rejected": "vision",
    "list_tool_content_unsupported": "flat_tool_content",
}
"""Error class to the mode of the wire copy that repairs it; each is tried once on a provider."""

TIER_WINDOW = 200_000
"""Tokens that an account without the long-context tier may send; believed for the turn, not saved."""

FAMILIES = {
    "content_policy": "refused",
    "upstream_rate_limit": "limited",
    "invalid_response": "limited",
    "overloaded": "overloaded",
    "stale": "overloaded",
    "server_error": "server_error",
    "unknown": "server_error",
    "ssl_cert": "fatal",
    "provider_policy_blocked": "fatal",
    "local_bug": "crashed",
}
"""Error classes whose remedies depend on nothing else. What is in no table is ``rejected``."""


def classify_error(turn: TurnState) -> Yields:
    """Reports the family of the failure, or ``cancelled``."""
    failure = turn.failure
    assert failure is not None, "ClassifyError is entered with a failure"
    signals: Signals = yield CheckSignals()
    if signals.interrupted:
        turn.interrupt_message = signals.message
        return "cancelled"
    found = detect(failure, _size(turn), turn.runtime.error_rows)
    turn.failure_class = found.name
    turn.error = one_line(failure.message)
    turn.trace.append(f"{found.name}: {turn.error}")
    if turn.toolless and found.name != "local_bug":
        return "summary_failed"
    return family(turn, failure, found.name)


def _size(turn: TurnState) -> Size:
    tokens = turn.request.estimate if turn.request else 0
    return Size(tokens, len(turn.history), turn.runtime.window, thinks=turn.runtime.stale_floor > 0)


def family(turn: TurnState, failure: Failure, name: str) -> str:
    """The event of one error class, given what could still be done about it."""
    if name in FAMILIES:
        return FAMILIES[name]
    if name == "unicode":
        return _repairable(turn, "surrogates" if "surrogates" not in turn.repairs_done else "ascii")
    if name in REPAIRS:
        return _repairable(turn, REPAIRS[name])
    if name == "output_cap":
        return _output_cap(turn, failure)
    if name in ("context_overflow", "payload_too_large", "long_context_tier"):
        return _overflow(turn, name)
    if name == "rate_limit":
        return "key_limited" if failure.other_keys else "limited"
    if name in ("auth", "auth_permanent", "billing"):
        return _bad_key(failure, name)
    if name == "timeout":
        return "unreachable" if turn.runtime.primary and not turn.runtime.aggregator else "overloaded"
    return "rejected"


def _repairable(turn: TurnState, repair: str) -> str:
    if repair in turn.repairs_done:
        return "rejected"
    turn.pending_repair = repair
    return "repairable"


def _bad_key(failure: Failure, name: str) -> str:
    """A 403 means no entitlement: neither a refresh nor another token of the same account helps."""
    if status_of(failure) == 403 and name == "auth":
        return "rejected"
    refreshable = failure.refreshable and name == "auth"
    return "bad_key" if refreshable or failure.other_keys else "rejected"


def _overflow(turn: TurnState, name: str) -> str:
    if not turn.settings.compression.enabled:
        return "compression_off"
    turn.forced = True
    if name == "long_context_tier":
        turn.runtime = replace(turn.runtime, window=min(turn.runtime.window or TIER_WINDOW, TIER_WINDOW))
    return "outgrown" if turn.runtime.next_is_wider else "overflow"


def _output_cap(turn: TurnState, failure: Failure) -> str:
    estimate = turn.request.estimate if turn.request else 0
    cap = output_cap_from(failure.detail, turn.runtime.window, estimate)
    if cap is None:
        return "cap_unknown"
    if cap < LEAST_REPLY:  # the prompt fills the window: no cap leaves room for an answer
        turn.failure_class = "context_overflow"
        return _overflow(turn, turn.failure_class)
    if turn.output_cap is not None and cap >= turn.output_cap:
        return "rejected"
    turn.output_cap = cap
    turn.pending_repair = "output_cap"
    return "repairable"
