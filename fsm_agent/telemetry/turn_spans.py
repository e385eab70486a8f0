"""The span of a turn, and child spans for each visit of a state."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from fsm_agent.conversation.effects import (
    AnswerProgram,
    Approval,
    AskApproval,
    CallModel,
    Cancelled,
    Failure,
    Runtime,
    RunTool,
    ToolOutcome,
    Wait,
    Waited,
)
from fsm_agent.conversation.messages import ModelReply, Usage
from fsm_agent.conversation.parts import text_only
from fsm_agent.conversation.result import TurnResult, TurnUsage, words_of_model
from fsm_agent.extension import Extension, Here, Part
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.runner import Layer, Perform
from fsm_agent.request import NotYet
from fsm_agent.runtime.events import FirstChunk, Opened, Stopped, Stream
from fsm_agent.runtime.ports import TRACE_HEADERS
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.support.texts import one_line
from fsm_agent.telemetry import Telemetry, conventions
from fsm_agent.telemetry import conventions as names
from fsm_agent.telemetry.spans import Spans, TracedTurn, headers_of, link_to, traceparent_of

# ----------------------------------------------------------------------------------------------------
# Spans of a turn's requests: requests to models, tool calls, and waits.


FAILED = ("error", "timeout", "unknown")
"""Outcomes of a tool that count as errors; the others result from a decision."""


class RequestSpans:
    """``context``: of the span in which requests are made. Each request is performed in the context of its
    span, so other spans nest under it."""

    def __init__(self, spans: Spans, turn: TracedTurn) -> None:
        self._spans, self._turn = spans, turn
        self.context: Context = contexts.get_current()
        self._chat: OpenSpan | None = None
        self._traced: dict[type, Callable[[Any, Perform], Awaitable[Any]]] = {
            CallModel: self._call_span,
            RunTool: self._ran,
            Wait: self._wait_span,
            AskApproval: self._ask_span,
            AnswerProgram: self._answer_span,
        }

    @property
    def layer(self) -> Layer:
        """Return the layer that performs each request in the context of its span, or of the state's."""
        return Layer("telemetry", self._perform)

    def _perform(self, request: Any, turn: Any, call_next: Perform) -> Awaitable[Any]:
        return self._traced.get(type(request), self._plain)(request, call_next)

    def first_chunk(self, event: FirstChunk) -> None:
        """Record the first chunk of the model's current reply."""
        if self._chat is not None and self._chat.attributes[names.REQUEST_STREAM]:
            seconds = self._chat.seconds
            self._chat.tell({names.FIRST_CHUNK: seconds})
            self._spans.instruments.began_to_answer(seconds, self._chat.attributes)

    async def _plain(self, request: Any, call_next: Perform) -> Any:
        token = contexts.attach(self.context)
        try:
            return await call_next(request)
        finally:
            contexts.detach(token)

    async def _call_span(self, request: CallModel, call_next: Perform) -> Any:
        turn = self._turn
        runtime = turn.setup.runtime if request.auxiliary is None else turn.setup.auxiliary[request.auxiliary]
        about = {
            **self.about(),
            names.OPERATION: names.CHAT,
            **model_of(runtime),
            names.OUTPUT_TYPE: "text" if turn.setup.output is None else "json",
            names.REQUEST_STREAM: request.request.stream,
            names.FSM_PURPOSE: request.request.purpose,
            names.FSM_ATTEMPT: request.attempt,
        }
        name = f"{names.CHAT} {runtime.model}"
        with self.open(name, about, kind=SpanKind.CLIENT, measured=True) as chat:
            if self._spans.contents:
                chat.tell(conventions.of_request(request.request))
            self._chat = chat
            token = TRACE_HEADERS.set(headers_of()) if self._spans.propagate else None
            try:
                reply = await call_next(request)
            finally:
                self._chat = None
                if token is not None:
                    TRACE_HEADERS.reset(token)
            self._on_reply(chat, reply)
            return reply

    def _on_reply(self, chat: OpenSpan, reply: ModelReply | Failure | Cancelled) -> None:
        chat.tell({names.FSM_SENT: reply.sent})
        if reply.usage is not None:
            chat.tell(tokens_of(reply.usage))
        match reply:
            case ModelReply():
                chat.tell({names.RESPONSE_MODEL: reply.model or chat.attributes[names.REQUEST_MODEL]})
                chat.tell({names.FINISH_REASONS: [reply.finish or "none"], names.FSM_CUT: reply.cut})
                if self._spans.contents:
                    chat.tell(conventions.of_reply(reply))
            case Failure():
                kind = str(reply.status or reply.exception or reply.kind)
                chat.fail(kind, reply.message)
                chat.tell({names.FSM_FAILURE: reply.kind})
                if reply.status is not None:
                    chat.tell({names.HTTP_STATUS: reply.status})
            case Cancelled():
                chat.tell({names.FSM_CANCELLED: True})
        if reply.usage is not None:
            self._spans.instruments.record_usage(reply.usage, chat.attributes)

    async def _ran(self, request: RunTool, call_next: Perform) -> Any:
        about = {
            **self.about(),
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: request.name,
            names.TOOL_TYPE: "function",
            names.TOOL_CALL_ID: request.call_id,
            names.FSM_EFFECT: request.effect,
        }
        with self.open(f"{names.EXECUTE_TOOL} {request.name}", about, measured=True) as tool:
            if self._spans.contents:
                tool.tell({names.TOOL_ARGUMENTS: conventions.as_json(dict(request.arguments))})
            reply = await call_next(request)
            self._end_tool(tool, reply)
            return reply

    async def _answer_span(self, request: AnswerProgram, call_next: Perform) -> Any:
        about = {**self.about(), names.TOOL_CALL_ID: request.call_id}
        with self.open(names.PROGRAM, about) as program:
            reply = await call_next(request)
            self._end_tool(program, reply)
            return reply

    def _end_tool(self, tool: OpenSpan, reply: Any) -> None:
        if isinstance(reply, NotYet):
            tool.tell({names.FSM_SUSPENDED: True})
        if not isinstance(reply, ToolOutcome):
            return
        tool.tell({names.FSM_STATUS: reply.status})
        if self._spans.contents:
            tool.tell({names.TOOL_RESULT: conventions.as_json(reply.text)})
        if reply.status in FAILED:
            tool.fail(reply.status)

    async def _wait_span(self, request: Wait, call_next: Perform) -> Any:
        with self.open(names.WAIT, self.about()) as wait:
            reply: Waited = await call_next(request)
            wait.tell({names.FSM_WAITED: reply.seconds})
            return reply

    async def _ask_span(self, request: AskApproval, call_next: Perform) -> Any:
        about = {**self.about(), names.TOOL_CALL_ID: request.call_id}
        with self.open(f"{names.APPROVAL} {request.name}", {**about, names.TOOL_NAME: request.name}) as asked:
            reply = await call_next(request)
            if isinstance(reply, Approval):
                asked.tell({names.FSM_GRANTED: reply.granted})
            else:
                asked.tell({names.FSM_SUSPENDED: True})
            return reply

    def about(self) -> dict[str, Any]:
        """Return the attributes that every span of the turn has."""
        turn = self._turn
        return {
            names.AGENT: turn.setup.agent,
            names.CONVERSATION: turn.session_id,
            names.SESSION: turn.session_id,
            names.FSM_TURN: turn.turn_id,
        }

    @contextmanager
    def open(
        self,
        name: str,
        about: Mapping[str, Any],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        measured: bool = False,
    ) -> Iterator[OpenSpan]:
        """Open a current span for the duration of the block; record its time if ``measured``."""
        open_span = OpenSpan(self._spans.span(name, self.context, about, kind=kind), dict(about))
        token = contexts.attach(trace.set_span_in_context(open_span.span, self.context))
        try:
            yield open_span
        except BaseException as error:
            open_span.broke(error)
            raise
        finally:
            contexts.detach(token)
            open_span.span.end()
            if measured:
                self._spans.instruments.operation(open_span.seconds, open_span.attributes)


