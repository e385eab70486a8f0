"""Ports between a turn and the world. Every port has a public fake in ``fsm_agent.testing``."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Protocol

from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply

TRACE_HEADERS: ContextVar[Mapping[str, str]] = ContextVar(
    "fsm_agent_trace_headers", default=MappingProxyType({})
)
"""Headers that link this task's request to a trace, for a model port to send."""


class Clock(Protocol):
    """Time in seconds. Every wait and watchdog of a turn uses it."""

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""
        ...


class StreamSink(Protocol):
    """Receives a reply from a model port as it arrives. All methods return at once and never raise."""

    def alive(self) -> None:
        """Record that a chunk arrived (keep-alives do not count)."""

    def text(self, delta: str) -> None:
        """Receive a piece of the reply's text."""
        ...

    def reasoning(self, delta: str) -> None:
        """Receive a piece of the reply's reasoning."""
        ...

    def tool(self, name: str) -> None:
        """Receive the name of a tool call, once per call."""

    def arguments(self, name: str, delta: str) -> None:
        """Receive a piece of the arguments for a call of this tool."""

    def notice(self, words: str) -> None:
        """Receive a line for people, such as a warning that a limit is nearly used up."""

    def unsent(self) -> None:
        """Record that the call was cancelled before any byte of its request reached a connection. Without
        this, a call counts as sent."""


class ModelPort(Protocol):
    """One provider, model and endpoint.

    ``call`` never raises for what a provider or network does: it returns a ``Failure``. It is cancelled
    (asyncio) by the caller on interrupt and by the watchdog; it must then close the connection before it
    returns, and call ``sink.unsent()`` if the request never left. A port that must prepare first (load an
    SDK, for instance) may have an ``async def ready()``: the watchdog does not count its time."""

    async def call(self, request: ModelRequest, sink: StreamSink) -> ModelReply | Failure:
        """Make one attempt and return the reply, or the failure as a value. ``sink`` receives the text
        meanwhile."""
        ...

    def use_key(self, key: str) -> None:
        """Use another key from the next call on."""

    async def rebuild(self) -> None:
        """Drop every connection; the next call makes new ones."""

    async def aclose(self) -> None:
        """Close connections; the port may be used again."""
        ...
