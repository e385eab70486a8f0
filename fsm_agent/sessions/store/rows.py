"""Converts between live values and rows of the database: sessions and their changes."""

# Shared content is stored once, by digest. Turns share settings, limits, tools, and prompts. An object may
# refer to others under the empty key, and `contents` has them. Exported files are whole, and a file that
# refers elsewhere is refused, because it would be given content of the store it enters. `INSERT OR IGNORE`
# finds existing digests; nothing caches them.

# A line of sessions has no limit. A limit of 32 once hid the newest session of a line, and the conversation
# forked. A walk along a line is one recursive statement that visits each session once.

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsm_agent.conversation.messages import Message, StoredPrompt, Usage
from fsm_agent.conversation.parts import text_only
from fsm_agent.conversation.token_meter import CompactionGuard, ContextMeter
from fsm_agent.errors import SessionBusy, StoreError
from fsm_agent.fsm import codec
from fsm_agent.fsm.codec import codec_of
from fsm_agent.sessions import Appended, Continued, Note, RowsReplaced, Session, next_title
from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.support.texts import clean

# ----------------------------------------------------------------------------------------------------
# JSON and its checksum: neither SQLite nor JSON detects a flipped bit in a text.
#
# Each column ``x`` that holds JSON has the CRC-32 of its text in a column ``x_crc``. ``NULL`` there means
# that the text was written by hand, without a checksum, and is read as it is. (Why: decision 53.)


Checked = tuple[str, int]
"""A text and its checksum, in the form of two columns."""


def json_with_checksum(value: object) -> Checked:
    """Encode the value as JSON; return the text and its checksum."""
    text = "".join(codec.pieces(value, 0))  # as ``codec.dumps`` does
    return text, zlib.crc32(text.encode())


def with_checksum(text: str) -> Checked:
    """Return a text and its checksum."""
    return text, zlib.crc32(text.encode("utf-8", "surrogatepass"))


def verify_checksum(text: str, crc: int | None) -> str:
    """Return the text. Raises ``StoreError`` when its checksum does not match."""
    if crc is not None and crc != with_checksum(text)[1]:
        raise _damage_error(text, "its checksum does not fit")
    return text


def loads(text: str, crc: int | None) -> Any:
    """Decode a text of ``json_with_checksum``. Raises ``StoreError`` when it is damaged."""
    try:
        return json.loads(verify_checksum(text, crc))
    except ValueError as error:
        raise _damage_error(text, str(error)) from error


def _damage_error(text: str, why: str) -> StoreError:
    return StoreError(
        f"a text in the session store is damaged ({why}): {text[:60]!r}…; "
        "`fsm-agent doctor` looks for more, a backup has it whole"
    )


PROMPTS = codec_of(dict[str, StoredPrompt])
METER, GUARD, USAGE = codec_of(ContextMeter), codec_of(CompactionGuard), codec_of(Usage)
_COLUMNS = {"prompts": PROMPTS, "meter": METER, "guard": GUARD, "usage": USAGE}
UNREAD = -1
"""A revision that no session has."""
WORDS = 200
"""Maximum characters of a user's message that name a turn in lists."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The stored fields of a session besides its messages, at one moment."""

    prompts: dict[str, StoredPrompt]
    meter: ContextMeter
    guard: CompactionGuard
    usage: Usage
    title: str

    @classmethod
    def of(cls, session: Session) -> Kept:
        """Copy the fields of a session."""
        return cls(
            dict(session.prompts),
            replace(session.meter),
            replace(session.guard),
            session.usage,
            session.title,
        )

    def still(self, session: Session) -> bool:
        """Return whether the session is unchanged."""
        now = (session.meter, session.guard, session.usage, session.title, session.prompts)
        return now == (self.meter, self.guard, self.usage, self.title, self.prompts)

    def columns(self, before: Kept | None = None) -> dict[str, Any]:
        """Return the columns of the sessions table, by name, with checksums; only those that differ from
        ``before``."""
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
                columns[name], columns[f"{name}_crc"] = json_with_checksum(_COLUMNS[name].encode(value))
        return columns


