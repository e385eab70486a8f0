"""Serve the application until a signal arrives: sockets, TLS, and a graceful shutdown.

The first signal shuts down gracefully: nothing new is accepted, each turn stops after its next move, streams
end, and any process over the same store continues the turns. The second one ends the process at once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fsm_agent.dispatch.service import SessionService
from fsm_agent.support.web_server import WebServer

HEAD_SECONDS = 10.0
"""Time limit for the head of a request to arrive."""
LEAVE_SECONDS = 120
"""Time limit for streams and moves to end after the first signal."""
KILLED = 130
"""Exit code after a second signal."""


COLLECT = (5_000, 5, 50)
"""Thresholds of the garbage collector. Those of commands collect rarely, and a collection would then stop all
streams for a fifth of a second."""


@contextlib.contextmanager
def short_collections() -> Iterator[None]:
    """Collect garbage often and in small amounts, ignoring the objects left from startup."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*COLLECT)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """``connections``: maximum open connections of all clients; more are answered with 503."""

    connections: int = 2_000


class PatientProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # httptools' or h11's, as installed
    """Closes a connection that does not send a complete head in time."""

    def connection_made(self, transport: Any) -> None:
        """Start watching the connection."""
        super().connection_made(transport)
        self._silent = False
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching it."""
        self._look.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        self._look = self.loop.call_later(HEAD_SECONDS, self._close_if_silent)

    def _close_if_silent(self) -> None:
        silent = self.cycle is None or self.cycle.response_complete
        if silent and (self._silent or self.cycle is None):
            self.transport.close()
            return
        self._silent = silent
        self._watch()


class Server(WebServer):
    """Calls ``ready`` once it is serving, and ``leaving`` on the first signal."""

    def __init__(
        self,
        app: Starlette,
        service: SessionService,
        *,
        ready: Callable[[], None],
        leaving: Callable[[], None] = lambda: None,
        limits: ServerLimits = ServerLimits(),
        certificate: str | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=PatientProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=limits.connections,
                timeout_graceful_shutdown=LEAVE_SECONDS,
                ssl_certfile=certificate,
                ssl_keyfile=key,
            ),
            ready,
        )
        self._service, self._leaving = service, leaving

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal arrives."""
        with short_collections():
            await super().serve(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End gracefully on the first signal, at once on the second."""
        loop = asyncio.get_running_loop()
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(one, self._leave)
        try:
            yield
        finally:
            for one in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(one)

    def _leave(self) -> None:
        if self.should_exit:
            os._exit(KILLED)  # as after kill -9: another process continues
        self._leaving()
        self._service.leave()
        self.should_exit = True
