"""The full-text index: filled in small batches behind the messages, from a mark that says how far it has
come.

Never in the transaction of a move. ``catch_up`` is for somebody who is about to search; ``keep_up`` goes on
beside running turns, one short transaction at a time, so that nobody waits long for the writer. The index
holds no copy of the messages (``content=''``)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.connection import Connection
from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.sealed import loads
from fsm_agent.sessions.store.search.text_analysis import columns, plain_text

INDEX, MARK, FORMAT_MARK = "message_index", "message_index", "message_index_format"
FORMAT = 2
"""Of what ``text_analysis.columns`` makes; another number builds the index anew."""
DAMAGED = -1
"""In place of the format: what is there is not to be opened."""
BESIDE = (64, 200_000)
"""Messages and characters of one transaction beside running turns: a few milliseconds."""
AT_ONCE = (400, 800_000)
"""The same when somebody waits for the end."""
PAUSE = 0.005
"""Seconds between those: turns of other processes want to write too."""
Progress = Callable[[int, int], None]

_CREATE = (
    f"CREATE VIRTUAL TABLE {INDEX} USING fts5(words, chars, tags, content='', columnsize=0,"
    " tokenize='unicode61 remove_diacritics 0')"
)


def catch_up(database: Database, seconds: float | None = None, progress: Progress | None = None) -> int:
    """Index what came since the last time, for at most ``seconds``, and return how many messages are still
    waiting. ``progress`` is called with (done, of how many)."""
    until = None if seconds is None else time.monotonic() + seconds
    waiting = total = pending(database)
    more = waiting > 0
    while more and (until is None or time.monotonic() < until):
        more = database.submit(lambda c: index_batch(c, *AT_ONCE), alone=True).result()
        waiting = pending(database)
        time.sleep(PAUSE if more else 0)
        if progress is not None:
            progress(max(0, total - waiting), total)
    return waiting


def keep_up(database: Database) -> None:
    """Index what came since the last time without waiting for it. A store that refuses is no error here."""

    def go_on(done: Future[Any]) -> None:
        if done.exception() is None and done.result():
            keep_up(database)

    database.submit(lambda c: index_batch(c, *BESIDE), alone=True).add_done_callback(go_on)


def pending(database: Database) -> int:
    """Return how many messages the index lacks, at most: numbers that were never given count too."""
    with database.reading() as c:
        return max(0, _newest(c) - (_mark(c, MARK) if there(c) else 0))


def forget(database: Database) -> None:
    """Mark the index as damaged, so that it is made anew when it is next asked for. Nothing else is lost."""
    database.write(make_anew)


def make_anew(connection: Connection) -> None:
    """The same within a job: numbers of messages that were deleted may be given again."""
    _set_mark(connection, FORMAT_MARK, DAMAGED)


def there(connection: Connection) -> bool:
    """Return whether there is an index that can be asked."""
    return _mark(connection, FORMAT_MARK) == FORMAT


def index_batch(connection: Connection, rows: int, chars: int) -> bool:
    """Index at most ``rows`` messages of about ``chars`` characters, and return whether there may be more.
    Runs as a job of the writer. Raises ``StoreError`` when this SQLite has no full-text search."""
    _prepare(connection)
    first = _mark(connection, MARK)
    found = connection.execute(
        "SELECT m.id, m.role, m.session, m.at, s.kind, m.body FROM messages m JOIN sessions s ON s.id ="
        " m.session WHERE m.id > ? ORDER BY m.id LIMIT ?",
        (first, rows),
    )
    batch: list[tuple[int, str, str, str]] = []
    for message, role, session, at, kind, body in found:
        words, singles, tags = columns(_text(body), role, session, at)
        batch.append((message, words, singles, f"{tags} {kind}"))
        chars -= len(words)
        if chars <= 0:
            break
    if not batch:
        return False
    _insert(connection, batch)
    _set_mark(connection, MARK, batch[-1][0])
    return len(batch) == rows or chars <= 0


def _text(body: str) -> str:
    """A damaged message does not keep the others from being found."""
    try:
        return plain_text(loads(body))
    except StoreError:
        return ""


def _insert(connection: Connection, batch: list[tuple[int, str, str, str]]) -> None:
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


IS_DAMAGED = "the full-text index of the sessions is damaged; it is made anew by the next search"
SIGNS = ("malformed", "constraint failed", "logic error", "vtable constructor", "invalid fts5")
"""What SQLite says of a full-text table that is not what it should be."""


def looks_damaged(error: BaseException | None) -> bool:
    """Return whether a damaged index may be the reason of an error. It is read as anything: broken rows,
    rows that are there twice, lengths of gigabytes."""
    words = str(error).lower()
    return isinstance(error, MemoryError) or any(sign in words for sign in SIGNS)


def _drop(connection: Connection) -> None:
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


def _prepare(connection: Connection) -> None:
    if there(connection):
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


def _newest(connection: Connection) -> int:
    return int(connection.execute("SELECT MAX(id) FROM messages").fetchone()[0] or 0)


def _mark(connection: Connection, name: str) -> int:
    return int(
        connection.execute("SELECT COALESCE(MAX(value), 0) FROM marks WHERE name = ?", (name,)).fetchone()[0]
    )


def _set_mark(connection: Connection, name: str, value: int) -> None:
    connection.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (name, value))
