"""The port of dispatchers: who hands queued turns out, and what a running turn is told by it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fsm_agent.errors import FsmAgentError


class Order(NamedTuple):
    """A turn that is to be run: all that a dispatcher carries, less than 300 bytes. ``session``: the first
    one of its conversation, whose turns run one after the other; ``digest`` of the table that moves the
    turn."""

    session: str
    turn: str
    digest: str


@dataclass(frozen=True, slots=True)
class TurnLink:
    """What a dispatcher tells a running turn. ``cancelled``: a person wants it to end, with its end in the
    journal. ``leaving``: this process goes away, so the turn stops behind its next move and another process
    goes on. ``lost``: another process has it; nothing is written any more."""

    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)


class HandOver(FsmAgentError):
    """The turn stands behind a move and is let go of: any worker may go on with it, at once."""


RunTurn = Callable[[Order, "int | None", TurnLink], Awaitable[str]]
"""Runs a turn to its end and returns how that came about. The number is the rank of the attempt: the higher
one has the turn. ``None`` where an owner that lives keeps it."""


class Dispatcher(Protocol):
    """Hands out turns: of one session one after the other, in the order in which they were submitted."""

    async def submit(self, order: Order) -> None:
        """Have the turn run; its row is in the store. Again for one that waits or runs changes nothing.
        Raises ``ConfigError`` when the dispatcher cannot be reached."""
        ...

    async def cancel(self, order: Order) -> None:
        """Take back a turn that waits, and stop one that runs."""
        ...

    async def waiting(self, session: str) -> list[Order]:
        """Return the session's turns that run or wait, oldest first."""
        ...

    async def about(self) -> str:
        """Return in a line what hands turns out, and which workers there are. Raises ``ConfigError`` when it
        cannot be reached."""
        ...

    async def serve(self, run: RunTurn, slots: int, stop: asyncio.Event) -> None:
        """Run turns, at most ``slots`` at once, until ``stop``; then those that run are told to leave, and
        waited for."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...
