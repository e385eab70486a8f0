"""The neighborhood of one state: every row of it with its guard in words, and only the states before and
after it.

Sources are on the left, the state in the middle, and its destinations on the right."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fsm_agent.diagram.geometry import wrap_names
from fsm_agent.diagram.markdown import row_grid, runs_in_words
from fsm_agent.diagram.model import (
    Arrow,
    Box,
    Diagram,
    ShownStep,
    StateEntry,
    diagram_of,
    merge_arrows,
    resets_in_words,
    words,
)
from fsm_agent.diagram.scene import label_size, measure
from fsm_agent.diagram.table_json import row_form
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.layout import Layout, Route, Side
from fsm_agent.fsm.table import Row, Table

MARGIN, GAP, LABEL_GAP = 24.0, 28.0, 8.0
NEIGHBOUR = 180.0  # least width of a box at the side
SIDE = 250.0  # width of such a box at which a list is broken
NARROW = 120.0  # width at which a label is broken
LONG = 640.0  # the same of the state's own box: with both sides a picture stays near 1,600 pixels


def neighbourhood(table: Table, state: str) -> Diagram:
    """The part of ``table`` around ``state``, all exits drawn as arrows. Raises ``ConfigError`` for a state
    it does not have."""
    if state not in table.states:
        raise ConfigError(f"the table {table.name!r} has no such state", state, ", ".join(table.states))
    whole = diagram_of(table)
    arrows = merge_arrows(table, [row for row in table.rows if state in (row.source, row.dest)])
    near = {state, *(end for arrow in arrows for end in (arrow.source, arrow.dest))}
    boxes = [box for box in whole.boxes if box.state in near]
    drawn = (_from_near(table, box) if box.state == state else _from_far(table, box, state) for box in boxes)
    nested = tuple(one for name, one in whole.runs if name == state)
    return Diagram(table, tuple(drawn), arrows, nested=nested)


def around(diagram: Diagram, state: str) -> Layout:
    """Places for the boxes of a neighbourhood, in three columns, and straight arrows between them."""
    ahead = [a.dest for a in diagram.arrows if a.source == state and a.dest != state]
    behind = [a.source for a in diagram.arrows if a.source != state and a.source not in ahead]
    sizes = {box.state: measure(box, LONG if box.state == state else SIDE) for box in diagram.boxes}
    own = [a for a in diagram.arrows if a.source == a.dest]
    room = {name: _room(diagram, state, names) for name, names in (("left", behind), ("right", ahead))}
    heights = {name: max(sizes[name][1], _slots(diagram, state, name)) for name in [*behind, *ahead]}
    tall = max([_height(behind, heights), _height(ahead, heights), sizes[state][1]])
    side = max([NEIGHBOUR, *(sizes[name][0] for name in behind)])
    middle = MARGIN + (side + room["left"] if behind else 0)
    right = middle + sizes[state][0] + max([room["right"], *(_label(a)[0] + 100 for a in own)])
    boxes = {state: (middle, MARGIN, sizes[state][0])}
    routes: dict[tuple[str, str], Route] = {}
    for names, x, width in ((behind, MARGIN, side), (ahead, right, NEIGHBOUR)):
        y = MARGIN + (tall - _height(names, heights)) / 2
        for name in names:
            boxes[name] = x, y, width
            routes |= _routes(diagram, state, name, y, heights[name], on_left=names is behind)
            y += heights[name] + GAP
    if own:
        routes[state, state] = {
            "start": ("bottom", middle + 60),
            "end": ("bottom", middle + 130),
            "reach": 50,
            "wrap": NARROW,
        }
    below = MARGIN + tall + (110 if own else 48)
    return {
        "size": (right + MARGIN + max([NEIGHBOUR, *(sizes[name][0] for name in ahead)]), below),
        "boxes": boxes,
        "heights": {**heights, state: tall},
        "widths": {**dict.fromkeys(diagram.states, SIDE), state: LONG},
        "arrows": routes,
        "how_to_read": (MARGIN, below, 440),
        "proved": (MARGIN + 480, below, 440),
    }


def _room(diagram: Diagram, state: str, names: Sequence[str]) -> float:
    """Width between two columns, for the labels of all arrows between them."""
    pairs = [(name, state) for name in names] + [(state, name) for name in names]
    sizes = [_label(a) for a in diagram.arrows if (a.source, a.dest) in pairs]
    return max((width for width, _ in sizes), default=0) + 60


def _slots(diagram: Diagram, state: str, name: str) -> float:
    """Height of the labels between the state and a neighbor, one below the other."""
    return (
        sum(_label(a)[1] + LABEL_GAP for a in diagram.arrows if {a.source, a.dest} == {state, name})
        + LABEL_GAP
    )


def _routes(
    diagram: Diagram, state: str, name: str, top: float, height: float, *, on_left: bool
) -> dict[tuple[str, str], Route]:
    """Horizontal arrows between the state and a neighbor that begins at ``top``, evenly spread over its
    height."""
    found: dict[tuple[str, str], Route] = {}
    spare = (height - _slots(diagram, state, name)) / 2
    y = top + spare + LABEL_GAP
    for arrow in (a for a in diagram.arrows if {a.source, a.dest} == {state, name}):
        away = (arrow.source == state) != on_left
        label = _label(arrow)[1]
        at = y + label / 2
        sides: tuple[Side, Side] = ("right", "left") if away else ("left", "right")
        found[arrow.source, arrow.dest] = {"start": (sides[0], at), "end": (sides[1], at), "wrap": NARROW}
        y += label + LABEL_GAP
    return found


def _height(names: Sequence[str], heights: Mapping[str, float]) -> float:
    return sum(heights[name] for name in names) + GAP * max(len(names) - 1, 0)


def _label(arrow: Arrow) -> tuple[float, float]:
    return label_size(wrap_names(arrow.labels, NARROW))


def _from_near(table: Table, box: Box) -> Box:
    """Every row on a line of its own, with its guard and what it spends and resets."""
    entries = []
    for entry in box.entries:
        if box.final:
            entries.append(entry)
            continue
        for number, (step, row) in enumerate(
            zip(entry.steps, (table.row(row) for row in entry.rows), strict=True)
        ):
            alone = StateEntry(
                entry.event, "" if number else entry.label, (step,), (step,), (row.id,), entry.why
            )
            entries.append(_annotate_row(table, alone, row))
    return replace(box, entries=(*entries, *_macros(table, box)))


def _macros(table: Table, box: Box) -> Sequence[StateEntry]:
    """The lines that the state shares with every other one."""
    if box.final:
        return ()
    found = []
    for event, exits in table.macros:
        if box.state in exits:
            row = f"{box.state}.{event}"
            steps = (ShownStep("exit", words(exits[box.state]), (row,)),)
            found.append(StateEntry(event, words(event), steps, steps, (row,), f"every state: {event}"))
    return found


def _annotate_row(table: Table, entry: StateEntry, row: Row) -> StateEntry:
    """A row with its guard, what it spends and resets, as clauses between which a line may be broken."""
    guard = f"if {row.guard.label}" if row.guard.label != "always" else ""
    effects = [f"spends {', '.join(map(words, row.spends))}"] if row.spends else []
    effects += [f"resets {words(resets_in_words(table, row.resets))}"] if row.resets else []
    clauses = re.split(r" (?=and |spends |resets )", ", ".join(filter(None, [guard, *effects])))
    steps = (*entry.steps, *(ShownStep("note", clause) for clause in clauses if clause))
    return replace(entry, steps=steps, short=steps)


def _from_far(table: Table, box: Box, state: str) -> Box:
    """Only what leads to ``state``."""
    if box.final:
        return replace(box, entries=(), intro="")
    leading = {row.id for row in table.rows if row.source == box.state and row.dest == state}
    entries = []
    for entry in (*box.entries, *_macros(table, box)):
        steps = tuple(step for step in entry.steps if leading.intersection(step.rows))
        if steps:
            entries.append(
                replace(
                    entry, steps=steps, short=steps, rows=tuple(row for step in steps for row in step.rows)
                )
            )
    return replace(box, entries=tuple(entries))


def near_markdown(table: Table, state: str) -> str:
    """The rows that leave a state, and those that lead to it from others."""
    out = [row for row in table.rows if row.source == state]
    into = [row for row in table.rows if row.dest == state and row.source != state]
    lines = [f"# {state}, a state of the {table.name} table", *runs_in_words(table, state)]
    for title, rows in (("Out", out), ("In", into)):
        if rows:
            lines += ["", f"## {title}", "", *row_grid(table, rows)]
    return "\n".join(lines) + "\n"


def near_json(diagram: Diagram, state: str) -> str:
    """``table, state, out, in, arrows``."""
    rows = diagram.table.rows
    value = {
        "table": diagram.table.name,
        "state": state,
        "out": [row_form(row) for row in rows if row.source == state],
        "in": [row_form(row) for row in rows if row.dest == state and row.source != state],
        "arrows": [
            {"source": a.source, "dest": a.dest, "labels": a.labels, "rows": a.rows} for a in diagram.arrows
        ],
    }
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
