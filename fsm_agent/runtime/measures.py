"""Figures of the engine that belong to no turn."""

from __future__ import annotations

from fsm_agent.runtime.events import Measure, Measured
from fsm_agent.runtime.stream import EVERYWHERE


def measured(name: Measure, value: float = 1) -> None:
    """Publish a figure."""
    if EVERYWHERE.hears(Measured):
        EVERYWHERE.publish(Measured(name, value))
