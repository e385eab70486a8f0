"""Automatic layout for a table without its own: layers by distance from the first state, the final state
last.

An arrow to the next layer is a step. Every other arrow runs in its own lane on the right of all boxes; it
leaves and enters its boxes by tracks in the gaps between layers, so no arrow crosses a box. A gap has three
bands: tracks that leave the layer above, the steps with their labels, tracks that enter the layer below.
"""

# The map is not the table. At 1,280 pixels the whole table is unreadable next to everything else. So the page
# shows a map of the states, and the table is one click away with the taken row marked.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fsm_agent.diagram.geometry import CORNER, Rect, wrap_names
from fsm_agent.diagram.model import Arrow, Box, Diagram, diagram_of, words
from fsm_agent.diagram.scene import LABEL_WRAP, PAD, Scene, default_route, label_size, measure, scene_of
from fsm_agent.fsm.layout import Layout, Point, Route, Side
from fsm_agent.fsm.table import Row, Table

MARGIN = 24.0
BOX_GAP = 56.0
BAND = 30.0  # minimum height of the label band
TRACK = 14.0  # distance of parallel arrows
PANEL = 440.0
NEAR = 64.0  # a bend smaller than this is straightened

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Grid:
    """Boxes in layers, and arrows by kind of route."""

    layers: list[list[str]]
    rects: dict[str, Rect]
    depth: dict[str, int]
    steps: list[Arrow]
    lanes: list[Arrow]
    loops: list[Arrow]
    bands: list[
        tuple[float, float]
    ]  # for each gap above a layer and below the last: top and height of the labels

    @property
    def right(self) -> float:
        loops = [self.rects[a.source].right + 60 + _size(a)[0] for a in self.loops]
        return max(*loops, *(rect.right for rect in self.rects.values()), 0)


def automatic(diagram: Diagram) -> Layout:
    """Compute a layout for any table."""
    grid = _grid(diagram)
    places = {state: (rect.x, rect.y, rect.width) for state, rect in grid.rects.items()}
    exits, entries = _ports(grid)
    loops = [(grid.rects[a.source], a) for a in grid.loops]
    routes: dict[Pair, Route] = {(a.source, a.dest): default_route(rect, rect) for rect, a in loops}
    routes.update(_step_routes(grid, exits, entries))
    routes.update(_lane_routes(grid, exits, entries))
    top, height = grid.bands[-1]
    below = top + height + MARGIN
    return {
        "size": (grid.right + MARGIN, below),
        "boxes": places,
        "arrows": routes,
        "how_to_read": (MARGIN, below, PANEL),
        "proved": (2 * MARGIN + PANEL, below, PANEL),
    }


def _grid(diagram: Diagram) -> _Grid:
    layers = layers_of(diagram)
    depth = {state: number for number, layer in enumerate(layers) for state in layer}
    kinds: tuple[list[Arrow], list[Arrow], list[Arrow]] = ([], [], [])
    for arrow in diagram.arrows:
        down = depth[arrow.dest] - depth[arrow.source]
        kinds[2 if arrow.source == arrow.dest else 0 if down == 1 else 1].append(arrow)
    steps, lanes, loops = kinds
    lanes.sort(key=lambda a: abs(depth[a.dest] - depth[a.source]))
    grid = _Grid(layers, {}, depth, steps, lanes, loops, [])
    _place_boxes(grid, diagram)
    return grid


def layers_of(diagram: Diagram) -> list[list[str]]:
    """Group states by their distance from the first one, then unreachable states, then the final state."""
    final, first = diagram.table.final, diagram.table.initial
    states = [state for state in diagram.states if state != final]
    start = first if first in states else states[0]
    layers, seen = [[start]], {start, final}
    while not seen.issuperset(states):
        found = [
            a.dest for state in layers[-1] for a in diagram.arrows if a.source == state and a.dest not in seen
        ]
        layers.append(list(dict.fromkeys(found)) or [state for state in states if state not in seen])
        seen.update(layers[-1])
    return [*layers, [final]] if final in diagram.states else layers


