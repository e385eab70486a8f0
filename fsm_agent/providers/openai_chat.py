"""The chat-completions wire, through the low-level door of the OpenAI SDK.

The body of a request is bytes built elsewhere, the chunks of a reply are plain dicts: the SDK's typed layer walks every
message on every call, which costs more than the network on long conversations. The SDK never retries (CALL-04).
"""

from __future__ import annotations

import asyncio
import functools
import json
import ssl
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from fsm_agent.messages import ModelReply
from fsm_agent.ports import StreamSink
from fsm_agent.providers.chat_reply import ChatReply, whole_reply
from fsm_agent.providers.failures import failure_from, shape_failure
from fsm_agent.requests import Failure, ModelRequest

if TYPE_CHECKING:
    from openai import AsyncOpenAI, AsyncStream

NO_KEY = "none"
"""Sent to servers that ask for no key; some refuse a request without the header."""


class OpenAIChat:
    """One model at one chat-completions endpoint, as a ``ModelPort``.

    ``connect``, ``read`` and ``total`` in seconds: making a connection, the longest gap between two pieces of a
    response, and the whole call; ``None`` for no limit. ``read`` should be longer than the turn's stale limit, which
    judges by real chunks. ``linger``: how long after its finish reason a stream that stays open is waited for; the
    reply is whole by then. ``now`` is wall time, for dates in ``Retry-After``. One client is made at the first call,
    for the event loop of that call; ``aclose`` belongs into the same loop. ``limits`` holds the rate-limit headers of
    the last response that had any.
    """

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
        self.limits: dict[str, str] = {}
        self._key = key
        self._secrets = {key}
        self._timeouts = (connect, read)
        self._total = total
        self._linger = linger
        self._now = now
        self._client: AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def call(self, request: ModelRequest, sink: StreamSink) -> ModelReply | Failure:
        """Send one request and report its deltas. Raises only ``CancelledError``, with the connection closed."""
        growing = ChatReply(sink)
        try:
            async with asyncio.timeout(self._total) as limit:
                stream = await self._send(request)
                try:
                    self._note_limits(stream.response.headers)
                    if not _is_stream(request, stream.response.headers.get("content-type", "")):
                        return self._whole(await stream.response.aread(), sink)
                    async for chunk in stream:
                        growing.feed(chunk)
                        if growing.finished:
                            limit.reschedule(asyncio.get_running_loop().time() + self._linger)
                finally:
                    await stream.close()
        except Exception as error:
            self._note_limits(getattr(getattr(error, "response", None), "headers", None))
            return growing.end(failure_from(error, self._now(), self._secrets))
        return growing.end()

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

    async def _send(self, request: ModelRequest) -> AsyncStream[object]:
        """Open the response of a request; its body is not read yet. Also whole replies come through this door, because
        only a stream shows its content type before its content."""
        client, stream_class = await self._ready()
        return await client.post(
            "/chat/completions",
            content=request.body,
            cast_to=object,
            stream=True,
            stream_cls=stream_class,
            options={
                "headers": {
                    "Authorization": f"Bearer {self._key or NO_KEY}",
                    "Content-Type": "application/json",
                    "Accept": "text/event-stream" if request.stream else "application/json",
                },
                "max_retries": 0,
            },
        )

    async def _ready(self) -> tuple[AsyncOpenAI, type[AsyncStream[object]]]:
        """The client of this event loop. The SDK is loaded in a thread: it takes half a second."""
        if "openai" not in sys.modules:
            await asyncio.to_thread(_load)
        import openai

        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client, self._loop = self._make(openai), loop
        return self._client, openai.AsyncStream[object]

    def _make(self, openai: Any) -> AsyncOpenAI:
        connect, read = self._timeouts
        client = openai.AsyncOpenAI(
            api_key=self._key or NO_KEY,
            base_url=self.base_url,
            max_retries=0,
            timeout=openai.Timeout(read, connect=connect, pool=connect),
            http_client=openai.DefaultAsyncHttpxClient(verify=_tls()),
        )
        if "api.openai.com" not in self.base_url:
            client.organization = client.project = None
        client.admin_api_key = None
        return cast("AsyncOpenAI", client)

    def _whole(self, content: bytes, sink: StreamSink) -> ModelReply | Failure:
        try:
            body = json.loads(content)
        except ValueError:
            text = content.decode("utf-8", "replace")
            return shape_failure("the response is not JSON", text, self._secrets)
        return whole_reply(body, sink, self._now(), self._secrets)

    def _note_limits(self, headers: Any) -> None:
        if headers is not None:
            found = {name: value for name, value in headers.items() if name.startswith("x-ratelimit-")}
            self.limits = found or self.limits


def _is_stream(request: ModelRequest, content_type: str) -> bool:
    """Is it a stream? Some servers answer a streaming request with one object, some stream without saying so."""
    kind = content_type.lower()
    return "event-stream" in kind or (request.stream and "json" not in kind and "html" not in kind)


@functools.cache
def _tls() -> ssl.SSLContext:
    """One TLS context a process: reading the certificates takes longer than making a client."""
    import httpx2

    return httpx2.create_ssl_context()


def _load() -> None:
    import openai  # noqa: F401
