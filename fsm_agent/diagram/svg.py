"""The picture for reviewers and for the debugger: each box is the state's part of the table.

Elements are addressed without drawing again: ``id="state-CallLLM"``, ``id="arrow-CallLLM-BuildMessages"``
with ``data-rows``, each event line ``data-event`` and ``data-rows``, each rung ``data-rows`` (row ids,
separated by spaces). A mark of the model is a class of the same name. A nested table stands below in a frame,
with ids that begin with its name: ``id="review.state-Draft"``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from xml.sax.saxutils import escape, quoteattr

from fsm_agent.diagram.geometry import Rect, number
from fsm_agent.diagram.layers import automatic
from fsm_agent.diagram.model import Diagram, StateEntry
from fsm_agent.diagram.scene import (
    HEAD,
    PAD,
    STEP,
    TEXT,
    TITLE,
    Panel,
    Part,
    PlacedArrow,
    PlacedBox,
    scene_of,
    thickness,
)
from fsm_agent.diagram.theme import style_sheet, tone_names
from fsm_agent.fsm.layout import Layout

ROUND = 7.0
READABLE = 11.0
"""Least size in pixels of the text of a picture that is scaled down to a column."""


def as_svg(diagram: Diagram, layout: Layout | None = None, proof_lines: Sequence[str] = ()) -> str:
    """The SVG of a diagram. ``proof_lines`` fill the panel "Proved for every setting"; none, no panel."""
    size, lines = _drawn(diagram, layout, proof_lines)
    column = layout.get("column", size[0]) if layout else size[0]
    shown = min(size[0], max(column, ceil(size[0] * READABLE / TEXT)))
    return "\n".join([*_opening(diagram, size, shown), *lines, "</svg>"]) + "\n"


def without_style(svg: str) -> str:
    """An SVG for a page that has its own styles and may hold several pictures: without style sheet and page
    colour, and with ``data-id`` in place of ids."""
    svg = re.sub(r"<style>.*?</style>\n?", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'<rect class="page"[^>]*/>\n?', "", svg, count=1)
    return svg.replace('<g id="', '<g data-id="')


def _drawn(
    diagram: Diagram, layout: Layout | None, proof_lines: Sequence[str] = (), prefix: str = ""
) -> tuple[tuple[float, float], list[str]]:
    """What stands in a picture, and its size."""
    scene = scene_of(diagram, layout or automatic(diagram), proof_lines)
    tones = tone_names([*diagram.table.states, *diagram.states], diagram.table.final)
    drawn = {row for arrow in diagram.arrows if arrow.way_out for row in arrow.rows}
    lines = [
        *(line for arrow in scene.arrows for line in _arrow(arrow, tones, diagram)),
        *(line for box in scene.boxes for line in _box(box, tones, drawn, diagram)),
        *(line for panel in scene.panels for line in _panel(panel)),
    ]
    lines = [line.replace('<g id="', f'<g id="{prefix}') for line in lines]
    width, height = scene.size
    for one in diagram.nested:
        layout = None if one.caption else one.table.layout  # what turns did needs more room
        size, inside = _drawn(one, layout, prefix=f"{one.table.name}.")
        frame = Rect(PAD, PAD, size[0] + 2 * PAD, size[1] + HEAD + PAD)
        name, place = quoteattr(one.table.name), f"translate(0,{number(height)})"
        lines.append(f'<g class="nested" data-table={name} transform="{place}">')
        lines.append(f'<rect class="line" {_place(frame)} rx="{number(ROUND)}" stroke="#8894a8"/>')
        lines.append(_text("name", frame.x + PAD, frame.y + HEAD - 9, escape(one.table.name)))
        lines += [
            f'<g transform="translate({number(2 * PAD)},{number(PAD + HEAD)})">',
            *inside,
            "</g>",
            "</g>",
        ]
        width, height = max(width, frame.right + PAD), height + frame.bottom + PAD
    return (width, height), lines


def _opening(diagram: Diagram, size: tuple[float, float], shown: float) -> Iterator[str]:
    width, height = map(number, size)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fsm" width="{number(shown)}"'
        f' height="{number(size[1] * shown / size[0])}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label={quoteattr(diagram.table.name)}>'
    )
    yield f"<style>\n{style_sheet(marked=bool(diagram.legend), judged=diagram.judged)}</style>"
    yield f'<rect class="page" width="{width}" height="{height}"/>'


def _box(placed: PlacedBox, tones: Mapping[str, str], drawn: set[str], diagram: Diagram) -> Iterator[str]:
    box, rect = placed.box, placed.rect
    name = quoteattr(box.state)
    yield (
        f'<g id={quoteattr(f"state-{box.state}")} class="{_classes("state", tones[box.state], box.mark)}"'
        f" data-state={name}>"
    )
    yield f'<rect class="box" {_place(rect)} rx="{number(ROUND)}"/>'
    yield f'<path class="strip" d="{_strip(rect, bool(placed.baselines))}"/>'
    yield _text("name", rect.x + PAD, rect.y + HEAD - 9, escape(box.state))
    if box.badge:
        yield _text("badge", rect.right - PAD, rect.y + HEAD - 10, escape(box.badge))
    baselines = list(placed.baselines)
    if box.intro:
        yield _text("intro", rect.x + PAD, baselines.pop(0), escape(box.intro))
    for entry, lines, y in zip(box.entries, placed.lists, baselines, strict=True):
        marked = f' class="{entry.mark}"' if entry.mark else ""
        yield f"<g{marked} data-event={quoteattr(entry.event)} data-rows={_ids(entry.rows)}>"
        yield f"<title>{escape(_reasons(entry, diagram))}</title>"
        if entry.label:
            yield _text("event", rect.x + PAD, y, escape(entry.label))
        for count, line in enumerate(lines):
            yield _text("list", placed.column, y + STEP * count, _steps(line, len(entry.steps) == 1, drawn))
        yield "</g>"
    yield "</g>"


def _steps(line: Iterable[Part], alone: bool, drawn: set[str]) -> str:
    parts = []
    for separator, step in line:
        kind = f"{step.kind} out" if alone and drawn.intersection(step.rows) else step.kind
        rows = f" data-rows={_ids(step.rows)}" if step.rows else ""
        between = f'<tspan class="else">{separator}</tspan>' if separator else ""
        tail = (
            f'<tspan class="{_classes("tail", step.mark)}"> {escape(step.tail)}</tspan>' if step.tail else ""
        )
        parts.append(
            f'{between}<tspan class="{_classes(kind, step.mark)}"{rows}>{escape(step.text)}</tspan>{tail}'
        )
    return "".join(parts)


def _arrow(placed: PlacedArrow, tones: Mapping[str, str], diagram: Diagram) -> Iterator[str]:
    arrow = placed.arrow
    style = _classes("arrow", tones[arrow.source], "out" if arrow.way_out else "", arrow.mark)
    yield (
        f'<g id={quoteattr(f"arrow-{arrow.source}-{arrow.dest}")} class="{style}"'
        f" data-source={quoteattr(arrow.source)} data-dest={quoteattr(arrow.dest)}"
        f" data-rows={_ids(arrow.rows)}>"
    )
    thick = f' style="stroke-width:{number(thickness(arrow.count))}"' if arrow.count else ""
    yield f'<path class="line" d="{placed.path.d}"{thick}/>'
    yield f'<path class="head" d="{placed.path.head}"/>'
    yield f'<rect class="halo" {_place(placed.label)} rx="3"/>'
    x = placed.label.centre[0]
    for count, line in enumerate(_label(placed)):
        yield _text("label", x, placed.label.y + TEXT + 1 + (STEP - 1) * count, line)
    yield "</g>"


def _label(placed: PlacedArrow) -> Iterator[str]:
    """The lines of a label, each name with its mark."""
    marks = iter(placed.arrow.marks or [""] * len(placed.arrow.labels))
    for line in placed.lines:
        names = [(escape(name), mark) for name, mark in zip(line, marks)]  # noqa: B905 - the marks go on with the next line
        text = ", ".join(f'<tspan class="{mark}">{name}</tspan>' if mark else name for name, mark in names)
        yield text + ("," if line is not placed.lines[-1] else "")


def _panel(panel: Panel) -> Iterator[str]:
    yield '<g class="panel">'
    yield _text("heading", panel.rect.x, panel.rect.y + TITLE - 3, escape(panel.title))
    for count, (term, text, x) in enumerate(panel.lines, 1):
        y = panel.rect.y + TITLE + 4 + STEP * count
        if term:
            yield _text("event", panel.rect.x, y, escape(term))
        yield _text("prose", x, y, escape(text))
    yield "</g>"


def _reasons(entry: StateEntry, diagram: Diagram) -> str:
    """What a pointer over an event shows: why it is there, and each row with its guard."""
    rows = (row for row in diagram.table.rows if row.id in entry.rows)
    return "\n".join([entry.why, *(f"{row.id}: {row.rung} if {row.guard.label}" for row in rows)])


def _strip(rect: Rect, has_lines: bool) -> str:
    """The coloured head of a box, inside its border."""
    x, y, right, low = rect.x + 0.6, rect.y + 0.6, rect.right - 0.6, rect.y + HEAD
    r = ROUND - 0.6
    foot = f"V{number(low)} H{number(x)}"
    if not has_lines:
        foot = (
            f"V{number(low - r)} q0,{number(r)} {number(-r)},{number(r)} H{number(x + r)} q{number(-r)},0 "
            + f"{number(-r)},{number(-r)}"
        )
    return (
        f"M{number(x)},{number(y + r)} q0,{number(-r)} {number(r)},{number(-r)} "
        f"H{number(right - r)} q{number(r)},0 {number(r)},{number(r)} {foot} Z"
    )


def _place(rect: Rect) -> str:
    return (
        f'x="{number(rect.x)}" y="{number(rect.y)}" width="{number(rect.width)}"'
        f' height="{number(rect.height)}"'
    )


def _text(style: str, x: float, y: float, content: str) -> str:
    return f'<text class="{style}" x="{number(x)}" y="{number(y)}">{content}</text>'


def _classes(*names: str) -> str:
    return " ".join(filter(None, names))


def _ids(rows: Iterable[str]) -> str:
    return quoteattr(" ".join(rows))
