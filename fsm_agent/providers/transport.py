"""HTTP for the SDKs: their client over aiohttp, whose cost does not grow with the number of active requests.

The SDKs include such a transport, but it opens separate connections for each client and keeps cookies, and
one of them reports a connection that broke after a request as one that was never made, so the request would
not be counted. Loaded with the first call."""

from __future__ import annotations

import asyncio
import functools
import math
import re
import select
import ssl
import sys
import weakref
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from io import BytesIO
from itertools import chain
from typing import Any, ClassVar, NoReturn, Self

import aiohttp
import httpx2
from aiohttp.client_proto import ResponseHandler
from multidict import CIMultiDict
from yarl import URL

from fsm_agent.providers.reply_values import ERROR_BYTES, STREAM_BYTES, WHOLE_BYTES
from fsm_agent.runtime.ports import TRACE_HEADERS
from fsm_agent.support.threads import in_daemon_thread

# Has a request been sent? Only the transport that writes it knows: a call may be interrupted at any moment.
# While its connection is being made, the provider cannot see the request; a moment later the provider may be
# processing it, and charge for it.


DEPARTURE: ContextVar[Departure] = ContextVar("fsm_agent_departure")
"""The departure of the current task's call."""


class Departure:
    """The times of one call, by the clock of the loop, ``now``. ``heard``: when the request left or something
    last arrived; infinite before the first byte is handed to its connection, because the provider cannot have
    the request. ``ends``: when the call must be over; ``read``: seconds allowed between two arrivals."""

    def __init__(self, total: float | None, read: float | None) -> None:
        self.now, self.heard = asyncio.get_running_loop().time, math.inf
        self.ends = math.inf if total is None else self.now() + total
        self.read = math.inf if read is None else read

    @property
    def left(self) -> bool:
        """Whether the provider may have the request."""
        return self.heard < math.inf

    def remaining(self) -> float:
        """Return the seconds left."""
        return min(self.ends, self.heard + self.read) - self.now()

    def late(self) -> Exception:
        """Return the error for a call without remaining seconds."""
        silent = httpx2.ReadTimeout(f"nothing arrived for {self.read:g} s")
        return TimeoutError() if self.ends <= self.now() else silent

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Observe each step of httpcore, which sends requests through a SOCKS proxy (``CheckedConnector``
        covers all others). Nothing is awaited between this call and the write itself. A proxy's CONNECT
        request does not count as the request."""
        if event.endswith(".send_request_headers.started") and info["request"].method != b"CONNECT":
            self.heard = self.now()


def departing(total: float | None, read: float | None) -> Departure:
    """Start tracking the one request that the current task makes next, within these limits in seconds."""
    departure = Departure(total, read)
    DEPARTURE.set(departure)
    return departure


IDLE = 4.0
"""Seconds to keep an idle connection. Many servers close theirs after five, and a device in between may
silently drop an older one; a new connection is cheap."""
SETTLE = 0.01
"""Seconds to wait, once per pool without TLS, before a connection is reused for the first time: llama.cpp
closes it after each stream despite promising to keep it, and the close may be on its way."""
HEADER_BYTES = 65_536
"""Maximum of one line in a response's head."""
Key = tuple[asyncio.AbstractEventLoop, str, str]
"""Loop, origin, and proxy; an empty string means no proxy."""
CONNECTIONS: dict[Key, Connections] = {}
"""Present from the first request of a key until its last user leaves or the loop ends."""


class CheckedConnector(aiohttp.TCPConnector):
    """Hands out connections that the peer has not closed. An idle one is checked before a byte is written to
    it, so that a closed one costs no attempt (PREP-19). A request that got its connection here counts as
    sent.

    The number of connections is not limited: concurrent turns are limited elsewhere, and a request queued
    here would use up its time for connecting."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__(ssl=True if context is None else context, limit=0, keepalive_timeout=IDLE)
        self._used: weakref.WeakSet[ResponseHandler] = weakref.WeakSet()
        self._keeps_promises = context is not None

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
        """Return a connection for the request, and note that the request has left. Nothing is awaited between
        the check and the write. Raises aiohttp's errors."""
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
        departure = DEPARTURE.get()
        departure.heard = departure.now()
        return connection


def _readable(transport: asyncio.BaseTransport) -> bool:
    """Return whether there is something to read without a request: the peer closed the connection."""
    socket = transport.get_extra_info("socket").fileno()
    if sys.platform == "win32":
        return bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


