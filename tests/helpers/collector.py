"""An OTLP collector: an HTTP server on loopback that decodes what it is sent, and keeps it."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """``url`` is what ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set to. ``spans``, ``metrics`` and ``logs``: messages
    of the protocol; ``resources``: attributes of who sent them; ``headers`` of the requests."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: list[Any] = []
        self.logs: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                collector._took(self.path, body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

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
