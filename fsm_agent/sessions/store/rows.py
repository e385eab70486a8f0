"""Between live values and rows of the database: sessions, their notes, and what an exchange is written as."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsm_agent.conversation.compaction.guard import CompactionGuard
from fsm_agent.conversation.effects import Done, Opened, Reply, Request
from fsm_agent.conversation.messages import Message, Usage
from fsm_agent.conversation.parts import said
from fsm_agent.conversation.token_meter import ContextMeter
from fsm_agent.errors import SessionBusy
from fsm_agent.fsm import codec
from fsm_agent.fsm.codec import codec_of
from fsm_agent.prompt import StoredPrompt
from fsm_agent.sessions.session import Appended, Continued, Note, RowsReplaced, Session
from fsm_agent.sessions.store.checksum import checked, loads, verify_checksum
from fsm_agent.sessions.store.connection import SqlConnection
from fsm_agent.support.texts import clean

PROMPTS = codec_of(dict[str, StoredPrompt])
METER, GUARD, USAGE = codec_of(ContextMeter), codec_of(CompactionGuard), codec_of(Usage)
_COLUMNS = {"prompts": PROMPTS, "meter": METER, "guard": GUARD, "usage": USAGE}
REQUEST, REPLY = codec_of(Request), codec_of(Reply)
WORDS = 200
"""Characters of a user's message that name a turn in lists."""


class StaleRevisionError(Exception):
    """Another process wrote to the session since it was read."""


class WentOnError(Exception):
    """Another process compacted the session into another one since it was read."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a session besides its messages, as it was at one moment."""

    prompts: dict[str, StoredPrompt]
    meter: ContextMeter
    guard: CompactionGuard
    usage: Usage
    title: str

    @classmethod
    def of(cls, session: Session) -> Kept:
        """Take it from a session as it is now."""
        return cls(
            dict(session.prompts),
            replace(session.meter),
            replace(session.guard),
            session.usage,
            session.title,
        )

    def still(self, session: Session) -> bool:
        """Return whether the session is as it was."""
        now = (session.meter, session.guard, session.usage, session.title, session.prompts)
        return now == (self.meter, self.guard, self.usage, self.title, self.prompts)

    def columns(self, before: Kept | None = None) -> dict[str, Any]:
        """Return the columns of the sessions table, by name, with checksums; only those that differ
        from ``before``."""
        changed = {
            name: getattr(self, name)
            for name in ("prompts", "meter", "guard", "usage", "title")
            if before is None or getattr(self, name) != getattr(before, name)
        }
        columns: dict[str, Any] = {}
        for name, value in changed.items():
            if name == "title":
                columns[name] = value
            else:
                columns[name], columns[f"{name}_crc"] = checked(_COLUMNS[name].encode(value))
        return columns


def write_notes(
    connection: SqlConnection, session: Session, notes: Sequence[Note], turn_id: str | None, at: float
) -> None:
    """Write the changes of a session into the database, in order."""
    for note in notes:
        match note:
            case Appended(number, version, row):
                insert_message(
                    connection, session.id, number, -1 if version is None else version, turn_id, at, row
                )
            case RowsReplaced(version, numbers, dropped):
                connection.execute(
                    "INSERT INTO transcripts VALUES (?, ?, ?, ?)", (session.id, version, *checked(numbers))
                )
                connection.execute("UPDATE sessions SET version = ? WHERE id = ?", (version, session.id))
                put_aside = "UPDATE messages SET active = 0 WHERE session = ? AND number = ?"
                connection.executemany(put_aside, [(session.id, number) for number in dropped])
            case Continued(child):
                insert_session(connection, child, at)
                ended = "UPDATE sessions SET successor = ?, ended = ?, end_reason = ? WHERE id = ?"
                connection.execute(ended, (child.id, at, session.end_reason, session.id))


def insert_message(
    connection: SqlConnection,
    session_id: str,
    number: int,
    version: int,
    turn_id: str | None,
    at: float,
    row: Message,
) -> None:
    """Write a message, which is part of the transcript's ``version`` from now on."""
    connection.execute(
        "INSERT INTO messages (session, number, version, turn, at, role, body, body_crc)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (session_id, number, version, turn_id, at, row.role, *checked(row.to_dict())),
    )


def insert_session(connection: SqlConnection, session: Session, at: float) -> None:
    """Write a new session without messages."""
    columns = {
        **Kept.of(session).columns(), "id": session.id, "kind": session.kind, "parent": session.parent,
        "source": session.source,
        "created": at, "touched": at,
    }  # fmt: skip
    names = ", ".join(columns)
    connection.execute(
        f"INSERT INTO sessions ({names}) VALUES ({', '.join('?' * len(columns))})",  # noqa: S608 - names are ours
        tuple(columns.values()),
    )


