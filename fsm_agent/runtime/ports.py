"""The doors through which a turn touches the world. Every port has a public fake in ``fsm_agent.testing``."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol

from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply

TRACE_HEADERS: ContextVar[Mapping[str, str]] = ContextVar(
    "fsm_agent_trace_headers", default=MappingProxyType({})
)
"""Headers that tie this task's request to a trace, for a model port to send."""


class Clock(Protocol):
    """Time. Every wait and watchdog of a turn goes through it. Seconds."""

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait so many seconds."""
        ...


class StreamSink(Protocol):
    """Where a model port reports what arrives, as it arrives. All methods return at once and never raise."""

    def alive(self) -> None:
        """A real chunk arrived (keep-alives are none)."""

    def text(self, delta: str) -> None:
        """Take a piece of the reply's text, as it comes."""
        ...

    def reasoning(self, delta: str) -> None:
        """Take a piece of the reply's reasoning, as it comes."""
        ...

    def tool(self, name: str) -> None:
        """A tool call's name is known; once for each call."""

    def arguments(self, name: str, delta: str) -> None:
        """Take a piece of the arguments of a call of this tool, as it comes."""

    def notice(self, words: str) -> None:
        """A person should know this besides the reply, in a line: that little is left of a limit."""

    def unsent(self) -> None:
        """The call is cancelled before its request left: no byte of it was handed to a connection. A call
        that ends without this counts as sent."""


class ModelPort(Protocol):
    """One provider, model and endpoint.

    ``call`` never raises for what a provider or network does: it returns a ``Failure``. It is cancelled
    (asyncio) by the caller on interrupt and by the watchdog; the connection must then be closed before it
    returns, and ``sink.unsent()`` be called if the request never left. A port that must get ready first (load
    an SDK, for instance) may have an ``async def ready()``: the watchdog does not count its time."""

    async def call(self, request: ModelRequest, sink: StreamSink) -> ModelReply | Failure:
        """Make one attempt and return the reply, or what went wrong as a value. ``sink`` hears the text
        meanwhile."""
        ...

    def use_key(self, key: str) -> None:
        """Use another key from the next call on."""

    async def rebuild(self) -> None:
        """Drop every connection; the next call makes new ones."""

    async def aclose(self) -> None:
        """Close connections; the port may be used again."""
        ...


# ----------------------------------------------------------------------------------------------------
# What stands in the place of a reply that comes later, perhaps days later and in another process.


Waits = Literal["approval", "question", "result", "timer"]
"""What a suspended turn waits for."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """In place of a reply: the turn is suspended until somebody gives it.

    ``kind``: what is waited for, ``None`` when another turn waits, which has it written down. ``call`` and
    ``tool`` that it is for; ``asked``: in words, whole; ``choices``: the answers there are, or that are
    offered; ``digest`` of what the answer is about; ``due``: when nobody need answer any more, in seconds
    since the epoch. ``otherwise``: the reply where this cannot be written down."""

    kind: Waits | None = None
    call: str = ""
    tool: str = ""
    asked: str = ""
    choices: tuple[str, ...] = ()
    digest: str = ""
    due: float | None = None
    otherwise: Any = None
