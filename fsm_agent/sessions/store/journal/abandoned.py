"""Turns that nobody runs any more, and what becomes of them when their session goes on without them.
(Why: decision 31.)"""

from __future__ import annotations

import json
from collections.abc import Sequence

from fsm_agent.conversation.effects import IN_DOUBT
from fsm_agent.conversation.history_rules import unanswered
from fsm_agent.conversation.messages import Message
from fsm_agent.sessions.store.checksum import loads
from fsm_agent.sessions.store.connection import SqlConnection
from fsm_agent.sessions.store.rows import insert_message, message_of, newest_number, transcript

ABANDONED = "abandoned"
"""How a turn ended whose process died, when the session went on without it."""
NOT_STARTED = "not run: the process ended before it started"
NOT_WAITED = "no result: it was to come later, and the conversation went on without it"


def open_turns(
    connection: SqlConnection, session_id: str, to_write: bool = False
) -> list[tuple[str, str | None]]:
    """Return (turn, owner) of the session's turns that have not ended, oldest first. ``to_write``: in a
    transaction that goes on to change them."""
    sql = "SELECT id, owner FROM turns WHERE session = ? AND ended IS NULL ORDER BY number"
    return connection.execute(f"{sql} /* FOR UPDATE */" if to_write else sql, (session_id,)).fetchall()


def refuse_all(connection: SqlConnection, turn_ids: Sequence[str]) -> None:
    """Whoever runs one of these turns after all finds another epoch, and stops; each can be resumed."""
    connection.executemany(
        "UPDATE turns SET epoch = epoch + 1, owner = NULL WHERE id = ?", [(one,) for one in turn_ids]
    )


def give_up(connection: SqlConnection, turn_ids: Sequence[str], at: float) -> None:
    """End these turns, and the turns that they delegated and nobody will ask for any more; those in the
    background have an end of their own. Whoever runs one of them after all finds another epoch, and stops."""
    connection.execute(
        "WITH RECURSIVE down(id) AS (SELECT value FROM json_each(?) UNION"
        " SELECT t.id FROM turns t JOIN down ON t.parent = down.id WHERE t.forked_at IS NULL"
        " AND t.session NOT IN (SELECT child FROM delegations))"
        " UPDATE turns SET ended = ?, exit = ?, outcome = 'failed', epoch = epoch + 1, owner = NULL"
        " WHERE id IN (SELECT id FROM down) AND ended IS NULL",
        (json.dumps(turn_ids), at, ABANDONED),
    )
    connection.execute(
        "UPDATE sessions SET exit = ? WHERE id IN (SELECT session FROM turns WHERE exit = ? AND ended = ?)",
        (ABANDONED, ABANDONED, at),
    )


def close_out(connection: SqlConnection, session_id: str, turn_ids: Sequence[str], at: float) -> None:
    """Write a result for every call that the turns left without one, as far as it is known, so that the
    transcript stays valid."""
    (version,) = connection.execute("SELECT version FROM sessions WHERE id = ?", (session_id,)).fetchone()
    open_calls = unanswered([message_of(body) for _, body in transcript(connection, session_id, version)])
    if not open_calls:
        return
    effects = connection.execute(
        "SELECT request, request_crc, status, class, reply, reply_crc FROM effects"
        " WHERE turn IN (SELECT value FROM json_each(?))"
        " AND kind IN ('RunTool', 'AnswerProgram') ORDER BY seq, ordinal, place",
        (json.dumps(turn_ids),),
    ).fetchall()
    waited = {
        call
        for (call,) in connection.execute(
            "SELECT call FROM pending WHERE turn IN (SELECT value FROM json_each(?))"
            " AND kind IN ('result',"
            " 'timer')",
            (json.dumps(turn_ids),),
        )
    }
    known = {loads(*row[:2])["call_id"]: row[2:] for row in effects}
    for number, call in enumerate(open_calls, newest_number(connection, session_id) + 1):
        status, kind, *reply = known.get(call.id, ("", "", None, None))
        text = NOT_STARTED if not status or kind == "pure" else IN_DOUBT
        text = NOT_WAITED if call.id in waited else text
        text = loads(*reply).get("text", IN_DOUBT) if reply[0] else text  # without: a program that waited
        row = Message("tool", text, tool_call_id=call.id, name=call.name)
        insert_message(connection, session_id, number, version, None, at, row)
