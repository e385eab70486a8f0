"""The debugger: step through a turn, pause it, inspect its past, change it, and continue from any position.
See ``docs/debugger.md``."""

from __future__ import annotations

from fsm_agent.debug.core.analysis import Comparison, compare
from fsm_agent.debug.core.breakpoints import Breakpoint, Breakpoints
from fsm_agent.debug.core.commands import DebugEvent, Status
from fsm_agent.debug.core.debug_session import DebugSession
from fsm_agent.debug.core.debugger import Cursor, Debugger
from fsm_agent.debug.core.record import Record

__all__ = [
    "Breakpoint",
    "Breakpoints",
    "Comparison",
    "Cursor",
    "DebugEvent",
    "DebugSession",
    "Debugger",
    "Record",
    "Status",
    "compare",
]  # fmt: skip
