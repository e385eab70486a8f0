"""Rectangles, and arrows as chains of cubic curves: the geometry of a picture, without drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import dist

from fsm_agent.fsm.layout import Point, Side

Cubic = tuple[Point, Point, Point, Point]

NORMALS: dict[Side, Point] = {"left": (-1, 0), "right": (1, 0), "top": (0, -1), "bottom": (0, 1)}
HEAD = 11.0  # length of an arrowhead
CORNER = 16.0  # radius of a bent arrow's corners


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle by its upper left corner and size, in pixels; y grows downwards."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Return x of the right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Return y of the lower edge; y grows downwards."""
        return self.y + self.height

    @property
    def center(self) -> Point:
        """Return the point in the middle."""
        return self.x + self.width / 2, self.y + self.height / 2

    def overlaps(self, other: Rect) -> bool:
        """Return whether the two have an area in common."""
        across = self.x < other.right and other.x < self.right
        return across and self.y < other.bottom and other.y < self.bottom

    def holds(self, point: Point, gap: float = 0) -> bool:
        """Return whether ``point`` is inside, or closer than ``gap``."""
        x, y = point
        return self.x - gap < x < self.right + gap and self.y - gap < y < self.bottom + gap

    def anchor(self, side: Side, at: float) -> Point:
        """Return the point of ``side`` at the absolute coordinate ``at`` (x on top and bottom, y on left and
        right)."""
        return {
            "left": (self.x, at),
            "right": (self.right, at),
            "top": (at, self.y),
            "bottom": (at, self.bottom),
        }[side]


def around(center: Point, width: float, height: float) -> Rect:
    """Return the rectangle of this size around ``center``."""
    return Rect(center[0] - width / 2, center[1] - height / 2, width, height)


@dataclass(frozen=True, slots=True)
class Path:
    """A chain of cubic curves that ends in an arrowhead."""

    cubics: tuple[Cubic, ...]
    tip: Point

    @property
    def d(self) -> str:
        """The path data of the line, without the arrowhead."""
        start = self.cubics[0][0]
        curves = " ".join(f"C{_xy(c1)} {_xy(c2)} {_xy(end)}" for _, c1, c2, end in self.cubics)
        return f"M{_xy(start)} {curves}"

    @property
    def head(self) -> str:
        """The path data of the arrowhead, a triangle."""
        foot = self.cubics[-1][3]
        dx, dy = (self.tip[0] - foot[0]) / HEAD, (self.tip[1] - foot[1]) / HEAD
        side = HEAD * 0.45
        left = foot[0] - dy * side, foot[1] + dx * side
        right = foot[0] + dy * side, foot[1] - dx * side
        return f"M{_xy(self.tip)} L{_xy(left)} L{_xy(right)} Z"

    def points(self, per_cubic: int = 24) -> Iterator[Point]:
        """Return points along the line, from the start to the tip."""
        for cubic in self.cubics:
            for number in range(per_cubic):
                yield _on(cubic, number / per_cubic)
        yield self.cubics[-1][3]
        yield self.tip

    @property
    def middle(self) -> Point:
        """The point halfway along the line."""
        points = list(self.points())
        left = sum(dist(a, b) for a, b in pairwise(points)) / 2
        for a, b in pairwise(points):
            left -= dist(a, b)
            if left <= 0:
                return b
        return points[-1]


def curve(start: Point, out: Side, end: Point, into: Side, reach: float | None = None) -> Path:
    """Build one smooth curve with right angles at both ends. ``reach``: how far it keeps to them."""
    foot = _move_point(end, into, HEAD)
    span = reach if reach is not None else max(36.0, dist(start, foot) * 0.45)
    return Path(((start, _move_point(start, out, span), _move_point(foot, into, span), foot),), end)


def bent(start: Point, via: Sequence[Point], end: Point, into: Side) -> Path:
    """Build straight segments through ``via`` with rounded corners."""
    corners = [start, *via, _move_point(end, into, HEAD)]
    cubics: list[Cubic] = []
    here = start
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        radius = min(CORNER, dist(before, corner) / 2, dist(corner, after) / 2)
        entry, leave = _towards(corner, before, radius), _towards(corner, after, radius)
        cubics.append(_straight(here, entry))
        cubics.append(
            (entry, _towards(corner, before, radius * 0.45), _towards(corner, after, radius * 0.45), leave)
        )
        here = leave
    cubics.append(_straight(here, corners[-1]))
    return Path(tuple(cubics), end)


