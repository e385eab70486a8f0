"""Has a request left? Said by the transport that writes it, and not guessed from how its call ended.

A call may be interrupted or killed at any moment. While its connection is being made nobody has seen the
request; a moment later the provider may be at work on it, and charge for it. Only the transport knows which
it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

DEPARTURE: ContextVar[Departure] = ContextVar("fsm_agent_departure")
"""Of the call that this task makes."""


class Departure:
    """``left``: the first byte of the request was handed to its connection; the provider may have got it."""

    def __init__(self) -> None:
        self.left = False

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Hears of each step of the transport. Between this one and the write itself nothing is waited for.
        A proxy that is asked for a tunnel (CONNECT) is told nothing of the request."""
        if event.endswith(".send_request_headers.started") and info["request"].method != b"CONNECT":
            self.left = True


def departing() -> Departure:
    """The departure of the one request that the current task makes from here on."""
    departure = Departure()
    DEPARTURE.set(departure)
    return departure


async def watched(request: Any) -> None:
    """A hook for the requests of an HTTP client that go over httpcore, as those through a SOCKS proxy do: the
    SDKs have no argument for its ``trace``. (Of all others ``LookedAt`` in ``connections`` says it.)
    A client is shared by calls at the same time; they are told apart by their tasks."""
    request.extensions["trace"] = DEPARTURE.get().trace
