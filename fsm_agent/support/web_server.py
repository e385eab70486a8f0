"""The web server of this machine: it says when it serves, and leaves no connection open when it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

TICKS = 5
"""Passes of the loop in which a client that was just accepted becomes a connection; three are enough."""


class WebServer(uvicorn.Server):
    """``ready`` is called when it serves."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the sockets, and say that it serves."""
        await super().startup(sockets)
        if self.started:
            self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing new, end what runs, and close every connection.

        asyncio forgets the socket of a client that is accepted just before its server is closed, so that each
        one becomes a connection first; and uvicorn leaves those open that do not end in time."""
        loop = asyncio.get_running_loop()
        for server in self.servers:
            for listening in server.sockets:
                loop.remove_reader(listening)
        for _ in range(TICKS):
            await asyncio.sleep(0)
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)
