"""The newest result of a tool of the agent, out of the journal: state that lives with the session and never
differs from it.

The journal has the result of every call, whatever compactions do to the transcript and whenever the process
ended. What was undone does not count, and a fork begins with what was there at its move."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fsm_agent.conversation.messages import Message
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.checksum import loads
from fsm_agent.sessions.store.connection import SqlConnection

MAX_RESULT = 2_000_000
"""Characters of a result that is believed."""
LOOKED_AT = 20
"""Newest calls of a session that are looked at for one that went well."""


def newest_result(store: Store, session: Session, tool: str) -> dict[str, Any] | None:
    """What the last call of ``tool`` that went well gave back, if that was an object."""
    with store.database.reading() as c:
        found = _of_session(c, session.id, tool, None)
    found = found or _of_transcript(session.rows, tool)
    if found is not None or session.parent is None or session.kind == "child":
        return found
    with store.database.reading() as c:
        return _of_line(c, session.id, tool)


def _of_line(c: SqlConnection, session_id: str, tool: str) -> dict[str, Any] | None:
    """Of the sessions that this one goes on from, each up to the moment when it did."""
    seen: set[str] = set()
    while session_id not in seen:  # as many as there are; a circle in a damaged file ends it
        seen.add(session_id)
        row = c.execute(
            "SELECT s.kind, s.parent, s.created, (SELECT m.at FROM turns t"
            " JOIN transitions m ON m.turn = t.parent AND m.seq = t.forked_at"
            " WHERE t.session = s.id AND t.forked_at IS NOT NULL) FROM sessions s WHERE s.id = ?",
            (session_id,),
        ).fetchone()
        if row is None or row[0] not in ("compression", "fork") or row[1] is None:
            return None
        session_id, until = row[1], row[2] if row[0] == "compression" else row[3]
        if found := _of_session(c, session_id, tool, until):
            return found
    return None


def _of_session(c: SqlConnection, session_id: str, tool: str, until: float | None) -> dict[str, Any] | None:
    rows = c.execute(
        "SELECT e.reply, e.reply_crc FROM turns t JOIN effects e ON e.turn = t.id WHERE t.session = ?"
        " AND t.undone IS NULL AND e.kind = 'RunTool' AND e.name = ? AND e.status = 'done'"
        " AND (? IS NULL OR e.at <= ?) ORDER BY e.at DESC, e.seq DESC, e.ordinal DESC LIMIT ?",
        (session_id, tool, until, until, LOOKED_AT),
    )
    for reply in rows:
        outcome = loads(*reply)
        if outcome.get("status") == "ok" and (found := _object(outcome.get("text", ""))) is not None:
            return found
    return None


def _of_transcript(rows: Sequence[Message], tool: str) -> dict[str, Any] | None:
    """Of a history that came from elsewhere; a result without its call is somebody's invention and does not
    count."""
    calls = {
        call.id for row in rows if row.role == "assistant" for call in row.tool_calls if call.name == tool
    }
    for row in reversed(rows):
        if row.role == "tool" and row.tool_call_id in calls and (found := _object(row.text)) is not None:
            return found
    return None


def _object(text: str) -> dict[str, Any] | None:
    if len(text) > MAX_RESULT:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
