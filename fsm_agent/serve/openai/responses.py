"""One turn as a response: its events as the events of ``/v1/responses``, and the whole response.

A ``ResponseTranslator`` is pure: it receives the events of a turn, and returns the events to send.

- Text is a message. Text beside tool calls is a message too, with the phase ``commentary``; the answer
  has the phase ``final_answer``. A commentary ends with a blank line, so that ``output_text``, which joins
  all messages, reads well.
- Tools of the server are ``mcp_call`` items: the wire's word for a call that is not the client's to make.
- A pending approval is an ``mcp_approval_request``.
- Text that is discarded (the attempt failed, a check changed it) stays in a message that is
  ``incomplete``, and is not in the output of the response.
- None of a typed answer is shown before it is valid: the schema is a promise."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from openai import BaseModel
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseCreatedEvent,
    ResponseError,
    ResponseFailedEvent,
    ResponseIncompleteEvent,
    ResponseInProgressEvent,
    ResponseMcpCallArgumentsDeltaEvent,
    ResponseMcpCallArgumentsDoneEvent,
    ResponseMcpCallCompletedEvent,
    ResponseMcpCallFailedEvent,
    ResponseMcpCallInProgressEvent,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
    ResponseReasoningSummaryPartAddedEvent,
    ResponseReasoningSummaryPartDoneEvent,
    ResponseReasoningSummaryTextDeltaEvent,
    ResponseReasoningSummaryTextDoneEvent,
    ResponseTextConfig,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
    ResponseUsage,
)
from openai.types.responses.mcp_tool_call_error import McpToolExecutionError
from openai.types.responses.response import IncompleteDetails
from openai.types.responses.response_output_item import McpApprovalRequest, McpCall
from openai.types.responses.response_reasoning_item import Summary
from openai.types.responses.response_reasoning_summary_part_added_event import Part as AddedPart
from openai.types.responses.response_reasoning_summary_part_done_event import Part as DonePart
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from fsm_agent.composition.model_caller import FROM_THE_START, PARAGRAPH
from fsm_agent.conversation.result import ExitReason, Outcome, TurnResult
from fsm_agent.dispatch.follow import Place, ServedEvent
from fsm_agent.runtime.events import (
    InterimText,
    Named,
    ReasoningText,
    StreamDelta,
    ToolComplete,
    ToolStart,
    Transition,
    Voided,
)
from fsm_agent.serve.openai import (
    FIELD,
    SERVER_LABEL,
    engine_event,
    facts_of_result,
    facts_of_wait,
)
from fsm_agent.sessions.store.pending import Pending

Phase = Literal["commentary", "final_answer"]
Item = ResponseOutputMessage | ResponseReasoningItem | McpCall | McpApprovalRequest
Reason = Literal["max_output_tokens", "max_messages", "content_filter"]
TEXT_FORMAT: Mapping[str, Any] = {"type": "text"}

REASONS: Mapping[ExitReason, Reason] = {
    ExitReason.LENGTH_EXHAUSTED: "max_output_tokens",
    ExitReason.THINKING_BUDGET_EXHAUSTED: "max_output_tokens",
    ExitReason.TRUNCATED_TOOL_CALL: "max_output_tokens",
    ExitReason.RESPONSES_INCOMPLETE: "max_output_tokens",
    ExitReason.TOKEN_LIMIT: "max_output_tokens",
    ExitReason.MAX_ITERATIONS_SUMMARY: "max_messages",
    ExitReason.BUDGET_EXHAUSTED: "max_messages",
}
"""The wire's reason for an incomplete answer; it has none for the others."""
STATUSES: Mapping[Outcome, Literal["completed", "incomplete", "cancelled", "failed"]] = {
    Outcome.COMPLETED: "completed",
    Outcome.PARTIAL: "incomplete",
    Outcome.INTERRUPTED: "cancelled",
    Outcome.FAILED: "failed",
}


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The parts of a response that are known before its turn. ``model``: the name that the client used.
    ``format``: of the text, as requested. ``thoughts``: reasoning is shown."""

    turn: str
    session: str
    created_at: float
    model: str
    previous: str | None = None
    instructions: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    format: Mapping[str, Any] = field(default_factory=lambda: TEXT_FORMAT)
    background: bool = False
    thoughts: bool = False

    @property
    def id(self) -> str:
        """Return the id of the response, which names its turn."""
        return response_id(self.turn)

    @property
    def typed(self) -> bool:
        """Return whether the answer has a type."""
        return self.format.get("type") != "text"


def response_id(turn_id: str) -> str:
    """Return the id of the response for a turn."""
    return f"resp_{turn_id}"


def turn_of(identifier: str) -> str:
    """Return the turn of a response; an empty text if this is not a response's id."""
    return identifier.removeprefix("resp_") if identifier.startswith("resp_") else ""


