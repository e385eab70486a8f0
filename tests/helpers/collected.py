"""Spans, figures and log records of a test, kept in memory by the real SDK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fsm_agent.telemetry import Telemetry
from fsm_agent.telemetry.spans import Instruments


class Open(SpanProcessor):
    """Names of spans that were begun and not ended."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        self.names[span.get_span_context().span_id] = span.name

    def on_end(self, span: ReadableSpan) -> None:
        assert span.context is not None
        del self.names[span.context.span_id]


class Collected:
    """``given``: what an agent is made with."""

    def __init__(self, **options: Any) -> None:
        self._memory, self._reader, self.open = InMemorySpanExporter(), InMemoryMetricReader(), Open()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(self.open)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._memory))
        self._meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.given = Telemetry(self.tracers, self._meters, **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        """All that have ended, in the order in which they began."""
        return sorted(self._memory.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        """Those whose names begin so."""
        return [span for span in self.spans if span.name.startswith(name)]

    def one(self, name: str) -> ReadableSpan:
        """The only one whose name begins so."""
        [span] = self.named(name)
        return span

    def within(self, parent: ReadableSpan) -> list[str]:
        """Names of the spans directly in another one."""
        return [span.name for span in self.spans if id_of(parent) == (span.parent and span.parent.span_id)]

    def figures(self, name: str) -> list[tuple[Mapping[str, Any], float]]:
        """(attributes, sum) of each point of a metric."""
        data = self._reader.get_metrics_data()
        resources = [] if data is None else data.resource_metrics
        scopes = [scope for resource in resources for scope in resource.scope_metrics]
        metrics = [metric for scope in scopes for metric in scope.metrics if metric.name == name]
        return [
            (dict(point.attributes or {}), getattr(point, "sum", None) or getattr(point, "value", 0))
            for metric in metrics
            for point in metric.data.data_points
        ]

    def total(self, name: str, **wanted: Any) -> float:
        """The sum of a metric over the points that have these attributes; dots are written as ``__``."""
        about = {key.replace("__", "."): value for key, value in wanted.items()}
        return sum(value for found, value in self.figures(name) if about.items() <= found.items())


@contextmanager
def collected(**options: Any) -> Iterator[Collected]:
    """What a test's agents tell; at its end every span that was begun has ended, and no turn runs."""
    found = Collected(**options)
    try:
        yield found
        assert found.open.names == {}, "these spans were begun and never ended"
        assert found.total("fsm.turns.running") == 0
    finally:
        Instruments.of(found.given.meter_provider).leave()


def id_of(span: ReadableSpan) -> int:
    """The id of a span."""
    assert span.context is not None
    return span.context.span_id


def trace_of(span: ReadableSpan) -> int:
    """The trace that a span is in."""
    assert span.context is not None
    return span.context.trace_id


def told(span: ReadableSpan) -> Mapping[str, Any]:
    """The attributes of a span."""
    return span.attributes or {}
