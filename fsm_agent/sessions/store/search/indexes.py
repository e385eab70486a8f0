"""The full-text index of a session store: an FTS5 table in a SQLite file, a column in PostgreSQL."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.database import Database, SqlConnection
from fsm_agent.sessions.store.schema import (
    FORMAT_MARK,
    INDEX,
    INDEX_FORMAT,
    MARK,
    SET_MARK,
    create_index,
)
from fsm_agent.sessions.store.search.text_analysis import (
    IS_DAMAGED,
    IndexQuery,
    Query,
    Term,
    looks_damaged,
    rows_to_index,
)


class FullText(Protocol):
    """The full-text index of a database."""

    def waiting(self, connection: SqlConnection) -> int:
        """Return at most how many messages the index lacks."""
        ...

    def index_batch(self, connection: SqlConnection, rows: int, chars: int) -> bool:
        """Index at most ``rows`` messages of about ``chars`` characters; return whether there may be more."""
        ...

    def make_anew(self, connection: SqlConnection) -> None:
        """Mark the index for a rebuild at the next search."""
        ...

    def forget_message(self, connection: SqlConnection) -> None:
        """Called when messages were deleted in this transaction."""
        ...

    def index_query(
        self, connection: SqlConnection, query: Query, tags: Iterable[Iterable[str]], without: Iterable[str]
    ) -> IndexQuery | None:
        """Return the part of a query that selects the matching messages."""
        ...


def full_text(database: Database) -> FullText:
    """Return the index of a database."""
    return SqliteIndex() if database.path is not None else PostgresIndex()


# ----------------------------------------------------------------------------------------------------
# An FTS5 table beside the messages, filled up to a mark. It holds no copy of the messages (``content=''``).


DAMAGED = -1
"""Replaces the format when the index cannot be opened."""


class SqliteIndex:
    """The index in a SQLite file."""

    def waiting(self, connection: SqlConnection) -> int:
        """Return at most how many messages the index lacks: numbers never assigned count too."""
        return max(0, _newest(connection) - (_mark(connection, MARK) if _there(connection) else 0))

    def index_batch(self, connection: SqlConnection, rows: int, chars: int) -> bool:
        """Index at most ``rows`` messages of about ``chars`` characters, and return whether there may be
        more. Runs as a job of the writer. Raises ``StoreError`` when this SQLite has no full-text search."""
        if not _there(connection):
            _drop(connection)
            create_index(connection)
        first = _mark(connection, MARK)
        found = connection.execute(
            "SELECT m.id, m.role, m.session, m.at, s.kind, m.body, m.body_crc FROM messages m"
            " JOIN sessions s ON s.id = m.session WHERE m.id > ? ORDER BY m.id LIMIT ?",
            (first, rows),
        )
        batch, more = rows_to_index(found, rows, chars)
        if not batch:
            return False
        _insert(connection, batch)
        _set_mark(connection, MARK, batch[-1][0])
        return more

    def make_anew(self, connection: SqlConnection) -> None:
        """Mark the index for a rebuild at its next use. Nothing else is lost."""
        _set_mark(connection, FORMAT_MARK, DAMAGED)

    def forget_message(self, connection: SqlConnection) -> None:
        """Mark the index for a rebuild: the numbers of deleted messages may be assigned again."""
        self.make_anew(connection)

    def index_query(
        self, connection: SqlConnection, query: Query, tags: Iterable[Iterable[str]], without: Iterable[str]
    ) -> IndexQuery | None:
        """Return the part of a query that selects the matching messages, with a tag of each group, and none
        of ``without``; ``None`` when there is nothing to search for, or no index."""
        if not query.expression or not _there(connection):
            return None
        parts = [f"({query.expression})", *(f"tags : ({' OR '.join(group)})" for group in tags)]
        expression = " AND ".join(parts) + "".join(f" NOT tags : {tag}" for tag in without)
        source = f"{INDEX} f CROSS JOIN messages m ON m.id = f.rowid"
        return IndexQuery(source, f"f.{INDEX} MATCH ?", expression, "f.rowid")


def _there(connection: SqlConnection) -> bool:
    """Return whether a usable index exists."""
    return _mark(connection, FORMAT_MARK) == INDEX_FORMAT


def _insert(connection: SqlConnection, batch: list[tuple[int, str, str, str]]) -> None:
    """Insert and flush a batch (a savepoint flushes). If the commit flushed it, a damaged index would look
    like a damaged file to other writers in the same transaction."""
    insert = f"INSERT INTO {INDEX} (rowid, words, chars, tags) VALUES (?, ?, ?, ?)"  # noqa: S608 - ours
    try:
        connection.executemany(insert, batch)
        connection.execute("SAVEPOINT indexed")
        connection.execute("RELEASE indexed")
    except (sqlite3.DatabaseError, MemoryError) as error:
        if not looks_damaged(error):
            raise
        raise StoreError(IS_DAMAGED) from error


def _drop(connection: SqlConnection) -> None:
    """Drop the index. A damaged table is not opened, because that may take all the memory and with it the
    transaction, and a badly damaged one could not be dropped. Its parts are dropped instead, and its entry is
    removed from the schema."""
    if _mark(connection, FORMAT_MARK) != DAMAGED:
        try:
            connection.execute(f"DROP TABLE IF EXISTS {INDEX}")
        except MemoryError as error:  # SQLite rolled back the whole transaction
            raise StoreError(IS_DAMAGED) from error
        except sqlite3.DatabaseError as error:
            if not looks_damaged(error):
                raise
        else:
            return
    for part in ("data", "idx", "docsize", "config", "content"):
        connection.execute(f"DROP TABLE IF EXISTS {INDEX}_{part}")
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("DELETE FROM sqlite_schema WHERE name = ?", (INDEX,))
    connection.execute("PRAGMA writable_schema = RESET")


def _newest(connection: SqlConnection) -> int:
    return int(connection.execute("SELECT MAX(id) FROM messages").fetchone()[0] or 0)


def _mark(connection: SqlConnection, name: str) -> int:
    return int(
        connection.execute("SELECT COALESCE(MAX(value), 0) FROM marks WHERE name = ?", (name,)).fetchone()[0]
    )


def _set_mark(connection: SqlConnection, name: str, value: int) -> None:
    connection.execute(SET_MARK, (name, value))


# ----------------------------------------------------------------------------------------------------
# The output of ``text_analysis`` for a message, as a ``tsvector`` in a column of its row.
#
# Numbers of messages become visible in any order when several machines write, so no mark tracks the progress
# of the index: messages without a value in the column are indexed.


WORD = re.compile(r"[^\W_]+")
MOST_PLACES, LAST_PLACE = 256, 16_383
"""PostgreSQL's limits for the positions of a word: their number, and the highest one."""
LONGEST = 500
"""Indexed characters of a word; PostgreSQL accepts 2,046 bytes."""
ROOM = 900_000
"""Approximate maximum bytes of one vector; PostgreSQL accepts 1,048,575."""
_UNREAD = (
    "SELECT m.id, m.role, m.session, m.at, s.kind, m.body, m.body_crc FROM messages m"
    " JOIN sessions s ON s.id = m.session WHERE m.words IS NULL ORDER BY m.id LIMIT ? /* SKIP LOCKED */"
)


