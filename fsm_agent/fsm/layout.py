"""Positions in the picture of a table: plain dictionaries, so that a layout needs no imports.

Coordinates are pixels from the upper left corner. Arrows join the sides of a box at absolute coordinates (x
on top and bottom, y on left and right), so a box that grows takes its arrows along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict

Side = Literal["left", "right", "top", "bottom"]
Point = tuple[float, float]


class Route(TypedDict):
    """The path of an arrow: a curve between two sides, or straight segments through ``via`` with round
    corners."""

    start: tuple[Side, float]
    end: tuple[Side, float]
    via: NotRequired[Sequence[Point]]
    reach: NotRequired[float]  # how far a curve stays perpendicular to the sides
    label: NotRequired[Point]  # center of the label; by default the middle of the line
    wrap: NotRequired[float]  # maximum width of a line of the label


def way(
    start: Side,
    leaves: float,
    end: Side,
    enters: float,
    via: Sequence[Point] = (),
    label: Point | None = None,
    *,
    reach: float | None = None,
    wrap: float | None = None,
) -> Route:
    """Return the route that leaves one side of a box at ``leaves`` and enters a side of another at
    ``enters``, both absolute coordinates."""
    route: Route = {"start": (start, leaves), "end": (end, enters)}
    if via:
        route["via"] = via
    if label is not None:
        route["label"] = label
    if reach is not None:
        route["reach"] = reach
    if wrap is not None:
        route["wrap"] = wrap
    return route


class Layout(TypedDict):
    """Places of boxes (x, y, minimum width), arrows and panels. Parts of a table without an entry are placed
    automatically, and entries that are not in the table are ignored: two versions of a table can share one
    layout."""

    size: tuple[float, float]
    boxes: Mapping[str, tuple[float, float, float]]
    arrows: Mapping[tuple[str, str], Route]
    how_to_read: tuple[float, float, float]  # x, y, width
    proved: tuple[float, float, float]
    heights: NotRequired[Mapping[str, float]]  # minimum heights of boxes
    widths: NotRequired[Mapping[str, float]]  # maximum width of lines in the lists of boxes
    map: NotRequired[Layout]  # for the debugger's map, whose boxes have no lines and which has every arrow
    small: NotRequired[Layout]  # for the map in README files, with the same boxes and arrows
    ways_out: NotRequired[Mapping[str, Sequence[str]]]  # exits drawn as arrows: {state: events}
    column: NotRequired[float]  # the picture is scaled down to this width as far as its text stays readable
    says: NotRequired[Mapping[str, str]]  # a few words per state, for the map in README files
    usual: NotRequired[
        Sequence[tuple[str, str]]
    ]  # arrows of a turn without surprises, drawn boldest on that map
    notes: NotRequired[Sequence[str]]  # sentences added to "How to read"
