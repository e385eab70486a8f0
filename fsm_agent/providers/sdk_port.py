"""The shared part of all ports over an official SDK: a client per event loop, one call, and failures as
values.

The request body is bytes built elsewhere, and the events of a reply are plain dicts: an SDK's typed layer
walks every message on every call, which costs more than the network on long conversations. The SDKs' stream
readers are not used either: one skips every event without a name, which is all that some gateways send, and
reports an error inside a stream with the status of its response, 200. The SDK never retries (CALL-04)."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import ssl
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.providers.failures import describe_low_limits, failure_from, shape_failure
from fsm_agent.providers.reply_values import (
    ERROR_BYTES,
    EVENT_BYTES,
    EVENTS,
    too_much,
    within_limits,
)
from fsm_agent.providers.transport import (
    AioClient,
    BadBody,
    BoundedBody,
    Departure,
    departing,
    origin_of,
    renew,
)
from fsm_agent.runtime.clock import Deadline
from fsm_agent.runtime.ports import StreamSink
from fsm_agent.support.texts import OverlyNestedError, json_of

if TYPE_CHECKING:
    import httpx2

# Clients shared by ports: one per loop, address, key, and set of headers. Making a client takes longer than a
# request to a nearby server.


CLIENTS: weakref.WeakValueDictionary[Hashable, SharedClient] = weakref.WeakValueDictionary()
READ_BY_SDKS = ("OPENAI_", "ANTHROPIC_")
"""Prefixes of variables that an SDK reads when a client is made; proxies are matched by suffix."""


class SharedClient:
    """A client and the count of its users. It is closed when the last one leaves; if users are dropped
    without leaving, it is freed with the last reference."""

    def __init__(self, key: Hashable, client: Any) -> None:
        self._key, self.client, self._users = key, client, 0

    @classmethod
    def of(cls, alike: Hashable, make: Callable[[], Any]) -> SharedClient:
        """Return the client of the running loop for ``alike`` and the relevant environment variables, making
        it if needed. The caller must call ``leave`` when done."""
        key = (asyncio.get_running_loop(), alike, _surroundings())
        shared = CLIENTS.get(key)
        if shared is None:
            shared = CLIENTS[key] = cls(key, make())
        shared._users += 1
        return shared

    def retire(self) -> None:
        """Accept no more users."""
        if CLIENTS.get(self._key) is self:
            del CLIENTS[self._key]

    async def leave(self) -> None:
        """Leave the client; the last user closes it."""
        self._users -= 1
        if not self._users:
            self.retire()
            await self.client.close()


def _surroundings() -> Hashable:
    return tuple(
        (name, value)
        for name, value in os.environ.items()
        if name.startswith(READ_BY_SDKS) or name[-6:].upper() == "_PROXY"
    )


# The SDKs, each imported once per process and never on an event loop.
#
# An import takes half a second, and much longer on a busy machine. Meanwhile a loop could neither check
# limits nor see an interrupt. ``sys.modules`` does not show that a module is ready: it is listed as soon as
# its import begins, and a second importer waits for the first. (Why: decision 54.)


_begun: dict[str, Future[ModuleType]] = {}
"""In-flight and completed imports by module name. A failed one is removed so that the next caller retries."""
_BEGIN = threading.Lock()
_ONE_BY_ONE = threading.Lock()
"""SDKs share libraries, and threads that import the same ones may see half-initialized modules."""


async def sdk_module(name: str) -> ModuleType:
    """Return the module ``name``. Callers in any loop share one import; a completed import returns at once.

    Cancelling a waiter does not stop the import. Raises ``ImportError`` that describes the problem; the next
    call tries again.
    """
    module = _begun.get(name)
    if module is not None and module.done():
        return module.result()
    return await asyncio.wrap_future(_import_of(name))


def _import_of(name: str) -> Future[ModuleType]:
    with _BEGIN:
        module = _begun.get(name)
        if module is None:
            module = _begun[name] = Future()
            module.set_running_or_notify_cancel()  # cancelled waiters cannot cancel it
            label = f"fsm-agent-import-{name}"
            threading.Thread(target=_load, args=(name, module), daemon=True, name=label).start()
    return module


def _load(name: str, module: Future[ModuleType]) -> None:
    try:
        with _ONE_BY_ONE:
            loaded = importlib.import_module(name)
    except BaseException as error:  # whatever it is, a caller waits for the result
        del _begun[name]
        what = f"the SDK {name!r} cannot be imported: {type(error).__name__}: {error}"
        failed = ImportError(what, name=name)
        failed.__cause__ = error
        module.set_exception(failed)
    else:
        module.set_result(loaded)


NO_KEY = "none"
"""Sent to servers that require no key; some refuse a request without the header."""
REST = 0.1
"""Seconds to read past the end of a reply: its connection can be reused only when nothing is left to read."""
DONE = "[DONE]"
"""The data of the event that ends a stream."""


class GrowingReply(Protocol):
    """A reply that is assembled from the events of a stream."""

    @property
    def finished(self) -> bool:
        """Whether the reply has said how it ended; nothing worth waiting for follows."""

    def feed(self, event: Any) -> None:
        """Process the next event of the stream."""
        ...

    def end(self, failure: Failure | None = None) -> ModelReply | Failure:
        """Return the reply or a failure; ``failure`` is the error that broke off the stream, if any."""


class EventReader(Protocol):
    """Extracts the data of events from the bytes of a stream."""

    def feed(self, piece: bytes) -> Iterable[str]:
        """Process the next bytes and yield the data of each completed event."""
        ...


class SdkPort(ABC):
    """One model at one endpoint, as a ``ModelPort``.

    ``connect``, ``read`` and ``total`` in seconds: limits for making a connection, for the gap between two
    pieces of a response, and for the whole call; ``None`` for no limit. ``read`` should be longer than the
    turn's stale limit, which judges by real chunks. ``headers``: additional headers; the SDK, and so its log,
    never sees them. ``route``: the path of a request, if it differs from the wire's default, and ``query``
    its query string. ``linger``: seconds to wait for a stream that stays open after its last event; the reply
    is complete by then. ``now``: wall time, for dates in ``Retry-After``. A client is made at the first call,
    for the event loop of that call; ``aclose`` must be called in the same loop."""

    sdk: ClassVar[str]
    path: str

    def __init__(
        self,
        base_url: str,
        key: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        route: str = "",
        query: Mapping[str, str] | None = None,
        connect: float | None = 30.0,
        read: float | None = 900.0,
        total: float | None = 1800.0,
        linger: float = 5.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.base_url = base_url
        self._key = key
        self.path = route or self.path
        self._headers, self._query = headers or {}, query or {}
        self._secrets = {key, *self._headers.values()}
        self._timeouts = (connect, read)
        self._total = total
        self._linger = linger
        self._now = now
        self._scarce = False
        self._shared: SharedClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # Defined by each wire

    @abstractmethod
    def _make(self, sdk: Any) -> Any:
        """Make a client of the loaded SDK."""

    def _pool_key(self) -> Hashable:
        """Return the properties that two ports must share to use one client. The key is one of them, so that
        no port uses a client that holds another key."""
        headers = tuple(sorted(self._headers.items()))
        return type(self)._make, self.base_url, self._key, self._timeouts, headers

    @abstractmethod
    def _key_headers(self) -> dict[str, Any]:
        """Return the headers that carry the key."""

    @abstractmethod
    def _stream_parser(self, sink: StreamSink) -> GrowingReply: ...

    @abstractmethod
    def _parse_body(self, body: Any, sink: StreamSink) -> ModelReply | Failure:
        """Parse a reply that is one JSON object."""

    def _stream_error(self, event: Mapping[str, Any]) -> Failure | None:
        """Return the failure for an ``error`` sent in place of an event, if the growing reply does not handle
        it."""
        return None

    # Shared by all wires

    def _events(self) -> EventReader:
        """Return the parser of event data in the stream's bytes."""

        return EventLines(EVENT_BYTES)

    def _client_options(self, sdk: Any) -> dict[str, Any]:
        """Return the options of every SDK's client. They include a key, so that the SDK does not search for
        one in the environment or on disk."""
        connect, read = self._timeouts
        return {
            "api_key": self._key or NO_KEY,
            "base_url": self.base_url,
            "max_retries": 0,
            "timeout": sdk.Timeout(read, connect=connect, pool=connect),
            "http_client": AioClient(self._headers, context=tls),
        }

    async def _send(self, client: Any, request: ModelRequest) -> Any:
        """Open the response of a request through the SDK's low-level interface; its body is not read yet."""
        kind = "text/event-stream" if request.stream else "application/json"
        fixed = {"Content-Type": "application/json", "Accept": kind}
        headers = {**self._key_headers(), **fixed}
        return await client.post_content(self.path, request.body, headers, self._query)

    async def call(self, request: ModelRequest, sink: StreamSink) -> ModelReply | Failure:
        """Send one request and report its deltas. Raises only ``CancelledError``, after closing the
        connection."""
        growing, departure = self._stream_parser(sink), departing(self._total, self._timeouts[1])
        try:
            with Deadline(departure.remaining, poll=departure.read) as deadline:
                response = await self._send(await self.ready(), request)
                self._tell_limits(response.headers, sink)
                try:
                    if not _is_stream(request, response.headers.get("content-type", "")):
                        return self._read(await response.aread(), sink)
                    failure = await self._read_stream(growing, response.stream, departure, deadline)
                finally:
                    await response.aclose()
            if deadline.finish == "late":
                raise departure.late()
        except asyncio.CancelledError:
            if not departure.left:
                sink.unsent()
            raise
        except Exception as error:
            failure = failure_from(error, self._now(), self._secrets)
            return growing.end(failure if departure.left else replace(failure, sent=False))
        return growing.end(failure) if failure is not None else within_limits(growing.end())

    async def _read_stream(
        self, growing: GrowingReply, body: BoundedBody, departure: Departure, deadline: Deadline
    ) -> Failure | None:
        """Read a stream to its end. Return a failure if it contained an error or too many events."""
        lines, count, pieces = self._events(), 0, aiter(body)
        async for piece in pieces:
            departure.heard = departure.now()
            for data in lines.feed(piece):
                if data.startswith(DONE):
                    if not body.arrived:
                        with suppress(Exception):
                            async with asyncio.timeout(REST):
                                async for _ in pieces:
                                    pass
                    return None
                if (count := count + 1) > EVENTS:
                    return too_much(f"it sent more than {EVENTS:,} events")
                event = json_of(data)
                fails = isinstance(event, dict) and "error" in event
                if fails and (failure := self._stream_error(event)) is not None:
                    return failure
                growing.feed(event)
            if growing.finished:
                departure.ends = departure.heard + self._linger
                deadline.look_again()
        return None

    def _tell_limits(self, headers: httpx2.Headers, sink: StreamSink) -> None:
        """Notify once when a provider's limit is nearly used up; again only after it has recovered."""
        named = b"ratelimit" in b"".join(chain.from_iterable(headers.raw)).lower()  # most replies name none
        words = describe_low_limits(headers, self._now()) if named else ""
        if words and not self._scarce:
            sink.notice(f"the provider's limit is nearly used up: {words}")
        self._scarce = bool(words)

    def use_key(self, key: str) -> None:
        """Use another key from the next call on; connections are kept."""
        self._key = key
        self._secrets.add(key)

    async def rebuild(self) -> None:
        """Stop using the existing connections; the next call makes new ones."""
        if self._shared is not None:
            renew(origin_of(self._shared.client.base_url))
            self._shared.retire()
        await self.aclose()

    async def aclose(self) -> None:
        """Leave the client; the last user closes it. A later call gets another one."""
        shared, self._shared = self._shared, None
        if shared is not None and self._loop is asyncio.get_running_loop():
            await shared.leave()

    async def ready(self) -> Any:
        """Return the client of this event loop. Raises ``ImportError`` if the SDK cannot be imported."""
        loop = asyncio.get_running_loop()
        if self._shared is None or self._loop is not loop:
            sdk = await sdk_module(self.sdk)
            await sdk_module("aiohttp")
            self._shared, self._loop = SharedClient.of(self._pool_key(), lambda: self._make(sdk)), loop
        return self._shared.client

    def _read(self, content: bytes, sink: StreamSink) -> ModelReply | Failure:
        try:
            body = json_of(content.decode("utf-8-sig"))
        except OverlyNestedError as error:
            return too_much(str(error))
        except ValueError:
            return shape_failure(
                "the response is not JSON", content[:ERROR_BYTES].decode("utf-8", "replace"), self._secrets
            )
        return within_limits(self._parse_body(body, sink))


