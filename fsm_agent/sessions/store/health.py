"""Is the store what it was written as? Looked at without changing it: a file by each process before it writes
to it, all of it by who asks (``health``).

A file is damaged by a disk, a power failure, or a copy that was made while it was written, and none of them
leaves a sign beside it. So every page is read once by each process that writes, and every index compared with
its table: about a second for each gigabyte. Reading does not wait for it. The content of the texts is checked
when they are read (``checksum``)."""

# Check a file before writing, and checksum each text. No external mark reveals damage, so each process reads
# the whole file once before its first write; reading does not wait. SQLite does not detect a changed letter,
# so each JSON column has a CRC-32 next to it (`body_crc`). Formats before 0.1.0 are refused, because every
# migration step would have to be kept forever. A transaction that SQLite rolls back is repeated job by job,
# and no caller learns "done" before the data is in the file.

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.sessions.store.rows import loads
from fsm_agent.sessions.store.schema import FIRST, JSON_COLUMNS, VERSIONS, checksum_of, refusal

FILE = "sessions.db"
"""The store's file in a home."""

log = logging.getLogger(__name__)
LONG = 1.0
"""Seconds after which it is said what takes so long."""
_LINES = 100


def looking(path: Path) -> sqlite3.Connection:
    """Open a connection that cannot write, and that leaves the log as it is when it is closed."""
    left = path.with_name(f"{path.name}-journal")
    if left.exists() and left.stat().st_size:  # SQLite alone can undo what a dead process left half done
        undone = sqlite3.connect(path)
        undone.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()
        undone.close()
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=1)


def format_of(connection: sqlite3.Connection) -> int:
    """Return the number of the file's format, 0 for an empty file. Raises ``sqlite3.DatabaseError`` when its
    header contradicts itself."""
    connection.execute("BEGIN")  # all of one moment
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        mark = int(connection.execute("PRAGMA application_id").fetchone()[0])
        tables = connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()[0]
    finally:
        connection.execute("ROLLBACK")
    if version == mark == tables == 0:
        return 0
    unmarked = mark == 0 and 0 < version < FIRST and tables  # by the earliest programs
    if (mark != application_id(version) and not unmarked) or not 0 < version < 256:
        raise sqlite3.DatabaseError(
            f"malformed: format {version} and mark {mark:#x} in its header do not belong together"
        )
    return version


def application_id(version: int) -> int:
    """Return the ``application_id`` of a file of this format: "fsm" and the version, so that a flipped bit
    in either is not taken for a file of another version."""
    return int.from_bytes(b"fsm") << 8 | version


def look_through(connection: sqlite3.Connection, path: Path, long: float = LONG) -> None:
    """Read every page, and compare every index with its table. Raises ``sqlite3.DatabaseError`` for the
    first fault. Faults of the full-text index are ignored: it can be rebuilt. Logs a warning when it
    takes more than ``long`` seconds.

    The check of all tables leaves out the list of free pages when the first table it meets is a virtual one
    (seen in SQLite 3.40); the check of the table of tables alone never does."""
    size = path.stat().st_size // 1_000_000
    told = threading.Timer(
        long, log.warning, ("looking through %s (%d MB) before it is written to", path, size)
    )
    told.daemon = True
    told.start()
    try:
        lines = [
            line
            for part in ("sqlite_schema", _LINES)
            for (line,) in connection.execute(f"PRAGMA integrity_check({part})")
            if line != "ok" and "FTS5 table" not in line
        ]
    finally:
        told.cancel()
    if lines:
        raise sqlite3.DatabaseError(f"malformed: {' '.join(lines[0].split())}")


