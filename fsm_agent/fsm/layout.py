"""Where things are in the picture of a table: plain dictionaries, so that a layout needs no import to be
written.

Coordinates are pixels from the upper left corner. Sides of a box are given by their absolute coordinate (x on
top and bottom, y on left and right), so a box that grows takes its arrows along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict

Side = Literal["left", "right", "top", "bottom"]
Point = tuple[float, float]


class Route(TypedDict):
    """How an arrow runs: a curve between two sides, or straight pieces through ``via`` with round corners."""

    start: tuple[Side, float]
    end: tuple[Side, float]
    via: NotRequired[Sequence[Point]]
    reach: NotRequired[float]  # how far a curve keeps to its right angles
    label: NotRequired[Point]  # center of the label; by default the middle of the line
    wrap: NotRequired[float]  # width at which the label is broken into lines


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
    """Return the route that ``leaves`` one side of a box and ``enters`` one of the other by absolute
    coordinates."""
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
    """Places of boxes (x, y, least width), arrows and panels. What it does not name is placed automatically;
    what the table does not have is ignored: so two versions of a table can be drawn with one layout."""

    size: tuple[float, float]
    boxes: Mapping[str, tuple[float, float, float]]
    arrows: Mapping[tuple[str, str], Route]
    how_to_read: tuple[float, float, float]  # x, y, width
    proved: tuple[float, float, float]
    heights: NotRequired[Mapping[str, float]]  # least heights of boxes
    widths: NotRequired[Mapping[str, float]]  # widths at which the lists in boxes are broken
    map: NotRequired[Layout]  # of the debugger's map, whose boxes have no lines and which has every arrow
    small: NotRequired[Layout]  # of the map for README files, with the same boxes and arrows
    ways_out: NotRequired[Mapping[str, Sequence[str]]]  # exits drawn as arrows: {state: events}
    column: NotRequired[float]  # width that the picture is scaled down to, as far as its text stays readable
    says: NotRequired[Mapping[str, str]]  # what each state does, in a few words, for the map of README files
    usual: NotRequired[
        Sequence[tuple[str, str]]
    ]  # arrows of a turn without surprises, the boldest of that map
    notes: NotRequired[Sequence[str]]  # sentences added to "How to read"
