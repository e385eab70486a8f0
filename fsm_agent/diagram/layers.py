"""Places for a table that has no layout of its own: layers by distance from the first state, the final state
last.

An arrow to the next layer is a step. Every other arrow runs through a lane of its own on the right of all
boxes; it leaves and enters its boxes by tracks in the gaps between layers, so that no arrow runs through a
box. A gap is three bands: tracks that leave the layer above, the steps with their labels, tracks that enter
the layer below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsm_agent.diagram.geometry import CORNER, Rect
from fsm_agent.diagram.model import Arrow, Diagram
from fsm_agent.diagram.scene import LABEL_WRAP, PAD, default_route, label_size, measure
from fsm_agent.diagram.textwidth import joined
from fsm_agent.fsm.layout import Layout, Route

MARGIN = 24.0
BOX_GAP = 56.0
BAND = 30.0  # least height of the band of labels
TRACK = 14.0  # between two arrows that run side by side
PANEL = 440.0
NEAR = 64.0  # a bend of less than this is straightened

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Grid:
    """Boxes in layers, and arrows by how they run."""

    layers: list[list[str]]
    rects: dict[str, Rect]
    depth: dict[str, int]
    steps: list[Arrow]
    lanes: list[Arrow]
    loops: list[Arrow]
    bands: list[
        tuple[float, float]
    ]  # of each gap above a layer, and below the last: top and height of its labels

    @property
    def right(self) -> float:
        loops = [self.rects[a.source].right + 60 + _size(a)[0] for a in self.loops]
        return max(*loops, *(rect.right for rect in self.rects.values()), 0)


def automatic(diagram: Diagram) -> Layout:
    """A layout for any table."""
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
    """States by their distance from the first one; what no arrow reaches, and then the final state, stand
    last."""
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
    """Where each arrow leaves the bottom of its source and enters the top of its destination: evenly spread,
    in the order of the boxes at the other end, lanes rightmost."""
    exits: dict[Pair, float] = {}
    entries: dict[Pair, float] = {}
    for state, rect in grid.rects.items():
        out = sorted((a for a in grid.steps if a.source == state), key=lambda a: grid.rects[a.dest].centre)
        out += [a for a in reversed(grid.lanes) if a.source == state]
        into = sorted((a for a in grid.steps if a.dest == state), key=lambda a: grid.rects[a.source].centre)
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
        start, end = _straightened(grid, pair, exits, entries), entries[pair]
        routes[pair] = {
            "start": ("bottom", start),
            "end": ("top", end),
            "via": [(start, y), (end, y)],
            "label": ((start + end) / 2, y),
        }
    return routes


def _straightened(grid: _Grid, pair: Pair, exits: dict[Pair, float], entries: dict[Pair, float]) -> float:
    """Where a step leaves its box: just above where it arrives when that is near and free, so that it is one
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
    """The layer beside which the label of a lane stands; there no track crosses it."""
    return (
        grid.depth[arrow.dest] - 1
        if grid.depth[arrow.dest] > grid.depth[arrow.source]
        else grid.depth[arrow.source]
    )


def _middle(grid: _Grid, layer: Sequence[str]) -> float:
    return max(grid.rects[state].bottom for state in layer) / 2 + grid.rects[layer[0]].y / 2


def _size(arrow: Arrow) -> tuple[float, float]:
    return label_size(joined(arrow.labels, LABEL_WRAP))
