"""The debugger: run a turn step by step, stop it, look back, change it, and go on from anywhere. See ``docs/debugger.md``."""

from __future__ import annotations

from fsm_agent.debug.breakpoints import Breakpoint, Breakpoints
from fsm_agent.debug.compare import Comparison, compare
from fsm_agent.debug.core import Debugger
from fsm_agent.debug.events import Event, Status
from fsm_agent.debug.look import Look
from fsm_agent.debug.own.turn import TableTurn
from fsm_agent.debug.record import Record
from fsm_agent.debug.workshop import Workshop

__all__ = [
    "Breakpoint", "Breakpoints", "Comparison", "Debugger", "Event", "Look", "Record", "Status", "TableTurn", "Workshop",
    "compare",
]  # fmt: skip
