"""One state from near, as Markdown and as JSON."""

from __future__ import annotations

import json

from fsm_agent.diagram.describe import row_form
from fsm_agent.diagram.markdown import row_grid
from fsm_agent.diagram.model import Diagram
from fsm_agent.fsm.table import Table


def near_markdown(table: Table, state: str) -> str:
    """The rows that leave a state, and those that lead to it from others."""
    out = [row for row in table.rows if row.source == state]
    into = [row for row in table.rows if row.dest == state and row.source != state]
    lines = [f"# {state}, a state of the {table.name} table"]
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
