"""What the pages of this package have in common: their files, who may talk to them, and how they answer."""

# A refusal is an answer. The page's server reports what cannot be done with status 200 and an `error`:
# browsers log failed requests on the console, and the page's tests fail on any such line.

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any, assert_never
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fsm_agent.debug.core.breakpoints import MalformedArgument
from fsm_agent.debug.core.commands import DebugEvent
from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.diagram.layout import automatic, landscape
from fsm_agent.diagram.model import Arrow, Box, Diagram, diagram_of, words
from fsm_agent.diagram.svg import as_svg
from fsm_agent.errors import FsmAgentError
from fsm_agent.fsm.codec import dumps
from fsm_agent.fsm.layout import Layout
from fsm_agent.fsm.table import Table
from fsm_agent.support.local_server import (
    SAFE_HEADERS,
    is_of_other_origin,
    is_of_other_site,
    is_same,
    own_hosts,
    own_origins,
    with_headers,
)
from fsm_agent.support.redaction import environment_keys, mask_json

if TYPE_CHECKING:
    from markdown_it.token import Token

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
    return gather(files("fsm_agent.debug.web") / "static")


def gather(folder: Traversable) -> dict[str, Asset]:
    """Read the files of a page, by their paths below its folder."""
    found: dict[str, Asset] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found |= {f"{entry.name}/{path}": asset for path, asset in gather(entry).items()}
            continue
        ending = "." + entry.name.rpartition(".")[2]
        if ending in TYPES:
            body = entry.read_bytes()
            tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            found[entry.name] = Asset(body, TYPES[ending], tag)
    return found


# ----------------------------------------------------------------------------------------------------
# Who may talk to the page: this machine, this address, this token. Everything else is refused before it is
# read.
#
# ``support/local_server.py`` says against what. ``Host`` must be ours, a request that changes something must
# say that it comes from our own page, and nothing but the page's own files is given without the token. The
# page has it from behind the ``#`` of the address, keeps it for its tab and origin, and sends it in a header.
# It is in no cookie: the browser would send that to every server on 127.0.0.1, whatever its port.


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
                return answer({"error": "this is not a JSON object"}, status=400)
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


# ----------------------------------------------------------------------------------------------------
# All that leaves for the page, without secrets: answers as JSON, and events as they happen (server-sent
# events).

ALIVE = 1.0
"""Seconds after which a stream without news looks whether the turn came to life elsewhere, and says that it
is still there."""


def answer(value: Any, secrets: Sequence[str] = (), status: int = 200) -> Response:
    """Return a JSON response, masked, that is kept nowhere."""
    return Response(
        dumps(mask_json(value, secrets)), status, {"cache-control": "no-store"}, "application/json"
    )


async def events(opened: Callable[[], Debugger], secrets: Sequence[str]) -> AsyncIterator[str]:
    """Yield the events of a turn until the client disconnects. ``opened`` returns its debugger, a new one
    if the turn has been resumed since."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[DebugEvent] = asyncio.Queue()

    def hear(event: DebugEvent) -> None:
        if event.kind != "exchanged":
            # Each move causes several of these events; the page shows the values when the engine pauses.
            loop.call_soon_threadsafe(waiting.put_nowait, event)

    debugger = await asyncio.to_thread(opened)
    stop = debugger.listen(hear)
    try:
        yield _hello(debugger, secrets)
        while True:
            try:
                event = await asyncio.wait_for(waiting.get(), ALIVE)
            except TimeoutError:
                newest = await asyncio.to_thread(opened)
                if newest is debugger:
                    yield ": still here\n\n"
                    continue
                stop()
                debugger, stop = newest, newest.listen(hear)
                yield _hello(debugger, secrets)
                continue
            match event.kind:
                case "moved" | "log" | "exchanged":
                    yield _line(event.kind, event.data, secrets)
                case "paused" | "running" | "waiting" | "ended" | "left":
                    yield _line(event.kind, {**event.data, "status": debugger.status.to_dict()}, secrets)
                case _:
                    assert_never(event.kind)
    finally:
        stop()


def _hello(debugger: Debugger, secrets: Sequence[str]) -> str:
    return _line("hello", {"status": debugger.status.to_dict(), "count": debugger.record.count}, secrets)


def _line(kind: str, data: Mapping[str, Any], secrets: Sequence[str]) -> str:
    body = {"kind": kind, "data": mask_json(data, secrets), "sent": time.time()}
    return f"data: {dumps(body)}\n\n"


# ----------------------------------------------------------------------------------------------------
# The map of a page: every state as a small box, one arrow for all rows from one state to another, also to
# the end.
#
# The whole table has more text than a page has room for beside everything else, so a box says only what the
# turn did there; the table itself is one click away. Elements have the ids of ``fsm_agent.diagram.svg``.


QUIET = "quiet"
ROOM = (870, 410)
"""Of the map on a page of 1,280 by 800."""
NO_VISIT = "999 visits · 9.9 ms"
"""As wide as what a page writes there."""


def map_of(table: Table) -> str:
    """The SVG of the map, without styles: those are the page's."""
    whole = diagram_of(table)
    boxes = tuple(Box(box.state, (), NO_VISIT, box.final) for box in whole.boxes)
    arrows = tuple(_arrow(table, source, dest) for source, dest in _pairs(table))
    small = Diagram(table, boxes, arrows)
    drawn = table.layout.get("map") if table.layout else None
    layout = drawn or _largest(landscape(small), automatic(small))
    svg = _crop(bare(as_svg(small, layout)), layout)
    for arrow in arrows:
        if all(table.row(row).event in table.is_macro for row in arrow.rows):
            svg = svg.replace(
                f'id="arrow-{arrow.source}-{arrow.dest}" class="',
                f'id="arrow-{arrow.source}-{arrow.dest}" class="{QUIET} ',
            )
    return svg


