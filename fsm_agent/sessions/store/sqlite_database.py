"""One SQLite file: opened, brought to this version, checked before it is written to, read by whoever asks.

``sqlite_writer`` has the thread that writes, and how jobs are grouped into transactions.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.database import Durability
from fsm_agent.sessions.store.health import as_store_error, format_of, look_through, looking, marked
from fsm_agent.sessions.store.schema import FIRST, VERSIONS, Versions, newest, refusal
from fsm_agent.sessions.store.sqlite_writer import SqliteWriter, patiently
from fsm_agent.support.private_files import private_folder, touch, write_new


class SqliteDatabase(SqliteWriter):
    """One SQLite file. Raises ``StoreError`` in one line when it cannot be used: not writable, or of a
    newer or unreleased format. A file that is damaged is never written to; what is left of it can be read."""

    versions: Versions = VERSIONS

    def __init__(self, path: Path, durability: Durability = "full") -> None:
        super().__init__(path)
        self._durability = durability
        self._reading = threading.Lock()
        self._looked_through = False
        self._damage = ""
        self._reader = self._prepared()
        self._close_when_dropped()
        self.closed = False

    # Reading

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection for reads, which sees all that was committed before. Raises ``StoreError``."""
        with self._reading:
            try:
                yield self._reader
            except sqlite3.Error as error:
                raise as_store_error(error, self.path) from error

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection of its own, which sees the file as it was when it was first asked."""
        address = f"{self.path.resolve().as_uri()}?mode=ro"
        try:
            with contextlib.closing(
                sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
            ) as c:
                c.execute("BEGIN")
                yield c
        except sqlite3.Error as error:
            raise as_store_error(error, self.path) from error

    def close(self) -> None:
        """Finish what was submitted, and close. Safe to call twice."""
        if self._thread is not None:
            self.submit(
                lambda connection: None
            ).exception()  # waited for; who submitted the rest is told how it ended
        self.closed = True
        with self._reading:
            self._reader.close()

    def rebuild(self) -> tuple[int, int]:
        """Write the file anew, without the room that is free in it; its bytes before and after, with its log.
        Raises ``StoreError`` when it is damaged, or locked for long."""
        before = self.size()
        try:
            with contextlib.closing(self.writable()) as connection:
                patiently(lambda: connection.execute("VACUUM"))
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise as_store_error(error, self.path) from error
        return before, self.size()

    def size(self) -> int:
        """Return the bytes of the file and its log."""
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        return sum(one.stat().st_size for one in files if one.exists())

    # Opening

    def _prepared(self) -> sqlite3.Connection:
        try:
            private_folder(self.path.parent)
            if not self.path.exists():
                self._create()
            if self._is_current():
                return self._opened()
            with _closed_when_it_fails(self._connected()) as connection:
                patiently(lambda: self._migrate(connection))
        except (sqlite3.Error, OSError) as error:
            raise as_store_error(error, self.path) from error
        return connection

    def _create(self) -> None:
        try:
            write_new(self.path, _empty_database(self.versions))
        except OSError:  # no hard links in this file system: the tables are made in the empty file
            touch(self.path)

    def _is_current(self) -> bool:
        """False when it must be written to before it can be used, and may be."""
        with contextlib.closing(looking(self.path)) as c:
            version = format_of(c)
            if (refused := refusal(str(self.path), version, self.versions)) is not None:
                raise refused
            if version == newest(self.versions):
                return True
            if version:
                look_through(c, self.path)
                self._looked_through = True
            return False

    def writable(self) -> sqlite3.Connection:
        """A connection to a file that is whole: the first one looks through it."""
        if self._damage:
            raise StoreError(self._damage)
        if not self._looked_through:
            self._look_through()
        return self._connected()

    def _look_through(self) -> None:
        """Raise what is wrong with the file; it is never written to then."""
        connection = looking(self.path)
        try:
            look_through(connection, self.path)
        except sqlite3.OperationalError:  # nothing was found out
            connection.close()
            raise
        except sqlite3.DatabaseError as error:
            self._damage = str(as_store_error(error, self.path))
            with self._reading:  # closed as the last one, it would move the log into the file
                self._reader.close()
                self._reader = connection
                self._close_when_dropped()
            raise StoreError(self._damage) from error
        self._looked_through = True
        connection.close()

    def _close_when_dropped(self) -> None:
        weakref.finalize(
            self, self._reader.close
        ).atexit = False  # threads that end with the process may still read

    def _connected(self) -> sqlite3.Connection:
        with _closed_when_it_fails(self._opened()) as connection:
            # where it cannot be, the rollback journal stays; another that opens the file now holds its lock
            patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"))
            connection.execute(f"PRAGMA synchronous = {self._durability.upper()}")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA wal_autocheckpoint = 1000")
        return connection

    def _opened(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=0.1)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        if 0 < _version(connection) < newest(self.versions):
            self._back_up(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = _version(connection)  # another process may have been here first
            if (refused := refusal(str(self.path), version, self.versions)) is not None:
                raise refused
            _upgrade(connection, self.versions, version)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    def _back_up(self, connection: sqlite3.Connection) -> None:
        """A whole copy beside the file, before anything in it is changed."""
        copy = self.path.with_name(f"{self.path.name}.before-{newest(self.versions)}.backup")
        touch(copy)
        with contextlib.closing(sqlite3.connect(copy)) as target:
            connection.backup(target)


@contextlib.contextmanager
def _closed_when_it_fails(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


@functools.cache
def _empty_database(versions: Versions) -> bytes:
    """The bytes of a database without rows. A new file begins with them, because running the statements of
    all versions takes several milliseconds."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _upgrade(connection, versions, 0)
        return connection.serialize()


def _upgrade(connection: sqlite3.Connection, versions: Versions, version: int) -> None:
    """Make the tables, or bring them from ``version`` to the newest one."""
    for statements in versions[max(0, version - FIRST + 1) :]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {newest(versions)}")
    connection.execute(f"PRAGMA application_id = {marked(newest(versions))}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