Point = tuple[int, Place]
"""The position of an event: the number of handovers before it, and its place in the turn."""
START: Point = (0, Place())


def point_of(event_id: str) -> Point:
    """Return the position of the event with this id."""
    hop, _, place = event_id.rpartition(":")
    return int(hop or 0), Place.read(place)


@dataclass(slots=True)
class _Writing:
    """An item whose text is still growing: its pieces, each with its position."""

    index: int
    id: str
    pieces: list[tuple[Point, str]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(piece for _, piece in self.pieces)


class ResponseTranslator:
    """The stream of one response, and the response so far. ``arguments``: returns a call's arguments as JSON,
    by its id. ``extras``: also send the engine's own events.

    ``facts``: what the wire cannot express. ``attempt``: the process that reported the first event missing
    from the journal, or 0 for the journal: two streams number their events alike if it is the same."""

    def __init__(
        self, head: ResponseHead, arguments: Callable[[str], str] = lambda call: "{}", *, extras: bool = False
    ) -> None:
        self.head, self.extras = head, extras
        self.facts: Mapping[str, Any] = {"turn": head.turn, "session": head.session}
        self.attempt: int | None = None
        self._arguments_of = arguments
        self._number = 0
        self._index = 0
        self._items: dict[int, Item] = {}
        self._began: dict[int, Point] = {}
        self._point, self._turn = START, head.turn
        self._message: _Writing | None = None
        self._thought: _Writing | None = None
        self._calls: dict[str, tuple[int, str]] = {}
        self._asked: set[str] = set()
        self._said = ""
        self.response = self._response("in_progress")

    # What is given, and what is sent

    def begin(self) -> list[BaseModel]:
        """Return the beginning of the stream."""
        return [
            ResponseCreatedEvent(
                type="response.created", response=self.response, sequence_number=self._next()
            ),
            ResponseInProgressEvent(
                type="response.in_progress", response=self.response, sequence_number=self._next()
            ),
        ]

    def hear(self, served: ServedEvent) -> list[BaseModel]:
        """Return what to send for an event of the turn."""
        event, self._point = served.event.values, point_of(served.id)
        if self.attempt is None and self._point[1].within:
            self.attempt = self._point[1].attempt
        sent: list[BaseModel] = []
        if served.turn != self._turn:  # the conversation was handed over
            self._turn, sent = served.turn, [*self._close_thought(), *self._close_message("commentary")]
        match event:
            case StreamDelta(text=None):
                sent += self._close_thought()
            case StreamDelta(text=str(text)) if text and not self.head.typed:
                sent += self._write(text)
            case ReasoningText(text=text) if text and self.head.thoughts:
                sent += self._think(text)
            case InterimText(text=text) if not self.head.typed:
                sent += self._comment(text)
            case Transition(dest="ExecuteTools"):
                sent += self._close_message("commentary")
            case Named(name="turn:suspended", data=data):
                sent += self._ask_all(data["pending"])
            case ToolStart(call_id=call_id, name=name, arguments=arguments):
                sent += self._start_tool(call_id, name, arguments)
            case ToolComplete():
                sent += self._complete_tool(event)
            case Voided():
                sent += self._void()
        if self.extras and (extra := engine_event(served, self._number)) is not None:
            self._number += 1
            sent.append(extra)
        return sent

    def _void(self) -> list[BaseModel]:
        """Drop everything after this point: its process has ended, and the valid events come again."""
        standing = [] if self._message is None else [p for p in self._message.pieces if p[0] <= self._point]
        sent = [*self._close_thought("incomplete"), *self._close_message(None)]
        running = {index for index, _ in self._calls.values()}
        for index, item in list(self._items.items()):
            kept = index in running or isinstance(item, McpApprovalRequest)  # which is not sent again
            if not kept and self._began[index] > self._point:
                del self._items[index]
        if standing:
            sent += self._open_message()
            sent += self._add("".join(piece for _, piece in standing))
        return sent

    def end(self, result: TurnResult[Any]) -> list[BaseModel]:
        """Return the end of the stream of a turn that has ended."""
        outcome = result.turn_exit_reason.outcome
        sent = [*self._close_thought(), *self._close_tools()]
        if outcome is Outcome.COMPLETED or outcome is Outcome.PARTIAL:
            sent += self._answer(result.final_response or "", complete=outcome is Outcome.COMPLETED)
        else:
            sent += self._close_message("final_answer", "incomplete")
        self.response = self._response(STATUSES[outcome], result)
        return [*sent, self._last()]

    def wait(self, pending: Sequence[Pending]) -> list[BaseModel]:
        """Return the end of the stream of a turn that is suspended."""
        sent = self._ask_all([one.to_dict() for one in pending])
        self.response = self._response("incomplete", pending=pending)
        return [*sent, self._last()]

    def give_up(self, why: str) -> list[BaseModel]:
        """Return the end of the stream of a turn that was given up for a newer message of its session."""
        sent = [*self._close_thought(), *self._close_message("commentary"), *self._close_tools()]
        self.facts = {**self.facts, "outcome": "given_up", "error": why}
        self.response = self._response("cancelled")
        return [*sent, self._last()]

    def go_on(self) -> None:
        """Record that a suspended turn runs again: ``begin`` sends its current state."""
        self.facts = {"turn": self.head.turn, "session": self.head.session}
        self.response = self._response("in_progress")

    # Text

    def _write(self, text: str) -> list[BaseModel]:
        sent = self._close_thought()
        if text.startswith(FROM_THE_START):
            sent += self._close_message(None)
            text = text.removeprefix(FROM_THE_START)
        if self._message is None:
            text = text.removeprefix(PARAGRAPH) if self._said else text
            sent += self._open_message()
        return [*sent, *self._add(text)] if text else sent

    def _open_message(self) -> list[BaseModel]:
        self._message = now = _Writing(self._take_index(), self._id("msg"))
        message = ResponseOutputMessage(
            id=now.id, type="message", role="assistant", status="in_progress", content=[]
        )
        return [
            self._item_added(now.index, message),
            ResponseContentPartAddedEvent(
                type="response.content_part.added", item_id=now.id, output_index=now.index, content_index=0,
                part=_text_part(""), sequence_number=self._next(),
            ),
        ]  # fmt: skip

    def _add(self, text: str) -> list[BaseModel]:
        now = self._message
        assert now is not None
        now.pieces.append((self._point, text))
        return [
            ResponseTextDeltaEvent(
                type="response.output_text.delta", item_id=now.id, output_index=now.index, content_index=0,
                delta=text, logprobs=[], sequence_number=self._next(),
            )
        ]  # fmt: skip

    def _close_message(
        self, phase: Phase | None, status: Literal["completed", "incomplete"] = "completed"
    ) -> list[BaseModel]:
        """Close the open message; without a phase, its text is discarded."""
        now, sent = self._message, list[BaseModel]()
        if now is None:
            return sent
        if phase == "commentary" and not now.text.endswith(PARAGRAPH):
            sent += self._add(PARAGRAPH)
        self._message = None
        text, part = now.text, _text_part(now.text)
        message = ResponseOutputMessage(
            id=now.id, type="message", role="assistant", content=[part],
            status=status if phase is not None else "incomplete",
            phase=phase or "commentary",
        )  # fmt: skip
        if phase is not None:
            self._items[now.index] = message
            self._said = text
        return [
            *sent,
            ResponseTextDoneEvent(
                type="response.output_text.done", item_id=now.id, output_index=now.index, content_index=0,
                text=text, logprobs=[], sequence_number=self._next(),
            ),
            ResponseContentPartDoneEvent(
                type="response.content_part.done", item_id=now.id, output_index=now.index, content_index=0,
                part=part, sequence_number=self._next(),
            ),
            self._done(now.index, message),
        ]  # fmt: skip

    def _comment(self, text: str) -> list[BaseModel]:
        """Send text beside calls unless it was streamed."""
        if self._message is not None:
            return self._close_message("commentary")
        if self._said.strip() == text.strip():
            return []
        return [*self._open_message(), *self._add(text), *self._close_message("commentary")]

    def _answer(self, answer: str, *, complete: bool) -> list[BaseModel]:
        """Send the message with the answer, whether it was streamed or not."""
        sent, now = list[BaseModel](), self._message
        if now is not None and now.text.strip() != answer.strip():
            sent += self._close_message(None)
            now = None
        if now is None and answer:
            if self._said.strip() == answer.strip():
                self._promote()  # commentary that turned out to be the answer
                return sent
            sent += [*self._open_message(), *self._add(answer)]
        return [*sent, *self._close_message("final_answer", "completed" if complete else "incomplete")]

    def _promote(self) -> None:
        for item in reversed(self._items.values()):
            if isinstance(item, ResponseOutputMessage):
                item.phase = "final_answer"
                return

    # Reasoning

    def _think(self, text: str) -> list[BaseModel]:
        sent, now = list[BaseModel](), self._thought
        if now is None:
            self._thought = now = _Writing(self._take_index(), self._id("rs"))
            item = ResponseReasoningItem(id=now.id, type="reasoning", summary=[], status="in_progress")
            sent = [
                self._item_added(now.index, item),
                ResponseReasoningSummaryPartAddedEvent(
                    type="response.reasoning_summary_part.added", item_id=now.id, output_index=now.index,
                    summary_index=0, part=AddedPart(type="summary_text", text=""),
                    sequence_number=self._next(),
                ),
            ]  # fmt: skip
        now.pieces.append((self._point, text))
        return [
            *sent,
            ResponseReasoningSummaryTextDeltaEvent(
                type="response.reasoning_summary_text.delta", item_id=now.id, output_index=now.index,
                summary_index=0, delta=text, sequence_number=self._next(),
            ),
        ]  # fmt: skip

    def _close_thought(self, status: Literal["completed", "incomplete"] = "completed") -> list[BaseModel]:
        now = self._thought
        if now is None:
            return []
        self._thought = None
        item = ResponseReasoningItem(
            id=now.id,
            type="reasoning",
            summary=[Summary(type="summary_text", text=now.text)],
            status=status,
        )
        if status == "completed":
            self._items[now.index] = item
        return [
            ResponseReasoningSummaryTextDoneEvent(
                type="response.reasoning_summary_text.done", item_id=now.id, output_index=now.index,
                summary_index=0, text=now.text, sequence_number=self._next(),
            ),
            ResponseReasoningSummaryPartDoneEvent(
                type="response.reasoning_summary_part.done", item_id=now.id, output_index=now.index,
                summary_index=0, part=DonePart(type="summary_text", text=now.text),
                sequence_number=self._next(),
            ),
            self._done(now.index, item),
        ]  # fmt: skip

    # Tools of the server

    def _start_tool(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> list[BaseModel]:
        if call_id in self._calls:
            return []
        sent = [*self._close_thought(), *self._close_message("commentary")]
        index, item_id, text = self._take_index(), self._id("mcp"), _json(arguments)
        self._calls[call_id] = index, item_id
        call = _call(item_id, name, "", status="in_progress")
        self._items[index] = call.model_copy(update={"arguments": text})
        where: dict[str, Any] = {"item_id": item_id, "output_index": index}
        return [
            *sent,
            self._item_added(index, call),
            ResponseMcpCallInProgressEvent(
                type="response.mcp_call.in_progress", sequence_number=self._next(), **where
            ),
            ResponseMcpCallArgumentsDeltaEvent(
                type="response.mcp_call_arguments.delta", delta=text, sequence_number=self._next(), **where
            ),
            ResponseMcpCallArgumentsDoneEvent(
                type="response.mcp_call_arguments.done", arguments=text, sequence_number=self._next(), **where
            ),
        ]

    def _complete_tool(self, event: ToolComplete) -> list[BaseModel]:
        sent = self._start_tool(event.call_id, event.name, event.arguments)
        index, item_id = self._calls.pop(event.call_id)
        text = _json(event.arguments)
        where: dict[str, Any] = {"item_id": item_id, "output_index": index}
        done: BaseModel
        if event.status == "ok":
            call = _call(item_id, event.name, text, status="completed", output=event.result)
            done = ResponseMcpCallCompletedEvent(
                type="response.mcp_call.completed", sequence_number=self._next(), **where
            )
        else:
            words = [{"type": "text", "text": event.result}]
            error = McpToolExecutionError(type="mcp_tool_execution_error", content=words)
            call = _call(item_id, event.name, text, status="failed", error=error)
            done = ResponseMcpCallFailedEvent(
                type="response.mcp_call.failed", sequence_number=self._next(), **where
            )
        self._items[index] = call
        return [*sent, done, self._done(index, call)]

    def _close_tools(self) -> list[BaseModel]:
        """Close the calls that were left without a result."""
        sent = list[BaseModel]()
        for index, _ in self._calls.values():
            call = self._items[index]
            assert isinstance(call, McpCall)
            call.status = "incomplete"
            sent.append(self._done(index, call))
        self._calls.clear()
        return sent

    def _ask_all(self, pending: Sequence[Mapping[str, Any]]) -> list[BaseModel]:
        sent = [*self._close_thought(), *self._close_message("commentary"), *self._close_tools()]
        for one in pending:
            if one["kind"] != "approval" or one["id"] in self._asked:
                continue
            self._asked.add(one["id"])
            index = self._take_index()
            self._items[index] = request = McpApprovalRequest(
                id=one["id"], type="mcp_approval_request", name=one["tool"], server_label=SERVER_LABEL,
                arguments=self._arguments_of(one["call"]),
            )  # fmt: skip
            sent += [self._item_added(index, request), self._done(index, request)]
        return sent

    # The response

    def _last(self) -> BaseModel:
        number = self._next()
        match self.response.status:
            case "completed":
                return ResponseCompletedEvent(
                    type="response.completed", response=self.response, sequence_number=number
                )
            case "failed":
                return ResponseFailedEvent(
                    type="response.failed", response=self.response, sequence_number=number
                )
        return ResponseIncompleteEvent(
            type="response.incomplete", response=self.response, sequence_number=number
        )

    def _response(
        self,
        status: Literal["in_progress", "completed", "incomplete", "cancelled", "failed"],
        result: TurnResult[Any] | None = None,
        *,
        pending: Sequence[Pending] = (),
    ) -> Response:
        head, details, error = self.head, None, None
        if result is not None:
            self.facts = facts_of_result(result)
            details = IncompleteDetails(reason=REASONS.get(result.turn_exit_reason))
            if status == "failed":
                error = error_of(result)
        elif pending:
            self.facts = facts_of_wait(head.turn, head.session, pending)
            details = IncompleteDetails(reason=None)
        more: dict[str, Any] = {FIELD: self.facts}
        return Response(
            id=head.id, object="response", created_at=head.created_at, status=status, model=head.model,
            output=[self._items[index] for index in sorted(self._items)],
            error=error, incomplete_details=details if status == "incomplete" else None,
            instructions=head.instructions, metadata=dict(head.metadata),
            previous_response_id=head.previous, parallel_tool_calls=True, tool_choice="auto", tools=[],
            text=ResponseTextConfig.model_validate({"format": head.format}), background=head.background,
            usage=None if result is None or not result.usage_known else usage_of(result),
            **more,
        )  # fmt: skip

    def _item_added(self, index: int, item: Item) -> BaseModel:
        return ResponseOutputItemAddedEvent(
            type="response.output_item.added", output_index=index, item=item, sequence_number=self._next()
        )

    def _done(self, index: int, item: Item) -> BaseModel:
        return ResponseOutputItemDoneEvent(
            type="response.output_item.done", output_index=index, item=item, sequence_number=self._next()
        )

    def _id(self, kind: str) -> str:
        return f"{kind}_{self.head.turn}_{self._index - 1}"

    def _take_index(self) -> int:
        self._began[self._index] = self._point
        self._index += 1
        return self._index - 1

    def _next(self) -> int:
        self._number += 1
        return self._number - 1


def usage_of(result: TurnResult[Any]) -> ResponseUsage:
    """Return the tokens of a turn, of all its requests together."""
    return ResponseUsage(
        input_tokens=result.prompt_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=result.cache_read_tokens, cache_write_tokens=result.cache_write_tokens
        ),
        output_tokens=result.output_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=result.reasoning_tokens),
        total_tokens=result.total_tokens,
    )


def error_of(result: TurnResult[Any]) -> ResponseError:
    """Return the error of a turn that failed."""
    refused = result.turn_exit_reason in (ExitReason.CONTENT_POLICY, ExitReason.GUARDRAIL_BLOCKED)
    limited = result.failure_class == "rate_limit"
    code: Literal["invalid_prompt", "rate_limit_exceeded", "server_error"] = (
        "invalid_prompt" if refused else "rate_limit_exceeded" if limited else "server_error"
    )
    words = result.error or result.final_response or result.turn_exit_reason.value
    return ResponseError(code=code, message=words)


def _call(item_id: str, name: str, arguments: str, **more: Any) -> McpCall:
    return McpCall(
        id=item_id, type="mcp_call", server_label=SERVER_LABEL, name=name, arguments=arguments, **more
    )


def _text_part(text: str) -> ResponseOutputText:
    return ResponseOutputText(type="output_text", text=text, annotations=[], logprobs=[])


def _json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(dict(arguments), ensure_ascii=False, default=str)
