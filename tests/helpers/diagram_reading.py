"""What a reader of a diagram finds in it: rows by their labels. Shared by tests that read Mermaid themselves
and by those that let Mermaid read it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from fsm_agent.diagram.geometry import Rect, text_width
from fsm_agent.diagram.graph_languages import clean
from fsm_agent.diagram.model import words
from fsm_agent.diagram.scene import PAD, TEXT, TITLE, Scene, part_width
from fsm_agent.fsm.table import Row, Table


@dataclass(frozen=True)
class Seen:
    """States with the lines inside them, and arrows with their labels."""

    lines: Mapping[str, Sequence[str]]
    arrows: Mapping[tuple[str, str], str]


def read_strictly(text: str) -> Seen:
    """Mermaid text as its parser would read it, with everything that it silently drops dropped: from ``<``
    on, from ``;`` on, comments, entities. What is not a statement of the few that are written here is an
    error."""
    lines: dict[str, list[str]] = {}
    arrows: dict[tuple[str, str], str] = {}
    _, _, body = text.split("---\n")
    first, *statements = body.splitlines()
    assert first == "stateDiagram-v2"
    for statement in statements:
        shown = re.split(r"[<;]|%%|#\w+;|:::", statement)[0].rstrip()
        if declared := re.fullmatch(r'    state "([^"]+)" as (\w+)', shown):
            lines[declared[2]] = []
        elif arrow := re.fullmatch(r"    (\w+|\[\*\]) --> (\w+|\[\*\])(?: : ([^:]+))?", shown):
            assert (arrow[1], arrow[2]) not in arrows
            arrows[arrow[1], arrow[2]] = arrow[3] or ""
        elif inside := re.fullmatch(r"    (\w+) : ([^:]+)", shown):
            lines[inside[1]].append(inside[2])
        else:
            assert re.fullmatch(r"    class(Def)? \w+ [\w:#,-]+", shown), statement
    return Seen(lines, arrows)


def missing_rows(table: Table, seen: Seen) -> list[str]:
    """Rows whose label is not where a reader looks for it: on the arrow to where they lead, or in the box
    that they end in."""
    return [row.id for row in table.rows if not _is_shown(table, seen, row)]


def _is_shown(table: Table, seen: Seen, row: Row) -> bool:
    event = words(row.event)
    if row.exit is None:
        named = row.rung if row.rung != f"→ {row.dest}" else event
        return f", {clean(named)}, " in f", {seen.arrows.get((row.source, row.dest), '')}, "
    ending = f"⇥ {words(row.exit)}"
    if any(row.event == event and row.source in exits for event, exits in table.macros):
        ends = [line for line in seen.lines[table.final] if line.startswith(f"{event} {ending}")]
        return any("(" not in line or row.source in line for line in ends)
    joined = re.sub(r",\n", ", ", "\n".join(seen.lines[row.source])).splitlines()
    return any(
        line == f"{event} {ending}"
        or (line.endswith(f" {ending}") and event in line.removesuffix(f" {ending}").split(", "))
        for line in joined
    )


def unreadable(picture: Scene) -> list[str]:
    """What lies on another thing or outside of the page, text that leaves its box, arrows through a box."""
    places = {f"box {placed.box.state}": placed.rect for placed in picture.boxes}
    places |= {f"label {p.arrow.source} to {p.arrow.dest}": p.label for p in picture.arrows}
    places |= {f"panel {panel.title}": panel.rect for panel in picture.panels}
    found = [f"{a} is on {b}" for (a, p), (b, q) in combinations(places.items(), 2) if p.overlaps(q)]
    page = Rect(0, 0, *picture.size)
    for name, rect in places.items():
        if not (page.holds((rect.x, rect.y)) and page.holds((rect.right, rect.bottom))):
            found.append(f"{name} is not on the page")
    for placed in picture.boxes:
        edge = placed.rect.right - PAD + 0.01
        texts = [placed.column + part_width(line) for lines in placed.lists for line in lines]
        texts.append(placed.rect.x + PAD + text_width(placed.box.intro, TEXT))
        texts.append(placed.rect.x + PAD + text_width(placed.box.state, TITLE, bold=True))
        if max(texts) > edge or not all(placed.rect.y < y < placed.rect.bottom for y in placed.baselines):
            found.append(f"the text of {placed.box.state} leaves its box")
        head = text_width(placed.box.state, TITLE, bold=True) + text_width(placed.box.badge, TEXT)
        if head > placed.rect.width - 2 * PAD + 0.01:
            found.append(f"the badge of {placed.box.state} has no room")
        for p in picture.arrows:
            if any(placed.rect.holds(point, -1) for point in p.path.points()):
                found.append(f"{p.arrow.source} to {p.arrow.dest} runs through {placed.box.state}")
    return found


def crossed_labels(picture: Scene) -> list[str]:
    """Labels that hide a piece of another arrow, or of their own where it only leads back to its state."""
    return [
        f"{p.arrow.source} to {p.arrow.dest} runs through the label of {q.arrow.source} to {q.arrow.dest}"
        for p in picture.arrows
        for q in picture.arrows
        if (p is not q or p.arrow.source == p.arrow.dest)
        and any(q.label.holds(point, -1) for point in p.path.points())
    ]


def visible_text(svg: str) -> str:
    """What a reader of the picture sees; tooltips and styles left out."""
    texts = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return "\n".join("".join(text.itertext()) for text in texts)
