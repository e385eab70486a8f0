"""Access control and rate limits: every request passes here before any of it is read.

A foreign page is refused by its origin, a name that only pretends to be this machine by its host, and any
other request by a missing or wrong key. Rates and connections are counted by key, and wrong keys by address.
(What a browser can be made to send: ``fsm_agent.support.local_server``.)"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fsm_agent.dispatch.service import Caller, Forbidden, ServiceError, TooMany, Unauthorized
from fsm_agent.serve.keys import KeyRing
from fsm_agent.serve.web import CALLER, error_response, service_error
from fsm_agent.support.local_server import SAFE_HEADERS, is_of_other_origin, is_of_other_site, with_headers

log = logging.getLogger("fsm_agent.audit")
HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    **SAFE_HEADERS,
}
MOST_KNOWN = 10_000
"""Maximum keys and addresses whose rate is remembered."""


class Misdirected(ServiceError):
    """The request is for another host."""

    status, code = 421, "misdirected"


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """``rate``: requests per second of one key, of which ``burst`` may come at once; ``streams``: its open
    requests. ``wrong``: wrong keys per minute from one address."""

    rate: float = 100.0
    burst: int = 500
    streams: int = 512
    wrong: int = 30


class Buckets:
    """Token buckets by name: ``burst`` at once, and ``rate`` more per second."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str, amount: float = 1.0) -> bool:
        """Take one if available, and return whether it was; with an amount of 0, only check."""
        now = time.monotonic()
        left, at = self._left.get(name, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        allowed = left >= 1.0
        self._left[name] = (left - amount if allowed else left), now
        self._left.move_to_end(name)
        if len(self._left) > MOST_KNOWN:
            self._left.popitem(last=False)
        return allowed


class Guard:
    """Middleware. ``hosts``: allowed values of ``Host``, ``None`` for any. ``cors``: origins of other sites
    whose pages may send requests. ``public``: path prefixes that need no key."""

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing,
        *,
        hosts: Collection[str] | None = None,
        cors: Collection[str] = (),
        public: Sequence[str] = (),
        limits: GuardLimits = GuardLimits(),
    ) -> None:
        self._app, self._keys, self._hosts, self._cors = app, keys, hosts, frozenset(cors)
        self._public, self._limits = tuple(public), limits
        self._rates = Buckets(limits.rate, limits.burst)
        self._wrong = Buckets(limits.wrong / 60, limits.wrong)
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await self._answer(scope, receive, with_headers(send, self._headers(Headers(scope=scope))))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answered = self._admit(scope)
        except ServiceError as error:
            answered = _refusal(error)
        if answered is not None:
            await answered(scope, receive, send)
            return
        caller: Caller | None = scope.get(CALLER)
        key = "" if caller is None else caller.id
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        self._open[key] += 1
        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            failed = service_error(error)  # logged there
            if not begun:
                await error_response(failed)(scope, receive, send)
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    def _admit(self, scope: Scope) -> Response | None:
        """Admit a request and record its caller, or return the response. Raises ``ServiceError``."""
        headers = Headers(scope=scope)
        if self._hosts is not None and headers.get("host", "") not in self._hosts:
            raise Misdirected("this address is not served here")
        public = any(scope["path"] == one or scope["path"].startswith(f"{one}/") for one in self._public)
        if public and scope["method"] in ("GET", "HEAD"):
            return None
        own = {f"{scope['scheme']}://{headers.get('host', '')}"}
        if is_of_other_origin(headers, own | self._cors):
            raise Forbidden("pages of this origin may not ask here")
        if "origin" not in headers and is_of_other_site(headers):
            raise Forbidden("pages of other sites may not ask here")
        if scope["method"] == "OPTIONS" and headers.get("origin") in self._cors:
            return Response(status_code=204, headers=_PREFLIGHT)
        caller = scope[CALLER] = self._caller(scope, headers)
        if not self._rates.take(caller.id):
            raise TooMany("too many requests; try again in a second")
        if self._open[caller.id] >= self._limits.streams:
            raise TooMany(f"this key has {self._limits.streams} requests open")
        return None

    def _caller(self, scope: Scope, headers: Headers) -> Caller:
        address = str((scope.get("client") or ("",))[0])
        if not self._wrong.take(address, 0.0):
            raise TooMany("too many wrong keys from this address; try again in a minute")
        given = _key_in(headers)
        if not given:
            raise Unauthorized("a key is missing: send it as Authorization: Bearer KEY")
        if (caller := self._keys.caller(given)) is None:
            self._wrong.take(address)
            log.warning('{"do": "refuse", "why": "wrong key", "address": "%s"}', address)
            raise Unauthorized("the key is wrong")
        return caller

    def _headers(self, headers: Headers) -> dict[str, str]:
        origin = headers.get("origin")
        if origin not in self._cors:
            return HEADERS
        allowed = {
            "access-control-allow-origin": origin, "vary": "origin",
            "cross-origin-resource-policy": "cross-origin",
        }  # fmt: skip
        return {**HEADERS, **allowed}


_PREFLIGHT = {
    "access-control-allow-methods": "GET, POST, DELETE",
    "access-control-allow-headers": "authorization, content-type, last-event-id, x-api-key",
    "access-control-max-age": "600",
}


def _key_in(headers: Headers) -> str:
    kind, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")


def _refusal(error: ServiceError) -> Response:
    answered = error_response(error)
    if error.status == 401:
        answered.headers["www-authenticate"] = "Bearer"
    if error.status == 429:
        answered.headers["retry-after"] = "1"
    return answered
