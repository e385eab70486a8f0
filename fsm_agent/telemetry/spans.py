"""Making spans, and what ties them to others: headers, links, and what they tell of a turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fsm_agent.conversation.effects import OutputSpec, Runtime
from fsm_agent.support.version import __version__
from fsm_agent.telemetry import Telemetry
from fsm_agent.telemetry import conventions as names
from fsm_agent.telemetry.instruments import Instruments

TEXT = TraceContextTextMapPropagator()
TRACEPARENT = "traceparent"


class TracedSetup(Protocol):
    """What a turn runs on, as its spans tell it."""

    runtime: Runtime
    auxiliary: tuple[Runtime, ...]
    agent: str
    output: OutputSpec | None
    trace: str

    def set_trace(self, trace: str) -> None:
        """Keep the ``traceparent`` of the turn's span."""
        ...


class TracedRecovery(Protocol):
    """``failure_class``: of the last failure of a request; empty without one."""

    failure_class: str


class TracedCompaction(Protocol):
    """``compressions``: figures of the compactions of a turn."""

    compressions: list[dict[str, Any]]


class TracedTurn(Protocol):
    """What spans tell of a turn of an agent (``fsm_agent_states.turn.TurnState``)."""

    turn_id: str
    session_id: str
    state: str
    seq: int
    user_content: Any

    @property
    def setup(self) -> TracedSetup:
        """What it runs on."""
        ...

    @property
    def recovery(self) -> TracedRecovery:
        """What it makes of failures."""
        ...

    @property
    def compaction(self) -> TracedCompaction:
        """How its history becomes shorter."""
        ...

    def counters(self) -> dict[str, int]:
        """Every counter by name."""
        ...


class Spans:
    """``contents``: what was said is told, too. ``propagate``: requests to models carry their span's
    context. ``telemetry``: what it was made with, for other agents."""

    def __init__(self, telemetry: Telemetry, *, contents: bool, propagate: bool) -> None:
        self._tracer = trace.get_tracer(
            names.SCOPE, __version__, telemetry.tracer_provider, schema_url=names.SCHEMA_URL
        )
        self.instruments = Instruments.of(telemetry.meter_provider)
        self.contents, self.propagate = contents, propagate
        self.telemetry = replace(telemetry, contents=contents, propagate=propagate)

    def span(
        self,
        name: str,
        context: Context | None,
        attributes: Mapping[str, Any],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: list[Link] | None = None,
    ) -> Span:
        """Begin a span under the one in ``context``; ``None`` for that of the current task."""
        return self._tracer.start_span(name, context, kind, dict(attributes), links)


def traceparent_of(span: Span) -> str:
    """The context of a span as a header has it; empty for a span that is none."""
    return headers_of(trace.set_span_in_context(span, Context())).get(TRACEPARENT, "")


def headers_of(context: Context | None = None) -> dict[str, str]:
    """The headers that tie a request to the span in a context."""
    headers: dict[str, str] = {}
    TEXT.inject(headers, context)
    return headers


def link_to(traceparent: str, why: str) -> list[Link]:
    """A link to the span that was stored as this text; none for what is no such text. Nothing else follows
    from it: neither where a span belongs, nor whether it is sampled."""
    found = trace.get_current_span(TEXT.extract({TRACEPARENT: traceparent}, Context())).get_span_context()
    return [Link(found, {names.FSM_LINK: why})] if found.is_valid else []