@functools.cache
def omitted(sdk: Any) -> Any:
    """Return the value of a header that an SDK must not send: always the same, so heads compare equal."""
    return sdk.Omit()


def _is_stream(request: ModelRequest, content_type: str) -> bool:
    """Return whether the response is a stream. Some servers answer a streaming request with one object, some
    stream without declaring it."""
    kind = content_type.lower()
    return "event-stream" in kind or (request.stream and "json" not in kind and "html" not in kind)


@functools.cache
def tls() -> ssl.SSLContext:
    """Return the process's TLS context: reading the certificates takes longer than making a client."""
    import httpx2

    return httpx2.create_ssl_context()


# Assemble the lines of an event stream (SSE) from bytes. No network, no SDK.


class EventLines:
    """The unfinished part of a stream. An event of more than ``most`` bytes is not read any further."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._begun: list[bytes] = []  # pieces of the unfinished line
        self._begun_size = 0
        self._data: list[bytes] = []  # lines of the unfinished event
        self._data_size = 0
        self._ended_in_cr = False

    def feed(self, piece: bytes) -> list[str]:
        """Process the next bytes and return the data of the completed events, in order. Ignores the names of
        events, and events without data.

        Raises ``BadBody`` for an overlong event, and ``UnicodeDecodeError``."""
        if not piece:
            return []
        if self._ended_in_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._ended_in_cr = piece.endswith(b"\r")
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = piece.split(b"\n")
        if lines and self._begun:
            lines[0] = b"".join((*self._begun, lines[0]))
        if lines:
            self._begun, self._begun_size = [], 0
        self._begun.append(rest)
        self._begun_size += len(rest)
        found: list[str] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data_size += len(line)
                if self._data_size > self._most:
                    break
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line:
                data, self._data, self._data_size = b"\n".join(self._data), [], 0
                found += [data.decode()] if data else ()
        if self._begun_size + self._data_size > self._most:
            raise BadBody(f"it sent an event of more than {self._most:,} bytes")
        return found
