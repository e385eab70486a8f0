"""The debugger: run a turn step by step, stop it, look back, change it, and go on from anywhere. See
``docs/debugger.md``."""

from __future__ import annotations

from fsm_agent.debug.core.breakpoints import Breakpoint, Breakpoints
from fsm_agent.debug.core.compare import Comparison, compare
from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.core.events import Event, Status
from fsm_agent.debug.core.look import Look
from fsm_agent.debug.core.record import Record
from fsm_agent.debug.core.workshop import Workshop

__all__ = [
    "Breakpoint", "Breakpoints", "Comparison", "Debugger", "Event", "Look", "Record", "Status", "Workshop",
    "compare",
]  # fmt: skip
