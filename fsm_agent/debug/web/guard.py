"""Who may talk to the page: this machine, this address, this token. Everything else is refused before it is
read.

A page of another site can make the browser send requests here, and a name of its own can be made to mean
127.0.0.1 (DNS rebinding). Against both: ``Host`` must be ours, a request that changes something must say that
it comes from our own page, and nothing is given without the token, which is in the address once and then in a
cookie that other sites' requests do not carry."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from http.cookies import SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "token"  # noqa: S105 - the name of a parameter
HEADER = "x-fsm-agent-token"
LARGEST = 256 * 1024 * 1024
"""Bytes of a request's body; an imported run may be long."""
POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'",
    "img-src 'self' data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
))  # fmt: skip
SAFE_HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class AccessGuard:
    """Middleware. ``port`` is where the page is served; the token is made here unless given."""

    def __init__(self, app: ASGIApp, port: int, token: str) -> None:
        self._app, self._token = app, token
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._origins = {f"http://{host}" for host in self._hosts}
        self.cookie = f"fsm_agent_debug_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        refused = self._refused(scope)
        if refused is not None:
            await refused(scope, receive, _with_headers(send))
        else:
            await self._app(scope, receive, _with_headers(send))

    def _refused(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if headers.get("host", "") not in self._hosts:
            return PlainTextResponse("This address is not served here.\n", 421)
        given = headers.get(HEADER, "")
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        if scope["path"] == "/" and scope["method"] == "GET" and TOKEN in query:
            return self._let_in(query)
        if not self._known(given) and not self._known(self._cookie(headers)):
            return PlainTextResponse(
                "The token is missing or wrong; use the whole address that was printed.\n", 403
            )
        if scope["method"] not in ("GET", "HEAD"):
            return self._refused_change(headers, by_header=bool(given))
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return PlainTextResponse("Other sites may not read this.\n", 403)
        return None

    def _refused_change(self, headers: Headers, *, by_header: bool) -> Response | None:
        """``Origin`` names the page that sends; a program without a page says the token in a header
        instead."""
        origin = headers.get("origin")
        if origin not in self._origins and not (origin is None and by_header):
            return PlainTextResponse("Only the debugger's own page may do this.\n", 403)
        if not headers.get("content-type", "").startswith("application/json"):
            return PlainTextResponse("Only JSON is read here.\n", 415)
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > LARGEST:
            return PlainTextResponse("This is too long.\n", 413)
        return None

    def _let_in(self, query: dict[str, str]) -> Response:
        """The token goes from the address into a cookie, so that it is in no history and no screenshot."""
        if not self._known(query.pop(TOKEN)):
            return PlainTextResponse("The token is wrong; use the whole address that was printed.\n", 403)
        response = RedirectResponse("/" + (f"?{urlencode(query)}" if query else ""), 303)
        response.set_cookie(self.cookie, self._token, httponly=True, samesite="strict")
        return response

    def _cookie(self, headers: Headers) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except Exception:  # a cookie that is none
            return ""
        return found.value if found else ""

    def _known(self, given: str) -> bool:
        return bool(given) and secrets.compare_digest(given.encode(), self._token.encode())


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            known = {name.lower() for name, _ in message["headers"]}
            extra = [
                (name.encode(), value.encode())
                for name, value in SAFE_HEADERS.items()
                if name.encode() not in known
            ]
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return sending
