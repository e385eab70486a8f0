"""Exporting spans, metrics, and log records to a collector: the setup of a program, as opposed to a library.

Addresses, headers, certificates, sampling and limits are the standard ``OTEL_*`` variables, which the SDK
reads itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from opentelemetry import _logs, metrics, trace
from opentelemetry._logs import Logger, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from fsm_agent.errors import ConfigError
from fsm_agent.support import __version__
from fsm_agent.support.texts import one_line
from fsm_agent.telemetry import conventions
from fsm_agent.telemetry import conventions as names

ENDPOINT, PROTOCOL = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL"
HTTP = "http/protobuf"
TIMEOUT, PATIENCE = "OTEL_EXPORTER_OTLP_TIMEOUT", 3.0
"""Timeout in seconds of one attempt to send, unless the variable overrides it."""
AT_THE_END = 5.0
"""Seconds that a process waits for the final export."""
LEVELS = {
    logging.DEBUG: SeverityNumber.DEBUG,
    logging.INFO: SeverityNumber.INFO,
    logging.WARNING: SeverityNumber.WARN,
    logging.ERROR: SeverityNumber.ERROR,
    logging.CRITICAL: SeverityNumber.FATAL,
}
PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""Fields of every record; all other fields are attributes."""


def set_up(environment: Mapping[str, str]) -> None:
    """Create the global providers of the signals for which ``environment`` names a collector, unless the
    program has set them; ``finish`` sends the rest. Raises ``ConfigError`` for an unsupported protocol."""
    resource, timeout = _resource(environment), None if TIMEOUT in environment else PATIENCE
    if _wants(environment, "TRACES") and isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=timeout)))
        trace.set_tracer_provider(tracers)
    if _wants(environment, "METRICS") and not isinstance(metrics.get_meter_provider(), MeterProvider):
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(timeout=timeout))
        metrics.set_meter_provider(MeterProvider([reader], resource, shutdown_on_exit=False))
    if _wants(environment, "LOGS") and not isinstance(_logs.get_logger_provider(), LoggerProvider):
        loggers = LoggerProvider(resource=resource, shutdown_on_exit=False)
        loggers.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(timeout=timeout)))
        _logs.set_logger_provider(loggers)
        root = logging.getLogger(names.SCOPE)
        root.addHandler(LogExport(loggers.get_logger(names.SCOPE, __version__)))
        root.setLevel(min(root.level or logging.INFO, logging.INFO))
    logger = logging.getLogger("opentelemetry")
    if not any(isinstance(one, ExportTrouble) for one in logger.handlers):
        logger.addHandler(ExportTrouble())


def finish() -> str:
    """Send the rest, for at most ``AT_THE_END`` seconds, and stop. Return a line on what could not be sent;
    empty without errors."""
    providers = (trace.get_tracer_provider(), metrics.get_meter_provider(), _logs.get_logger_provider())
    ends = [one.shutdown for one in providers if hasattr(one, "shutdown")]
    threads = [threading.Thread(target=end, daemon=True) for end in ends]
    for thread in threads:
        thread.start()
    until = time.monotonic() + AT_THE_END
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    troubles = [one for one in logging.getLogger("opentelemetry").handlers if isinstance(one, ExportTrouble)]
    message = next((one.first for one in troubles), "")
    return one_line(f"telemetry could not be sent: {conventions.mask_words(message)}") if message else ""


def _wants(environment: Mapping[str, str], signal: str) -> bool:
    protocol = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or environment.get(PROTOCOL) or HTTP
    there = environment.get(ENDPOINT) or environment.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    if not there or environment.get(f"OTEL_{signal}_EXPORTER", "otlp").lower() != "otlp":
        return False
    if protocol != HTTP:
        raise ConfigError(f"{PROTOCOL} is not spoken here", protocol, f"{HTTP}, mostly at port 4318")
    return True


def _resource(environment: Mapping[str, str]) -> Resource:
    own: dict[str, str] = {SERVICE_VERSION: __version__}
    named = "OTEL_SERVICE_NAME" in environment
    if not named and f"{SERVICE_NAME}=" not in environment.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        own[SERVICE_NAME] = "fsm-agent"
    return Resource.create(own)


class ExportTrouble(logging.Handler):
    """Keeps the first export error instead of logging a line for each attempt."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first message."""
        self.first = self.first or record.getMessage()


class LogExport(logging.Handler):
    """Exports log records with secrets redacted, linked to the span in which they were logged."""

    def __init__(self, logger: Logger) -> None:
        super().__init__(logging.INFO)
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record; its ``extra`` fields are attributes."""
        try:
            about: dict[str, Any] = {
                name: value
                for name, value in vars(record).items()
                if name not in PLAIN and isinstance(value, str | bool | int | float)
            }
            self._logger.emit(
                timestamp=int(record.created * 1e9),
                severity_number=LEVELS.get(record.levelno, SeverityNumber.INFO),
                severity_text=record.levelname,
                body=conventions.mask_words(record.getMessage()),
                attributes={**about, "logger.name": record.name},
            )
        except Exception:
            self.handleError(record)