def write_notes(
    connection: SqlConnection, session: Session, notes: Sequence[Note], turn_id: str | None, at: float
) -> None:
    """Write the changes of a session, in order."""
    for note in notes:
        match note:
            case Appended(number, version, row):
                insert_message(
                    connection, session.id, number, -1 if version is None else version, turn_id, at, row
                )
            case RowsReplaced(version, numbers, dropped):
                connection.execute(
                    "INSERT INTO transcripts VALUES (?, ?, ?, ?)",
                    (session.id, version, *json_with_checksum(numbers)),
                )
                connection.execute("UPDATE sessions SET version = ? WHERE id = ?", (version, session.id))
                put_aside = "UPDATE messages SET active = 0 WHERE session = ? AND number = ?"
                connection.executemany(put_aside, [(session.id, number) for number in dropped])
            case Continued(child):
                insert_session(connection, child, at)
                _follow_rename(connection, session, child)
                ended = "UPDATE sessions SET successor = ?, ended = ?, end_reason = ? WHERE id = ?"
                connection.execute(ended, (child.id, at, session.end_reason, session.id))


def _follow_rename(connection: SqlConnection, session: Session, child: Session) -> None:
    """Name the successor after the current title: the session may have been renamed during the turn."""
    row = connection.execute("SELECT title FROM sessions WHERE id = ?", (session.id,)).fetchone()
    if row is not None and row[0] not in ("", session.title):
        rename = "UPDATE sessions SET title = ? WHERE id = ?"
        connection.execute(rename, (next_title(row[0]), child.id))