def _largest(*layouts: Layout) -> Layout:
    """The one whose text is larger in the room that the page has."""
    return max(layouts, key=lambda one: min(ROOM[0] / one["size"][0], ROOM[1] / one["size"][1]))


def _crop(svg: str, layout: Layout) -> str:
    """To what the layout takes: the panels that are left out had made it larger."""
    return re.sub(
        r'viewBox="[^"]*"', f'viewBox="0 0 {layout["size"][0]:g} {layout["size"][1]:g}"', svg, count=1
    )


def bare(svg: str) -> str:
    """Remove the style sheet, panels, and page color: the page has its own, and its policy forbids styles
    in a document."""
    svg = re.sub(r"<style>.*?</style>\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g class="panel">.*?</g>\n?', "", svg, flags=re.DOTALL)
    return re.sub(r'<rect class="page"[^>]*/>\n?', "", svg)


def _pairs(table: Table) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row.source, row.dest) for row in table.rows))


def _arrow(table: Table, source: str, dest: str) -> Arrow:
    rows = [row for row in table.rows if (row.source, row.dest) == (source, dest)]
    chosen = [row for row in rows if row.event not in table.is_macro]
    out = dest == table.final
    return Arrow(
        source,
        dest,
        (_label(table, [row.id for row in chosen or rows]),),
        tuple(row.id for row in rows),
        way_out=out,
    )


def _label(table: Table, rows: list[str]) -> str:
    """The first remedy that takes the arrow, or its event, and how many more there are; of exits, how many
    reasons they have, as on the map of a README."""
    taken = [table.row(row) for row in rows]
    reasons = list(dict.fromkeys(row.exit for row in taken if row.exit))
    if reasons:
        return words(reasons[0]) if len(reasons) == 1 else f"{len(reasons)} exits"
    named = (words(row.event) if row.rung.startswith("→") else row.rung for row in taken)
    first, *others = dict.fromkeys(named)
    return f"{first} +{len(others)}" if others else first


# ----------------------------------------------------------------------------------------------------
# Markdown as a tree of plain values that a page may show: what a model wrote is hostile, so nothing of it
# becomes markup. HTML in it stays text, and pictures are shown as their address.


Node = dict[str, Any]
"""``tag`` with ``parts``, or ``text``; a link has ``href``."""
LONGEST = 100_000
"""Characters that are read; a longer text is shown as it is."""
TAGS = frozenset({
    "p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "em", "strong", "s", "table",
    "thead", "tbody", "tr", "th", "td", "a",
})  # fmt: skip
ADDRESSES = ("http", "https")
DEEPEST = 100
"""Levels of lists and quotes; what is deeper is flat."""


def tree(text: str) -> list[Node] | None:
    """Return the blocks of a text, ``None`` for one that is too long."""
    if len(text) > LONGEST:
        return None
    from rich.markdown import Markdown

    return _nest_tokens(Markdown(text).parsed)


def _nest_tokens(tokens: Iterable[Token]) -> list[Node]:
    top: list[Node] = []
    open_parts = [top]
    for token in tokens:
        if token.nesting > 0:
            if len(open_parts) > DEEPEST or token.tag not in TAGS:
                open_parts.append(open_parts[-1])
                continue
            node: Node = {"tag": token.tag, "parts": []}
            if token.tag == "a":
                node["href"] = _address(str(token.attrs.get("href", "")))
            open_parts[-1].append(node)
            open_parts.append(node["parts"])
        elif token.nesting < 0:
            open_parts.pop()
        else:
            open_parts[-1] += _leaf(token)
    return top


def _leaf(token: Token) -> list[Node]:
    match token.type:
        case "inline":
            return _nest_tokens(token.children or ())
        case "fence" | "code_block":
            return [{"tag": "pre", "parts": [{"text": token.content}]}]
        case "code_inline":
            return [{"tag": "code", "parts": [{"text": token.content}]}]
        case "softbreak" | "hardbreak":
            return [{"tag": "br", "parts": []}]
        case "hr":
            return [{"tag": "hr", "parts": []}]
        case "image":
            return [{"text": f"[{token.content}] {token.attrs.get('src', '')}"}]
    return [{"text": token.content}] if token.content else []


def _address(href: str) -> str:
    """The address of a link, empty for one that a page may not follow."""
    try:
        return href if urlsplit(href).scheme in ADDRESSES else ""
    except ValueError:
        return ""
