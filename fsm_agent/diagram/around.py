"""The neighborhood of one state: every row of it with its guard in words, and only the states before and
after it.

Sources are at the top, the state is in the middle, and its destinations are at the bottom."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fsm_agent.diagram.geometry import wrap_names
from fsm_agent.diagram.layout import COLUMN
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

MARGIN, GAP, LABEL_GAP = 24.0, 12.0, 8.0
NEIGHBOUR = 130.0  # minimum width of a neighbor's box
SIDE = 200.0  # width of such a box at which a list wraps
NARROW = 100.0  # width at which a label wraps
LOOP = 58.0  # width of a self-loop, without its label
COLUMN_AT_11 = COLUMN * 13 / 11  # a picture of this width has 11-pixel text in a page's column


def neighbourhood(table: Table, state: str) -> Diagram:
    """Return the part of ``table`` around ``state``, all exits drawn as arrows. Raises ``ConfigError`` for an
    unknown state."""
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
    """Lay out a neighborhood in three rows with straight arrows: states that only lead to the state are above
    it, its destinations are below."""
    ahead = [a.dest for a in diagram.arrows if a.source == state and a.dest != state]
    behind = [a.source for a in diagram.arrows if a.source != state and a.source not in ahead]
    if not ahead:
        return _beside(diagram, state, behind)
    own = [a for a in diagram.arrows if a.source == a.dest]
    loop = max((_label(a)[0] + LOOP for a in own), default=0.0)
    sizes = {box.state: measure(box, SIDE) for box in diagram.boxes if box.state != state}
    widths = {name: max(NEIGHBOUR, sizes[name][0], _slots(diagram, state, name)) for name in sizes}
    wide = max(_width(behind, widths), _width(ahead, widths))
    broken = max(wide, COLUMN_AT_11 - 2 * MARGIN - loop)
    width, height = next(measure(box, broken) for box in diagram.boxes if box.state == state)
    wide = max(wide, width)
    boxes: dict[str, tuple[float, float, float]] = {}
    routes: dict[tuple[str, str], Route] = {}
    y = MARGIN
    for names in (behind, [state], ahead):
        if not names:
            continue
        tall = height if names == [state] else max(sizes[name][1] for name in names)
        x, room = MARGIN, (wide - _width(names, widths)) / len(names) if names != [state] else 0.0
        for name in names:
            lower = tall - sizes[name][1] if names is behind else 0.0
            boxes[name] = x, y + lower, wide if name == state else widths[name] + room
            if name != state:
                routes |= _routes(diagram, state, name, x, boxes[name][2], above=names is behind)
            x += boxes[name][2] + GAP
        y += tall + (_gap(diagram, state, names, ahead) if names is not ahead else 0.0)
    if own:
        middle = boxes[state][1] + min(height / 2, 90)
        routes[state, state] = {
            "start": ("right", middle - 35),
            "end": ("right", middle + 35),
            "reach": 50,
            "wrap": NARROW,
        }
    below = y + 48
    return {
        "size": (MARGIN + wide + max(loop, MARGIN), below),
        "boxes": boxes,
        "widths": {**dict.fromkeys(diagram.states, SIDE), state: broken},
        "arrows": routes,
        "how_to_read": (MARGIN, below, 440),
        "proved": (MARGIN + 480, below, 440),
    }


def _beside(diagram: Diagram, state: str, behind: Sequence[str]) -> Layout:
    """Lay out the final state, which has many predecessors: they are on its left, in a column."""
    sizes = {box.state: measure(box, SIDE) for box in diagram.boxes}
    labels = {a.source: _label(a) for a in diagram.arrows}
    side = max(sizes[name][0] for name in behind)
    right = MARGIN + side + max(width for width, _ in labels.values()) + 64
    boxes: dict[str, tuple[float, float, float]] = {}
    routes: dict[tuple[str, str], Route] = {}
    heights: dict[str, float] = {}
    y = MARGIN
    for name in behind:
        boxes[name], heights[name] = (MARGIN, y, side), max(sizes[name][1], labels[name][1] + LABEL_GAP)
        at = y + heights[name] / 2
        routes[name, state] = {"start": ("right", at), "end": ("left", at), "wrap": NARROW}
        y += heights[name] + GAP
    return {
        "size": (right + max(NEIGHBOUR, sizes[state][0]) + MARGIN, y + 48),
        "boxes": {**boxes, state: (right, MARGIN, NEIGHBOUR)},
        "heights": {**heights, state: y - GAP - MARGIN},
        "widths": dict.fromkeys(diagram.states, SIDE),
        "arrows": routes,
        "how_to_read": (MARGIN, y + 48, 440),
        "proved": (MARGIN + 480, y + 48, 440),
    }


def _gap(diagram: Diagram, state: str, names: Sequence[str], ahead: Sequence[str]) -> float:
    """Return the height between a row of boxes and the next one, for the tallest label between them."""
    beside = set(ahead if names == [state] else names)
    pairs = (a for a in diagram.arrows if {a.source, a.dest} - {state} <= beside and a.source != a.dest)
    return max((_label(a)[1] for a in pairs), default=0) + 64


def _slots(diagram: Diagram, state: str, name: str) -> float:
    """Return the total width of the labels between the state and a neighbor, side by side."""
    between = (a for a in diagram.arrows if {a.source, a.dest} == {state, name})
    return sum(_label(a)[0] + LABEL_GAP for a in between) + LABEL_GAP


def _routes(
    diagram: Diagram, state: str, name: str, left: float, width: float, *, above: bool
) -> dict[tuple[str, str], Route]:
    """Return vertical arrows between the state and a neighbor that begins at ``left``, evenly spread over its
    width."""
    found: dict[tuple[str, str], Route] = {}
    x = left + (width - _slots(diagram, state, name)) / 2 + LABEL_GAP
    for arrow in (a for a in diagram.arrows if {a.source, a.dest} == {state, name}):
        down = (arrow.source == state) != above
        label = _label(arrow)[0]
        at = x + label / 2
        sides: tuple[Side, Side] = ("bottom", "top") if down else ("top", "bottom")
        found[arrow.source, arrow.dest] = {"start": (sides[0], at), "end": (sides[1], at), "wrap": NARROW}
        x += label + LABEL_GAP
    return found


def _width(names: Sequence[str], widths: Mapping[str, float]) -> float:
    return sum(widths[name] for name in names) + GAP * max(len(names) - 1, 0)


def _label(arrow: Arrow) -> tuple[float, float]:
    return label_size(wrap_names(arrow.labels, NARROW))


def _from_near(table: Table, box: Box) -> Box:
    """Show every row on its own line, with its guard and what it spends and resets."""
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
    """Return the lines of macros that the state has."""
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
    """Add a row's guard, and what it spends and resets, as clauses between which a line may wrap."""
    guard = f"if {row.guard.label}" if row.guard.label != "always" else ""
    effects = [f"spends {', '.join(map(words, row.spends))}"] if row.spends else []
    effects += [f"resets {words(resets_in_words(table, row.resets))}"] if row.resets else []
    clauses = re.split(r" (?=and |spends |resets )", ", ".join(filter(None, [guard, *effects])))
    steps = (*entry.steps, *(ShownStep("note", clause) for clause in clauses if clause))
    return replace(entry, steps=steps, short=steps)


