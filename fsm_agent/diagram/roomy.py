"""A layout made roomier for a diagram whose boxes and labels have grown: counts, marks, more lines.

A decision list that has become too long for its box is broken. Space is inserted, never taken away: each axis
gets a growing function, the steepest where something grew. So what was apart stays apart, straight stays
straight, boxes keep their order, and two pictures compare box by box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsm_agent.diagram.geometry import Rect
from fsm_agent.diagram.model import Diagram
from fsm_agent.diagram.scene import Scene, scene_of
from fsm_agent.fsm.layout import Layout, Point, Route

ALIKE = 1e-6  # coordinates that differ by less are the same, however they were worked out
Span = tuple[float, float, float]
"""Begin and end of something in the old layout, and by how much it grew."""


def roomy(layout: Layout, plain: Diagram, grown: Diagram, proof_lines: Sequence[str] = ()) -> Layout:
    """``layout``, which was made for ``plain``, as it has to be for ``grown``: the same places with room put
    between them."""
    before = scene_of(plain, layout, proof_lines)
    layout = {**layout, "widths": {placed.box.state: placed.rect.width for placed in before.boxes}}
    after = scene_of(grown, layout)
    old, new = _rects(before), _rects(after)
    grown_by = [(rect, new[name]) for name, rect in old.items() if name in new]
    across = _Axis([span for r, n in grown_by for span in _halves(r.x, r.right, n.width - r.width)])
    down = _Axis([span for r, n in grown_by for span in _halves(r.y, r.bottom, n.height - r.height)])
    labels = {(p.arrow.source, p.arrow.dest): p.label.centre for p in before.arrows}
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
            pair: _moved(
                route, labels.get(pair) if pair[0] != pair[1] or "label" in route else None, across, down
            )
            for pair, route in layout["arrows"].items()
        },
        "how_to_read": (across(x), down(y), width),
        "proved": (across(proved_x), down(proved_y), proved_width),
    }


def _halves(begin: float, end: float, growth: float) -> Sequence[Span]:
    """Something that grows on both sides of its middle, so that what is there stays in the middle."""
    middle, half = (begin + end) / 2, max(growth, 0) / 2
    return (begin, middle, half), (middle, end, half)


@dataclass(frozen=True, slots=True)
class _Axis:
    """Where a coordinate goes: as far as the longest chain of grown things before it pushes."""

    spans: list[Span]

    def __post_init__(self) -> None:
        pushed: list[Span] = []  # (begin, end, push at the end), by end
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


def _moved(route: Route, label: Point | None, across: _Axis, down: _Axis) -> Route:
    moved = route.copy()
    for end in ("start", "end"):
        side, at = route[end]
        moved[end] = side, (down(at) if side in ("left", "right") else across(at))
    if "via" in route:
        moved["via"] = [(across(x), down(y)) for x, y in route["via"]]
    centre = label or route.get("label")
    if centre is not None:
        moved["label"] = across(centre[0]), down(centre[1])
    return moved


def _rects(scene: Scene) -> dict[object, Rect]:
    found: dict[object, Rect] = {placed.box.state: placed.rect for placed in scene.boxes}
    found |= {(placed.arrow.source, placed.arrow.dest): placed.label for placed in scene.arrows}
    return found | {("panel", number): panel.rect for number, panel in enumerate(scene.panels)}