def insert_message(
    connection: SqlConnection,
    session_id: str,
    number: int,
    version: int,
    turn_id: str | None,
    at: float,
    row: Message,
) -> None:
    """Write a message that extends ``version`` of the transcript."""
    connection.execute(
        "INSERT INTO messages (session, number, version, turn, at, role, body, body_crc)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (session_id, number, version, turn_id, at, row.role, *json_with_checksum(row.to_dict())),
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


def count_revision(connection: SqlConnection, session_id: str) -> int:
    """Increment the session's revision and return it: a copy with another revision is not written."""
    connection.execute("UPDATE sessions SET revision = revision + 1 WHERE id = ?", (session_id,))
    return int(connection.execute("SELECT revision FROM sessions WHERE id = ?", (session_id,)).fetchone()[0])


def refuse_if_changed(c: SqlConnection, session_id: str, believed: int) -> None:
    """Fence for changes to a session outside of a turn: raises ``SessionBusy`` when the session was changed
    since it was held."""
    if not is_current(c, session_id, believed):
        raise SessionBusy(f"session {session_id} was changed by another process in the meantime; try again")


def is_current(c: SqlConnection, session_id: str, believed: int) -> bool:
    """Return whether a session is still at revision ``believed``, without a successor."""
    sql = "SELECT revision, successor FROM sessions WHERE id = ? /* FOR UPDATE */"
    row = c.execute(sql, (session_id,)).fetchone()
    return (row or (0, None)) == (believed, None)


def message_of(body: str, crc: int | None = None) -> Message:
    """Decode a stored message; pass ``crc`` unless it was verified already. Raises ``StoreError`` for a
    damaged body."""
    return Message.from_dict(loads(body, crc))


def transcript(
    connection: SqlConnection, session_id: str, version: int, length: int | None = None
) -> list[tuple[int, str]]:
    """Return (number, body) of the messages in one version of a transcript, in order; at most ``length``.
    Raises ``StoreError`` for a damaged body."""
    rows = stored_rows(connection, session_id, version)[:length]
    return [(number, verify_checksum(body, crc)) for number, body, crc in rows]


def stored_rows(
    connection: SqlConnection, session_id: str, version: int
) -> list[tuple[int, str, int | None]]:
    """Return (number, body, checksum) of the messages in one version of a transcript, damaged or not."""
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
    """Return the number of the newest message of the session, or of one turn; 0 if it has none."""
    sql = "SELECT COALESCE(MAX(number), 0) FROM messages WHERE session = ?"
    if turn_id is None:
        return int(connection.execute(sql, (session_id,)).fetchone()[0])
    return int(connection.execute(f"{sql} AND turn = ?", (session_id, turn_id)).fetchone()[0])


def first_user_words(content: Any) -> str:
    """Return the first words of a user's message, at most ``WORDS`` characters on one line; the names of its
    parts if it has no text."""
    words = str(content)
    if isinstance(content, list):
        texts = [part for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
        words = text_only(texts).strip() or text_only(content)
    return " ".join(clean(words).split())[:WORDS]


# ----------------------------------------------------------------------------------------------------
# Content that many turns share is stored once: settings, tools, system prompts, and the empty fields of a new
# turn.
#
# An object in the database may list under ``""`` the digests of other objects in the table ``contents``,
# whose keys belong to it. No field has an empty name.


ELSEWHERE = ""
LONG = 100
"""Characters of JSON from which a list or an object is stored separately; a text never is."""
FEW = 4
"""Number of empty values that are stored in place: their digest would be as long."""

IN_PARTS = {"turns": ("settings", "start", "result", "final"), "transitions": ("delta",)}
"""Columns whose objects may have parts in ``contents``."""
DELTAS = ("delta", "final")
"""Columns of changes."""
Contents = dict[str, str]
"""Texts by digest."""


def deduplicate(
    values: Mapping[str, Any], contents: Contents, *, long: bool = True, stays: str = ""
) -> dict[str, Any]:
    """Move the empty or zero ``values`` into ``contents``, and, if ``long``, each long value; return the
    rest, with the digests of the moved parts. The field ``stays`` is not moved as an empty value."""
    empty = {name: value for name, value in values.items() if not value and name != stays}
    parts = [empty] if len(empty) > FEW else []
    if long:
        parts += [{name: value} for name, value in values.items() if _is_long(value)]
    if not parts:
        return dict(values)
    moved = {name for part in parts for name in part}
    left = {name: value for name, value in values.items() if name not in moved}
    return {ELSEWHERE: [store_content(part, contents) for part in parts], **left}


def store_content(value: Mapping[str, Any], contents: Contents) -> str:
    """Put one object into ``contents`` and return its digest."""
    text = codec.dumps(value)
    digest = base64.urlsafe_b64encode(hashlib.blake2b(text.encode(), digest_size=12).digest()).decode()
    contents[digest] = text
    return digest


def write(c: SqlConnection, contents: Contents) -> None:
    """Write the contents that are not stored yet."""
    insert = "INSERT OR IGNORE INTO contents (digest, body, body_crc) VALUES (?, ?, ?)"
    c.executemany(insert, [(digest, *with_checksum(text)) for digest, text in sorted(contents.items())])


def inline(c: SqlConnection, text: str, crc: int | None) -> dict[str, Any]:
    """Return the object in a column, merged with its separately stored parts. Raises ``StoreError`` when a
    part is damaged or missing."""
    found: dict[str, Any] = loads(text, crc)
    if ELSEWHERE not in found:
        return found
    values: dict[str, Any] = {}
    for digest in found.pop(ELSEWHERE):
        row = c.execute("SELECT body, body_crc FROM contents WHERE digest = ?", (digest,)).fetchone()
        if row is None:
            raise StoreError(f"a part of a turn in the session store is gone: no content has digest {digest}")
        values |= loads(*row)
    return values | found


def shorten_changes(delta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of a move, with each new value that is not an object stored plainly."""
    plain = {
        name: change["to"]
        for name, change in delta.items()
        if name != ELSEWHERE and "to" in change and type(change["to"]) is not dict
    }
    return {**delta, **plain}


def delta_of(c: SqlConnection, text: str, crc: int | None) -> dict[str, Any]:
    """Return the changes of a move in the form of ``fsm_agent.fsm.journal``, from their column."""
    return {
        name: change if isinstance(change, dict) else {"to": change}
        for name, change in inline(c, text, crc).items()
    }


def forget_unused(c: SqlConnection) -> None:
    """Delete contents that no turn references."""
    named = " UNION ".join(
        f"SELECT j.value FROM {table} t, json_each(t.{column}, '$.\"\"') j"  # noqa: S608 - ours
        f" WHERE t.{column} LIKE '{{\"\":%'"
        for table, columns in IN_PARTS.items()
        for column in columns
    )
    c.execute(f"DELETE FROM contents WHERE digest NOT IN ({named})")  # noqa: S608 - ours


def _is_long(value: Any) -> bool:
    return isinstance(value, list | dict) and bool(value) and len(codec.dumps(value)) >= LONG


# ----------------------------------------------------------------------------------------------------
# Walks along sessions, linked by compaction, fork, or delegation, and along turns and their children.
#
# A chain has no limit: a conversation compacted a thousand times has a thousand sessions. Each walk is one
# statement that visits each session once (``UNION`` drops repeated rows), so that it also ends on a cycle in
# a damaged file.


def newest_of(connection: SqlConnection, session: str) -> str:
    """Return the last successor of this session by compaction; the session itself if it has none."""
    after = "s.id = (SELECT successor FROM sessions WHERE id = line.id)"
    return next(iter(_walk(connection, session, after, "successor IS NULL")), session)


def compaction_chain(connection: SqlConnection, session: str) -> list[str]:
    """Return the session and its predecessors by compaction, newest first."""
    before = "s.id = (SELECT parent FROM sessions WHERE id = line.id AND kind = 'compression')"
    return _walk(connection, session, before)


def next_turn_number(connection: SqlConnection, session: str) -> int:
    """Return the number of the session's next turn. Numbers increase across compactions, so that they order
    the turns of a conversation independently of the clocks of its machines."""
    highest = "SELECT MAX(number) FROM turns WHERE session IN (SELECT value FROM json_each(?))"
    (last,) = connection.execute(highest, (json.dumps([session]),)).fetchone()
    if last is None:
        (last,) = connection.execute(highest, (json.dumps(compaction_chain(connection, session)),)).fetchone()
    return 1 + (last or 0)


def lineage(connection: SqlConnection, session: str) -> str:
    """Return the first ancestor of the session, through compactions, forks, and delegation."""
    before = "s.id = (SELECT parent FROM sessions WHERE id = line.id)"
    return next(iter(_walk(connection, session, before, "parent IS NULL")), session)


def descendants(connection: SqlConnection, session: str) -> list[str]:
    """Return the session and all its descendants, through compactions, forks, and delegation."""
    return _walk(connection, session, "s.parent = line.id")


def conversation_begin(connection: SqlConnection, session: str) -> str:
    """Return the first session of the conversation: follow compactions and delegation back from this one."""
    before = "s.id = (SELECT parent FROM sessions WHERE id = line.id AND kind IN ('compression', 'child'))"
    return _walk(connection, session, before)[-1]


def conversation(connection: SqlConnection, first: str) -> list[str]:
    """Return the first session of a conversation, and its descendants by compaction and delegation."""
    return _walk(connection, first, "s.parent = line.id AND s.kind IN ('compression', 'child')")


def turn_line(connection: SqlConnection, turn: str) -> list[str]:
    """Return the turn and its ancestors, up to the root of the tree."""
    rows = connection.execute(
        "WITH RECURSIVE line(id) AS (SELECT ? UNION SELECT t.parent FROM line JOIN turns t ON t.id = line.id"
        " WHERE t.parent IS NOT NULL AND t.forked_at IS NULL) SELECT id FROM line",
        (turn,),
    )
    return [str(row[0]) for row in rows]


def turn_tree(connection: SqlConnection, root: str) -> list[str]:
    """Return the turn and its descendants, whose ids begin with ``c-``, the parent's id and a dot."""
    rows = connection.execute(
        "WITH RECURSIVE tree(id) AS (SELECT ? UNION SELECT t.id FROM tree JOIN turns t"
        " ON t.id >= 'c-' || tree.id || '.' AND t.id < 'c-' || tree.id || '/'"
        " WHERE t.parent = tree.id AND t.forked_at IS NULL) SELECT id FROM tree",
        (root,),
    )
    return [str(row[0]) for row in rows]


def _walk(connection: SqlConnection, session: str, step: str, wanted: str = "") -> list[str]:
    """Return the session and all sessions that repeated ``step`` reaches, in order; only the ``wanted``
    ones."""
    where = f"WHERE EXISTS (SELECT 1 FROM sessions s WHERE s.id = line.id AND {wanted})" if wanted else ""  # noqa: S608 - ours
    rows = connection.execute(
        f"WITH RECURSIVE line(id) AS (SELECT ? UNION SELECT s.id FROM line JOIN sessions s ON {step})"  # noqa: S608 - ours
        f" SELECT id FROM line {where}",
        (session,),
    )
    return [str(row[0]) for row in rows]
