"""Spans of what a turn asks for: requests to models, calls of tools, and waits."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

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
from fsm_agent.conversation.result import TurnUsage
from fsm_agent.fsm.pipeline import Layer, Perform
from fsm_agent.runtime.events import FirstChunk
from fsm_agent.runtime.not_yet import NotYet
from fsm_agent.runtime.ports import TRACE_HEADERS
from fsm_agent.support.texts import one_line
from fsm_agent.telemetry import contents
from fsm_agent.telemetry import conventions as names
from fsm_agent.telemetry.spans import Spans, TracedTurn, headers_of

FAILED = ("error", "timeout", "unknown")
"""Outcomes of a tool that are errors; the others were somebody's decision."""


class RequestSpans:
    """``context``: of the span that requests are made in. Everything that performs a request runs in the
    context of its span, so that other spans nest under it."""

    def __init__(self, spans: Spans, turn: TracedTurn) -> None:
        self._spans, self._turn = spans, turn
        self.context: Context = contexts.get_current()
        self._chat: OpenSpan | None = None
        self._traced: dict[type, Callable[[Any, Perform], Awaitable[Any]]] = {
            CallModel: self._called,
            RunTool: self._ran,
            Wait: self._waited,
            AskApproval: self._asked,
            AnswerProgram: self._answered,
        }

    @property
    def layer(self) -> Layer:
        """Return what performs each request in the context of its span, or of the state's."""
        return Layer("telemetry", self._performed)

    def _performed(self, request: Any, turn: Any, call_next: Perform) -> Awaitable[Any]:
        return self._traced.get(type(request), self._plain)(request, call_next)

    def first_chunk(self, event: FirstChunk) -> None:
        """The model that is asked now has begun to answer."""
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

    async def _called(self, request: CallModel, call_next: Perform) -> Any:
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
        with self.opened(name, about, kind=SpanKind.CLIENT, measured=True) as chat:
            if self._spans.contents:
                chat.tell(contents.of_request(request.request))
            self._chat = chat
            token = TRACE_HEADERS.set(headers_of()) if self._spans.propagate else None
            try:
                reply = await call_next(request)
            finally:
                self._chat = None
                if token is not None:
                    TRACE_HEADERS.reset(token)
            self._replied(chat, reply)
            return reply

    def _replied(self, chat: OpenSpan, reply: ModelReply | Failure | Cancelled) -> None:
        chat.tell({names.FSM_SENT: reply.sent})
        if reply.usage is not None:
            chat.tell(tokens_of(reply.usage))
        match reply:
            case ModelReply():
                chat.tell({names.RESPONSE_MODEL: reply.model or chat.attributes[names.REQUEST_MODEL]})
                chat.tell({names.FINISH_REASONS: [reply.finish or "none"], names.FSM_CUT: reply.cut})
                if self._spans.contents:
                    chat.tell(contents.of_reply(reply))
            case Failure():
                kind = str(reply.status or reply.exception or reply.kind)
                chat.failed(kind, reply.message)
                chat.tell({names.FSM_FAILURE: reply.kind})
                if reply.status is not None:
                    chat.tell({names.HTTP_STATUS: reply.status})
            case Cancelled():
                chat.tell({names.FSM_CANCELLED: True})
        if reply.usage is not None:
            self._spans.instruments.used(reply.usage, chat.attributes)

    async def _ran(self, request: RunTool, call_next: Perform) -> Any:
        about = {
            **self.about(),
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: request.name,
            names.TOOL_TYPE: "function",
            names.TOOL_CALL_ID: request.call_id,
            names.FSM_EFFECT: request.effect,
        }
        with self.opened(f"{names.EXECUTE_TOOL} {request.name}", about, measured=True) as tool:
            if self._spans.contents:
                tool.tell({names.TOOL_ARGUMENTS: contents.as_json(dict(request.arguments))})
            reply = await call_next(request)
            self._came(tool, reply)
            return reply

    async def _answered(self, request: AnswerProgram, call_next: Perform) -> Any:
        about = {**self.about(), names.TOOL_CALL_ID: request.call_id}
        with self.opened(names.PROGRAM, about) as program:
            reply = await call_next(request)
            self._came(program, reply)
            return reply

    def _came(self, tool: OpenSpan, reply: Any) -> None:
        if isinstance(reply, NotYet):
            tool.tell({names.FSM_SUSPENDED: True})
        if not isinstance(reply, ToolOutcome):
            return
        tool.tell({names.FSM_STATUS: reply.status})
        if self._spans.contents:
            tool.tell({names.TOOL_RESULT: contents.as_json(reply.text)})
        if reply.status in FAILED:
            tool.failed(reply.status)

    async def _waited(self, request: Wait, call_next: Perform) -> Any:
        with self.opened(names.WAIT, self.about()) as wait:
            reply: Waited = await call_next(request)
            wait.tell({names.FSM_WAITED: reply.seconds})
            return reply

    async def _asked(self, request: AskApproval, call_next: Perform) -> Any:
        about = {**self.about(), names.TOOL_CALL_ID: request.call_id}
        with self.opened(
            f"{names.APPROVAL} {request.name}", {**about, names.TOOL_NAME: request.name}
        ) as asked:
            reply = await call_next(request)
            if isinstance(reply, Approval):
                asked.tell({names.FSM_GRANTED: reply.granted})
            else:
                asked.tell({names.FSM_SUSPENDED: True})
            return reply

    def about(self) -> dict[str, Any]:
        """The attributes that every span of the turn has."""
        turn = self._turn
        return {
            names.AGENT: turn.setup.agent,
            names.CONVERSATION: turn.session_id,
            names.SESSION: turn.session_id,
            names.FSM_TURN: turn.turn_id,
        }

    @contextmanager
    def opened(
        self,
        name: str,
        about: Mapping[str, Any],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        measured: bool = False,
    ) -> Iterator[OpenSpan]:
        """A span for as long as the block runs, current in it; its time is recorded if it is ``measured``."""
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
    """A span that has not ended, and the attributes that it has so far."""

    def __init__(self, span: Span, attributes: dict[str, Any]) -> None:
        self.span, self.attributes = span, attributes
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.perf_counter() - self._began

    def tell(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes."""
        self.attributes.update(attributes)
        self.span.set_attributes(attributes)

    def failed(self, kind: str, why: str = "") -> None:
        """What it stands for has failed; ``kind`` is one of few words."""
        self.tell({names.ERROR_TYPE: kind})
        self.span.set_status(Status(StatusCode.ERROR, why or None))

    def broke(self, error: BaseException) -> None:
        """What it stands for raised; who was cancelled has not failed."""
        if isinstance(error, Exception):
            self.failed(type(error).__name__, one_line(contents.masked(str(error))))
        else:
            self.tell({names.FSM_CANCELLED: True})


def model_of(runtime: Runtime) -> dict[str, Any]:
    """The attributes that name a model and its address."""
    told: dict[str, Any] = {
        names.PROVIDER: names.provider_of(runtime.provider),
        names.REQUEST_MODEL: runtime.model,
    }
    address = urlsplit(runtime.base_url or "")
    if address.hostname:
        told[names.SERVER_ADDRESS] = address.hostname
        told[names.SERVER_PORT] = address.port or (80 if address.scheme == "http" else 443)
    return told


def tokens_of(usage: Usage | TurnUsage) -> dict[str, int]:
    """The attributes of tokens; the prompt's include those of a cache, as the conventions want it."""
    return {
        names.INPUT_TOKENS: usage.prompt,
        names.OUTPUT_TOKENS: usage.output,
        names.CACHE_READ_TOKENS: usage.cache_read,
        names.CACHE_WRITE_TOKENS: usage.cache_write,
        names.REASONING_TOKENS: usage.reasoning,
    }
