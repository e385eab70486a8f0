"""Performs the recovery that the last row ordered, on entry to BuildMessages.

A row has no action: the counters that it spent determine the recovery. Each recovery is one small function;
if one fails, it reports ``failed``, and ClassifyError continues down the ladder with the new facts.
"""

# Recovery is decided where the turn arrives. A row has no action. BuildMessages reads which counters the row
# that led to it spent, performs that recovery, and only then composes the request. So a resumed turn derives
# the recovery from its last row.

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from fsm_agent.conversation.effects import (
    Failure,
    RebuildClient,
    Rekey,
    Switched,
    SwitchProvider,
    SwitchStreaming,
    Wait,
    Waited,
)
from fsm_agent_states.logic import facts
from fsm_agent_states.logic.facts import output_cap
from fsm_agent_states.logic.request_context import schema_to_enforce
from fsm_agent_states.logic.visit import Asks, order_line, repair_line, say, tell_parts
from fsm_agent_states.replies import scaffold_for
from fsm_agent_states.turn import TurnState

Unrecovered = Literal["failed", "cancelled_waiting"]
"""Events of a recovery that was not performed."""
Performed = Asks[Unrecovered | None]

REPAIRS = {
    "thinking_signature": "thinking_signature",
    "invalid_encrypted_content": "encrypted_replay",
    "long_context_beta_forbidden": "long_context_beta",
    "grammar_pattern": "grammar",
    "streaming_unsupported": "no_streaming",
    "images_rejected": "vision",
    "audio_rejected": "audio",
    "files_rejected": "files",
    "list_tool_content_unsupported": "flat_tool_content",
    "output_schema_unsupported": "structured_output",
    "output_schema_rejected": "structured_output",
}
"""Error class to the mode of the wire copy that repairs it; each is tried once per provider."""
LASTING = {
    "images_rejected",
    "streaming_unsupported",
    "list_tool_content_unsupported",
    "grammar_pattern",
    "output_schema_unsupported",
    "long_context_beta_forbidden",
    "format_error",
}
"""Error classes that describe the model, and not only this request."""
PARTS = {"smaller_images", "vision", "audio", "files"}
"""Repairs of content parts."""
HONORS_RETRY_AFTER = {"rate_limit", "upstream_rate_limit", "overloaded", "key_limited"}


def recover(turn: TurnState) -> Performed:
    """Perform the ordered recovery. Return the event to report when it failed or was interrupted, else
    ``None``."""
    spent = turn.spent
    for counter, perform in RECOVERIES.items():
        if counter in spent and (event := (yield from perform(turn))):
            return event
    if "continuations" in spent:
        turn.recovery.output_cap = None  # the reply was truncated: the rest may be longer
    if line := order_line(turn):
        yield from say(line)
    if spent & {"nudges", "thinking_prefills", "empties", "continuations", "revisions"}:
        turn.recovery.scaffold = scaffold_for(turn)
    waits = facts.waits_after_compaction(turn)
    turn.compaction.relax()
    if waits:
        return (yield from _wait(turn, Wait("overflow", 1, "after a compaction")))
    return None


def _wait(turn: TurnState, wait: Wait) -> Performed:
    waited: Waited = yield wait
    return "cancelled_waiting" if waited.interrupted else None


def _retry(turn: TurnState) -> Performed:
    failure, name, attempt = turn.recovery.failure, turn.recovery.failure_class, turn.count("retries")
    after = failure.retry_after if failure and name in HONORS_RETRY_AFTER else None
    kind: Literal["invalid", "exception"] = "invalid" if name == "invalid_response" else "exception"
    why = f"{name.replace('_', ' ')}, attempt {attempt + 1} of {turn.settings.api_max_retries}"
    return (yield from _wait(turn, Wait(kind, attempt, why, after)))


def _again(turn: TurnState) -> Performed:
    return (yield from _wait(turn, Wait("empty", turn.count("empties"), "the model gave an empty reply")))


