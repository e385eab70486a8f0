"""What the pages of this package have in common: their files, who may talk to them, and how they answer."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fsm_agent.debug.core.breakpoints import MalformedArgument
from fsm_agent.debug.web.rendering import answer, bare, map_of
from fsm_agent.errors import FsmAgentError
from fsm_agent.fsm.table import Table
from fsm_agent.support.redaction import environment_keys
from fsm_agent.support.web_guard import (
    SAFE_HEADERS,
    is_of_other_origin,
    is_of_other_site,
    is_same,
    own_hosts,
    own_origins,
    with_headers,
)

# ----------------------------------------------------------------------------------------------------
# The files of the page, read once: nothing else can be asked for, whatever a path says.


TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page: its content, media type, and a tag that changes with it."""

    body: bytes
    type: str
    tag: str


@cache
def assets() -> dict[str, Asset]:
    """By their path below ``static``, with slashes."""
    found: dict[str, Asset] = {}
    _gather(files("fsm_agent.debug.web") / "static", "", found)
    return found


def _gather(folder: Traversable, above: str, found: dict[str, Asset]) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            _gather(entry, f"{above}{entry.name}/", found)
            continue
        ending = "." + entry.name.rpartition(".")[2]
        if ending in TYPES:
            body = entry.read_bytes()
            found[above + entry.name] = Asset(
                body, TYPES[ending], f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            )


# ----------------------------------------------------------------------------------------------------
# Who may talk to the page: this machine, this address, this token. Everything else is refused before it is
# read.
#
# ``support/web_guard.py`` says against what. ``Host`` must be ours, a request that changes something must say
# that it comes from our own page, and nothing but the page's own files is given without the token. The page
# has it from behind the ``#`` of the address, keeps it for its tab and origin, and sends it in a header. It
# is in no cookie: the browser would send that to every server on 127.0.0.1, whatever its port.


HEADER = "x-fsm-agent-token"
FILES = "/static/"
"""Of the page itself, the same for everybody."""
LARGEST = 256 * 1024 * 1024
"""Bytes of a request's body; an imported run may be long."""
POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'",
    "img-src 'self' data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
))  # fmt: skip
HEADERS: Mapping[str, str] = {"content-security-policy": POLICY, **SAFE_HEADERS}


class AccessGuard:
    """Middleware. ``port`` is where the page is served."""

    def __init__(self, app: ASGIApp, port: int, token: str) -> None:
        self._app, self._token = app, token
        self._hosts, self._origins = own_hosts(port), own_origins(port)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        refused = self._refuse_request(scope)
        if refused is not None:
            await refused(scope, receive, with_headers(send, HEADERS))
        else:
            await self._app(scope, receive, with_headers(send, HEADERS))

    def _refuse_request(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if headers.get("host", "") not in self._hosts:
            return PlainTextResponse("This address is not served here.\n", 421)
        if scope["path"] == "/":
            return None
        if is_of_other_site(headers):
            return PlainTextResponse("Other sites may not read this.\n", 403)
        if scope["path"].startswith(FILES):
            return None
        if not is_same(headers.get(HEADER, ""), self._token):
            return PlainTextResponse(
                "The token is missing or wrong; use the whole address that was printed.\n", 403
            )
        return None if scope["method"] in ("GET", "HEAD") else self._refuse_change(headers)

    def _refuse_change(self, headers: Headers) -> Response | None:
        """``Origin`` names the page that sends; a program without a page sends none."""
        if is_of_other_origin(headers, self._origins):
            return PlainTextResponse("Only the debugger's own page may do this.\n", 403)
        if not headers.get("content-type", "").startswith("application/json"):
            return PlainTextResponse("Only JSON is read here.\n", 415)
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > LARGEST:
            return PlainTextResponse("This is too long.\n", 413)
        return None


Body = Mapping[str, Any]


class Page:
    """A page: its ``document`` and the others below it. ``secrets`` never leave, nor do keys of the
    environment."""

    document = "index.html"

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        self._secrets = (*secrets, *environment_keys(os.environ))

    def routes(self) -> list[Route]:
        """Return what is answered at which address."""
        return [
            Route("/", self.index, methods=["GET"]),
            Route("/static/{path:path}", self.asset, methods=["GET"]),
        ]

    def app(self, port: int, token: str) -> Starlette:
        """The application that answers at this port those who have the token."""
        return Starlette(routes=self.routes(), middleware=[Middleware(AccessGuard, port=port, token=token)])

    async def index(self, request: Request) -> Response:
        """Answer with the page itself."""
        return Response(
            assets()[self.document].body, media_type="text/html", headers={"cache-control": "no-store"}
        )

    async def asset(self, request: Request) -> Response:
        """Answer with a file of the page, or that it did not change."""
        found = assets().get(request.path_params["path"])
        if found is None:
            return Response("No such file.\n", 404, media_type="text/plain")
        headers = {"etag": found.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == found.tag:
            return Response(None, 304, headers)
        return Response(found.body, 200, {**headers, "content-type": found.type})

    def reading(self, work: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a request that only reads."""

        async def handle(request: Request) -> Response:
            return await self._respond(lambda: work(request))

        return handle

    def changing(self, work: Callable[[Request, Body], Any]) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a request that changes something, which JSON describes."""

        async def handle(request: Request) -> Response:
            try:
                body = json.loads(await request.body() or b"{}")
            except (ValueError, RecursionError):
                return answer({"error": "this is not JSON"}, status=400)
            if not isinstance(body, dict):
                return answer({"error": "this is no JSON object"}, status=400)
            return await self._respond(lambda: work(request, body))

        return handle

    async def _respond(self, work: Callable[[], Any]) -> Response:
        try:
            return answer(await run_in_threadpool(work), self._secrets)
        except MalformedArgument as error:
            return answer({"error": str(error)}, self._secrets, 400)
        except FsmAgentError as error:  # an answer to the person, not a failure of the request
            return answer({"error": str(error)}, self._secrets)


@lru_cache(maxsize=8)
def pictures_of(table: Table) -> dict[str, str]:
    """The map and the whole table; drawn once."""
    from fsm_agent.diagram import written
    from fsm_agent.diagram.model import diagram_of

    whole = diagram_of(table, table.layout.get("ways_out") if table.layout else None)
    whole = replace(whole, nested=())
    return {"map": map_of(table), "table": bare(written(whole, "svg", table.layout))}
