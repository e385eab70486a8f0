"""Creation of spans, and their connections: headers, links, and the parts of a turn that they report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Protocol

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fsm_agent.conversation.effects import OutputSpec, Runtime
from fsm_agent.conversation.messages import Usage
from fsm_agent.runtime.events import EVERYWHERE, Measured
from fsm_agent.support import __version__
from fsm_agent.telemetry import Telemetry
from fsm_agent.telemetry import conventions as names

# ----------------------------------------------------------------------------------------------------
# The instruments of one meter provider, and their measurements.


Attributes = Mapping[str, Any]
OF_METRICS = (
    names.OPERATION,
    names.PROVIDER,
    names.REQUEST_MODEL,
    names.RESPONSE_MODEL,
    names.AGENT,
    names.TOOL_NAME,
    names.SERVER_ADDRESS,
    names.SERVER_PORT,
    names.ERROR_TYPE,
)
"""Span attributes that metrics have, too: those with few distinct values."""


class Instruments:
    """The instruments of a provider; ``of`` caches them, ``leave`` unsubscribes them from the engine."""

    leave: Callable[[], None]

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = metrics.get_meter(names.SCOPE, __version__, provider, names.SCHEMA_URL)
        count, seconds = meter.create_counter, meter.create_histogram
        self._duration = seconds(
            names.OPERATION_DURATION, "s", explicit_bucket_boundaries_advisory=names.SECONDS
        )
        self._tokens = seconds(names.TOKEN_USAGE, "{token}", explicit_bucket_boundaries_advisory=names.TOKENS)
        self._first_chunk = seconds(
            names.TIME_TO_FIRST_CHUNK, "s", explicit_bucket_boundaries_advisory=names.SECONDS
        )
        self._exits = count(names.TURN_EXITS, "{turn}", "Turns that have ended, by exit and outcome")
        self._cost = count(names.TURN_COST, "USD", "What ended turns cost, where prices are known")
        self._running = meter.create_up_down_counter(names.TURNS_RUNNING, "{turn}", "Turns that run now")
        self._spent = {
            "retries": count(names.RETRIES, "{retry}", "Requests made again after a failure"),
            "fallbacks": count(names.FALLBACKS, "{switch}", "Switches to another model"),
        }
        self._compactions = count(names.COMPACTIONS, "{compaction}", "Conversations made shorter")
        self._takeovers = count(names.TAKEOVERS, "{turn}", "Turns of other processes taken up")
        self._fenced = count(names.FENCED_WRITES, "{write}", "Writes refused to a former owner of a turn")
        self._waits = seconds(
            names.QUEUE_WAIT, "s", "Until a turn may run", explicit_bucket_boundaries_advisory=names.SECONDS
        )
        self._commits = seconds(
            names.COMMIT_DURATION,
            "s",
            "Of one commit of the store",
            explicit_bucket_boundaries_advisory=names.SHORT_SECONDS,
        )

    @staticmethod
    @cache
    def of(provider: MeterProvider | None) -> Instruments:
        """Return the instruments of a provider, subscribed to the engine's measurements outside of turns."""
        instruments = Instruments(provider)
        instruments.leave = EVERYWHERE.subscribe(instruments.record_figure, Measured)
        return instruments

    def operation(self, seconds: float, attributes: Attributes) -> None:
        """Record the duration in seconds of a turn, a model request, or a tool call."""
        self._duration.record(seconds, of_metrics(attributes))

    def record_usage(self, usage: Usage, attributes: Attributes) -> None:
        """Record the tokens that a reply used."""
        about = of_metrics(attributes)
        self._tokens.record(usage.prompt, {**about, names.TOKEN_TYPE: "input"})
        self._tokens.record(usage.output, {**about, names.TOKEN_TYPE: "output"})

    def began_to_answer(self, seconds: float, attributes: Attributes) -> None:
        """Record the time in seconds to the first chunk of a streamed reply."""
        self._first_chunk.record(seconds, of_metrics(attributes))

    def running(self, turns: int) -> None:
        """Add to the number of running turns."""
        self._running.add(turns)

    def record_move(self, changes: Iterable[tuple[str, int, int]]) -> None:
        """Count the retries and fallbacks among counter changes (name, before, after)."""
        for counter, before, after in changes:
            if after > before and (found := self._spent.get(counter)) is not None:
                found.add(after - before)

    def record_end(self, exit_reason: str, outcome: str, cost: float | None, attributes: Attributes) -> None:
        """Record the end of a turn; ``cost`` in US dollars."""
        about = {names.AGENT: attributes.get(names.AGENT, "")}
        self._exits.add(1, {**about, names.FSM_EXIT: exit_reason, names.FSM_OUTCOME: outcome})
        if cost is not None:
            self._cost.add(cost, about)

    def record_compaction(self, trigger: str) -> None:
        """Record a compaction of a conversation."""
        self._compactions.add(1, {names.FSM_COMPACTION + "trigger": trigger})

    def record_figure(self, figure: Measured) -> None:
        """Record a measurement of the engine that belongs to no turn."""
        value = figure.value
        match figure.name:
            case "queue_wait":
                self._waits.record(value)
            case "takeover":
                self._takeovers.add(int(value))
            case "fenced_write":
                self._fenced.add(int(value))
            case "commit":
                self._commits.record(value)


