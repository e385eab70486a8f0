"""The recovery that the last row ordered, performed on entry to BuildMessages.

A row has no action: what it spent says what is to be done. Each recovery is one small function; a recovery
that could not be done reports ``failed``, and ClassifyError goes on down the ladder with the new facts.
(Why: decision 2.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from fsm_agent.conversation.effects import (
    RebuildClient,
    Rekey,
    Switched,
    SwitchProvider,
    SwitchStreaming,
    Wait,
    Waited,
)
from fsm_agent_states.logic import facts
from fsm_agent_states.logic.content_parts import tell_parts
from fsm_agent_states.logic.said import ordered, repaired, say
from fsm_agent_states.logic.visit import Asks
from fsm_agent_states.replies import scaffold_for
from fsm_agent_states.turn import TurnState

Unrecovered = Literal["failed", "cancelled_waiting"]
"""Events of a recovery that was not done."""
Performed = Asks[Unrecovered | None]

LASTING = {
    "images_rejected",
    "streaming_unsupported",
    "list_tool_content_unsupported",
    "grammar_pattern",
    "output_schema_unsupported",
    "long_context_beta_forbidden",
    "format_error",
}
"""Error classes that say something of the model, and not of this request alone."""
PARTS = {"smaller_images", "vision", "audio", "files"}
"""Repairs of content parts."""
HONOURS_RETRY_AFTER = {"rate_limit", "upstream_rate_limit", "overloaded", "key_limited"}


def recover(turn: TurnState) -> Performed:
    """Do what was spent. Returns the event to report when it failed or was interrupted, else ``None``."""
    for counter, perform in RECOVERIES.items():
        if counter in turn.spent and (event := (yield from perform(turn))):
            return event
    if "continuations" in turn.spent:
        turn.recovery.output_cap = None  # the reply was cut: what is left of it may be longer
    if line := ordered(turn):
        yield from say(line)
    if turn.spent & {"nudges", "prefills", "empties", "continuations", "revisions"}:
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
    after = failure.retry_after if failure and name in HONOURS_RETRY_AFTER else None
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
        turn.setup.adopt(switched.runtime)
        return None
    if failure is not None:
        recovery.failure = replace(failure, refreshable=False, other_keys=0)
    return "failed"


def _rebuild(turn: TurnState) -> Performed:
    yield from say("the connection is made anew")
    switched: Switched = yield RebuildClient()
    turn.setup.adopt(switched.runtime)
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
    turn.setup.switch(switched.runtime)
    turn.accounting.forget()
    recovery.fallback_activated, recovery.silences = True, 0
    recovery.repairs_done, recovery.pending_repair = switched.runtime.repairs, ""
    recovery.output_cap, recovery.suspected = None, {}
    if not facts.text_begun(turn):  # an answer that was begun is still to be continued
        recovery.drop_scaffold()
    turn.compaction.relax()  # the overflow was the other model's
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
        turn.setup.adopt(switched.runtime)
    yield from say(repaired(turn, repair))
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
