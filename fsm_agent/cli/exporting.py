"""Telemetry of the command line: sent where the standard ``OTEL_*`` variables name a collector."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsm_agent.settings.model import Settings

STARTS, ENDS = "OTEL_EXPORTER_OTLP_", "ENDPOINT"
MISSING = "fsm-agent: {name} is set, but nothing is sent: {needs}"


def telemetry_of(settings: Settings) -> bool | None:
    """Whether turns are told to OpenTelemetry, with the exporters set up for it; ``None`` for what the
    settings say. Raises ``ConfigError`` for a protocol that is not spoken."""
    if settings.telemetry.enabled is False or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    name = next((one for one in os.environ if one.startswith(STARTS) and one.endswith(ENDS)), "")
    if not os.environ.get(name):
        return None
    try:
        from fsm_agent.telemetry.export import set_up
    except ImportError:
        from fsm_agent.support.installation import install_command

        print(MISSING.format(name=name, needs=install_command("otel")), file=sys.stderr)
        return None
    set_up(os.environ)
    return True


def finish() -> None:
    """Send what is left at the end of a command, and say in a line what could not be sent."""
    export = sys.modules.get("fsm_agent.telemetry.export")
    if export is not None and (trouble := export.finish()):
        print(f"fsm-agent: {trouble}", file=sys.stderr)
