"""How a turn can end: the closed set of exit reasons, and which of the four outcomes each one is."""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never


class Outcome(StrEnum):
    """Exactly one of these is true of an ended turn."""

    COMPLETED = "completed"
    FAILED = "failed"
    PARTIAL = "partial"
    INTERRUPTED = "interrupted"


class ExitReason(StrEnum):
    """Why a turn ended. Closed: the transition table may name no other."""

    TEXT_RESPONSE = "text_response"
    PRIOR_CONTENT_USED = "prior_content_used"
    PARTIAL_STREAM_RECOVERY = "partial_stream_recovery"
    MAX_ITERATIONS_SUMMARY = "max_iterations_summary"
    BUDGET_EXHAUSTED = "budget_exhausted"
    INTERRUPTED_BEFORE_CALL = "interrupted_before_call"
    INTERRUPTED_IN_CALL = "interrupted_in_call"
    INTERRUPTED_IN_BACKOFF = "interrupted_in_backoff"
    INTERRUPTED_IN_TOOLS = "interrupted_in_tools"
    EMPTY_EXHAUSTED = "empty_exhausted"
    LENGTH_EXHAUSTED = "length_exhausted"
    THINKING_BUDGET_EXHAUSTED = "thinking_budget_exhausted"
    TRUNCATED_TOOL_CALL = "truncated_tool_call"
    STREAM_DROPPED_TOOL_CALL = "stream_dropped_tool_call"
    INVALID_TOOL_CALLS = "invalid_tool_calls"
    SCRATCHPAD_INCOMPLETE = "scratchpad_incomplete"
    RESPONSES_INCOMPLETE = "responses_incomplete"
    CONTENT_POLICY = "content_policy"
    OVERFLOW_UNCOMPRESSIBLE = "overflow_uncompressible"
    COMPRESSION_DISABLED = "compression_disabled"
    OUTPUT_CAP = "output_cap"
    API_RETRIES_EXHAUSTED = "api_retries_exhausted"
    NON_RETRYABLE_ERROR = "non_retryable_error"
    GUARDRAIL_HALT = "guardrail_halt"
    LOCAL_PROCESSING_ERROR = "local_processing_error"
    RUNTIME_CONTEXT_TOO_SMALL = "runtime_context_too_small"
    ATTEMPT_CAP_REACHED = "attempt_cap_reached"
    COST_LIMIT = "cost_limit"
    TOKEN_LIMIT = "token_limit"  # noqa: S105 - a name
    TIME_LIMIT = "time_limit"
    GUARDRAIL_BLOCKED = "guardrail_blocked"
    OUTPUT_INVALID = "output_invalid"
    HANDED_OVER = "handed_over"

    @property
    def outcome(self) -> Outcome:
        """Return how well a turn has ended that ends with this reason."""
        return _OUTCOMES[self]


def _outcome_of(reason: ExitReason) -> Outcome:
    match reason:
        case ExitReason.TEXT_RESPONSE | ExitReason.PRIOR_CONTENT_USED | ExitReason.HANDED_OVER:
            return Outcome.COMPLETED
        case (
            ExitReason.PARTIAL_STREAM_RECOVERY
            | ExitReason.MAX_ITERATIONS_SUMMARY
            | ExitReason.BUDGET_EXHAUSTED
            | ExitReason.LENGTH_EXHAUSTED
            | ExitReason.THINKING_BUDGET_EXHAUSTED
            | ExitReason.TRUNCATED_TOOL_CALL
            | ExitReason.STREAM_DROPPED_TOOL_CALL
            | ExitReason.INVALID_TOOL_CALLS
            | ExitReason.SCRATCHPAD_INCOMPLETE
            | ExitReason.RESPONSES_INCOMPLETE
            | ExitReason.GUARDRAIL_HALT
            | ExitReason.COST_LIMIT
            | ExitReason.TOKEN_LIMIT
            | ExitReason.TIME_LIMIT
        ):
            return Outcome.PARTIAL
        case (
            ExitReason.INTERRUPTED_BEFORE_CALL
            | ExitReason.INTERRUPTED_IN_CALL
            | ExitReason.INTERRUPTED_IN_BACKOFF
            | ExitReason.INTERRUPTED_IN_TOOLS
        ):
            return Outcome.INTERRUPTED
        case (
            ExitReason.EMPTY_EXHAUSTED
            | ExitReason.CONTENT_POLICY
            | ExitReason.OVERFLOW_UNCOMPRESSIBLE
            | ExitReason.COMPRESSION_DISABLED
            | ExitReason.OUTPUT_CAP
            | ExitReason.API_RETRIES_EXHAUSTED
            | ExitReason.NON_RETRYABLE_ERROR
            | ExitReason.LOCAL_PROCESSING_ERROR
            | ExitReason.RUNTIME_CONTEXT_TOO_SMALL
            | ExitReason.ATTEMPT_CAP_REACHED
            | ExitReason.GUARDRAIL_BLOCKED
            | ExitReason.OUTPUT_INVALID
        ):
            return Outcome.FAILED
        case _:
            assert_never(reason)


_OUTCOMES = {reason: _outcome_of(reason) for reason in ExitReason}
