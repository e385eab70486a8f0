"""Figures of the engine that belong to no turn: how long was waited, what was taken over, what was written.

Who wants them is in ``registry.MEASURES``; nobody there costs one comparison."""

from __future__ import annotations

from typing import Literal

from fsm_agent.runtime.registry import MEASURES

Measure = Literal["queue_wait", "takeover", "fenced_write", "commit"]
"""``queue_wait``: seconds that a turn waited for its place; ``takeover``: a turn of another process was
taken up; ``fenced_write``: a write was refused because its turn has another owner; ``commit``: seconds that
a commit of the store took. The latter two are told in the thread that writes."""


def measured(name: Measure, value: float = 1) -> None:
    """Tell a figure to whoever wants it; raises nothing that a hearer does not."""
    for hear in MEASURES:
        hear(name, value)
