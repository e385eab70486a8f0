"""What every port over an official SDK shares: one client for each event loop, one call, and failures as
values.

The body of a request is bytes built elsewhere and the events of a reply are plain dicts: the typed layer of
an SDK walks every message on every call, which costs more than the network on long conversations. The SDK
never retries (CALL-04)."""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.conversation.nesting import OverlyNestedError, checked, json_of
from fsm_agent.providers.departure import departing, watched
from fsm_agent.providers.failures import failure_from, shape_failure
from fsm_agent.providers.reply_limits import (
    ERROR_BYTES,
    EVENT_BYTES,
    EVENTS,
    STREAM_BYTES,
    WHOLE_BYTES,
    too_much,
    within_limits,
)
from fsm_agent.providers.sdk_import import sdk_module
from fsm_agent.runtime.ports import StreamSink

NO_KEY = "none"
"""Sent to servers that ask for no key; some refuse a request without the header."""
CONNECTIONS, KEPT = 1000, 100
"""Of one client at once, and of those the idle ones that are kept; the figures of both SDKs."""


class GrowingReply(Protocol):
    """A reply that is put together from the events of a stream."""

    @property
    def finished(self) -> bool:
        """The reply has said how it ended; nothing that must be waited for follows."""

    def feed(self, event: Any) -> None:
        """Take the next event of the stream."""
        ...

    def end(self, failure: Failure | None = None) -> ModelReply | Failure:
        """What the request brought; ``failure`` is what broke the stream off, if anything did."""


