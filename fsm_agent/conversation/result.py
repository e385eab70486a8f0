"""The result of a turn. One constructor, all fields always present."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Generic, Literal, assert_never, overload

from pydantic import BaseModel, ConfigDict, SkipValidation, field_serializer
from pydantic_core import to_jsonable_python
from typing_extensions import TypeVar

from fsm_agent.conversation.effects import Cancelled, Failure, ModelRequest
from fsm_agent.conversation.messages import AGENT_NAME, NO_USAGE, ModelReply, Usage
from fsm_agent.conversation.token_meter import tokens_of
from fsm_agent.support.texts import one_line

# ----------------------------------------------------------------------------------------------------
# A conversation that is handed from one agent to another: who handed it to whom, and what the next agent is
# told.


NAME = r"[a-zA-Z0-9_-]{1,48}"
"""Valid names of agents: tools are named after agents."""
NOTICE = (
    "[From this program and not from the user: {agent} has handed this conversation over to {to}, which is"
    " you. Continue with what the user asked for.{note}]"
)
TRANSFER = "transfer_to_"
"""Prefix of the tools that hand a conversation over."""


@dataclass(frozen=True, slots=True)
class HandoffStep:
    """``agent`` ended turn ``turn_id`` by handing the conversation to the agent ``to``, with a ``note``."""

    agent: str
    to: str
    note: str
    turn_id: str

    @property
    def message(self) -> str:
        """The first message of the next turn. A model wrote the note, so it is marked as data."""
        from fsm_agent.support.untrusted import wrap_untrusted  # few conversations need it

        note = self.note.strip()
        notice = NOTICE.format(agent=self.agent, to=self.to, note=" Its note follows." if note else "")
        return f"{notice}\n\n{wrap_untrusted(note, self.agent)}" if note else notice


def way_of(stored: Any) -> tuple[HandoffStep, ...]:
    """Parse the stored handoffs of a conversation; empty if the list is malformed or contains names that
    agents cannot have: it may have come in a file."""
    try:
        way = tuple(HandoffStep(**one) for one in stored)
    except TypeError:
        return ()
    texts = all(isinstance(value, str) for one in way for value in (one.agent, one.to, one.note, one.turn_id))
    named = texts and all(re.fullmatch(NAME, name) for one in way for name in (one.agent, one.to))
    return way if named else ()


def next_turn_id(session_id: str, turn_id: str) -> str:
    """Return the id of the turn that follows a handoff. It does not depend on the process that begins the
    turn, so the turn begins only once."""
    return f"{session_id}-{_follows(turn_id)}"


def is_next_turn(turn_id: str, before: str) -> bool:
    """Return whether a turn was begun because the turn ``before`` handed the conversation over."""
    return turn_id.endswith(f"-{_follows(before)}")


def _follows(turn_id: str) -> str:
    return hashlib.sha256(turn_id.encode()).hexdigest()[:8]


# ----------------------------------------------------------------------------------------------------
# How a turn can end: the closed set of exit reasons, and the outcome of each.


class Outcome(StrEnum):
    """The outcome of an ended turn; exactly one applies."""

    COMPLETED = "completed"
    FAILED = "failed"
    PARTIAL = "partial"
    INTERRUPTED = "interrupted"


class ExitReason(StrEnum):
    """Why a turn ended. Closed: the transition table cannot name any other."""

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
        """The outcome of a turn that ends with this reason."""
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


Out = TypeVar("Out", default=Any, covariant=True)


SHOWN = 200
"""Maximum characters of the answer in the ``repr`` of a result."""
OptionalText = Literal[
    "final_response", "error", "failure_class", "last_reasoning", "cost_source", "base_url",
    "parent_session_id", "interrupt_message",
]  # fmt: skip
Text = Literal["model", "provider", "session_id", "turn_id", "task_id", "cost_status", "agent"]
Figure = Literal[
    "api_calls", "attempts", "tried", "input_tokens", "output_tokens", "cache_read_tokens",
    "cache_write_tokens", "reasoning_tokens", "prompt_tokens", "completion_tokens", "total_tokens",
    "last_prompt_tokens",
]  # fmt: skip
Flag = Literal[
    "completed", "failed", "partial", "interrupted", "usage_known", "fallback_activated",
    "response_previewed", "response_transformed", "stored",
]  # fmt: skip
"""Names of fields by the type of their value, for readers of ``result["final_response"]``."""


class TurnUsage(BaseModel):
    """Tokens summed over responses. ``prompt`` = input + cache_read + cache_write, ``total`` = prompt +
    output."""

    model_config = ConfigDict(frozen=True)

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    prompt: int = 0
    total: int = 0

    @classmethod
    def of(cls, usage: Usage) -> TurnUsage:
        """Convert a ``Usage``."""
        return cls(
            input=usage.input,
            output=usage.output,
            cache_read=usage.cache_read,
            cache_write=usage.cache_write,
            reasoning=usage.reasoning,
            prompt=usage.prompt,
            total=usage.total,
        )


class ChildTurn(BaseModel):
    """A turn started by a tool of its parent: how it ended, and its usage, which is not in its parent's
    figures. ``outcome`` is ``None`` if it has not ended. ``agent``: the agent that ran it."""

    model_config = ConfigDict(frozen=True)

    turn_id: str
    session_id: str
    task_id: str = ""
    outcome: str | None = None
    turn_exit_reason: str | None = None
    api_calls: int = 0
    attempts: int = 0
    usage: TurnUsage = TurnUsage()
    estimated_cost_usd: float | None = None
    agent: str = AGENT_NAME


class VisitedState(BaseModel):
    """One visit of a state: how it was left, and the seconds spent in it."""

    model_config = ConfigDict(frozen=True)

    state: str
    event: str | None
    row: str | None
    seconds: float


class TurnResult(BaseModel, Generic[Out]):
    """The result of one turn; readable like a dict. Exactly one of completed, failed, partial, interrupted is
    true.

    ``api_calls`` counts iterations, ``attempts`` the requests actually sent, summaries included. A request
    counts from the moment its first byte is handed to the connection, so ``attempts`` is never less than what
    the providers received; calls in flight when a process died count too, as they may have arrived. ``tried``
    also counts requests that were never sent because nothing answered at the address.

    Token fields are this turn's sums over every response (0 with ``usage_known`` false when the provider
    reported none). ``estimated_cost_usd`` is the cost of the reported tokens if ``cost_status`` is
    ``estimated``, by the prices of ``cost_source``; ``None`` if tokens cost nothing (``included``) or a price
    is unknown (``unknown``). ``error`` and ``failure_class`` are ``None`` for a successful turn. ``limit``:
    the limit in money, tokens or time that ended the turn, with the fields of ``LimitReached``.

    ``output``: the answer as a value of the requested type; without one, the text. ``None`` for a turn that
    ended without such an answer; then ``error`` is the reason.

    ``bugs``: the tracebacks of bugs in tools and in the engine, without keys, even of a successful turn.

    ``stored``: whether question, answer and actions are in the store; if not, the last of ``cleanup_errors``
    is the reason, and the session's next turn in this process tries again."""

    model_config = ConfigDict(frozen=True)

    final_response: str | None
    output: Annotated[Out | None, SkipValidation()] = None
    messages: list[dict[str, Any]]
    api_calls: int
    attempts: int
    completed: bool
    failed: bool
    partial: bool
    interrupted: bool
    turn_exit_reason: ExitReason
    failure_class: str | None
    error: str | None
    last_reasoning: str | None
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    usage_turn: TurnUsage
    usage_session: TurnUsage
    usage_known: bool
    last_prompt_tokens: int
    estimated_cost_usd: float | None
    cost_status: str
    cost_source: str | None
    model: str
    provider: str
    base_url: str | None
    fallback_activated: bool
    session_id: str
    parent_session_id: str | None
    turn_id: str
    task_id: str
    response_previewed: bool
    response_transformed: bool
    interrupt_message: str | None
    pending_steer: list[str]
    guardrail: dict[str, Any] | None
    limit: dict[str, Any] | None = None
    cleanup_errors: list[str]
    bugs: list[str] = []
    stored: bool = True
    tried: int = 0
    agent: str = AGENT_NAME
    handoffs: list[HandoffStep] = []
    compressions: list[dict[str, Any]]
    children: list[ChildTurn] = []
    states: list[VisitedState]

    @field_serializer("output", when_used="json")
    def _plain(self, value: Any) -> Any:
        """Serialize the output, which may be any value that an output function returns."""
        return to_jsonable_python(value, fallback=str)

    def __repr__(self) -> str:
        """Describe the outcome, the beginning of the answer, and where to find the rest in one line."""
        outcome = next(one for one in ("completed", "failed", "partial", "interrupted") if self[one])
        answer = one_line(self.final_response or self.error or "", SHOWN)
        return f"TurnResult({outcome}, {self.turn_exit_reason.value}, {answer!r}, turn_id={self.turn_id!r})"

    __str__ = __repr__

    @overload
    def __getitem__(self, name: OptionalText) -> str | None: ...
    @overload
    def __getitem__(self, name: Text) -> str: ...
    @overload
    def __getitem__(self, name: Figure) -> int: ...
    @overload
    def __getitem__(self, name: Flag) -> bool: ...
    @overload
    def __getitem__(self, name: Literal["messages"]) -> list[dict[str, Any]]: ...
    @overload
    def __getitem__(self, name: str) -> Any: ...
    def __getitem__(self, name: str) -> Any:
        if name not in type(self).model_fields:
            raise KeyError(name)
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field by its name, as a mapping does; ``default`` for an unknown name."""
        return getattr(self, name) if name in type(self).model_fields else default

    def __contains__(self, name: object) -> bool:
        return name in type(self).model_fields

    def keys(self) -> Iterator[str]:
        """Return the names of the fields, as a mapping does."""
        return iter(type(self).model_fields)


def words_of_model(result: Mapping[str, Any] | TurnResult[Any]) -> str:
    """Return the final text of a result if it came from a model; empty if it only says how the turn ended."""
    text, error = result["final_response"] or "", result["error"] or ""
    return "" if error.startswith(text) else text


# ----------------------------------------------------------------------------------------------------
# Estimated usage of a request whose provider did not report any.


def estimate_usage(request: ModelRequest, reply: ModelReply | Failure | Cancelled) -> Usage:
    """Estimate the usage from the prompt and the part of the reply that arrived; zero for a request that was
    not sent, and for one that a provider refused."""
    match reply:
        case Failure(kind="http") | Failure(sent=False) | Cancelled(sent=False):
            return NO_USAGE
        case ModelReply():
            calls = (call.name + call.arguments for call in reply.tool_calls)
            arrived = [reply.text, reply.reasoning, *calls]
        case Cancelled():
            arrived = [reply.text, reply.reasoning]
        case Failure():
            arrived = []
    return Usage(input=request.estimate, output=tokens_of(sum(map(len, arrived))))
