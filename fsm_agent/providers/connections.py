"""Connections of this process to providers: one pool for each event loop, origin and proxy, shared by all
agents and turns. Imported with the first HTTP client."""

from __future__ import annotations

import asyncio
import selectors
import ssl
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

# Has a request been sent? Only the transport that writes it knows: a call may be interrupted at any moment.
# While its connection is being made the request is unseen; a moment later the provider may be working on
# it, and charge for it.


DEPARTURE: ContextVar[Departure] = ContextVar("fsm_agent_departure")
"""Of the call that this task makes."""


class Departure:
    """``left``: the first byte of the request was handed to its connection; the provider may have got it."""

    def __init__(self) -> None:
        self.left = False

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Receives each step of the transport. Nothing waits between this call and the write itself. A
        proxy's CONNECT request does not count as the request."""
        if event.endswith(".send_request_headers.started") and info["request"].method != b"CONNECT":
            self.left = True


def departing() -> Departure:
    """The departure of the one request that the current task makes from here on."""
    departure = Departure()
    DEPARTURE.set(departure)
    return departure


async def watch_requests(request: Any) -> None:
    """A hook for the requests of an HTTP client that use httpcore, such as those through a SOCKS proxy: the
    SDKs have no argument for its ``trace``. (``CheckedConnector`` covers all others.) Concurrent calls
    share a client and are distinguished by their tasks."""
    request.extensions["trace"] = DEPARTURE.get().trace


IDLE = 4.0
"""Seconds that an idle connection is kept. Many servers close theirs after five, and a device in between
may silently drop an older one; a new connection is cheap."""
SETTLE = 0.01
"""Seconds that are waited once for each pool without TLS, before a connection is used again for the first
time: llama.cpp closes it after each stream though it promises to keep it, and the end may be on its way."""
HEADER_BYTES = 65_536
"""Of one line of a response's head."""
Key = tuple[asyncio.AbstractEventLoop, str, str]
"""Loop, origin, and proxy; an empty string means no proxy."""
CONNECTIONS: dict[Key, Connections] = {}
"""From the first request of a key to its last user, or the end of the loop."""


class CheckedConnector(aiohttp.TCPConnector):
    """Hands out connections that the other end has not closed: one that was idle is looked at before a byte
    is written to it, so that its end costs no attempt (PREP-19). A request that has come by here counts as
    sent.

    As many as are asked for: how many turns run at once is limited elsewhere, and a request that waited for
    others here would use up the time it has for connecting."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__(ssl=True if context is None else context, limit=0, keepalive_timeout=IDLE)
        self._used: weakref.WeakSet[ResponseHandler] = weakref.WeakSet()
        self._keeps_promises = context is not None

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
        """Return a connection for the request, and note that it has left. Nothing is waited for between the
        look and the write. Raises what aiohttp raises."""
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol, transport = connection.protocol, connection.transport
            assert protocol is not None
            if protocol not in self._used:
                self._used.add(protocol)
                break
            if not self._keeps_promises:
                try:
                    await asyncio.sleep(SETTLE)
                except BaseException:
                    connection.close()
                    raise
            if transport is not None and not transport.is_closing() and not _readable(transport):
                self._keeps_promises = True
                break
            connection.close()
        DEPARTURE.get().left = True
        return connection


def _readable(transport: asyncio.BaseTransport) -> bool:
    """Is there something to read, though nothing was asked? Then it is the end of the connection."""
    with getattr(selectors, "PollSelector", selectors.SelectSelector)() as selector:
        selector.register(transport.get_extra_info("socket"), selectors.EVENT_READ)
        return bool(selector.select(0))


class Connections:
    """The pool of one event loop for one origin, through one proxy or none. It is closed with its last user,
    or when its loop shuts down, whichever comes first."""

    def __init__(self, key: Key, context: ssl.SSLContext | None) -> None:
        self._key = key
        self._users: weakref.WeakKeyDictionary[object, weakref.finalize[..., object]]
        self._users = weakref.WeakKeyDictionary()
        self._closing: asyncio.Task[None] | None = None
        self.session = aiohttp.ClientSession(
            connector=CheckedConnector(context),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
            max_line_size=HEADER_BYTES,
            max_field_size=HEADER_BYTES,
        )
        self._life = self._session_lifetime()

    @classmethod
    async def used_by(
        cls, user: object, origin: str, proxy: str, context: Callable[[], ssl.SSLContext]
    ) -> Connections:
        """Return the pool of the running loop; it stays open until ``user`` leaves or is dropped. ``context``
        is asked for where there is TLS."""
        loop = asyncio.get_running_loop()
        key = (loop, origin, proxy)
        pool = CONNECTIONS.get(key)
        if pool is None or pool.session.closed:
            for left in [known for known in CONNECTIONS if known[0].is_closed()]:
                await CONNECTIONS.pop(left).session.close()  # its loop was closed without being shut down
            secure = "https:" in (origin[:6], proxy[:6])
            pool = CONNECTIONS[key] = cls(key, context() if secure else None)
            await anext(pool._life)
        if user not in pool._users:
            pool._users[user] = weakref.finalize(user, pool._on_dropped)
            pool._users[user].atexit = False
        return pool

    async def leave(self, user: object) -> None:
        """Close all connections after the last user has left."""
        if (watch := self._users.pop(user, None)) is not None:
            watch.detach()
        if not self._users:
            await self._close()

    def retire(self) -> None:
        """Keep the current users, and take no more."""
        if CONNECTIONS.get(self._key) is self:
            del CONNECTIONS[self._key]

    def _on_dropped(self) -> None:
        """A user is gone without a word, in whatever thread. An event loop that is closed needs nothing."""

        def look() -> None:
            if not self._users:
                self._closing = loop.create_task(self._close())

        loop = self._key[0]
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(look)

    async def _close(self) -> None:
        self.retire()
        await self.session.close()

    async def _session_lifetime(self) -> AsyncGenerator[None]:
        """Close the session when the event loop shuts down, even if the agent was not closed: the loop
        closes its asynchronous generators, and this is one."""
        try:
            yield
        finally:
            await self._close()


def renew(origin: str) -> None:
    """Have the next user in this loop make new connections to an origin."""
    for (loop, known, _), pool in list(CONNECTIONS.items()):
        if (loop, known) == (asyncio.get_running_loop(), origin):
            pool.retire()
