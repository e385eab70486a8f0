"""The cooperative stop signal of a running tool."""

from __future__ import annotations

import threading
from contextvars import ContextVar

TOOL_STOPPED: ContextVar[threading.Event | None] = ContextVar("fsm_agent_tool_stopped", default=None)
"""Tells the tool that runs here to stop."""


def cancelled() -> bool:
    """Should the tool that is running here stop? True after the user's interrupt and after the tool's time
    limit.

    For synchronous handlers, which nobody can stop from outside; asynchronous ones are cancelled by asyncio
    too. False outside a tool."""
    signal = TOOL_STOPPED.get()
    return signal is not None and signal.is_set()
