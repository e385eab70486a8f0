"""What a list of moves says of each: the tools that were called, with their arguments, and what the model
took."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fsm_agent.conversation.messages import NO_USAGE, Usage
from fsm_agent.debug.core.record import Record, price_of
from fsm_agent.fsm.codec import dumps
from fsm_agent.sessions.store.rows import loads

Cost = Callable[[Usage], float | None]
LONGEST = 200
"""Characters of the arguments of one call."""
MOST = 8
"""Calls of one move that are listed."""


def note_of(entries: Iterable[Mapping[str, Any]], cost: Cost) -> dict[str, Any]:
    """Return the note of a move from the requests of the visit that it ended: ``calls`` [[tool, arguments]],
    which the model asked for or the state ran, ``tokens``, and ``cost`` in US dollars, ``None`` while a price
    is not known."""
    calls: list[list[str]] = []
    used = NO_USAGE
    for one in entries:
        reply = one["reply"] or {}
        if one["kind"] == "RunTool":
            calls.append([one["name"], dumps((one["request"] or {}).get("arguments", {}))[:LONGEST]])
        elif one["kind"] == "CallModel":
            asked = reply.get("tool_calls") or ()
            calls += [[call["name"], str(call["arguments"])[:LONGEST]] for call in asked]
            used += Usage(**(reply.get("usage") or {}))
    spent = cost(used) if used.total else 0.0
    return {"calls": calls[:MOST], "more": max(0, len(calls) - MOST), "tokens": used.total, "cost": spent}


def noted_moves(record: Record, first: int, last: int) -> list[dict[str, Any]]:
    """Return the moves ``first`` to ``last``, each with its note."""
    visits: dict[int, list[dict[str, Any]]] = {}
    with record.reading() as c:
        for part in record.within(first, last):
            rows = c.execute(
                "SELECT seq, kind, name, request, request_crc, reply, reply_crc FROM effects WHERE turn = ?"
                " AND seq BETWEEN ? AND ? AND kind IN ('CallModel', 'RunTool') ORDER BY seq, ordinal, place",
                (part.turn, part.first - 1, (last if part.last is None else part.last) - 1),
            )
            for seq, kind, name, request, request_crc, reply, reply_crc in rows:
                entry = {"kind": kind, "name": name, "request": loads(request, request_crc)}
                entry["reply"] = None if reply is None else loads(reply, reply_crc)
                visits.setdefault(seq + 1, []).append(entry)
    cost = price_of(record)
    return [move | note_of(visits.get(move["seq"], ()), cost) for move in record.moves(first, last)]


def tools_called(record: Record) -> list[tuple[str, int]]:
    """Return the tools that a turn called, by their names, with how often."""
    found: dict[str, int] = {}
    with record.reading() as c:
        for part in record.within(1, None):
            rows = c.execute(
                "SELECT name, COUNT(*) FROM effects WHERE turn = ? AND seq >= ? AND (? IS NULL OR seq < ?)"
                " AND kind = 'RunTool' GROUP BY name",
                (part.turn, part.first - 1, part.last, part.last),
            )
            for name, count in rows:
                found[name] = found.get(name, 0) + count
    return sorted(found.items())


def moves_of_tool(record: Record, tool: str) -> list[int]:
    """Return the moves whose visit called a tool."""
    found: list[int] = []
    with record.reading() as c:
        for part in record.within(1, None):
            rows = c.execute(
                "SELECT DISTINCT seq + 1 FROM effects WHERE turn = ? AND seq >= ? AND (? IS NULL OR seq < ?)"
                " AND kind = 'RunTool' AND name = ? ORDER BY seq",
                (part.turn, part.first - 1, part.last, part.last, tool),
            )
            found += [seq for (seq,) in rows]
    return found
