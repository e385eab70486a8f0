"""The map of a page: every state as a small box, one arrow for all rows from one state to another, also to
the end.

The whole table has more text than a page has room for beside everything else, so a box says only what the
turn did there; the table itself is one click away. Elements have the ids of ``fsm_agent.diagram.svg``."""

from __future__ import annotations

import re

from fsm_agent.diagram.landscape import landscape
from fsm_agent.diagram.layers import automatic
from fsm_agent.diagram.model import Arrow, Box, Diagram, diagram_of
from fsm_agent.diagram.svg import as_svg
from fsm_agent.fsm.layout import Layout
from fsm_agent.fsm.table import Table

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
    svg = _cropped(bare(as_svg(small, layout)), layout)
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


def _cropped(svg: str, layout: Layout) -> str:
    """To what the layout takes: the panels that are left out had made it larger."""
    return re.sub(
        r'viewBox="[^"]*"', f'viewBox="0 0 {layout["size"][0]:g} {layout["size"][1]:g}"', svg, count=1
    )


def bare(svg: str) -> str:
    """Without style sheet, panels and page colour: a page brings its own, and its policy forbids styles in a
    document."""
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
    """The first remedy that takes the arrow, or its event, and how many more there are."""
    names: list[str] = []
    for row in map(table.row, rows):
        if row.exit is not None:
            name = row.event.replace("_", " ")
        else:
            name = row.event.replace("_", " ") if row.rung.startswith("→") else row.rung
        if name not in names:
            names.append(name)
    if len(names) > 1 and table.row(rows[0]).exit is not None:
        return f"{len(names)} exits"
    return names[0] if len(names) == 1 else f"{names[0]} +{len(names) - 1}"