def _place_boxes(grid: _Grid, diagram: Diagram) -> None:
    sizes = {box.state: measure(box) for box in diagram.boxes}
    spare = {a.source: _size(a)[0] + 48 for a in grid.loops}
    widths = [sum(sizes[s][0] + spare.get(s, 0) + BOX_GAP for s in layer) - BOX_GAP for layer in grid.layers]
    y = MARGIN
    for number, layer in enumerate(grid.layers):
        y = _add_gap(grid, number, y)
        x = MARGIN + (max(widths) - widths[number]) / 2
        height = max(sizes[state][1] for state in layer)
        for state in layer:
            grid.rects[state] = Rect(x, y, *sizes[state])
            x += sizes[state][0] + spare.get(state, 0) + BOX_GAP
        beside = [_size(a)[1] for a in grid.lanes if _row(grid, a) == number]
        y += max([height, *beside])
    _add_gap(grid, len(grid.layers), y)


def _add_gap(grid: _Grid, number: int, y: float) -> float:
    """Make room above layer ``number`` and return where that layer begins."""
    leaving = [a for a in grid.lanes if grid.depth[a.source] == number - 1]
    entering = [a for a in grid.lanes if grid.depth[a.dest] == number]
    labels = [_size(a)[1] for a in grid.steps if grid.depth[a.dest] == number]
    top = y + (TRACK * (len(leaving) + 1) if leaving else 0)
    height = sum(labels) + BAND if labels else 0
    grid.bands.append((top, height))
    return top + height + (TRACK * (len(entering) + 1) if entering else 0)


def _ports(grid: _Grid) -> tuple[dict[Pair, float], dict[Pair, float]]:
    """Compute where each arrow leaves the bottom of its source and enters the top of its destination: evenly
    spaced, in the order of the boxes at the other end, lanes rightmost."""
    exits: dict[Pair, float] = {}
    entries: dict[Pair, float] = {}
    for state, rect in grid.rects.items():
        out = sorted((a for a in grid.steps if a.source == state), key=lambda a: grid.rects[a.dest].center)
        out += [a for a in reversed(grid.lanes) if a.source == state]
        into = sorted((a for a in grid.steps if a.dest == state), key=lambda a: grid.rects[a.source].center)
        into += [a for a in reversed(grid.lanes) if a.dest == state]
        for arrows, ports in ((out, exits), (into, entries)):
            for number, arrow in enumerate(arrows, 1):
                ports[arrow.source, arrow.dest] = rect.x + rect.width * number / (len(arrows) + 1)
    return exits, entries


def _step_routes(grid: _Grid, exits: dict[Pair, float], entries: dict[Pair, float]) -> dict[Pair, Route]:
    routes: dict[Pair, Route] = {}
    used = [BAND / 2] * len(grid.bands)
    for arrow in grid.steps:
        pair = arrow.source, arrow.dest
        gap = grid.depth[arrow.dest]
        height = _size(arrow)[1]
        y = grid.bands[gap][0] + used[gap] + height / 2
        used[gap] += height
        start, end = _straight_exit(grid, pair, exits, entries), entries[pair]
        routes[pair] = {
            "start": ("bottom", start),
            "end": ("top", end),
            "via": [(start, y), (end, y)],
            "label": ((start + end) / 2, y),
        }
    return routes


def _straight_exit(grid: _Grid, pair: Pair, exits: dict[Pair, float], entries: dict[Pair, float]) -> float:
    """Return where a step leaves its box: directly above its end if that is near and free, which makes it one
    straight line."""
    start, end, box = exits[pair], entries[pair], grid.rects[pair[0]]
    others = [at for other, at in exits.items() if other[0] == pair[0] and other != pair]
    inside = box.x + CORNER < end < box.right - CORNER
    return (
        end if inside and abs(end - start) < NEAR and all(abs(at - end) > TRACK for at in others) else start
    )


