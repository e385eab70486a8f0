"""HTTP helpers that the doors share: callers, JSON bodies within limits, event streams, errors."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fsm_agent.dispatch.service import BadRequest, Busy, Caller, ServiceError, TooLarge, Unauthorized
from fsm_agent.errors import ConfigError, FsmAgentError, SessionBusy, StoreError
from fsm_agent.support.texts import is_finite

log = logging.getLogger(__name__)
CALLER = "fsm_agent.caller"
"""The key of the caller in a request's scope."""
MOST_BODY = 16 * 1024 * 1024
"""Maximum bytes of a request's body."""
BODY_SECONDS = 20.0
"""Time limit for a body to arrive."""
ALIVE = 15.0
"""Seconds without an event after which a stream sends a keep-alive."""
Handler = Callable[[Request], Awaitable[Response]]
Errors = Callable[[ServiceError], Response]


class TooSlow(ServiceError):
    """The body did not arrive in time."""

    status, code = 408, "too_slow"


class Unavailable(ServiceError):
    """The store cannot be used now."""

    status, code = 503, "unavailable"


class Sse(NamedTuple):
    """One event of a stream: ``data`` is JSON, or a text to send unchanged."""

    data: Any
    id: str = ""
    event: str = ""

    def encode(self) -> bytes:
        """Encode the event for the stream."""
        text = self.data if isinstance(self.data, str) else to_json(self.data)
        lines = [f"id: {self.id}"] if self.id else []
        lines += [f"event: {self.event}"] if self.event else []
        lines += [f"data: {line}" for line in text.split("\n")]
        return ("\n".join(lines) + "\n\n").encode("utf-8", "replace")


def to_json(value: Any) -> str:
    """Return a value as JSON in one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def caller_of(request: Request) -> Caller:
    """Return the caller. Raises ``Unauthorized`` if the door let a request in without a key."""
    caller = request.scope.get(CALLER)
    if not isinstance(caller, Caller):
        raise Unauthorized("a key is missing")
    return caller


async def json_body(request: Request) -> dict[str, Any]:
    """Return the body, a JSON object; an empty body counts as an empty object. Raises ``BadRequest``,
    ``TooLarge``, ``TooSlow``."""
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MOST_BODY:
        raise TooLarge(f"a body has at most {MOST_BODY:,} bytes")
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise BadRequest("a body is application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MOST_BODY:
                    raise TooLarge(f"a body has at most {MOST_BODY:,} bytes")
    except TimeoutError:
        raise TooSlow(f"the body did not arrive in {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise BadRequest("the client left before its body had arrived") from None
    try:
        given = from_json(bytes(body) or b"{}", allow_inf_nan=False)  # refuses halves of surrogate pairs
    except ValueError as error:
        raise BadRequest(f"the body is not JSON in UTF-8: {error}") from None
    if not is_finite(given):
        raise BadRequest("the body is not JSON: a number is too large")
    if not isinstance(given, dict):
        raise BadRequest("the body is not a JSON object")
    return given


def last_event_id(request: Request) -> str:
    """Return the id of the last event that the client has: from its header, or ``after`` in the address."""
    return request.headers.get("last-event-id") or request.query_params.get("after", "")


Failed = Callable[[ServiceError], Sequence[Sse]]


class EventStream(Response):
    """A response that streams events until the client leaves. ``failed`` builds the event for an error after
    the stream has begun."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[Sse], failed: Failed) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events, self._failed, self._sent = events, failed, 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        beside = [asyncio.create_task(self._say_alive(send)), asyncio.create_task(_wait_until_left(receive))]
        sending = asyncio.create_task(self._send_events(send))
        try:
            await asyncio.wait({sending, beside[1]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (sending, *beside):
                one.cancel()
            await asyncio.wait({sending, *beside})
        if not sending.cancelled():
            sending.result()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, send: Send) -> None:
        try:
            async for one in self._events:
                await self._write(send, one.encode())
        except Exception as error:
            for one in self._failed(service_error(error)):
                await self._write(send, one.encode())

    async def _say_alive(self, send: Send) -> None:
        while True:
            await asyncio.sleep(ALIVE)
            if time.monotonic() - self._sent >= ALIVE:
                await self._write(send, b": alive\n\n")

    async def _write(self, send: Send, body: bytes) -> None:
        self._sent = time.monotonic()
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _wait_until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def service_error(error: Exception) -> ServiceError:
    """Convert an error to a ``ServiceError``. A bug is logged, and its text is kept from the client."""
    match error:
        case ServiceError():
            return error
        case ConfigError():
            return BadRequest(str(error))
        case SessionBusy():
            return Busy(str(error))
        case StoreError():
            log.error("the store cannot be used: %s", error)
            return Unavailable("the store cannot be used now")
        case FsmAgentError():
            return ServiceError(str(error))
    log.error("a request failed", exc_info=error)
    return ServiceError("the server failed")


def error_body(error: ServiceError) -> dict[str, Any]:
    """Return an error as the JSON of our own endpoints, which OpenAI's clients read as well."""
    return {"error": {"message": str(error), "type": error.code, "code": error.code, "param": None}}


def error_response(error: ServiceError) -> Response:
    """Answer with an error in the form of our own endpoints."""
    return JSONResponse(error_body(error), error.status)


def route(
    path: str, handle: Handler, methods: Sequence[str] = ("GET",), errors: Errors = error_response
) -> Route:
    """Return a route whose exceptions are answered by ``errors``, never with a traceback."""

    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except Exception as error:
            return errors(service_error(error))

    return Route(path, answer, methods=list(methods))