def of_metrics(attributes: Attributes) -> dict[str, Any]:
    """Return the span attributes that metrics have, too."""
    return {name: attributes[name] for name in OF_METRICS if name in attributes}


TEXT = TraceContextTextMapPropagator()
TRACEPARENT = "traceparent"


class TracedSetup(Protocol):
    """Setup of a turn, as far as spans report it."""

    runtime: Runtime
    auxiliary: tuple[Runtime, ...]
    agent: str
    output: OutputSpec | None
    trace: str

    def set_trace(self, trace: str) -> None:
        """Store the ``traceparent`` of the turn's span."""
        ...


class TracedRecovery(Protocol):
    """``failure_class``: of the last failure of a request; empty without one."""

    failure_class: str


class TracedCompaction(Protocol):
    """``compressions``: statistics of the turn's compactions."""

    compressions: list[dict[str, Any]]


class TracedTurn(Protocol):
    """The parts of an agent's turn that spans report (``fsm_agent_states.turn.TurnState``)."""

    turn_id: str
    session_id: str
    state: str
    seq: int
    user_content: Any

    @property
    def setup(self) -> TracedSetup:
        """The setup of the turn."""
        ...

    @property
    def recovery(self) -> TracedRecovery:
        """The state of error recovery."""
        ...

    @property
    def compaction(self) -> TracedCompaction:
        """The compaction of the history."""
        ...

    def counters(self) -> dict[str, int]:
        """Every counter by name."""
        ...


class Spans:
    """``contents``: also record message texts. ``propagate``: send model requests with the context of their
    span."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._tracer = trace.get_tracer(
            names.SCOPE, __version__, telemetry.tracer_provider, schema_url=names.SCHEMA_URL
        )
        self.instruments = Instruments.of(telemetry.meter_provider)
        self.contents, self.propagate = telemetry.contents, telemetry.propagate

    def span(
        self,
        name: str,
        context: Context | None,
        attributes: Mapping[str, Any],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: list[Link] | None = None,
    ) -> Span:
        """Start a span with the parent in ``context``; ``None`` means that of the current task."""
        return self._tracer.start_span(name, context, kind, dict(attributes), links)


def traceparent_of(span: Span) -> str:
    """Return the context of a span as a header value; empty for an invalid span."""
    return headers_of(trace.set_span_in_context(span, Context())).get(TRACEPARENT, "")


def headers_of(context: Context | None = None) -> dict[str, str]:
    """Return the headers that connect a request to the span in a context."""
    headers: dict[str, str] = {}
    TEXT.inject(headers, context)
    return headers


def link_to(traceparent: str, why: str) -> list[Link]:
    """Return a link to the span stored as this text, or none if the text is invalid. A link affects neither
    the parent of a span nor its sampling."""
    found = trace.get_current_span(TEXT.extract({TRACEPARENT: traceparent}, Context())).get_span_context()
    return [Link(found, {names.FSM_LINK: why})] if found.is_valid else []