def _lane_routes(grid: _Grid, exits: dict[Pair, float], entries: dict[Pair, float]) -> dict[Pair, Route]:
    routes: dict[Pair, Route] = {}
    lane = grid.right + PAD
    leaving, entering = [0] * (len(grid.layers) + 1), [0] * (len(grid.layers) + 1)
    for arrow in grid.lanes:
        pair = arrow.source, arrow.dest
        above, below = grid.depth[arrow.dest], grid.depth[arrow.source] + 1
        leaving[below] += 1
        entering[above] += 1
        top, _ = grid.bands[below]
        down = top - TRACK * leaving[below]
        up = sum(grid.bands[above]) + TRACK * entering[above]
        lane += _size(arrow)[0] / 2 + PAD
        routes[pair] = {
            "start": ("bottom", exits[pair]),
            "end": ("top", entries[pair]),
            "via": [(exits[pair], down), (lane, down), (lane, up), (entries[pair], up)],
            "label": (lane, _middle(grid, grid.layers[_row(grid, arrow)])),
        }
        lane += _size(arrow)[0] / 2
    return routes


def _row(grid: _Grid, arrow: Arrow) -> int:
    """Return the layer beside which a lane has its label; no track crosses the label there."""
    return (
        grid.depth[arrow.dest] - 1
        if grid.depth[arrow.dest] > grid.depth[arrow.source]
        else grid.depth[arrow.source]
    )


def _middle(grid: _Grid, layer: Sequence[str]) -> float:
    return max(grid.rects[state].bottom for state in layer) / 2 + grid.rects[layer[0]].y / 2


def _size(arrow: Arrow) -> tuple[float, float]:
    return label_size(wrap_names(arrow.labels, LABEL_WRAP))


# ----------------------------------------------------------------------------------------------------
# Layout for the map of a custom table: wider than high, like the page's picture.
#
# Columns are the distance from the first state, the final state last. An arrow to the next column is a curve;
# every other one runs in its own lane, back above the boxes and forward below them, and passes boxes through
# the gap beside their column.


LANDSCAPE_MARGIN, ROW, LANDSCAPE_TRACK, LANE = 16.0, 62.0, 13.0, 24.0
LOOP = 40.0
"""Height above a box for a self-loop with its label."""
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
        """Return the next free coordinate on a side."""
        number = self.used[state, side] = self.used.get((state, side), 0) + 1
        rect = self.rects[state]
        if side in ("top", "bottom"):
            return rect.x + min(16.0 * number, rect.width * 0.55)
        return rect.y + min(9.0 * number, rect.height - 6)

    def track(self, gap: int) -> float:
        """Return the next free vertical line left of column ``gap``."""
        number = self.tracks[gap] = self.tracks.get(gap, 0) + 1
        return self.lefts[gap] - LANDSCAPE_TRACK * number


