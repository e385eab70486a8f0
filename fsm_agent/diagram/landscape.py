"""Places for the map of a table of the user's own: wider than high, as the page's picture is.

Columns are the distance from the first state, the final state last. An arrow to the next column is a curve;
every other one runs in a lane of its own, back above the boxes and forward below them, and passes boxes by
the gap beside their column. (Why: decision 72.)"""

from __future__ import annotations

from dataclasses import dataclass, field

from fsm_agent.diagram.geometry import Rect
from fsm_agent.diagram.layers import layers_of
from fsm_agent.diagram.model import Arrow, Diagram
from fsm_agent.diagram.scene import label_size, measure
from fsm_agent.fsm.layout import Layout, Point, Route, Side

MARGIN, ROW, TRACK, LANE = 16.0, 62.0, 13.0, 24.0
LOOP = 40.0
"""Room above a box for an arrow to itself with its label."""
NARROW = 64.0


@dataclass(slots=True)
class _Columns:
    places: dict[str, tuple[int, int]]
    rects: dict[str, Rect]
    lefts: list[float]
    last: dict[int, int]
    used: dict[tuple[str, Side], int] = field(default_factory=dict)
    tracks: dict[int, int] = field(default_factory=dict)

    def port(self, state: str, side: Side) -> float:
        """The next free place on a side, by its coordinate."""
        number = self.used[state, side] = self.used.get((state, side), 0) + 1
        rect = self.rects[state]
        if side in ("top", "bottom"):
            return rect.x + min(16.0 * number, rect.width * 0.55)
        return rect.y + min(9.0 * number, rect.height - 6)

    def track(self, gap: int) -> float:
        """The next free line up and down, left of column ``gap``."""
        number = self.tracks[gap] = self.tracks.get(gap, 0) + 1
        return self.lefts[gap] - TRACK * number


def landscape(diagram: Diagram) -> Layout:
    """A layout whose height grows with what is beside each other, and whose width with what follows."""
    columns = _columns_of(diagram)
    depth = {state: place[0] for state, place in columns.places.items()}
    lanes = [a for a in diagram.arrows if a.source != a.dest and depth[a.dest] - depth[a.source] != 1]
    back = sorted(
        (a for a in lanes if depth[a.dest] <= depth[a.source]), key=lambda a: depth[a.source] - depth[a.dest]
    )
    ahead = sorted(
        (a for a in lanes if depth[a.dest] > depth[a.source]), key=lambda a: depth[a.dest] - depth[a.source]
    )
    loops = [a for a in diagram.arrows if a.source == a.dest]
    top = MARGIN + LANE * len(back) + (LOOP if loops else 0)
    tallest = max(row for _, row in columns.places.values()) + 1
    height = tallest * ROW + (tallest - 1) * (LOOP if loops else 18)
    _put(columns, diagram, top, height, LOOP if loops else 18)
    routes: dict[tuple[str, str], Route] = {}
    for arrow in diagram.arrows:
        if depth[arrow.dest] - depth[arrow.source] == 1:
            routes[arrow.source, arrow.dest] = _step(columns, arrow)
    for arrow in loops:
        rect, (width, _) = columns.rects[arrow.source], label_size(arrow.labels)
        right = rect.right - 12
        routes[arrow.source, arrow.dest] = {
            "start": ("top", right - 46), "end": ("top", right), "reach": 30,
            "label": (min(right - 23, rect.right + 20 - width / 2), rect.y - 31),
        }  # fmt: skip
    for number, arrow in enumerate(back):
        routes[arrow.source, arrow.dest] = _lane(
            columns, arrow, top - (LOOP if loops else 0) - LANE * (number + 0.5), "top"
        )
    bottom = top + height
    for number, arrow in enumerate(ahead):
        routes[arrow.source, arrow.dest] = _lane(columns, arrow, bottom + LANE * (number + 0.7), "bottom")
    width = max(rect.right for rect in columns.rects.values()) + MARGIN
    return {
        "size": (width, bottom + LANE * len(ahead) + MARGIN),
        "boxes": {state: (rect.x, rect.y, rect.width) for state, rect in columns.rects.items()},
        "arrows": routes,
        "how_to_read": (0, 0, 0),
        "proved": (0, 0, 0),
    }


def _columns_of(diagram: Diagram) -> _Columns:
    depth = {state: number for number, layer in enumerate(layers_of(diagram)) for state in layer}
    places: dict[str, tuple[int, int]] = {}
    last: dict[int, int] = {}
    for state in diagram.states:
        row = last[depth[state]] = last.get(depth[state], -1) + 1
        places[state] = (depth[state], row)
    return _Columns(places, {}, [], last)


def _put(columns: _Columns, diagram: Diagram, top: float, height: float, between: float) -> None:
    sizes = {box.state: measure(box) for box in diagram.boxes}
    x = MARGIN
    for number in range(max(columns.last) + 1):
        states = [state for state, (column, _) in columns.places.items() if column == number]
        x += _gap(columns, diagram, number)
        columns.lefts.append(x)
        width, spare = (
            max(sizes[state][0] for state in states),
            height - len(states) * ROW - (len(states) - 1) * between,
        )
        for row, state in enumerate(states):
            columns.rects[state] = Rect(x, top + spare / 2 + row * (ROW + between), width, sizes[state][1])
        x += width


def _gap(columns: _Columns, diagram: Diagram, number: int) -> float:
    """Left of a column: its widest label, and the lines that go up and down there."""
    depth = {state: place[0] for state, place in columns.places.items()}
    steps = [
        label_size(a.labels)[0]
        for a in diagram.arrows
        if depth[a.dest] == number and depth[a.source] == number - 1
    ]
    inside = sum(depth[a.dest] == number and columns.places[a.dest][1] > 0 for a in diagram.arrows)
    return (max(steps, default=NARROW - 34) + 34 + TRACK * min(inside, 3)) if number else 0.0


def _step(columns: _Columns, arrow: Arrow) -> Route:
    one, other = columns.rects[arrow.source], columns.rects[arrow.dest]
    return {
        "start": ("right", one.y + 20), "end": ("left", other.y + 20),
        "label": ((one.right + other.x) / 2, (one.y + other.y) / 2 + 20),
    }  # fmt: skip


def _lane(columns: _Columns, arrow: Arrow, y: float, side: Side) -> Route:
    """Above or below all boxes; a box with another one in the way is left, and reached, by the gap beside
    it."""
    start, out = _end(columns, arrow.source, side, y, after=True)
    end, into = _end(columns, arrow.dest, side, y, after=False)
    return {
        "start": start,
        "via": [*out, *reversed(into)],
        "end": end,
        "label": ((out[-1][0] + into[-1][0]) / 2, y),
    }


def _end(
    columns: _Columns, state: str, side: Side, y: float, *, after: bool
) -> tuple[tuple[Side, float], list[Point]]:
    """Where the box is joined, and the points from there to the lane."""
    column, row = columns.places[state]
    outermost = row == 0 if side == "top" else row == columns.last[column]
    if outermost:
        x = columns.port(state, side)
        return (side, x), [(x, y)]
    gap = column + 1 if after and column + 1 < len(columns.lefts) else column
    beside: Side = "right" if gap > column else "left"
    x, level = columns.track(gap), columns.port(state, beside)
    return (beside, level), [(x, level), (x, y)]
