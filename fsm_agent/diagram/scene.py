"""A diagram with every box, arrow and label in its place: drawn by the SVG renderer and measured by tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import dist, log2

from fsm_agent.diagram.geometry import (
    Path,
    Rect,
    around,
    bent,
    curve,
    group_names,
    text_width,
    wrap_names,
    wrap_text,
)
from fsm_agent.diagram.model import Arrow, Box, Diagram, Mark, ShownStep, StateEntry, with_previous
from fsm_agent.fsm.layout import Layout, Point, Route, Side

TEXT = 13.0
TITLE = 17.0
STEP = 18.0  # from one line of text to the next
HEAD = 30.0  # the colored strip with the state's name
PAD = 11.0
COLUMN_GAP = 12.0
LABEL_WRAP = 190.0
INDENT = "\u2003"  # an em space, before the rest of a note
Part = tuple[str, ShownStep]
"""A step and the separator before it."""
BOLD: frozenset[Mark] = frozenset({"added", "changed", "likely"})  # steps that the style sheet draws in bold


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """A placed box: the column where decision lists begin, the wrapped lines of each list, and the baselines
    of the intro, if any, and of the first line of each list."""

    box: Box
    rect: Rect
    column: float
    lists: tuple[tuple[tuple[Part, ...], ...], ...]
    baselines: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PlacedArrow:
    """A placed arrow, with the names in each line of its label and the label's rectangle."""

    arrow: Arrow
    path: Path
    label: Rect
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """A block of text with a heading: lines of (term, words, x of the words)."""

    title: str
    rect: Rect
    lines: tuple[tuple[str, str, float], ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole picture."""

    size: tuple[float, float]
    boxes: tuple[PlacedBox, ...]
    arrows: tuple[PlacedArrow, ...]
    panels: tuple[Panel, ...]


def scene_of(diagram: Diagram, layout: Layout, proof_lines: Sequence[str] = ()) -> Scene:
    """Place everything. The picture grows if something does not fit into the size of the layout. A panel "How
    to read" without width in the layout is omitted."""
    boxes = _boxes(diagram, layout)
    rects = {placed.box.state: placed.rect for placed in boxes}
    arrows: list[PlacedArrow] = []
    for arrow in sorted(diagram.arrows, key=lambda a: (a.source, a.dest) not in layout["arrows"]):
        arrows.append(_arrow(arrow, rects, layout, [*rects.values(), *(placed.label for placed in arrows)]))
    legend = layout["how_to_read"]
    panels = [_panel("How to read", how_to_read(diagram, layout), legend)] if legend[2] else []
    if diagram.caption:
        panels.append(_panel(*diagram.caption, layout["proved"]))
    elif proof_lines:
        panels.append(
            _panel("Proved for every setting", [("", line) for line in proof_lines], layout["proved"])
        )
    room = [*rects.values(), *(arrow.label for arrow in arrows), *(panel.rect for panel in panels)]
    width = max(layout["size"][0], *(rect.right + PAD for rect in room))
    height = max(layout["size"][1], *(rect.bottom + PAD for rect in room))
    return Scene((width, height), boxes, tuple(arrows), tuple(panels))


def measure(box: Box, most: float = 0) -> tuple[float, float]:
    """Return the width and height that the text of ``box`` needs. Lists wrap where it would be wider than
    ``most``; 0 means never."""
    broken = _lists(box, most)
    lists = max((part_width(line) for lines in broken for line in lines), default=0)
    badge = COLUMN_GAP + text_width(box.badge, TEXT) if box.badge else 0
    text = [
        _column(box) + lists if box.entries else 0,
        text_width(box.intro, TEXT),
        text_width(box.state, TITLE, bold=True) + badge,
    ]
    count = sum(map(len, broken)) + bool(box.intro)
    return max(text) + 2 * PAD, HEAD + STEP * count + (PAD if count else 0)


def list_lines(entry: StateEntry, width: float = 0) -> tuple[tuple[Part, ...], ...]:
    """Wrap a decision list before a rung or note where a line would be wider than ``width`` (0: one line)."""
    lines: list[list[Part]] = [[]]
    for separator, step in with_previous(entry.short):
        if lines[-1] and width and part_width([*lines[-1], (separator, step)]) > width:
            lines.append([(separator.lstrip() or INDENT, step)])
        else:
            lines[-1].append((separator, step))
    return tuple(map(tuple, lines))


def part_width(line: Sequence[Part]) -> float:
    """Return the width of one drawn line of a decision list."""
    width = 0.0
    for separator, step in line:
        width += text_width(separator, TEXT) + text_width(step.text, TEXT, bold=step.mark in BOLD)
        width += text_width(f" {step.tail}", TEXT, bold=True) if step.tail else 0
    return width


def how_to_read(diagram: Diagram, layout: Layout) -> tuple[tuple[str, str], ...]:
    """Return the legend: only what this diagram needs, and the notes of the layout."""
    entries = [entry for box in diagram.boxes for entry in box.entries]
    kinds = {step.kind for entry in entries for step in entry.short}
    lines = [("event", "takes the first rung that has budget left")]
    if any(len(entry.steps) > 1 for entry in entries):
        lines.append(("›", "or else"))
    if "move" in kinds:
        lines.append(("→", "goes there, at no cost"))
    if "exit" in kinds:
        early = any(
            step.kind == "exit" and after.kind != "note" for e in entries for step, after in pairwise(e.steps)
        )
        lines.append(("⇥", "ends the turn" + ("; before other rungs: at a cap" if early else "")))
    if "same" in kinds:
        lines.append(("as", "continues with the list of that event"))
    lines.append(("arrow", "its rungs, or the event of a plain →"))
    lines += diagram.legend
    notes = [("", note) for note in layout.get("notes", ())]
    return (*lines, *([("", "")] if notes else []), *notes)


def label_size(lines: Sequence[str]) -> tuple[float, float]:
    """Return the size of an arrow's label, its halo included."""
    return max(text_width(line, TEXT) for line in lines) + 8, len(lines) * (STEP - 1) + 2


def thickness(count: int) -> float:
    """Return the thickness of an arrow by the number of times it was taken: 2.5 pixels for once, about double
    for sixteen times, up to 6.5."""
    return min(1.6 + 0.9 * log2(count + 1), 6.5)


def default_route(source: Rect, dest: Rect) -> Route:
    """Return the simplest route between two boxes."""
    if source == dest:
        return {"start": ("right", source.y + 8), "end": ("right", source.y + HEAD + 8), "reach": 44}
    if source.bottom <= dest.y:
        return {"start": ("bottom", _facing(source, dest)), "end": ("top", _facing(dest, source))}
    if dest.bottom <= source.y:
        return {"start": ("top", _facing(source, dest)), "end": ("bottom", _facing(dest, source))}
    sides: tuple[Side, Side] = ("right", "left") if source.right <= dest.x else ("left", "right")
    return {"start": (sides[0], source.center[1]), "end": (sides[1], dest.center[1])}


def _boxes(diagram: Diagram, layout: Layout) -> tuple[PlacedBox, ...]:
    placed: list[PlacedBox] = []
    below = layout["size"][1]
    for box in diagram.boxes:
        most = layout.get("widths", {}).get(box.state, 0)
        width, height = measure(box, most)
        if box.state in layout["boxes"]:
            x, y, least = layout["boxes"][box.state]
        else:
            x, y, least = 2 * PAD, below, 0
            below += height + 4 * PAD
        rect = Rect(x, y, max(width, least), max(height, layout.get("heights", {}).get(box.state, 0)))
        placed.append(_place_box(box, rect, _lists(box, most)))
    return tuple(placed)


def _place_box(box: Box, rect: Rect, lists: tuple[tuple[tuple[Part, ...], ...], ...]) -> PlacedBox:
    at = rect.y + HEAD + STEP - 2
    baselines = []
    for count in [*([1] if box.intro else []), *map(len, lists)]:
        baselines.append(at)
        at += STEP * count
    return PlacedBox(box, rect, rect.x + PAD + _column(box), lists, tuple(baselines))


def _lists(box: Box, most: float) -> tuple[tuple[tuple[Part, ...], ...], ...]:
    width = max(most - 2 * PAD - _column(box), 0) + 0.1 if most else 0  # an exact fit is a fit
    return tuple(list_lines(entry, width) for entry in box.entries)


def _arrow(arrow: Arrow, rects: dict[str, Rect], layout: Layout, taken: Sequence[Rect]) -> PlacedArrow:
    source, dest = rects[arrow.source], rects[arrow.dest]
    route = layout["arrows"].get((arrow.source, arrow.dest)) or default_route(source, dest)
    start, end = source.anchor(*route["start"]), dest.anchor(*route["end"])
    if "via" in route:
        path = bent(start, route["via"], end, route["end"][0])
    else:
        path = curve(start, route["start"][0], end, route["end"][0], route.get("reach"))
    lines = group_names(arrow.labels, route.get("wrap", LABEL_WRAP))
    width, height = label_size(wrap_names(arrow.labels, route.get("wrap", LABEL_WRAP)))
    center: Point = route.get("label") or path.middle
    if "label" not in route and source == dest:
        center = center[0] + width / 2 + 4, center[1]
    elif (arrow.source, arrow.dest) not in layout["arrows"]:
        center = _free(path, width, height, taken)
    return PlacedArrow(arrow, path, around(center, width, height), lines)


def _free(path: Path, width: float, height: float, taken: Sequence[Rect]) -> Point:
    """Return the position nearest to the middle of a line where a label of this size covers nothing; else the
    middle."""
    middle = path.middle
    places = sorted(path.points(), key=lambda point: dist(point, middle))
    free = (
        place for place in places if not any(around(place, width, height).overlaps(rect) for rect in taken)
    )
    return next(free, middle)


def _panel(title: str, lines: Sequence[tuple[str, str]], place: tuple[float, float, float]) -> Panel:
    x, y, width = place
    terms = max(text_width(term, TEXT, bold=True) for term, _ in lines)
    broken: list[tuple[str, str, float]] = []
    for term, text in lines:
        indent = terms + COLUMN_GAP if term else 0
        first, *others = wrap_text(text, width - indent) or [""]
        broken += [(term, first, x + indent), *(("", part, x + indent) for part in others)]
    right = max(start + text_width(text, TEXT) for _, text, start in broken)
    return Panel(title, Rect(x, y, max(right - x, width), TITLE + 8 + STEP * len(broken)), tuple(broken))


def _column(box: Box) -> float:
    names = max((text_width(entry.label, TEXT, bold=True) for entry in box.entries), default=0)
    return names + COLUMN_GAP if box.entries else 0


def _facing(rect: Rect, other: Rect) -> float:
    """Return where ``rect`` is nearest to ``other``, shifted to leave room for the way back."""
    shift = 14 if rect.y < other.y else -14
    return min(max(other.center[0], rect.x + 30), rect.right - 30) + shift