def landscape(diagram: Diagram) -> Layout:
    """Compute a layout whose height grows with parallel states and whose width grows with successive ones."""
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
    top = LANDSCAPE_MARGIN + LANE * len(back) + (LOOP if loops else 0)
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
    width = max(rect.right for rect in columns.rects.values()) + LANDSCAPE_MARGIN
    return {
        "size": (width, bottom + LANE * len(ahead) + LANDSCAPE_MARGIN),
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
    x = LANDSCAPE_MARGIN
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
    """Return the width left of a column: its widest label, and the vertical lines there."""
    depth = {state: place[0] for state, place in columns.places.items()}
    steps = [
        label_size(a.labels)[0]
        for a in diagram.arrows
        if depth[a.dest] == number and depth[a.source] == number - 1
    ]
    inside = sum(depth[a.dest] == number and columns.places[a.dest][1] > 0 for a in diagram.arrows)
    return (max(steps, default=NARROW - 34) + 34 + LANDSCAPE_TRACK * min(inside, 3)) if number else 0.0


def _step(columns: _Columns, arrow: Arrow) -> Route:
    one, other = columns.rects[arrow.source], columns.rects[arrow.dest]
    return {
        "start": ("right", one.y + 20), "end": ("left", other.y + 20),
        "label": ((one.right + other.x) / 2, (one.y + other.y) / 2 + 20),
    }  # fmt: skip


def _lane(columns: _Columns, arrow: Arrow, y: float, side: Side) -> Route:
    """Route an arrow above or below all boxes. If another box is in the way, go through the gap beside its
    own."""
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
    """Return the connection point of the box, and the points from there to the lane."""
    column, row = columns.places[state]
    outermost = row == 0 if side == "top" else row == columns.last[column]
    if outermost:
        x = columns.port(state, side)
        return (side, x), [(x, y)]
    gap = column + 1 if after and column + 1 < len(columns.lefts) else column
    beside: Side = "right" if gap > column else "left"
    x, level = columns.track(gap), columns.port(state, beside)
    return (beside, level), [(x, level), (x, y)]


# ----------------------------------------------------------------------------------------------------
# A layout enlarged for a diagram whose boxes and labels have grown: counts, marks, more lines.
#
# A decision list that has become too long for its box is wrapped. Space is inserted, never removed: each axis
# gets an increasing function, steepest where something grew. So gaps stay, straight lines stay straight,
# boxes keep their order, and two pictures compare box by box.


ALIKE = 1e-6  # coordinates that differ by less are equal, however computed
Span = tuple[float, float, float]
"""Begin and end of an element in the old layout, and its growth."""


def roomy(layout: Layout, plain: Diagram, grown: Diagram) -> Layout:
    """Enlarge ``layout``, made for ``plain``, for ``grown``: the same arrangement with more space."""
    before = scene_of(plain, layout)
    layout = {**layout, "widths": {placed.box.state: placed.rect.width for placed in before.boxes}}
    after = scene_of(grown, layout)
    old, new = _rects(before), _rects(after)
    grown_by = [(rect, new[name]) for name, rect in old.items() if name in new]
    across = _Axis([span for r, n in grown_by for span in _halves(r.x, r.right, n.width - r.width)])
    down = _Axis([span for r, n in grown_by for span in _halves(r.y, r.bottom, n.height - r.height)])
    labels = {(p.arrow.source, p.arrow.dest): p.label.center for p in before.arrows}
    boxes = {placed.box.state: placed.rect for placed in before.boxes}
    x, y, width = layout["how_to_read"]
    proved_x, proved_y, proved_width = layout["proved"]
    return {
        **layout,
        "size": (across(before.size[0]), down(before.size[1])),
        "boxes": {
            state: (across(r.x), down(r.y), across(r.right) - across(r.x)) for state, r in boxes.items()
        },
        "heights": {state: down(r.bottom) - down(r.y) for state, r in boxes.items()},
        "arrows": {
            pair: _move_route(
                route, labels.get(pair) if pair[0] != pair[1] or "label" in route else None, across, down
            )
            for pair, route in layout["arrows"].items()
        },
        "how_to_read": (across(x), down(y), width),
        "proved": (across(proved_x), down(proved_y), proved_width),
    }


def _halves(begin: float, end: float, growth: float) -> Sequence[Span]:
    """Split the growth of an element at its middle, which stays the middle."""
    middle, half = (begin + end) / 2, max(growth, 0) / 2
    return (begin, middle, half), (middle, end, half)


@dataclass(frozen=True, slots=True)
class _Axis:
    """Maps a coordinate: it shifts as far as the longest chain of grown elements before it requires."""

    spans: list[Span]

    def __post_init__(self) -> None:
        pushed: list[Span] = []  # (begin, end, shift at the end), by end
        for begin, end, growth in sorted(self.spans, key=lambda span: span[1]):
            pushed.append(
                (
                    begin,
                    end,
                    growth + max((push for _, last, push in pushed if last <= begin + ALIKE), default=0),
                )
            )
        object.__setattr__(self, "spans", pushed)

    def __call__(self, at: float) -> float:
        return at + max((push for _, end, push in self.spans if end <= at + ALIKE), default=0)


def _move_route(route: Route, label: Point | None, across: _Axis, down: _Axis) -> Route:
    moved = route.copy()
    for end in ("start", "end"):
        side, at = route[end]
        moved[end] = side, (down(at) if side in ("left", "right") else across(at))
    if "via" in route:
        moved["via"] = [(across(x), down(y)) for x, y in route["via"]]
    center = label or route.get("label")
    if center is not None:
        moved["label"] = across(center[0]), down(center[1])
    return moved


def _rects(scene: Scene) -> dict[object, Rect]:
    found: dict[object, Rect] = {placed.box.state: placed.rect for placed in scene.boxes}
    found |= {(placed.arrow.source, placed.arrow.dest): placed.label for placed in scene.arrows}
    return found | {("panel", number): panel.rect for number, panel in enumerate(scene.panels)}


# ----------------------------------------------------------------------------------------------------
# The small picture of a table: every state as a box without lines, one arrow for all rows from one state to
# another, also to the end.
#
# It is for README files, comments and pages, where the whole table would be unreadable: its text has at least
# 11 pixels in a column of ``COLUMN`` pixels if the table has few enough states.


COLUMN = 830.0
"""Width in pixels of the column in which README files are shown."""
NAMED = 2
"""Maximum number of names on an arrow; the others are counted."""


def map_of(table: Table) -> tuple[Diagram, Layout]:
    """Return the map of ``table`` and its layout: the table's own, else an automatic one, vertical if that
    fits into the column and otherwise horizontal."""
    whole = diagram_of(table)
    boxes = tuple(_box(table, box) for box in whole.boxes)
    small = Diagram(table, boxes, tuple(_map_arrow(table, rows) for rows in _ways(table)))
    drawn = table.layout.get("small") if table.layout else None
    tried: list[Layout] = [
        {**layout, "column": COLUMN, "how_to_read": (0, 0, 0)}
        for layout in ([drawn] if drawn else [automatic(small), landscape(small)])
    ]
    return small, min(tried, key=lambda layout: max(COLUMN, scene_of(small, layout).size[0]))


def _box(table: Table, box: Box) -> Box:
    says = table.layout.get("says", {}).get(box.state, "") if table.layout else ""
    if box.final:
        return Box(box.state, (), says or "the end", final=True)
    if says:
        return Box(box.state, (), says)
    rows = [row for row in table.rows if row.source == box.state]
    events = dict.fromkeys(row.event for row in rows)
    return Box(box.state, (), f"{len(events)} events, {len(rows)} rows")


def _ways(table: Table) -> Sequence[Sequence[Row]]:
    """Return the rows of each arrow. Macro rows never count, so an arrow with only macro rows is omitted."""
    pairs: dict[tuple[str, str], list[Row]] = {}
    for row in table.rows:
        pairs.setdefault((row.source, row.dest), []).append(row)
    own = ([row for row in rows if row.event not in table.is_macro] for rows in pairs.values())
    return [rows for rows in own if rows]


def _map_arrow(table: Table, rows: Sequence[Row]) -> Arrow:
    source, dest = rows[0].source, rows[0].dest
    exits = list(dict.fromkeys(words(row.exit) for row in rows if row.exit))
    names = list(dict.fromkeys(_name(row) for row in rows if not row.exit))
    if len(names) > NAMED + 1:
        names = [*names[:NAMED], f"{len(names) - NAMED} more"]
    if exits:
        names.append(f"⇥ {exits[0] if len(exits) == 1 else f'{len(exits)} exits'}")
    ids = tuple(row.id for row in rows)
    usual = table.layout is not None and (source, dest) in table.layout.get("usual", ())
    return Arrow(source, dest, tuple(names), ids, way_out=dest == table.final, usual=usual)


def _name(row: Row) -> str:
    return words(row.event) if row.rung.startswith("→") else row.rung
