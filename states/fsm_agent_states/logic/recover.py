"""The recovery that the last row ordered, performed on entry to BuildMessages.

A row has no action: what it spent says what is to be done. Each recovery is one small function; a recovery that could not
be done reports ``failed``, and ClassifyError goes on down the ladder with the new facts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Literal

from fsm_agent.conversation.effects import (
    RebuildClient,
    Rekey,
    Request,
    Switched,
    SwitchProvider,
    SwitchStreaming,
    Tell,
    Wait,
    Waited,
)
from fsm_agent_states.logic.scaffolds import scaffold_for
from fsm_agent_states.turn import TurnState

Recovery = Generator[Request | list[Any], Any, str | None]

HONOURS_RETRY_AFTER = {"rate_limit", "upstream_rate_limit", "overloaded", "key_limited"}


def recover(turn: TurnState) -> Recovery:
    """Do what was spent. Returns the event to report when it failed or was interrupted, else ``None``."""
    for counter, perform in RECOVERIES.items():
        if counter in turn.spent and (event := (yield from perform(turn))):
            return event
    if turn.spent & {"nudges", "prefills", "empties", "continuations"}:
        turn.scaffold = scaffold_for(turn)
    forced, turn.forced = turn.forced, False
    if forced and turn.came is not None and turn.came.event == "compressed":
        return (yield from _wait(turn, Wait("overflow", 1, "after a compaction")))
    return None


def _wait(turn: TurnState, wait: Wait) -> Recovery:
    waited: Waited = yield wait
    return "cancelled_waiting" if waited.interrupted else None


def _retry(turn: TurnState) -> Recovery:
    failure, attempt = turn.failure, turn.block.retries
    after = failure.retry_after if failure and turn.failure_class in HONOURS_RETRY_AFTER else None
    kind: Literal["invalid", "exception"] = "invalid" if turn.failure_class == "invalid_response" else "exception"
    why = f"{turn.failure_class.replace('_', ' ')}, attempt {attempt + 1} of {turn.settings.api_max_retries}"
    return (yield from _wait(turn, Wait(kind, attempt, why, after)))


def _again(turn: TurnState) -> Recovery:
    return (yield from _wait(turn, Wait("empty", turn.empties, "the model gave an empty reply")))


def _adopt(turn: TurnState, switched: Switched) -> None:
    """The same provider and model in another way: what an overflow taught of its window stays known."""
    turn.runtime = replace(switched.runtime, window=turn.runtime.window)


def _rekey(turn: TurnState) -> Recovery:
    failure = turn.failure
    switched: Switched = yield Rekey(
        turn.failure_class, failure.status if failure else None, failure.retry_after if failure else None
    )
    turn.trace.append(switched.detail)
    if switched.ok:
        _adopt(turn, switched)
        return None
    if failure is not None:
        turn.failure = replace(failure, refreshable=False, other_keys=0)
    return "failed"


def _rebuild(turn: TurnState) -> Recovery:
    yield Tell("status", ("the connection is being rebuilt",))
    switched: Switched = yield RebuildClient()
    _adopt(turn, switched)
    return (yield from _wait(turn, Wait("rebuild", turn.settings.api_max_retries, "connection rebuilt")))


def _fallback(turn: TurnState) -> Recovery:
    before = turn.runtime
    limited = turn.failure_class in ("rate_limit", "billing", "upstream_rate_limit")
    switched: Switched = yield SwitchProvider(
        why=turn.failure_class or "empty replies",
        cooldown="rate_limit" if limited else "none",
        wider_than=before.window if turn.failure_class in ("context_overflow", "payload_too_large") else None,
    )
    if not switched.ok:
        turn.limits["fallbacks"] = turn.fallbacks  # none of the rest can be used; a lower limit only ends earlier
        turn.trace.append(switched.detail)
        return "failed"
    turn.runtime, turn.fallback_activated = switched.runtime, True
    turn.meter.forget()
    turn.repairs_done, turn.pending_repair, turn.output_cap = frozenset(), "", None
    turn.scaffold = turn.scaffold if turn.fragments else ()  # an answer that was begun is still to be continued
    turn.forced = False  # the overflow was the other model's
    notice = f"switched from {before.provider}:{before.model} to {switched.runtime.provider}:{switched.runtime.model}"
    yield Tell("status", (notice,))
    return None


def _repair(turn: TurnState) -> Recovery:
    repair, turn.pending_repair = turn.pending_repair, ""
    turn.repairs_done |= {repair}
    if repair == "no_streaming":
        switched: Switched = yield SwitchStreaming()
        _adopt(turn, switched)
    yield Tell("status", (f"request repaired ({repair.replace('_', ' ')}), sending again",))
    return None


RECOVERIES: dict[str, Callable[[TurnState], Recovery]] = {
    "retries": _retry,
    "empties": _again,
    "rekeys": _rekey,
    "rebuilds": _rebuild,
    "fallbacks": _fallback,
    "repairs": _repair,
}
