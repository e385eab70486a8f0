"""The to-do list: the model's own plan for the session (AGT-02).

The list is the result of the last call in the journal, so it survives a crash, a compaction and a resume, and
a fork or an undo restores its earlier state.
"""

# The to-do list is its last result in the journal. With a single source, forks, undo, crashes, and
# compactions need no rule of their own.

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fsm_agent.conversation.messages import Message
from fsm_agent.sessions import Session
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.sessions.store.rows import loads
from fsm_agent.support.texts import shorten
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.tool_context import here

# ----------------------------------------------------------------------------------------------------
# The newest result of an agent tool from the journal: state that lives with the session and never differs
# from it.
#
# The journal has the result of every call, whatever compactions do to the transcript and whenever the process
# ended. Undone results do not count, and a fork begins with the state at its move.


MAX_RESULT = 2_000_000
"""Maximum characters of a result; a longer one is ignored."""
LOOKED_AT = 20
"""Maximum calls of a session, newest first, to search for a successful one."""


def newest_result(store: Store, session: Session, tool: str) -> dict[str, Any] | None:
    """Return the result of the last successful call of ``tool``, if it was an object."""
    with store.database.reading() as c:
        found = _of_session(c, session.id, tool, None)
    found = found or _of_transcript(session.rows, tool)
    if found is not None or session.parent is None or session.kind == "child":
        return found
    with store.database.reading() as c:
        return _of_line(c, session.id, tool)


def _of_line(c: SqlConnection, session_id: str, tool: str) -> dict[str, Any] | None:
    """Return the newest result in the session's ancestors, each up to the point where its successor began."""
    seen: set[str] = set()
    while session_id not in seen:  # stops at a cycle in a damaged file
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
    """Read the list from an imported history. A result without its call is forged and is ignored."""
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


NAME = "todo"
MAX_ITEMS = 256
MAX_CHARS = 4_000
"""Characters of one item; the middle of a longer one is left out."""
Status = Literal["pending", "in_progress", "completed", "cancelled"]
STATUSES: tuple[str, ...] = get_args(Status)


def _status(value: Any) -> Any:
    """Map an unknown status to ``pending``."""
    return value if value in STATUSES else "pending"


def _read_list(value: Any) -> Any:
    """Accept the list as JSON text: models sometimes write it so."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


class TodoItem(BaseModel):
    """One thing to do."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: Annotated[
        str, Field(min_length=1, max_length=200, description="A short name that is not used twice.")
    ]
    content: Annotated[
        str | None, Field(description="What is to be done; may be left out to change only the status.")
    ] = None
    status: Annotated[
        Status | None, BeforeValidator(lambda value: None if value is None else _status(value))
    ] = None


class TodoList:
    """The list of the session that calls."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def todo(
        self, todos: Annotated[list[TodoItem] | None, BeforeValidator(_read_list)] = None, merge: bool = False
    ) -> dict[str, Any]:
        """Read or write the list of things to do in this session. Without arguments it is read.

        Use it for work of three or more steps: write the plan first, have exactly one item in progress, and
        set an item to completed as soon as it is done. The answer is always the whole list.

        Args:
            todos: The items, in order. They replace the list, or change it with merge.
            merge: Change the items with these ids and add those that are new, instead of replacing the whole
                list."""
        if todos is None:
            return _answer(self._now())
        before = self._now() if merge else []
        return _answer(_merge(before, todos))

    def _now(self) -> list[dict[str, str]]:
        found = newest_result(self._store, here().session, NAME) or {}
        items = found.get("todos")
        return [dict(item) for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def todo_tool(store: Store) -> Tool:
    """Make ``todo``. A repeated call gives the same list, so one in flight at a crash is made again."""
    return tool(concurrency="serial", effect="idempotent")(TodoList(store).todo)


def _merge(before: Iterable[dict[str, str]], given: Iterable[TodoItem]) -> list[dict[str, str]]:
    """Merge by id. Of two items with one id the later counts, at the place of the first."""
    items = {item["id"]: item for item in before}
    for one in given:
        known = items.get(one.id, {})
        content = known.get("content", "") if one.content is None else one.content.strip()
        if not content:
            raise ToolFailure(f"Item {one.id!r} has no content. Nothing was changed.")
        status = one.status or known.get("status", "pending")
        items[one.id] = {"id": one.id, "content": _cut(content), "status": status}
    if len(items) > MAX_ITEMS:
        raise ToolFailure(f"{len(items)} items; the list holds up to {MAX_ITEMS}. Nothing was changed.")
    return list(items.values())


def _answer(items: list[dict[str, str]]) -> dict[str, Any]:
    counts = {status: sum(item["status"] == status for item in items) for status in STATUSES}
    return {"todos": items, "counts": {"total": len(items), **counts}}


def _cut(content: str) -> str:
    return content if len(content) <= MAX_CHARS else shorten(content, MAX_CHARS - 100)