class SdkPort(ABC):
    """One model at one endpoint, as a ``ModelPort``.

    ``connect``, ``read`` and ``total`` in seconds: making a connection, the longest gap between two pieces of
    a response, and the whole call; ``None`` for no limit. ``read`` should be longer than the turn's stale
    limit, which judges by real chunks. ``linger``: how long after its end a stream that stays open is waited
    for; the reply is whole by then. ``now`` is wall time, for dates in ``Retry-After``. One client is made at
    the first call, for the event loop of that call; ``aclose`` belongs into the same loop."""

    sdk: ClassVar[str]

    def __init__(
        self,
        base_url: str,
        key: str = "",
        *,
        connect: float | None = 30.0,
        read: float | None = 900.0,
        total: float | None = 1800.0,
        linger: float = 5.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.base_url = base_url
        self._key = key
        self._secrets = {key}
        self._timeouts = (connect, read)
        self._total = total
        self._linger = linger
        self._now = now
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # What a wire must say of itself

    @abstractmethod
    def _make(self, sdk: Any) -> Any:
        """A client of the SDK that is loaded."""

    @abstractmethod
    async def _send(self, client: Any, request: ModelRequest) -> Any:
        """Open the response of a request as the SDK's stream; its body is not read yet. Also whole replies
        come through this door, because only a stream shows its content type before its content."""

    @abstractmethod
    def _growing(self, sink: StreamSink) -> GrowingReply: ...

    @abstractmethod
    def _whole(self, body: Any, sink: StreamSink) -> ModelReply | Failure:
        """Read a reply that is one JSON object."""

    def _events(self, stream: Any) -> AsyncIterable[Any]:
        """The decoded events of a stream."""
        events: AsyncIterable[Any] = stream
        return events

    # What wires share

    def _client_options(self, sdk: Any) -> dict[str, Any]:
        """What every SDK's client is made with: a key of its own, so that it looks for none in the
        environment or on disk."""
        connect, read = self._timeouts
        return {
            "api_key": self._key or NO_KEY,
            "base_url": self.base_url,
            "max_retries": 0,
            "timeout": sdk.Timeout(read, connect=connect, pool=connect),
            "http_client": http_client(sdk, self.base_url),
        }

    async def _post(
        self, client: Any, path: str, request: ModelRequest, stream: Any, key: Mapping[str, Any]
    ) -> Any:
        """Open a response through an SDK's low-level door. ``stream`` is the SDK's class for streams, ``key``
        the headers that carry the key."""
        kind = "text/event-stream" if request.stream else "application/json"
        headers = {**key, "Content-Type": "application/json", "Accept": kind}
        options = {"headers": headers, "max_retries": 0}
        return await client.post(
            path, content=request.body, cast_to=object, stream=True, stream_cls=stream, options=options
        )

    # The port

    async def call(self, request: ModelRequest, sink: StreamSink) -> ModelReply | Failure:
        """Send one request and report its deltas. Raises only ``CancelledError``, with the connection
        closed."""
        growing, departure = self._growing(sink), departing()
        try:
            async with asyncio.timeout(self._total) as limit:
                stream = await self._send(await self.ready(), request)
                try:
                    if not _is_stream(request, stream.response.headers.get("content-type", "")):
                        return self._read(await stream.response.aread(), sink)
                    count = 0
                    async for event in self._events(stream):
                        if (count := count + 1) > EVENTS:
                            return growing.end(too_much(f"it sent more than {EVENTS:,} events"))
                        growing.feed(checked(event))
                        if growing.finished:
                            limit.reschedule(asyncio.get_running_loop().time() + self._linger)
                finally:
                    await stream.close()
        except asyncio.CancelledError:
            if not departure.left:
                sink.unsent()
            raise
        except Exception as error:
            failure = failure_from(error, self._now(), self._secrets)
            return growing.end(failure if departure.left else replace(failure, sent=False))
        return within_limits(growing.end())

    def use_key(self, key: str) -> None:
        """Use another key from the next call on; connections are kept."""
        self._key = key
        self._secrets.add(key)

    async def rebuild(self) -> None:
        """Drop every connection; the next call makes new ones."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close the client. Calls made later open a new one."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()

    async def ready(self) -> Any:
        """The client of this event loop. Raises ``ImportError`` when the SDK cannot be imported."""
        sdk, loop = await sdk_module(self.sdk), asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client, self._loop = self._make(sdk), loop
        return self._client

    def _read(self, content: bytes, sink: StreamSink) -> ModelReply | Failure:
        try:
            body = json_of(content.decode("utf-8-sig"))
        except OverlyNestedError as error:
            return too_much(str(error))
        except ValueError:
            return shape_failure(
                "the response is not JSON", content[:ERROR_BYTES].decode("utf-8", "replace"), self._secrets
            )
        return within_limits(self._whole(body, sink))


def http_client(sdk: Any, base_url: str) -> Any:
    """The SDK's own HTTP client. Without TLS a connection is not kept: it costs next to nothing, and
    llama.cpp closes it after each stream though it promises to keep it, so that the next request may meet the
    end of it. It follows no redirect, which the SDK's does unless it is told not to, and reads no more of a
    response than ``reply_limits`` say."""
    import httpx2

    from fsm_agent.providers.bounded_body import ENCODINGS, BoundedBody

    async def bounded(response: Any) -> None:
        """A hook for responses whose bodies are not read yet."""
        refused, kind = response.status_code >= 300, response.headers.get("content-type", "").lower()
        whole = "json" in kind or "html" in kind
        most = ERROR_BYTES if refused else WHOLE_BYTES if whole else STREAM_BYTES
        response.stream = BoundedBody(response, most, cut=refused, event=None if whole else EVENT_BYTES)
        response.headers.pop("content-encoding", None)
        response.encoding = "utf-8"  # as JSON is, whatever character set a header names

    kept = 0 if base_url.lower().startswith("http:") else KEPT
    return sdk.DefaultAsyncHttpxClient(
        verify=tls(),
        limits=httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=kept),
        follow_redirects=False,
        headers={"Accept-Encoding": ENCODINGS},
        event_hooks={"request": [watched], "response": [bounded]},
    )


def _is_stream(request: ModelRequest, content_type: str) -> bool:
    """Is it a stream? Some servers answer a streaming request with one object, some stream without saying
    so."""
    kind = content_type.lower()
    return "event-stream" in kind or (request.stream and "json" not in kind and "html" not in kind)


@functools.cache
def tls() -> ssl.SSLContext:
    """One TLS context a process: reading the certificates takes longer than making a client."""
    import httpx2

    return httpx2.create_ssl_context()