class Connections:
    """The pool of one event loop for one origin, through one proxy or none. It is closed with its last user
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
        is called only for TLS."""
        loop = asyncio.get_running_loop()
        key = (loop, origin, proxy)
        pool = CONNECTIONS.get(key)
        if pool is None or pool.session.closed:
            for left in [known for known in CONNECTIONS if known[0].is_closed()]:
                await CONNECTIONS.pop(left).session.close()  # its loop was closed without a shutdown
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
        """Keep the current users, and accept no more."""
        if CONNECTIONS.get(self._key) is self:
            del CONNECTIONS[self._key]

    def _on_dropped(self) -> None:
        """Handle a user dropped without leaving, in any thread. A closed loop needs no cleanup."""

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
    """Make the next user in this loop open new connections to an origin."""
    for (loop, known, _), pool in list(CONNECTIONS.items()):
        if (loop, known) == (asyncio.get_running_loop(), origin):
            pool.retire()


AT_ONCE = 2**20
"""Bytes of a body that are handed over in one piece; a longer one is sent in pieces, so the loop can run in
between."""
HEADS = 16
"""Request heads that a client keeps: one per port, and one more when a key is replaced."""
_ILLEGAL = re.compile(r"[\0\r\n]")
_MEANINGS: tuple[tuple[type[Exception], type[httpx2.TransportError]], ...] = (
    (aiohttp.ConnectionTimeoutError, httpx2.ConnectTimeout),
    (aiohttp.ServerTimeoutError, httpx2.ReadTimeout),
    (aiohttp.ClientProxyConnectionError, httpx2.ProxyError),
    (aiohttp.ClientHttpProxyError, httpx2.ProxyError),
    (aiohttp.ClientConnectorError, httpx2.ConnectError),
    (aiohttp.InvalidURL, httpx2.UnsupportedProtocol),
    (aiohttp.NonHttpUrlClientError, httpx2.UnsupportedProtocol),
    (aiohttp.ServerDisconnectedError, httpx2.RemoteProtocolError),
    (aiohttp.ClientPayloadError, httpx2.RemoteProtocolError),
    (aiohttp.ClientResponseError, httpx2.RemoteProtocolError),
    (aiohttp.ClientError, httpx2.ReadError),
    (OSError, httpx2.ReadError),
)
"""aiohttp's errors and their counterparts in httpx2; the first match applies."""


def _raise_translated(error: Exception) -> NoReturn:
    """Raise httpx2's error for one of aiohttp's, any other as it is."""
    for theirs, ours in _MEANINGS:
        if isinstance(error, theirs):
            cause = getattr(error, "os_error", None) or error  # without aiohttp's words about TLS
            raise ours(str(cause) or type(error).__name__) from cause
    raise error


class AioBody(httpx2.AsyncByteStream):
    """The body of a response: an iterator of its pieces as they arrive. Raises httpx2's errors."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            piece = await self._response.content.readany()
        except Exception as error:
            _raise_translated(error)
        if not piece:
            raise StopAsyncIteration
        return piece

    @property
    def arrived(self) -> bool:
        """Whether the body has fully arrived, read or not."""
        return self._response.content.is_eof()

    async def aclose(self) -> None:
        """Close the connection, unless the body has fully arrived."""
        self._response.close()


class AioTransport(httpx2.AsyncBaseTransport):
    """Sends requests over the connections of this process, through a proxy or none. ``context`` makes the TLS
    context."""

    def __init__(self, context: Callable[[], ssl.SSLContext], proxy: httpx2.Proxy | None = None) -> None:
        self._context, self._proxy = context, proxy
        self._pools: dict[str, Connections] = {}
        self._for_proxy: dict[str, str] = {}
        if proxy is not None:
            self._for_proxy = dict(proxy.headers)
            if proxy.auth is not None:
                auth = aiohttp.encode_basic_auth(*proxy.auth, encoding="utf-8")
                self._for_proxy["Proxy-Authorization"] = auth

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return the response with its body unread. Raises httpx2's errors."""
        given = request.headers.raw
        lines = b"\n".join(chain.from_iterable(given)).decode().split("\n")  # at once: this is done often
        if len(lines) != 2 * len(given) or _ILLEGAL.search(" ".join(lines)):
            raise httpx2.LocalProtocolError("a header has a line break in it")
        headers = CIMultiDict(zip(lines[::2], lines[1::2], strict=True))
        through: dict[str, Any] = {}
        if self._proxy is not None:
            through = {"proxy": str(self._proxy.url)}
            if request.url.scheme == "https":  # a tunnel: the proxy sees only its own head
                through["proxy_headers"] = self._for_proxy
            else:
                headers.update(self._for_proxy)
        body, connect = await request.aread(), request.extensions.get("timeout", {}).get("connect")
        try:
            response = await (await self._session(origin_of(request.url))).request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=headers,
                data=body if len(body) <= AT_ONCE else BytesIO(body),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(connect=connect, sock_connect=connect),
                **through,
            )
        except Exception as error:
            _raise_translated(error)
        answer = httpx2.Response(
            response.status,
            headers=response.raw_headers,
            stream=AioBody(response),
            extensions={"http_version": b"HTTP/1.1", "reason_phrase": (response.reason or "").encode()},
        )
        if b"".join(chain.from_iterable(response.raw_headers)).isascii():
            answer.headers.encoding = "ascii"  # otherwise each header is decoded twice
        return answer

    async def aclose(self) -> None:
        """Release the connections."""
        while self._pools:
            await self._pools.popitem()[1].leave(self)

    async def _session(self, origin: str) -> aiohttp.ClientSession:
        pool = self._pools.get(origin)
        if pool is None or pool.session.closed:
            proxy = "" if self._proxy is None else str(self._proxy.url)
            pool = self._pools[origin] = await Connections.used_by(self, origin, proxy, self._context)
        return pool.session


