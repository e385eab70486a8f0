"""OpenTelemetry spans and metrics of turns, for operators of agents.

Its modules and the OpenTelemetry packages (the extra ``otel``) are loaded only when an agent is created with
``telemetry``. ``conventions`` defines every name that is sent, ``docs/telemetry.md`` explains the names."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fsm_agent.errors import ConfigError
from fsm_agent.support.installation import install_command

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from fsm_agent.extension import Extension
    from fsm_agent.sessions.store import Store
    from fsm_agent.settings import TelemetrySettings

FORMS = "true, false, or fsm_agent.telemetry.Telemetry(…)"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Destination and detail of spans and metrics: ``Agent(telemetry=Telemetry(…))``. A provider of ``None``
    means the program's global one; ``None`` for ``contents`` (record the texts of people, models, and tools)
    and ``propagate`` (send providers of models a ``traceparent`` header) means the setting."""

    tracer_provider: TracerProvider | None = None
    meter_provider: MeterProvider | None = None
    contents: bool | None = None
    propagate: bool | None = None


def current_traceparent() -> str:
    """Return the context of the current span as a header value; empty without a span, or if OpenTelemetry is
    not loaded."""
    if "opentelemetry.trace" not in sys.modules:
        return ""
    from opentelemetry.trace import get_current_span

    from fsm_agent.telemetry.spans import traceparent_of

    return traceparent_of(get_current_span())


def choose_telemetry(given: Telemetry | bool | None, settings: TelemetrySettings) -> Telemetry | None:
    """Return where an agent reports its turns, or ``None`` if it does not. ``None`` for ``given`` means the
    settings. Raises ``ConfigError`` for an invalid value."""
    if not isinstance(given, Telemetry | bool | None):
        raise ConfigError("telemetry has the wrong type", given, FORMS)
    wanted = settings.enabled if given is None else given
    if not wanted:
        return None
    own = wanted if isinstance(wanted, Telemetry) else Telemetry()
    contents = settings.contents if own.contents is None else own.contents
    propagate = settings.propagate if own.propagate is None else own.propagate
    return replace(own, contents=contents, propagate=propagate)


def tracing_of(telemetry: Telemetry, store: Store) -> Extension:
    """Return the agent feature ``telemetry``. Raises ``ConfigError`` without the extra ``otel``."""
    try:
        from fsm_agent.telemetry.turn_spans import Tracing
    except ImportError as error:
        needs = install_command("otel")
        raise ConfigError(f"telemetry needs OpenTelemetry ({error})", telemetry, needs) from None
    return Tracing(telemetry, store)
