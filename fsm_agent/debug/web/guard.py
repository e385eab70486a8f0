"""Who may talk to the page: this machine, this address, this token. Everything else is refused before it is
read.

A page of another site can make the browser send requests here, and a name of its own can be made to mean
127.0.0.1 (DNS rebinding). Against both: ``Host`` must be ours, a request that changes something must say that
it comes from our own page, and nothing but the page's own files is given without the token. The page has it
from behind the ``#`` of the address, keeps it for its tab and origin, and sends it in a header. It is in no
cookie: the browser would send that to every server on 127.0.0.1, whatever its port."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-fsm-agent-token"
FILES = "/static/"
"""Of the page itself, the same for everybody."""
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
    """Middleware. ``port`` is where the page is served."""

    def __init__(self, app: ASGIApp, port: int, token: str) -> None:
        self._app, self._token = app, token
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._origins = {f"http://{host}" for host in self._hosts}

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
        if scope["path"] == "/":
            return None
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return PlainTextResponse("Other sites may not read this.\n", 403)
        if scope["path"].startswith(FILES):
            return None
        if not secrets.compare_digest(headers.get(HEADER, "").encode(), self._token.encode()):
            return PlainTextResponse(
                "The token is missing or wrong; use the whole address that was printed.\n", 403
            )
        return None if scope["method"] in ("GET", "HEAD") else self._refused_change(headers)

    def _refused_change(self, headers: Headers) -> Response | None:
        """``Origin`` names the page that sends; a program without a page sends none."""
        if headers.get("origin") not in (None, *self._origins):
            return PlainTextResponse("Only the debugger's own page may do this.\n", 403)
        if not headers.get("content-type", "").startswith("application/json"):
            return PlainTextResponse("Only JSON is read here.\n", 415)
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > LARGEST:
            return PlainTextResponse("This is too long.\n", 413)
        return None


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