def as_store_error(error: BaseException, path: Path) -> Exception:
    """Return a ``StoreError`` of one line that says what is wrong with the file and what to do; errors
    that are no fault of the file are returned as they are."""
    if isinstance(error, sqlite3.Error):
        words = str(error)
        lower = words.lower()
        if "full" in lower:
            hint = "the disk is full; make room, the turn can then be resumed"
        elif "locked" in lower:
            hint = "another program holds its lock; close it and try again"
        elif any(
            word in lower
            for word in ("malformed", "not a database", "could not decode", "unsupported file format")
        ):
            hint = (
                f"it is damaged; restore a backup, or move {path.name} away to start empty; "
                "what can be read is in `fsm-agent sessions`, and what `sqlite3 FILE .recover` gives"
            )
        elif "readonly" in lower or "unable to open" in lower:
            hint = "it cannot be written; check the permissions of the file and its directory"
        else:
            hint = words
        return StoreError(f"the session store {path} cannot be used: {hint} ({words})")
    if isinstance(error, MemoryError):
        return StoreError(f"the session store {path} cannot be used: SQLite ran out of memory")
    if isinstance(error, OSError):
        return StoreError(f"the session store {path} cannot be used: {os.strerror(error.errno or 0)}")
    return error if isinstance(error, Exception) else RuntimeError(repr(error))


@dataclass(frozen=True, slots=True)
class Health:
    """What was found in a whole file or database, which is at ``place``. ``size`` in bytes, with what is
    still in the log; ``version`` of its format, 0 without tables; ``unfinished`` turns that have no end. Of a
    database, ``server`` describes it in a line, and ``wrong`` says what is to be done about it; what is in it
    is not looked at then."""

    place: str
    size: int = 0
    version: int = 0
    sessions: int = 0
    unfinished: int = 0
    server: str = ""
    wrong: str = ""


def health(home: Path, url: str | None = None) -> Health | None:
    """Read every page and every text of a home's file, or of the database at ``url``, and return what is in
    it; ``None`` when there is no file yet. Raises ``StoreError`` for one that is damaged, locked, out of
    reach, or of a format that this program does not read."""
    if url is not None:
        from fsm_agent.sessions.store.postgres.opening import health_of

        return health_of(url)
    path = home / FILE
    if not path.exists():
        return None
    files = (path, path.with_name(f"{FILE}-wal"))
    size = sum(one.stat().st_size for one in files if one.exists())
    try:
        with contextlib.closing(looking(path)) as c:
            version = format_of(c)
            if (refused := refusal(str(path), version, VERSIONS)) is not None:
                raise refused
            look_through(c, path)
            found = [column for (column,) in c.execute(_COLUMNS)]
            counts = read_all(c, str(path), found) if version else ()
            return Health(str(path), size, version, *counts)
    except sqlite3.Error as error:
        raise as_store_error(error, path) from error


def read_all(c: SqlConnection, place: str, there: Collection[str]) -> tuple[int, int]:
    """Return how many sessions and unfinished turns there are. Raises ``StoreError`` with the number of texts
    that are not what was written, and where the first of them is. ``there``: columns, as "table.column"; a
    file of an older version has fewer."""
    damaged: list[str] = []
    for table, columns in JSON_COLUMNS.items():
        key = next(name for name in ("id", "session", "turn") if f"{table}.{name}" in there)
        for column in (name for name in columns if f"{table}.{name}" in there):
            sql = f"SELECT {key}, {column}, {checksum_of(column)} FROM {table} WHERE {column} IS NOT NULL"  # noqa: S608
            for owner, text, crc in c.execute(sql):
                try:
                    loads(text, crc)
                except StoreError:
                    damaged.append(f"{column} in {table}, {key} {owner}")
    if damaged:
        raise StoreError(
            f"{place} has {len(damaged)} damaged texts, the first is {damaged[0]}; its pages are whole, so it"
            " can be used without them; a backup has them"
        )
    (sessions,) = c.execute("SELECT COUNT(*) FROM sessions").fetchone()
    (unfinished,) = c.execute("SELECT COUNT(*) FROM turns WHERE ended IS NULL").fetchone()
    return sessions, unfinished


_COLUMNS = (
    "SELECT t.name || '.' || c.name FROM sqlite_schema t, pragma_table_info(t.name) c WHERE t.type = 'table'"
)