def _rekey(turn: TurnState) -> Performed:
    recovery, failure = turn.recovery, turn.recovery.failure
    switched: Switched = yield Rekey(
        recovery.failure_class, failure.status if failure else None, failure.retry_after if failure else None
    )
    yield from say(f"{recovery.failure_class.replace('_', ' ')}: {switched.detail}")
    if switched.ok:
        turn.setup.switch_runtime(switched.runtime)
        return None
    if failure is not None:
        recovery.failure = replace(failure, refreshable=False, other_keys=0)
    return "failed"


def _rebuild(turn: TurnState) -> Performed:
    yield from say("connecting again")
    switched: Switched = yield RebuildClient()
    turn.setup.switch_runtime(switched.runtime)
    return (yield from _wait(turn, Wait("rebuild", turn.settings.api_max_retries, "connection rebuilt")))


def _fallback(turn: TurnState) -> Performed:
    recovery, before, name = turn.recovery, turn.setup.runtime, turn.recovery.failure_class
    switched: Switched = yield SwitchProvider(
        why=name or "empty replies",
        cooldown="rate_limit" if name in ("rate_limit", "billing", "upstream_rate_limit") else "none",
        wider_than=before.window if name in ("context_overflow", "payload_too_large") else None,
    )
    if not switched.ok:
        turn.exhaust("fallbacks")
        yield from say(switched.detail)
        return "failed"
    turn.setup.switch_model(switched.runtime)
    turn.accounting.forget()
    recovery.fallback_activated, recovery.silences = True, 0
    recovery.repairs_done, recovery.pending_repair = switched.runtime.repairs, ""
    recovery.output_cap, recovery.suspected = None, {}
    if not facts.text_begun(turn):  # a begun answer is still to be continued
        recovery.drop_scaffold()
    turn.compaction.relax()  # the other model's window overflowed
    here = switched.runtime
    why = name.replace("_", " ") or "empty replies"
    yield from say(f"switched from {before.provider}:{before.model} to {here.provider}:{here.model}: {why}")
    yield from tell_parts(turn)
    return None


def _repair(turn: TurnState) -> Performed:
    recovery = turn.recovery
    repair, recovery.pending_repair = recovery.pending_repair, ""
    recovery.repairs_done |= {repair}
    if recovery.failure_class in LASTING:
        recovery.suspect(repair)
    if repair == "no_streaming":
        switched: Switched = yield SwitchStreaming()
        turn.setup.switch_runtime(switched.runtime)
    yield from say(repair_line(turn, repair))
    if repair in PARTS:
        yield from tell_parts(turn)
    return None


RECOVERIES: dict[str, Callable[[TurnState], Performed]] = {
    "retries": _retry,
    "empties": _again,
    "rekeys": _rekey,
    "rebuilds": _rebuild,
    "fallbacks": _fallback,
    "repairs": _repair,
}


def repair_for(turn: TurnState, failure: Failure, name: str) -> str:
    """Return the change of the request that an error of this class calls for; empty when no change helps,
    when this provider has received it already, or when it would change nothing."""
    done = turn.recovery.repairs_done
    match name:
        case "unicode":
            repair = "ascii" if "surrogates" in done else "surrogates"
        case "image_too_large":
            repair = "vision" if "smaller_images" in done else "smaller_images"
        case "grammar_pattern" if "grammar" in done:
            repair = "structured_output"  # then the grammar of the answer is the cause
        case "format_error":
            repair = _drop_parameter(turn, failure)
        case _:
            repair = REPAIRS.get(name, "")
    needless = repair == "structured_output" and schema_to_enforce(turn) is None
    return "" if needless or repair in done else repair


def _drop_parameter(turn: TurnState, failure: Failure) -> str:
    """Return the repair for a parameter that this error names and that was sent: omit it, or use the other
    name of the output cap."""
    runtime, settings = turn.setup.runtime, turn.settings
    chat = runtime.api_mode == "chat_completions"
    sent = (
        ("temperature", "temperature", settings.temperature),
        ("effort", "reasoning|thinking|effort", settings.reasoning_effort),
        ("output_key", rf"\b{runtime.output_key}\b", output_cap(turn) if chat else None),
    )
    named = (
        repair for repair, words, value in sent if value is not None and re.search(words, failure.detail)
    )
    return next(named, "")
