"""The full-text index in a SQLite file: a table of FTS5 beside the messages, filled up to a mark.

It holds no copy of the messages (``content=''``)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.sessions.store.search.text_analysis import (
    IS_DAMAGED,
    IndexQuery,
    Query,
    looks_damaged,
    rows_to_index,
)

INDEX, MARK, FORMAT_MARK = "message_index", "message_index", "message_index_format"
FORMAT = 2
"""Version of ``text_analysis.columns``; another number rebuilds the index."""
DAMAGED = -1
"""In place of the format: the index cannot be opened."""

_CREATE = (
    f"CREATE VIRTUAL TABLE {INDEX} USING fts5(words, chars, tags, content='', columnsize=0,"
    " tokenize='unicode61 remove_diacritics 0')"
)


def waiting(connection: SqlConnection) -> int:
    """Return how many messages the index lacks, at most: numbers that were never given count too."""
    return max(0, _newest(connection) - (_mark(connection, MARK) if _there(connection) else 0))


def make_anew(connection: SqlConnection) -> None:
    """Rebuild the index at its next use. Nothing else is lost."""
    _set_mark(connection, FORMAT_MARK, DAMAGED)


forget_message = make_anew
"""Messages were deleted: their numbers may be given again."""


def index_query(
    connection: SqlConnection, query: Query, tags: Iterable[Iterable[str]], without: Iterable[str]
) -> IndexQuery | None:
    """Return how the messages that answer a query are asked for: with one tag of each group, and none of
    ``without``; ``None`` when there is nothing to look for, or in."""
    if not query.expression or not _there(connection):
        return None
    parts = [f"({query.expression})", *(f"tags : ({' OR '.join(group)})" for group in tags)]
    expression = " AND ".join(parts) + "".join(f" NOT tags : {tag}" for tag in without)
    source = f"{INDEX} f CROSS JOIN messages m ON m.id = f.rowid"
    return IndexQuery(source, f"f.{INDEX} MATCH ?", expression, "f.rowid")


def index_batch(connection: SqlConnection, rows: int, chars: int) -> bool:
    """Index at most ``rows`` messages of about ``chars`` characters, and return whether there may be more.
    Runs as a job of the writer. Raises ``StoreError`` when this SQLite has no full-text search."""
    _prepare(connection)
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


def _there(connection: SqlConnection) -> bool:
    """Is there an index that can be asked?"""
    return _mark(connection, FORMAT_MARK) == FORMAT


def _insert(connection: SqlConnection, batch: list[tuple[int, str, str, str]]) -> None:
    """A damaged index must not look like a damaged file to those whose writes are in the same transaction:
    what was gathered in memory is written here (a savepoint does that), and not with their commit."""
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
    """A damaged table is not opened, which may take all the memory and with that the transaction; too
    damaged, it could not be dropped either. Its parts are dropped, and its entry is taken out of the
    schema."""
    if _mark(connection, FORMAT_MARK) != DAMAGED:
        try:
            connection.execute(f"DROP TABLE IF EXISTS {INDEX}")
        except MemoryError as error:  # SQLite took back the whole transaction
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


def _prepare(connection: SqlConnection) -> None:
    if _there(connection):
        return
    _drop(connection)
    try:
        connection.execute(_CREATE)
    except sqlite3.OperationalError as error:
        if "no such module" not in str(error):
            raise
        raise StoreError(
            "sessions cannot be searched: the SQLite of this Python was built without FTS5"
        ) from error
    _set_mark(connection, MARK, 0)
    _set_mark(connection, FORMAT_MARK, FORMAT)


def _newest(connection: SqlConnection) -> int:
    return int(connection.execute("SELECT MAX(id) FROM messages").fetchone()[0] or 0)


def _mark(connection: SqlConnection, name: str) -> int:
    return int(
        connection.execute("SELECT COALESCE(MAX(value), 0) FROM marks WHERE name = ?", (name,)).fetchone()[0]
    )


def _set_mark(connection: SqlConnection, name: str, value: int) -> None:
    connection.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (name, value))