def _from_far(table: Table, box: Box, state: str) -> Box:
    """Keep only the rows that lead to ``state``."""
    if box.final:
        return replace(box, entries=(), intro="")
    leading = {row.id for row in table.rows if row.source == box.state and row.dest == state}
    entries = []
    for entry in (*box.entries, *_macros(table, box)):
        steps = tuple(
            replace(step, words="here") if step.words == state else step
            for step in entry.steps
            if leading.intersection(step.rows)
        )
        if steps:
            entries.append(
                replace(
                    entry, steps=steps, short=steps, rows=tuple(row for step in steps for row in step.rows)
                )
            )
    return replace(box, entries=tuple(entries))


def near_markdown(table: Table, state: str) -> str:
    """Return the rows that leave a state, and those that lead to it from others, as Markdown."""
    out = [row for row in table.rows if row.source == state]
    into = [row for row in table.rows if row.dest == state and row.source != state]
    lines = [f"# {state}, a state of the {table.name} table", *runs_in_words(table, state)]
    for title, rows in (("Out", out), ("In", into)):
        if rows:
            lines += ["", f"## {title}", "", *row_grid(table, rows)]
    return "\n".join(lines) + "\n"


def near_json(diagram: Diagram, state: str) -> str:
    """Return the same as JSON: ``table, state, out, in, arrows``."""
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