def number(value: float) -> str:
    """Format a coordinate with at most one decimal."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def _xy(point: Point) -> str:
    return f"{number(point[0])},{number(point[1])}"


def _move_point(point: Point, side: Side, by: float) -> Point:
    dx, dy = NORMALS[side]
    return point[0] + dx * by, point[1] + dy * by


def _towards(start: Point, end: Point, by: float) -> Point:
    share = by / (dist(start, end) or 1)
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def _straight(start: Point, end: Point) -> Cubic:
    length = dist(start, end)
    return start, _towards(start, end, length / 3), _towards(end, start, length / 3), end


def _on(cubic: Cubic, t: float) -> Point:
    a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
    p, q, r, s = cubic
    return a * p[0] + b * q[0] + c * r[0] + d * s[0], a * p[1] + b * q[1] + c * r[1] + d * s[1]


# ----------------------------------------------------------------------------------------------------
# The width of a text without a font: an estimate on the wide side.
#
# Advance widths in 1/1000 em of DejaVu Sans, which is about as wide as Verdana and wider than Helvetica and
# Arial, so a text that fits here fits with every font of the family list of the SVG.


SAFETY = 1.03
OTHER = 1000  # a letter outside ASCII: as wide as high
KNOWN = {"›": 412, "×": 838, "−": 838, "·": 380, "…": 1000, "⇥": 1000, "→": 1000}

# fmt: off
REGULAR = (
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636, 636, 636,
    636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632, 575, 775, 752, 295,
    295, 656, 557, 863, 748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838,
    500, 500, 613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612, 635, 635, 411, 521,
    392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838,
)
BOLD = (
    348, 456, 521, 838, 696, 1002, 872, 306, 457, 457, 523, 838, 380, 415, 380, 365, 696, 696, 696, 696, 696,
    696, 696, 696, 696, 696, 400, 400, 838, 838, 838, 580, 1000, 774, 762, 734, 830, 683, 683, 821, 837, 372,
    372, 775, 637, 995, 837, 850, 733, 850, 770, 720, 682, 812, 774, 1103, 771, 724, 725, 457, 365, 457, 838,
    500, 500, 675, 716, 593, 716, 678, 435, 716, 712, 343, 343, 665, 343, 1042, 712, 687, 716, 716, 493, 595,
    478, 712, 652, 924, 645, 652, 582, 712, 365, 712, 838,
)
# fmt: on


def text_width(text: str, size: float = 13, *, bold: bool = False) -> float:
    """Estimate the width of ``text`` in pixels at a font size of ``size`` pixels."""
    widths = BOLD if bold else REGULAR
    total = sum(widths[ord(c) - 32] if " " <= c <= "~" else KNOWN.get(c, OTHER) for c in text)
    return total / 1000 * size * SAFETY


def wrap_text(text: str, width: float, size: float = 13) -> list[str]:
    """Wrap ``text`` at spaces into lines of at most ``width`` pixels; a longer word keeps its own line."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def wrap_names(names: Sequence[str], width: float, size: float = 13) -> tuple[str, ...]:
    """Join ``names`` with commas and wrap between them into lines of at most ``width`` pixels."""
    lines = group_names(names, width, size)
    return tuple(", ".join(line) + ("," if line is not lines[-1] else "") for line in lines)


def group_names(names: Sequence[str], width: float, size: float = 13) -> tuple[tuple[str, ...], ...]:
    """Return the names of each line of ``wrap_names``."""
    lines: list[list[str]] = []
    for number, name in enumerate(names, 1):
        comma = "," if number < len(names) else ""
        if lines and text_width(", ".join([*lines[-1], name]) + comma, size) <= width:
            lines[-1].append(name)
        else:
            lines.append([name])
    return tuple(map(tuple, lines))
