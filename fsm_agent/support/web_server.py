"""The web server of this machine: it reports when it is ready, and leaves no connection open at shutdown."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

TICKS = 5
"""Passes of the loop in which a client that was just accepted becomes a connection; three suffice."""


class WebServer(uvicorn.Server):
    """A uvicorn server that calls ``ready`` once it is serving."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the sockets, then call ``ready``."""
        await super().startup(sockets)
        if self.started:
            self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, end running requests, and close every connection.

        asyncio forgets the socket of a client accepted just before its server closes, so each one first
        becomes a connection; uvicorn leaves open those that do not end in time."""
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
