"""HTTP for the SDKs: their client over aiohttp, whose cost does not grow with the number of active
requests.

The SDKs have such a transport, too. Theirs opens separate connections for each client and keeps cookies,
and one of them reports a connection that broke after a request as one that was never made, so that the
request would not be counted. Loaded with the first call."""

from __future__ import annotations

import asyncio
import functools
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import Any, ClassVar

import aiohttp
import httpx2
from multidict import CIMultiDict
from yarl import URL

from fsm_agent.providers.connections import Connections

AT_ONCE = 2**20
"""Bytes of a body that are handed over in one piece; with a longer one the loop gets its turn in between."""
HEADS = 16
"""Heads of requests that a client keeps: one for each of its ports, and one more when a key is replaced."""
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
"""What aiohttp raises and what that is called here; the first that fits."""


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        for theirs, ours in _MEANINGS:
            if isinstance(error, theirs):
                cause = getattr(error, "os_error", None) or error  # says it without words about TLS
                raise ours(str(cause) or type(error).__name__) from cause
        raise


class AioBody(httpx2.AsyncByteStream):
    """The body of a response as it arrives."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield what has come. Raises httpx2's errors."""
        with _translate_errors():
            while piece := await self._response.content.readany():
                yield piece

    async def aclose(self) -> None:
        """Close the connection, unless the body has arrived to its end."""
        self._response.close()


class AioTransport(httpx2.AsyncBaseTransport):
    """Sends requests by the connections that this process has, through a proxy or none. ``context`` makes
    what TLS needs."""

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
        """Send a request and return the response, of which the body is not read. Raises httpx2's errors."""
        headers = CIMultiDict([(name.decode(), value.decode()) for name, value in request.headers.raw])
        if _ILLEGAL.search(" ".join(headers.values())):
            raise httpx2.LocalProtocolError("a header has a line break in it")
        through: dict[str, Any] = {}
        if self._proxy is not None:
            through = {"proxy": str(self._proxy.url)}
            if request.url.scheme == "https":  # it is asked for a tunnel, and sees no other head
                through["proxy_headers"] = self._for_proxy
            else:
                headers.update(self._for_proxy)
        body, limits = await request.aread(), request.extensions.get("timeout", {})
        connect = limits.get("connect")
        with _translate_errors():
            response = await (await self._session(origin_of(request.url))).request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=headers,
                data=body if len(body) <= AT_ONCE else BytesIO(body),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    connect=connect, sock_connect=connect, sock_read=limits.get("read")
                ),
                **through,
            )
        return httpx2.Response(
            response.status,
            headers=response.raw_headers,
            stream=AioBody(response),
            extensions={"http_version": b"HTTP/1.1", "reason_phrase": (response.reason or "").encode()},
        )

    async def aclose(self) -> None:
        """Let the connections go."""
        while self._pools:
            await self._pools.popitem()[1].leave(self)

    async def _session(self, origin: str) -> aiohttp.ClientSession:
        pool = self._pools.get(origin)
        if pool is None or pool.session.closed:
            proxy = "" if self._proxy is None else str(self._proxy.url)
            pool = self._pools[origin] = await Connections.used_by(self, origin, proxy, self._context)
        return pool.session


class AioClient(httpx2.AsyncClient):
    """An HTTP client over ``AioTransport``, with the proxies of the environment."""

    def __init__(self, *, context: Callable[[], ssl.SSLContext], **options: Any) -> None:
        self._context = context
        super().__init__(**options)

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
    behind a copy of it. By itself it merges the headers and parses the address for each request, which is
    half of all function calls between port and socket. ``_options``: the SDK's class for one request."""

    _options: ClassVar[Any]
    heads: dict[Hashable, httpx2.Request]

    @staticmethod
    @functools.cache
    def of(sdk: Any, name: str) -> Any:
        """The class ``name`` of an SDK, with this before it."""
        members = {"_options": sdk._models.FinalRequestOptions}
        return type(name, (PreparedRequests, getattr(sdk, name)), members)

    def __init__(self, **options: Any) -> None:
        self.heads = {}
        super().__init__(**options)

    async def post_content(
        self, path: str, content: bytes, headers: Mapping[str, Any], query: Mapping[str, str]
    ) -> httpx2.Response:
        """Send a request, and return the response, of which the body is not read. Raises the SDK's errors."""
        request = {"method": "post", "url": path, "content": content, "headers": headers, "params": query}
        client: Any = self
        response: httpx2.Response = await client.request(
            httpx2.Response, self._options(**request, max_retries=0), stream=True
        )
        return response

    def _build_request(self, options: Any, *, retries_taken: int = 0) -> httpx2.Request:
        alike = (options.url, *options.headers.items(), *options.params.items())
        head = self.heads.get(alike)
        if head is None:
            if len(self.heads) == HEADS:
                self.heads.clear()
            build = super()._build_request  # type: ignore[misc]
            head = self.heads[alike] = build(options, retries_taken=retries_taken)
        body = httpx2.ByteStream(options.content)
        request = httpx2.Request(
            head.method, head.url, headers=head.headers, stream=body, extensions=head.extensions
        )
        request.headers.encoding = head.headers.encoding  # found out once: it takes as long as sending them
        request.headers["Content-Length"] = str(len(options.content))
        return request


def origin_of(url: httpx2.URL) -> str:
    """Scheme, host and port of an address."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


# Bodies of responses, read no further than anybody means them to go.
#
# They are unpacked here, piece by piece, because a few packed bytes can be made to unfold into gigabytes;
# and handed on in small pieces, between which the event loop gets its turn. Loaded with the first HTTP
# client.


PIECE = 16_384
"""Bytes that are handed on at once."""
ENCODINGS = "gzip, deflate"
"""What is asked for, and all that is unpacked."""


class BadBody(httpx2.StreamError):
    """A body that is not read on; the text says why, with "it" for its sender."""


class BoundedBody(httpx2.AsyncByteStream):
    """The body of a response, unpacked, of at most ``most`` bytes. Where it cannot be read on it ends with
    ``BadBody``, or just ends when it may be ``cut``."""

    def __init__(self, response: httpx2.Response, most: int, *, cut: bool = False) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._stream = response.stream
        self._encoding = response.headers.get("content-encoding", "identity").strip().lower()
        self._most, self._cut = most, cut

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the pieces. Raises ``BadBody``."""
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

    async def aclose(self) -> None:
        """Close the connection, unless the body was read to its end."""
        await self._stream.aclose()


class _Unpacker:
    def __init__(self, encoding: str) -> None:
        if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
            raise BadBody(f"it answered in the encoding {encoding[:40]!r}, which was not asked for")
        self._bare = encoding == "deflate"
        self._plain = encoding in ("identity", "")
        self._unpack: zlib._Decompress | None = None

    @property
    def ended(self) -> bool:
        """What was packed has ended; what follows is nothing of it."""
        return self._unpack is not None and self._unpack.eof

    def feed(self, packed: bytes) -> Iterator[bytes]:
        """The pieces that these bytes unfold into."""
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
