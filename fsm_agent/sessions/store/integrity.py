"""Is the file what it was written as? Looked at without changing it, before anything is written to it.

A file is damaged by a disk, a power failure, or a copy that was made while it was written, and none of them
leaves a sign beside it. So every page is read once by each process that writes, and every index compared with
its table: about a second for each gigabyte. Reading does not wait for it. What stands in the texts is checked
when they are read (``sealed``). (Why: decision 53.)"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from pathlib import Path

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.schema import FIRST

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
    if (mark != marked(version) and not unmarked) or not 0 < version < 256:
        raise sqlite3.DatabaseError(
            f"malformed: format {version} and mark {mark:#x} in its header do not belong together"
        )
    return version


def marked(version: int) -> int:
    """Return the ``application_id`` of a file of this format: "fsm" and the version, so that a flipped bit
    in either is told from a file of another version."""
    return int.from_bytes(b"fsm") << 8 | version


def look_through(connection: sqlite3.Connection, path: Path, long: float = LONG) -> None:
    """Read every page, and compare every index with its table. Raises ``sqlite3.DatabaseError`` for the
    first fault. Faults of the full-text index are passed over: it can be made anew. Logs a warning when it
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
                f"it is damaged; restore a backup, or move {path.name} away to begin anew; "
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