class AioClient(httpx2.AsyncClient):
    """An HTTP client over ``AioTransport``, with the proxies of the environment. A request and its response
    pass through it as they are: it follows no redirect, keeps no cookie, and reads no more of a body than the
    limits in ``reply_values``. ``added``: headers of every request."""

    def __init__(self, added: Mapping[str, str], *, context: Callable[[], ssl.SSLContext]) -> None:
        self._added, self._context = added, context
        super().__init__(headers={"Accept-Encoding": ENCODINGS})

    async def send(self, request: httpx2.Request, *, stream: bool = False, **_: Any) -> httpx2.Response:
        """Send a request and return the response; with ``stream``, its body is unread. Raises httpx2's
        errors."""
        if more := {**TRACE_HEADERS.get(), **self._added}:
            request.headers.update(more)
        request.extensions["trace"] = DEPARTURE.get().trace
        response = await self._transport_for_url(request.url).handle_async_request(request)
        response.request, kind = request, response.headers.get("content-type", "").lower()
        most = WHOLE_BYTES if "json" in kind or "html" in kind else STREAM_BYTES
        refused = not response.is_success
        response.stream = BoundedBody(response, ERROR_BYTES if refused else most, cut=refused)
        response.encoding = "utf-8"  # as JSON is, whatever charset a header declares
        if not stream:
            await response.aread()
        return response

    def _init_transport(self, *_: Any, **__: Any) -> httpx2.AsyncBaseTransport:
        return AioTransport(self._context)

    def _init_proxy_transport(
        self, proxy: httpx2.Proxy, *_: Any, **options: Any
    ) -> httpx2.AsyncBaseTransport:
        if proxy.url.scheme in ("http", "https"):
            return AioTransport(self._context, proxy)
        return super()._init_proxy_transport(proxy, **{**options, "verify": self._context()})


