"""The table as JSON for other programs; one line, rung or row to a line of text, so that a diff of two files
reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from fsm_agent.diagram.describe import describe
from fsm_agent.diagram.model import Diagram
from fsm_agent.fsm.table import Table


def as_json(diagram: Diagram) -> str:
    """``name, digest, initial, final, states, counters, resets, lines, macros, arrows, rows``, in table
    order, and ``properties`` and ``inner`` where there are some; complete, so that ``table_from`` makes the
    same table of it. A counter's ``limits`` are the names that its guards compare it with."""
    table = diagram.table
    form = describe(table)
    limits = {
        c.name: sorted({a.limit for r in table.rows for a in r.guard.atoms() if a.counter == c.name})
        for c in table.counters
    }
    parts = {
        "name": _dump(table.name),
        "digest": _dump(table.digest),
        "initial": _dump(table.initial),
        "final": _dump(table.final),
        "states": _dump(table.states),
        "counters": _many({**counter, "limits": limits[counter["name"]]} for counter in form["counters"]),
        "resets": _dump(form["resets"]),
        "lines": _many(_with_rows(table, line) for line in form["lines"]),
        "macros": _many(form["macros"]),
        "arrows": _many(
            {"source": a.source, "dest": a.dest, "labels": a.labels, "rows": a.rows} for a in diagram.arrows
        ),
        "rows": _many(form["rows"]),
        **({"properties": _many(form["properties"])} if "properties" in form else {}),
        **({"inner": _dump(form["inner"])} if "inner" in form else {}),
    }
    return "{\n" + ",\n".join(f'  "{name}": {text}' for name, text in parts.items()) + "\n}\n"


def _with_rows(table: Table, line: dict[str, Any]) -> dict[str, Any]:
    rows = table.by_event[line["state"], line["event"]]
    return {
        **line,
        "ladder": [{**rung, "row": row.id} for rung, row in zip(line["ladder"], rows, strict=True)],
    }


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _many(values: Iterable[object]) -> str:
    return "[\n" + ",\n".join(f"    {_dump(value)}" for value in values) + "\n  ]"