class OpenSpan:
    """A span that has not ended, and its attributes so far."""

    def __init__(self, span: Span, attributes: dict[str, Any]) -> None:
        self.span, self.attributes = span, attributes
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self._began

    def tell(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes."""
        self.attributes.update(attributes)
        self.span.set_attributes(attributes)

    def fail(self, kind: str, why: str = "") -> None:
        """Record a failure; ``kind`` must come from a small set of words."""
        self.tell({names.ERROR_TYPE: kind})
        self.span.set_status(Status(StatusCode.ERROR, why or None))

    def broke(self, error: BaseException) -> None:
        """Record the exception. Cancellation is not an error."""
        if isinstance(error, Exception):
            self.fail(type(error).__name__, one_line(conventions.mask_words(str(error))))
        else:
            self.tell({names.FSM_CANCELLED: True})


def model_of(runtime: Runtime) -> dict[str, Any]:
    """Return the attributes that name a model and its address."""
    attributes: dict[str, Any] = {
        names.PROVIDER: names.provider_of(runtime.provider),
        names.REQUEST_MODEL: runtime.model,
    }
    address = urlsplit(runtime.base_url or "")
    if address.hostname:
        attributes[names.SERVER_ADDRESS] = address.hostname
        attributes[names.SERVER_PORT] = address.port or (80 if address.scheme == "http" else 443)
    return attributes


def tokens_of(usage: Usage | TurnUsage) -> dict[str, int]:
    """Return the token attributes; those of the prompt include cached ones, as the conventions require."""
    return {
        names.INPUT_TOKENS: usage.prompt,
        names.OUTPUT_TOKENS: usage.output,
        names.CACHE_READ_TOKENS: usage.cache_read,
        names.CACHE_WRITE_TOKENS: usage.cache_write,
        names.REASONING_TOKENS: usage.reasoning,
    }


COMPACTING = "Compress"
"""The state whose visits are compactions."""


class TurnSpans(Part):
    """Spans of one turn: a layer around its requests, and a subscriber to its stream. ``handed``: the
    ``traceparent`` of the turn that handed the conversation over, empty without a handoff.

    The span of a turn begins with its first step, in the caller's context, and ends when the turn stops
    running. Resuming the turn (after a crash, a suspension, in another process) begins a new span that is
    linked to the previous one."""

    def __init__(self, spans: Spans, turn: TracedTurn, handed: Callable[[], str]) -> None:
        self._spans, self._turn, self._handed = spans, turn, handed
        self._requests = RequestSpans(spans, turn)
        super().__init__(outer=(self._requests.layer,))
        self._whole: OpenSpan | None = None
        self._visit: OpenSpan | None = None
        self._compressions = 0

    def __del__(self) -> None:
        """Close the span of a turn that the caller dropped before its end."""
        if getattr(self, "_whole", None) is not None:
            self._end()

    def follow(self, stream: Stream) -> None:
        stream.subscribe(self._on_opened, Opened)
        stream.subscribe(self._on_move, Step)
        stream.subscribe(self._on_stop, Stopped)
        stream.subscribe(self._requests.first_chunk, FirstChunk)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Run one step in the context of the turn's span."""
        whole = self._whole or self._begin_span()
        token = contexts.attach(trace.set_span_in_context(whole.span))
        try:
            yield
        except BaseException as error:
            whole.broke(error)
            self._end()
            raise
        finally:
            contexts.detach(token)

    def _on_opened(self, event: Opened) -> None:
        """The turn has its session: store the reference to its span with the next move."""
        if self._whole is not None:
            self._turn.setup.set_trace(traceparent_of(self._whole.span))
            self._on_visit()

    def _on_move(self, step: Step) -> None:
        """End the span of one visit and begin that of the next."""
        if self._visit is not None:
            self._visit.tell(
                {
                    names.FSM_EVENT: step.event,
                    names.FSM_ROW: step.row,
                    names.FSM_DEST: step.dest,
                    names.FSM_GUARDS: [f"{label}: {str(value).lower()}" for label, value in step.guards],
                    names.FSM_CHANGES: [f"{name} {before}→{after}" for name, before, after in step.changes],
                }
            )
            if self._turn.recovery.failure_class and step.source == "ClassifyError":
                self._visit.tell({names.FSM_FAILURE_CLASS: self._turn.recovery.failure_class})
            self._leave()
        self._spans.instruments.record_move(step.changes)
        if self._whole is not None:
            self._on_visit()

    def _on_stop(self, event: Stopped) -> None:
        if self._whole is None:
            return
        if event.result is not None:
            self._on_finish(self._whole, event.result)
        else:
            self._whole.tell({names.FSM_UNFINISHED: True})  # suspended, or left to another process
        self._end()

    def _begin_span(self) -> OpenSpan:
        turn = self._turn
        about = {
            **self._requests.about(),
            names.OPERATION: names.INVOKE_AGENT,
            **model_of(turn.setup.runtime),
        }
        name = f"{names.INVOKE_AGENT} {turn.setup.agent}"
        span = self._spans.span(name, None, {**about, names.FSM_SEQ: turn.seq}, links=self._links())
        self._whole = OpenSpan(span, about)
        self._compressions = len(turn.compaction.compressions)
        self._requests.context = trace.set_span_in_context(span)
        self._spans.instruments.running(1)
        if self._spans.contents:
            asked = text_only(turn.user_content)
            self._whole.tell(conventions.of_turn(names.INPUT_MESSAGES, "user", asked))
        return self._whole

    def _links(self) -> list[Link]:
        if before := self._turn.setup.trace:
            return link_to(before, "continues")
        return link_to(self._handed(), "handed over")

    def _on_visit(self) -> None:
        """Begin the span of a visit."""
        assert self._whole is not None
        state = self._turn.state
        compacts = state == COMPACTING
        operation = names.COMPACT if compacts else names.STATE
        about = {
            **self._requests.about(),
            names.FSM_STATE: state,
            names.FSM_SEQ: self._turn.seq,
        }
        within = trace.set_span_in_context(self._whole.span)
        span = self._spans.span(operation if compacts else f"{names.STATE} {state}", within, about)
        self._visit = OpenSpan(span, about)
        self._requests.context = trace.set_span_in_context(span)

    def _leave(self) -> None:
        if self._visit is None:
            return
        for figures in self._turn.compaction.compressions[self._compressions :]:
            self._visit.tell(compaction_of(figures))
            self._spans.instruments.record_compaction(figures["trigger"])
        self._compressions = len(self._turn.compaction.compressions)
        self._visit.span.end()
        self._visit = None

    def _on_finish(self, whole: OpenSpan, result: TurnResult) -> None:
        outcome = next(name for name in ("completed", "failed", "partial", "interrupted") if result[name])
        cost, exit_reason = result.estimated_cost_usd, result.turn_exit_reason.value
        whole.tell(
            {
                names.FSM_EXIT: exit_reason,
                names.FSM_OUTCOME: outcome,
                names.FSM_REQUESTS: result.attempts,
                names.FSM_ITERATIONS: result.api_calls,
                names.FSM_COST_STATUS: result.cost_status,
                names.FSM_FALLBACK: result.fallback_activated,
                names.RESPONSE_MODEL: result.model,
            }
        )
        spent = {names.FSM_COUNTER + name: count for name, count in self._turn.counters().items() if count}
        whole.tell(spent | ({} if cost is None else {names.FSM_COST: cost}))
        if result.usage_known:
            whole.tell(tokens_of(result.usage_turn))
        if self._spans.contents and (words := words_of_model(result)):
            whole.tell(conventions.of_turn(names.OUTPUT_MESSAGES, "assistant", words))
        if result.failed:
            whole.fail(exit_reason, conventions.mask_words(result.error or ""))
        self._spans.instruments.record_end(exit_reason, outcome, cost, whole.attributes)

    def _end(self) -> None:
        whole, self._whole = self._whole, None
        if whole is None:
            return
        self._leave()
        whole.span.end()
        self._spans.instruments.running(-1)
        self._spans.instruments.operation(whole.seconds, whole.attributes)


class CompactionSpans(Part):
    """Spans of a compaction that a person requests: one span, and the layer around its requests."""

    def __init__(self, spans: Spans, turn: TracedTurn) -> None:
        self._spans, self._turn, self._requests = spans, turn, RequestSpans(spans, turn)
        super().__init__(outer=(self._requests.layer,))

    @contextmanager
    def stepping(self) -> Iterator[None]:
        requests = self._requests
        with requests.open(names.COMPACT, {**requests.about(), names.FSM_STATE: COMPACTING}) as span:
            requests.context = trace.set_span_in_context(span.span)
            yield
            for figures in self._turn.compaction.compressions:
                span.tell(compaction_of(figures))
                self._spans.instruments.record_compaction("manual")


def compaction_of(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a compaction."""
    return {names.FSM_COMPACTION + name: value for name, value in figures.items() if value is not None}


class Tracing(Extension):
    """The agent feature ``telemetry``: the spans of its turns."""

    name = "telemetry"

    def __init__(self, telemetry: Telemetry, store: Store) -> None:
        self._spans, self._store = Spans(telemetry), store

    def in_turn(self, here: Here) -> Part:
        turn, handoffs = here.turn, here.turn.setup.handoffs
        if not here.fence.turn_id:
            return CompactionSpans(self._spans, turn)

        def handed() -> str:
            before = Turns(self._store.database).snapshot(handoffs[-1].turn_id) if handoffs else {}
            return str(before.get("trace") or "")

        return TurnSpans(self._spans, turn, handed)
