"""ClassifyError: map a failure to the family of its remedies. The table holds the order of the remedies."""

# A smaller window is believed, but is not progress. If a refusal names a smaller window, the turn adopts it.
# Sending the same request again cannot succeed, so progress requires a request that is at least 5 % smaller.

# A killed stream keeps the visible text. When the watchdog kills a stream after visible text, the text is
# kept and continued, as after a dropped connection: asking again would show it twice. Without visible text
# the attempt is a failure of class `stale`, with the remedies of an overloaded provider.

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.token_meter import LEAST_REPLY
from fsm_agent_states.logic import facts
from fsm_agent_states.logic.detect import Size, detect, status_of
from fsm_agent_states.logic.facts import believe_cap, output_cap_from
from fsm_agent_states.logic.recover import repair_for
from fsm_agent_states.logic.visit import Asks, check_signals
from fsm_agent_states.turn import TurnState

Family = Literal[
    "repairable", "bad_key", "key_limited", "limited", "overloaded", "unreachable", "server_error",
    "overflow", "outgrown", "rejected", "refused", "fatal", "cap_unknown", "compression_off", "crashed",
]  # fmt: skip
"""Families of failures, by remedy; ``crashed`` is the event that every state has for a bug of ours."""
Event = Literal[Family, "summary_failed", "capped", "cancelled"]

SPENT = ("usage limit", "usage_limit")
"""Words of a rate limit that no short wait lifts: another key is used at once, as after a billing error
(CRED-02)."""

TIER_WINDOW = 200_000
"""Tokens that an account without the long-context tier may send; adopted for the turn, not saved."""

FAMILIES: Mapping[str, Family] = {
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
"""Error classes whose remedies depend on nothing else. A class without any rule is ``rejected``."""


def classify_error(turn: TurnState) -> Asks[Event]:
    """Report the family of the failure, ``summary_failed``, ``capped``, or ``cancelled``."""
    failure = turn.recovery.failure
    assert failure is not None, "ClassifyError is entered with a failure"
    if (yield from check_signals(turn)).interrupted:
        return "cancelled"
    found = detect(failure, _size(turn), turn.setup.runtime.error_rows)
    turn.recovery.explain(found.name, failure.message)
    if found.name == "attempt_cap":
        return "capped"
    if facts.toolless(turn) and found.name != "local_bug":
        return "summary_failed"
    return family(turn, failure, found.name)


def _size(turn: TurnState) -> Size:
    runtime = turn.setup.runtime
    return Size(turn.call.estimate, len(turn.history), runtime.window, thinks=runtime.stale_floor > 0)


def family(turn: TurnState, failure: Failure, name: str) -> Family:
    """Return the event of one error class, given the remedies that are still possible."""
    if name in FAMILIES:
        return FAMILIES[name]
    if repair := repair_for(turn, failure, name):
        turn.recovery.schedule_repair(repair)
        return "repairable"
    if name == "output_cap":
        return _output_cap(turn, failure)
    if name in ("context_overflow", "payload_too_large", "long_context_tier"):
        return _overflow(turn, name)
    if name == "rate_limit":
        if not failure.other_keys:
            return "limited"
        return "bad_key" if any(sign in failure.detail for sign in SPENT) else "key_limited"
    if name in ("auth", "auth_permanent", "billing"):
        return _bad_key(failure, name)
    if name == "timeout":
        return "unreachable" if facts.on_primary(turn) else "overloaded"
    return "rejected"


def _bad_key(failure: Failure, name: str) -> Family:
    """A 403 means no entitlement: neither a refresh nor another token of the same account helps."""
    if status_of(failure) == 403 and name == "auth":
        return "rejected"
    refreshable = failure.refreshable and name == "auth"
    return "bad_key" if refreshable or failure.other_keys else "rejected"


def _overflow(turn: TurnState, name: str) -> Family:
    if not turn.settings.compression.enabled:
        return "compression_off"
    turn.compaction.force()
    if name == "long_context_tier":
        turn.setup.narrow(TIER_WINDOW)
    return "outgrown" if facts.next_is_wider(turn) else "overflow"


def _output_cap(turn: TurnState, failure: Failure) -> Family:
    recovery = turn.recovery
    cap = output_cap_from(failure.detail, turn.setup.runtime.window, turn.call.estimate)
    if cap is None:
        return "cap_unknown"
    believe_cap(turn, failure)
    if cap < LEAST_REPLY:  # the prompt fills the window: no cap leaves room for an answer
        recovery.classify("context_overflow")
        return _overflow(turn, recovery.failure_class)
    if recovery.output_cap is not None and cap >= recovery.output_cap:
        return "rejected"
    recovery.schedule_cap(cap)
    return "repairable"
