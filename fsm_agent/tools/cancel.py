"""The cooperative stop signal of a running tool."""

from __future__ import annotations

import threading
from contextvars import ContextVar

SIGNAL: ContextVar[threading.Event | None] = ContextVar("fsm_agent_tool_cancelled", default=None)
"""Set by the runner in the context of each handler, and inherited by what the handler starts with that
context."""


def cancelled() -> bool:
    """Should the tool that is running here stop? True after the user's interrupt and after the tool's time
    limit.

    For synchronous handlers, which nobody can stop from outside; asynchronous ones are cancelled by asyncio
    too. False outside a tool."""
    signal = SIGNAL.get()
    return signal is not None and signal.is_set()