def changed(connection: SqlConnection, session_id: str) -> int:
    """Count up the session's revision and return it: whoever has a copy of the session reads it again."""
    connection.execute("UPDATE sessions SET revision = revision + 1 WHERE id = ?", (session_id,))
    return int(connection.execute("SELECT revision FROM sessions WHERE id = ?", (session_id,)).fetchone()[0])


def refuse_if_changed(c: SqlConnection, session_id: str, believed: int) -> None:
    """The fence of what is done to a session outside of a turn: raises ``SessionBusy`` when somebody had it
    since it was held."""
    try:
        refuse_if_stale(c, session_id, believed)
    except (StaleRevisionError, WentOnError) as error:
        raise SessionBusy(
            f"session {session_id} was changed by another process in the meantime; try again"
        ) from error


def refuse_if_stale(c: SqlConnection, session_id: str, believed: int) -> None:
    """Raises ``StaleRevisionError`` or ``WentOnError`` when a copy of revision ``believed`` is not the
    session as it is."""
    sql = "SELECT revision, successor FROM sessions WHERE id = ? /* FOR UPDATE */"
    row = c.execute(sql, (session_id,)).fetchone()
    revision, successor = row or (0, None)
    if revision != believed:
        raise StaleRevisionError
    if successor is not None:
        raise WentOnError


def message_of(body: str, crc: int | None = None) -> Message:
    """Return the message that a body in the database is; ``crc`` unless that was compared already. Raises
    ``StoreError`` for one that is damaged."""
    return Message.from_dict(loads(body, crc))


def transcript(
    connection: SqlConnection, session_id: str, version: int, length: int | None = None
) -> list[tuple[int, str]]:
    """Return (number, body) of the messages of one version of a transcript, in order; at most ``length``.
    Raises ``StoreError`` for a body that is damaged."""
    rows = stored(connection, session_id, version)[:length]
    return [(number, verify_checksum(body, crc)) for number, body, crc in rows]


def stored(connection: SqlConnection, session_id: str, version: int) -> list[tuple[int, str, int | None]]:
    """Return (number, body, checksum) of the same, damaged or not."""
    numbers = "SELECT numbers, numbers_crc FROM transcripts WHERE session = ? AND version = ?"
    row = connection.execute(numbers, (session_id, version)).fetchone()
    base: list[int] = loads(*row) if row else []
    columns = "SELECT number, body, body_crc FROM messages WHERE session = ?"
    first = f"{columns} AND number BETWEEN ? AND ?"
    found = connection.execute(first, (session_id, min(base), max(base))) if base else ()
    by_number = {row[0]: row for row in found}
    later = f"{columns} AND version = ? ORDER BY number"
    return [*(by_number[number] for number in base), *connection.execute(later, (session_id, version))]


def newest_number(connection: SqlConnection, session_id: str, turn_id: str | None = None) -> int:
    """Return the number of the session's newest message, or of the newest of one turn; 0 without any."""
    sql = "SELECT COALESCE(MAX(number), 0) FROM messages WHERE session = ?"
    if turn_id is None:
        return int(connection.execute(sql, (session_id,)).fetchone()[0])
    return int(connection.execute(f"{sql} AND turn = ?", (session_id, turn_id)).fetchone()[0])


def request_json(session: Session | None, request: Any) -> str:
    """Return a request as the journal keeps it."""
    kept = request.journalled(session)
    if kept is None:
        return codec.dumps(REQUEST.encode(request))
    return (
        codec.dumps({"is": type(request).__name__, **kept})
        if isinstance(kept, Mapping)
        else _small_json(kept)
    )


@functools.lru_cache(maxsize=64)
def _small_json(value: Request | Done) -> str:
    """Of the few values that come back a dozen times in every round, written once."""
    return codec.dumps((REPLY if isinstance(value, Done) else REQUEST).encode(value))


def reply_json(reply: Any) -> str:
    """Return a reply as the journal keeps it. What a turn opened with is in its snapshot."""
    if isinstance(reply, Opened):
        kept = {
            "rows": len(reply.session_rows),
            "tools": len(reply.tools),
            "workdir": reply.workdir,
            "notices": reply.notices,
        }
        return codec.dumps({"is": "Opened", **kept})
    if reply == Done():
        return _small_json(reply)
    return codec.dumps(REPLY.encode(reply))


def asked_words(content: Any) -> str:
    """Return the first words of what the user said, at most ``WORDS`` characters of one line; the names of
    its parts when there are no words."""
    words = str(content)
    if isinstance(content, list):
        texts = [part for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
        words = said(texts).strip() or said(content)
    return " ".join(clean(words).split())[:WORDS]
