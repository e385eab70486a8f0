"""The table as JSON for other programs; one line, rung or row to a line of text, so that a diff of two files reads."""

from __future__ import annotations

import json
from collections.abc import Iterable

from fsm_agent.diagram.model import Diagram, line_rows
from fsm_agent.table import Line, Row, Table


def as_json(diagram: Diagram) -> str:
    """``name, digest, initial, final, states, counters, resets, lines, macros, arrows, rows``, in table order."""
    table = diagram.table
    parts = {
        "name": _dump(table.name),
        "digest": _dump(table.digest),
        "initial": _dump(table.initial),
        "final": _dump(table.final),
        "states": _dump(table.states),
        "counters": _many({"name": c.name, "flag": c.flag, "cap": c.cap} for c in table.counters),
        "resets": _dump({name: list(group) for name, group in table.reset_groups.items()}),
        "lines": _many(_line(table, line) for line in table.lines),
        "macros": _many({"event": event, "exits": dict(exits)} for event, exits in table.macros),
        "arrows": _many({"source": a.source, "dest": a.dest, "labels": a.labels, "rows": a.rows} for a in diagram.arrows),
        "rows": _many(_row(row) for row in table.rows),
    }
    return "{\n" + ",\n".join(f'  "{name}": {text}' for name, text in parts.items()) + "\n}\n"


def _line(table: Table, line: Line) -> dict[str, object]:
    return {
        "state": line.source,
        "event": line.event,
        "ladder": [{"rung": rung.name, "to": rung.to, "exit": rung.exit, "row": row.id} for rung, row in line_rows(table, line)],
        "resets": line.resets,
        "why": line.why,
    }


def _row(row: Row) -> dict[str, object]:
    return {
        "id": row.id,
        "source": row.source,
        "event": row.event,
        "dest": row.dest,
        "guard": row.guard.label,
        "rung": row.rung,
        "spends": row.spends,
        "resets": row.resets,
        "exit": row.exit,
        "why": row.why,
    }


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _many(values: Iterable[object]) -> str:
    return "[\n" + ",\n".join(f"    {_dump(value)}" for value in values) + "\n  ]"
