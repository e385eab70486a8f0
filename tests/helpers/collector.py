"""An OTLP collector: an HTTP server on loopback that decodes what it is sent, and keeps it."""

from __future__ import annotations

import gzip
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.helpers.http_server import Answer, Asked, HttpServer


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
