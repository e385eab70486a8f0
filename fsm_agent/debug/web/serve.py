"""Serve the page: on 127.0.0.1 only, with a new token at each start."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from urllib.parse import urlencode

import uvicorn
from starlette.applications import Starlette

from fsm_agent.debug.core.debug_session import DebugSession
from fsm_agent.debug.core.loopback import LOOPBACK, bind_loopback
from fsm_agent.debug.web.app import app_of
from fsm_agent.errors import ConfigError

PATIENCE = 10.0
"""Seconds in which the server is up, or never."""


class PageServer:
    """One page. ``run`` serves until interrupted; ``start`` and ``stop`` serve beside a program. ``make``
    returns the application for a port and a token."""

    def __init__(self, make: Callable[[int, str], Starlette], port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        self._socket = bind_loopback(port)
        self.port: int = self._socket.getsockname()[1]
        app = make(self.port, self.token)
        self._server = _Server(
            uvicorn.Config(
                app, log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=1
            )
        )
        self._thread: threading.Thread | None = None

    query = ""
    """What the page is asked for at the start."""

    @property
    def address(self) -> str:
        """Where the page is, without the token."""
        return f"http://{LOOPBACK}:{self.port}/"

    @property
    def url(self) -> str:
        """What a person opens: with the token, which a browser sends nowhere."""
        return f"{self.address}{self.query}#token={self.token}"

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until interrupted; ``ready`` is called when the page can be opened."""
        self._server.ready = ready
        asyncio.run(self._server.serve([self._socket]))

    def start(self) -> str:
        """Serve in a thread; the address with the token."""
        up = threading.Event()
        self._thread = threading.Thread(target=self.run, args=(up.set,), daemon=True, name="fsm-agent-page")
        self._thread.start()
        if not up.wait(PATIENCE):
            raise ConfigError("the page could not be served", self.address)
        return self.url

    def stop(self) -> None:
        """End what ``start`` began."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(PATIENCE)


class DebugServer(PageServer):
    """The page of a debug session, which begins with the turn ``first``."""

    def __init__(
        self, session: DebugSession, port: int = 0, first: str | None = None, hide: Sequence[str] = ()
    ) -> None:
        super().__init__(lambda at, token: app_of(session, at, token, first, (*hide, token)), port)
        if first:
            self.query = f"?{urlencode({'turn': first})}"


class _Server(uvicorn.Server):
    """Says when it is up."""

    ready: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready()