class PostgresIndex:
    """The index in PostgreSQL."""

    def waiting(self, connection: SqlConnection) -> int:
        """Return the number of messages that the index lacks."""
        return int(connection.execute("SELECT COUNT(*) FROM messages WHERE words IS NULL").fetchone()[0])

    def index_batch(self, connection: SqlConnection, rows: int, chars: int) -> bool:
        """Index at most ``rows`` messages of about ``chars`` characters that no other process is indexing;
        return whether there may be more. Runs as a job of the writer."""
        batch, more = rows_to_index(connection.execute(_UNREAD, (rows,)), rows, chars)
        connection.executemany(
            "UPDATE messages SET words = CAST(? AS TSVECTOR) WHERE id = ?",
            [(vector_of(words, singles, tags), message) for message, words, singles, tags in batch],
        )
        return more

    def make_anew(self, connection: SqlConnection) -> None:
        """Mark the index for a rebuild."""
        connection.execute("UPDATE messages SET words = NULL WHERE words IS NOT NULL")

    def forget_message(self, connection: SqlConnection) -> None:
        """Do nothing: the index entry is deleted with the message."""

    def index_query(
        self, connection: SqlConnection, query: Query, tags: Iterable[Iterable[str]], without: Iterable[str]
    ) -> IndexQuery | None:
        """Return the part of a query that selects the matching messages, with a tag of each group, and none
        of ``without``; ``None`` when there is nothing to search for."""
        if not query.expression:
            return None
        parts = [_any(_all(map(_tsquery, group)) for group in query.groups)]
        parts += [f"!{_tsquery(term)}" for term in query.without]
        parts += [_any(f"'#{tag}'" for tag in group) for group in tags]
        parts += [f"!'#{tag}'" for tag in without]
        return IndexQuery("messages m", "m.words @@ CAST(? AS TSQUERY)", _all(parts), "m.id")


def vector_of(words: str, chars: str, tags: str) -> str:
    """Return the three columns of ``text_analysis.columns`` as one vector: single characters and tags begin
    with a sign that no word contains."""
    places: dict[str, list[int]] = defaultdict(list)
    room = ROOM
    for sign, text in (("#", tags), ("~", chars)):
        for word in text.split():
            places[sign + word] = []
    for place, found in enumerate(WORD.finditer(words), 1):
        word = found[0][:LONGEST]
        if word not in places:
            room -= len(word.encode()) + 8
            if room < 0:
                break
        if len(places[word]) < MOST_PLACES:
            places[word].append(min(place, LAST_PLACE))
    return " ".join(
        f"'{word}'" + (":" + ",".join(map(str, where)) if where else "") for word, where in places.items()
    )


def _all(parts: Iterable[str]) -> str:
    return f"({' & '.join(parts)})"


def _any(parts: Iterable[str]) -> str:
    return f"({' | '.join(parts)})"


def _tsquery(term: Term) -> str:
    """Translate ``words : "a b" *`` and ``chars : "x"`` of FTS5 for PostgreSQL."""
    column, _, rest = term.asked.partition(" : ")
    if column == "chars":
        return "'~" + rest.strip('"') + "'"
    text, _, star = rest[1:].rpartition('"')
    words = [word[:LONGEST] for word in text.split()]
    phrase = " <-> ".join(f"'{word}'" for word in words[:-1])
    last = f"'{words[-1]}'" + (":*" if "*" in star else "")
    return f"({phrase} <-> {last})" if phrase else last
