"""How a connection, or a call over it, came to its end."""

from __future__ import annotations

import asyncio


class ConnectionEnding:
    """Told once by whoever notices first; later reasons are consequences. Belongs to the engine's loop."""

    def __init__(self) -> None:
        self.reason, self.wanted = "", False
        self._event = asyncio.Event()

    def told(self, reason: str) -> None:
        """Hear that the connection ended; the first reason stays."""
        self.reason = self.reason or reason
        self._event.set()

    def want(self) -> None:
        """End it although nothing is wrong: the other side gets the time for an orderly end."""
        self.wanted = not self.came
        self.told("it was closed")

    @property
    def came(self) -> bool:
        """Say whether it has ended."""
        return self._event.is_set()

    async def wait(self) -> str:
        """Wait until it ends, and return why."""
        await self._event.wait()
        return self.reason


class Broken(Exception):
    """There is no connection (any more). ``sent``: the call may have reached the server."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class McpRefused(Exception):
    """The server answered the call with an error of the protocol."""


class Unusable(Exception):
    """What came back is no result; the tool may have run."""