class PreparedRequests:
    """A mixin for the client of an SDK: the SDK builds the head of a request once, and every body is sent
    behind a copy of it. On its own, the SDK merges the headers, validates the options and parses the address
    for each request, which is most of all function calls between port and socket. ``_options``: the SDK's
    class for one request."""

    _options: ClassVar[Any]
    heads: dict[Hashable, httpx2.Request]

    @staticmethod
    @functools.cache
    def of(sdk: Any, name: str) -> Any:
        """Return the SDK's class ``name`` with this mixin in front of it."""
        members = {"_options": sdk._models.FinalRequestOptions}
        return type(name, (PreparedRequests, getattr(sdk, name)), members)

    def __init__(self, **options: Any) -> None:
        self.heads = {}
        super().__init__(**options)

    async def post_content(
        self, path: str, content: bytes, headers: Mapping[str, Any], query: Mapping[str, str]
    ) -> httpx2.Response:
        """Send a request and return the response with its body unread. Raises the SDK's errors for a status,
        and httpx2's for a connection."""
        client: Any = self
        alike = (path, *headers.items(), *query.items())
        head = self.heads.get(alike) or await self._build_head(alike, path, headers, query)
        request = httpx2.Request(
            head.method,
            head.url,
            headers=head.headers,
            stream=httpx2.ByteStream(content),
            extensions=head.extensions,
        )
        request.headers.encoding = head.headers.encoding  # detected once: it takes as long as sending them
        request.headers["Content-Length"] = str(len(content))
        response: httpx2.Response = await client._client.send(request, stream=True)
        if not response.is_success:
            await response.aread()
            raise client._make_status_error_from_response(response)
        return response

    async def _build_head(
        self, alike: Hashable, path: str, headers: Mapping[str, Any], query: Mapping[str, str]
    ) -> httpx2.Request:
        client: Any = self
        options = self._options(method="post", url=path, content=b"", headers=headers, params=query)
        head: httpx2.Request = await in_daemon_thread(client._build_request, options)  # asks for the platform
        if head.url.userinfo:
            head = next(httpx2.BasicAuth(head.url.username, head.url.password).auth_flow(head))
        if len(self.heads) == HEADS:
            self.heads.clear()
        self.heads[alike] = head
        return head


def origin_of(url: httpx2.URL) -> str:
    """Return scheme, host, and port of an address."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


# Bodies of responses, read only up to a limit.
#
# They are unpacked here, piece by piece, because a few compressed bytes can expand into gigabytes. They are
# handed on in small pieces, between which the event loop can run. Loaded with the first HTTP client.


PIECE = 16_384
"""Bytes that are handed on at once."""
ENCODINGS = "gzip, deflate"
"""The accepted encodings, and the only ones that are unpacked."""


class BadBody(httpx2.StreamError):
    """A body that is not read any further; the text says why, with "it" for the sender."""


class BoundedBody(httpx2.AsyncByteStream):
    """The body of a response, unpacked, of at most ``most`` bytes. If it is too long or damaged, it raises
    ``BadBody``, or just ends if it may be ``cut``."""

    def __init__(self, response: httpx2.Response, most: int, *, cut: bool = False) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._stream = response.stream
        self._encoding = response.headers.pop("content-encoding", "identity").strip().lower()
        self._most, self._cut = most, cut
        self._pieces = self._read()

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the pieces. Raises ``BadBody``."""
        return self._pieces

    async def _read(self) -> AsyncGenerator[bytes]:
        left = self._most
        try:
            unpack = _Unpacker(self._encoding)
            async for packed in self._stream:
                for number, piece in enumerate(unpack.feed(packed)):
                    if number:
                        await asyncio.sleep(0)
                    if len(piece) > left:
                        if not self._cut:
                            raise BadBody(f"it answered with more than {self._most:,} bytes")
                        yield piece[:left]
                        return
                    left -= len(piece)
                    yield piece
                if unpack.ended:
                    return
        except BadBody:
            if not self._cut:
                raise

    @property
    def arrived(self) -> bool:
        """Whether the body is known to have fully arrived, read or not."""
        return isinstance(self._stream, AioBody) and self._stream.arrived

    async def aclose(self) -> None:
        """Close the connection, unless the body was read to its end."""
        await self._stream.aclose()
        await self._pieces.aclose()  # otherwise the event loop would start a task for it


class _Unpacker:
    def __init__(self, encoding: str) -> None:
        if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
            raise BadBody(f"it answered in the encoding {encoding[:40]!r}, which was not asked for")
        self._bare = encoding == "deflate"
        self._plain = encoding in ("identity", "")
        self._unpack: zlib._Decompress | None = None

    @property
    def ended(self) -> bool:
        """Whether the compressed data has ended; anything after it is ignored."""
        return self._unpack is not None and self._unpack.eof

    def feed(self, packed: bytes) -> Iterator[bytes]:
        """Yield the unpacked pieces of these bytes."""
        if self._plain:
            yield from (packed[at : at + PIECE] for at in range(0, len(packed), PIECE))
            return
        if self._unpack is None and packed:  # deflate comes with a header, as it should, or without
            self._unpack = zlib.decompressobj(-15 if self._bare and packed[0] & 0x0F != 8 else 47)
        while packed and self._unpack is not None and not self._unpack.eof:
            try:
                yield self._unpack.decompress(packed, PIECE)
            except zlib.error as error:
                raise BadBody(f"its answer is damaged: {error}") from None
            packed = self._unpack.unconsumed_tail
