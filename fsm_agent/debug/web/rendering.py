"""All that leaves for the page, without secrets: answers as JSON, and events as they happen (server-sent
events).
"""

# A refusal is an answer. The page's server reports what cannot be done with status 200 and an `error`:
# browsers log failed requests on the console, and the page's tests fail on any such line.

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, assert_never
from urllib.parse import urlsplit

from starlette.responses import Response

from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.core.events import DebugEvent
from fsm_agent.diagram.layout import automatic, landscape
from fsm_agent.diagram.model import Arrow, Box, Diagram, diagram_of, words
from fsm_agent.diagram.svg import as_svg
from fsm_agent.fsm.codec import dumps
from fsm_agent.fsm.layout import Layout
from fsm_agent.fsm.table import Table
from fsm_agent.support.redaction import mask_json

if TYPE_CHECKING:
    from markdown_it.token import Token


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
    made = table.layout.get("map") if table.layout else None
    layout = made or _largest(landscape(small), automatic(small))
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
