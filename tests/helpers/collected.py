"""Spans, figures and log records of a test: kept in memory by the real SDK, or sent to a collector on loopback."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fsm_agent.telemetry import Telemetry
from fsm_agent.telemetry.spans import Instruments
from tests.helpers.http_server import Answer, Asked, HttpServer


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


class Collector(HttpServer):
    """``url`` is what ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set to. ``spans``, ``metrics`` and ``logs``: messages
    of the protocol; ``resources``: attributes of who sent them; ``headers`` of the requests."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: list[Any] = []
        self.logs: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        super().__init__(self._answer)
        self.url = self.root

    def _answer(self, asked: Asked) -> Answer:
        gzipped = asked.headers.get("content-encoding") == "gzip"
        self.headers.append(dict(asked.headers))
        self._took(asked.path, gzip.decompress(asked.raw) if gzipped else asked.raw)
        return Answer()

    def _took(self, path: str, body: bytes) -> None:
        match path:
            case "/v1/traces":
                traces = ExportTraceServiceRequest.FromString(body)
                groups: Any = traces.resource_spans
                self.spans += [one for group in groups for scope in group.scope_spans for one in scope.spans]
            case "/v1/metrics":
                groups = ExportMetricsServiceRequest.FromString(body).resource_metrics
                self.metrics += [
                    one for group in groups for scope in group.scope_metrics for one in scope.metrics
                ]
            case "/v1/logs":
                groups = ExportLogsServiceRequest.FromString(body).resource_logs
                self.logs += [
                    one for group in groups for scope in group.scope_logs for one in scope.log_records
                ]
            case _:
                raise AssertionError(f"no such path: {path}")
        self.resources += [attributes_of(group.resource) for group in groups]


def attributes_of(message: Any) -> dict[str, Any]:
    """The attributes of a message of the protocol as plain values."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in message.attributes}
