"""The map of a page: every state as a small box, one arrow for all rows from one state to another, also to the end.

The whole table has more text than a page has room for beside everything else, so a box says only what the turn did there; the
table itself is one click away. Elements have the ids of ``fsm_agent.diagram.svg``.
"""

from __future__ import annotations

import re

from fsm_agent.debug.web.landscape import landscape
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
LAYOUT: Layout = {
    "size": (940, 452),
    "boxes": {
        "Prepare": (40, 40, 158),
        "BuildMessages": (262, 40, 420),
        "Compress": (40, 146, 172),
        "ClassifyError": (40, 262, 260),
        "CallLLM": (412, 238, 176),
        "ExecuteTools": (716, 142, 176),
        "EmptyRecovery": (716, 300, 176),
        "Finalize": (412, 376, 176),
    },
    "arrows": {
        ("Prepare", "BuildMessages"): {"start": ("right", 69), "end": ("left", 69)},
        ("BuildMessages", "BuildMessages"): {"start": ("top", 520), "end": ("top", 580), "reach": 24, "label": (622, 18)},
        ("BuildMessages", "Compress"): {"start": ("bottom", 308), "via": [(308, 164)], "end": ("right", 164), "label": (250, 164)},
        ("Compress", "BuildMessages"): {"start": ("right", 190), "via": [(336, 190)], "end": ("bottom", 336), "label": (268, 206)},
        ("BuildMessages", "ClassifyError"): {"start": ("bottom", 280), "end": ("top", 280), "label": (280, 236)},
        ("ClassifyError", "BuildMessages"): {"start": ("right", 280), "via": [(376, 280)], "end": ("bottom", 376), "label": (376, 236)},
        ("ClassifyError", "Compress"): {"start": ("top", 110), "end": ("bottom", 110), "label": (110, 234)},
        ("CallLLM", "ClassifyError"): {"start": ("left", 292), "end": ("right", 304), "label": (356, 303)},
        ("BuildMessages", "CallLLM"): {"start": ("bottom", 530), "end": ("top", 530), "label": (530, 190)},
        ("CallLLM", "BuildMessages"): {"start": ("top", 446), "end": ("bottom", 446), "label": (446, 150)},
        ("CallLLM", "ExecuteTools"): {"start": ("right", 254), "via": [(760, 254)], "end": ("bottom", 760), "label": (760, 228)},
        ("ExecuteTools", "BuildMessages"): {"start": ("top", 760), "via": [(760, 80)], "end": ("right", 80), "label": (722, 80)},
        ("ExecuteTools", "ExecuteTools"): {"start": ("top", 820), "end": ("top", 870), "reach": 30, "label": (845, 108)},
        ("CallLLM", "EmptyRecovery"): {"start": ("right", 284), "end": ("left", 316), "label": (672, 302)},
        ("EmptyRecovery", "BuildMessages"): {
            "start": ("right", 330), "via": [(918, 330), (918, 56)], "end": ("right", 56), "label": (820, 56),
        },
        ("CallLLM", "Finalize"): {"start": ("bottom", 500), "end": ("top", 500), "label": (500, 336)},
        ("ClassifyError", "Finalize"): {"start": ("bottom", 156), "via": [(156, 398)], "end": ("left", 398), "label": (250, 398)},
        ("Compress", "Finalize"): {"start": ("left", 176), "via": [(24, 176), (24, 412)], "end": ("left", 412), "label": (340, 412)},
        ("Prepare", "Finalize"): {"start": ("left", 69), "via": [(10, 69), (10, 426)], "end": ("left", 426), "label": (120, 426)},
        ("BuildMessages", "Finalize"): {"start": ("bottom", 616), "via": [(616, 392)], "end": ("right", 392), "label": (616, 150)},
        ("ExecuteTools", "Finalize"): {"start": ("left", 172), "via": [(648, 172), (648, 408)], "end": ("right", 408), "label": (660, 350)},
        ("EmptyRecovery", "Finalize"): {"start": ("bottom", 804), "via": [(804, 424)], "end": ("right", 424), "label": (804, 396)},
    },
    "how_to_read": (0, 0, 0),
    "proved": (0, 0, 0),
}  # fmt: skip
"""Where the boxes of our turn stand; a table of the user's own is laid out automatically."""


def map_of(table: Table) -> str:
    """The SVG of the map, without styles: those are the page's."""
    whole = diagram_of(table)
    boxes = tuple(Box(box.state, (), NO_VISIT, box.final) for box in whole.boxes)
    arrows = tuple(_arrow(table, source, dest) for source, dest in _pairs(table))
    small = Diagram(table, boxes, arrows)
    layout = LAYOUT if set(LAYOUT["boxes"]) == set(table.states) else _largest(landscape(small), automatic(small))
    svg = _cropped(bare(as_svg(small, layout)), layout)
    for arrow in arrows:
        if all(table.row(row).event in table.is_macro for row in arrow.rows):
            svg = svg.replace(
                f'id="arrow-{arrow.source}-{arrow.dest}" class="', f'id="arrow-{arrow.source}-{arrow.dest}" class="{QUIET} '
            )
    return svg


def _largest(*layouts: Layout) -> Layout:
    """The one whose text is larger in the room that the page has."""
    return max(layouts, key=lambda one: min(ROOM[0] / one["size"][0], ROOM[1] / one["size"][1]))


def _cropped(svg: str, layout: Layout) -> str:
    """To what the layout takes: the panels that are left out had made it larger."""
    return re.sub(r'viewBox="[^"]*"', f'viewBox="0 0 {layout["size"][0]:g} {layout["size"][1]:g}"', svg, count=1)


def bare(svg: str) -> str:
    """Without style sheet, panels and page colour: a page brings its own, and its policy forbids styles in a document."""
    svg = re.sub(r"<style>.*?</style>\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g class="panel">.*?</g>\n?', "", svg, flags=re.DOTALL)
    return re.sub(r'<rect class="page"[^>]*/>\n?', "", svg)


def _pairs(table: Table) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row.source, row.dest) for row in table.rows))


def _arrow(table: Table, source: str, dest: str) -> Arrow:
    rows = [row for row in table.rows if (row.source, row.dest) == (source, dest)]
    chosen = [row for row in rows if row.event not in table.is_macro]
    out = dest == table.final
    return Arrow(source, dest, (_label(table, [row.id for row in chosen or rows]),), tuple(row.id for row in rows), way_out=out)


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
