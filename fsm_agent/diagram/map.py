"""The small picture of a table: every state as a box without lines, one arrow for all rows from one state to
another, also to the end.

It is for README files, comments and pages, where the whole table would be too small to read: its text has at
least 11 pixels in a column of ``COLUMN`` pixels wherever the table has few enough states for that."""

from __future__ import annotations

from collections.abc import Sequence

from fsm_agent.diagram.landscape import landscape
from fsm_agent.diagram.layers import automatic
from fsm_agent.diagram.model import Arrow, Box, Diagram, diagram_of, words
from fsm_agent.diagram.scene import scene_of
from fsm_agent.fsm.layout import Layout
from fsm_agent.fsm.table import Row, Table

COLUMN = 830.0
"""Width in pixels of the column that README files are shown in."""
NAMED = 2
"""Names on an arrow; the others are counted."""


def map_of(table: Table) -> tuple[Diagram, Layout]:
    """The map of ``table``, and its places: those of its own layout, else automatic ones, downwards where
    that fits into the column and else sideways."""
    whole = diagram_of(table)
    boxes = tuple(_box(table, box) for box in whole.boxes)
    small = Diagram(table, boxes, tuple(_arrow(table, rows) for rows in _ways(table)))
    made = table.layout.get("small") if table.layout else None
    tried = [_for_column(layout) for layout in ([made] if made else [automatic(small), landscape(small)])]
    return small, min(tried, key=lambda layout: max(COLUMN, scene_of(small, layout).size[0]))


def _for_column(layout: Layout) -> Layout:
    return {**layout, "column": COLUMN, "how_to_read": (0, 0, 0)}


def _box(table: Table, box: Box) -> Box:
    if box.final:
        return Box(box.state, (), "the end", final=True)
    rows = [row for row in table.rows if row.source == box.state]
    events = dict.fromkeys(row.event for row in rows)
    return Box(box.state, (), f"{len(events)} events, {len(rows)} rows")


def _ways(table: Table) -> Sequence[Sequence[Row]]:
    """The rows of each arrow. What every state does alike is told only where there is nothing else."""
    pairs: dict[tuple[str, str], list[Row]] = {}
    for row in table.rows:
        pairs.setdefault((row.source, row.dest), []).append(row)
    own = ([row for row in rows if row.event not in table.is_macro] for rows in pairs.values())
    return [rows for rows in own if rows]


def _arrow(table: Table, rows: Sequence[Row]) -> Arrow:
    source, dest = rows[0].source, rows[0].dest
    exits = list(dict.fromkeys(words(row.exit) for row in rows if row.exit))
    names = list(dict.fromkeys(_name(row) for row in rows if not row.exit))
    if len(names) > NAMED + 1:
        names = [*names[:NAMED], f"{len(names) - NAMED} more"]
    if exits:
        names.append(f"⇥ {exits[0] if len(exits) == 1 else f'{len(exits)} exits'}")
    ids = tuple(row.id for row in rows)
    return Arrow(source, dest, tuple(names), ids, way_out=dest == table.final)


def _name(row: Row) -> str:
    return words(row.event) if row.rung.startswith("→") else row.rung
