"""One database of PostgreSQL, or one schema in it: brought to this version, written by groups, read by
whoever asks. Any number of processes and machines may use it at once."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.connection import SqlConnection
from fsm_agent.sessions.store.postgres.address import shown
from fsm_agent.sessions.store.postgres.connecting import as_store_error, connected
from fsm_agent.sessions.store.postgres.migration import migrated
from fsm_agent.sessions.store.postgres.reading import ReadConnection
from fsm_agent.sessions.store.postgres.writer import PATIENCE, PostgresWriter
from fsm_agent.sessions.store.schema import VERSIONS, Versions

NUMBERED = ("messages", "usage", "outbox", "controls", "contents", "unreported")
"""Tables whose rows the database numbers."""


class PostgresDatabase(PostgresWriter):
    """One database. Raises ``StoreError`` in one line when it cannot be used: out of reach, without the
    rights, or of another format."""

    versions: Versions = VERSIONS
    path = None
    shared = True

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        super().__init__(url, patience)
        self.name = shown(url)
        self._lock = threading.RLock()
        self._listeners: list[weakref.WeakMethod[Callable[[str], None]]] = []
        try:
            migrated(url, self.versions)
            self._reader = ReadConnection(url)
        except (psycopg.Error, StoreError) as error:
            raise as_store_error(error, url) from error
        weakref.finalize(self, self._reader.close).atexit = False
        self.closed = False

    @contextlib.contextmanager
    def reading(self) -> Iterator[SqlConnection]:
        """Lend the connection for reads: all that is read in the block is of one moment. Raises
        ``StoreError``."""
        with self._lock, self._explaining(), self._reader.one_moment():
            yield self._reader

    def select(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of one statement."""
        with self._lock, self._explaining():
            return self._reader.execute(sql, values).fetchall()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[SqlConnection]:
        """Lend a connection of its own that sees all as it was at one moment."""
        with self._explaining(), contextlib.closing(ReadConnection(self.url)) as c, c.one_moment():
            yield c

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise as_store_error(error, self.url) from error

    def listen(self, heard: Callable[[str], None]) -> bool:
        """Have ``heard``, a bound method, called with the name of each table that something came to."""
        with self._lock:
            self._listeners = [one for one in self._listeners if one() not in (None, heard)]
            self._listeners.append(weakref.WeakMethod(heard))
        return True

    def notified(self, table: str) -> None:
        """Tell all who listen. In the thread that hears of it."""
        for one in tuple(self._listeners):
            if (heard := one()) is not None:
                heard(table)

    def close(self) -> None:
        """Finish what was submitted, and close. Safe to call twice."""
        if self._thread is not None:
            self.submit(lambda connection: None).exception()
        self.closed = True
        with self._lock:
            self._reader.close()

    def numbers_given(self, c: SqlConnection) -> None:
        """Rows were written with numbers of their own: those that come get higher ones."""
        for table in NUMBERED:
            c.execute(
                f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), COALESCE(MAX(id), 1)) FROM {table}"  # noqa: S608
            )

    def rebuild(self) -> tuple[int, int]:
        """Let the server give free room back: ``VACUUM``; bytes of the tables before and after."""
        before = self.size()
        with self._explaining(), connected(self.url) as raw:
            for (table,) in raw.execute(
                "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = current_schema()"
                " AND tableowner = current_user"
            ).fetchall():
                raw.execute(f"VACUUM (ANALYZE) {table}")
        return before, self.size()

    def size(self) -> int:
        """Return the bytes of the tables and their indexes."""
        sql = (
            "SELECT COALESCE(SUM(pg_total_relation_size(c.oid)), 0) FROM pg_class c"
            " WHERE c.relkind = 'r' AND c.relnamespace = CAST(current_schema() AS regnamespace)"
        )
        return int(self.select(sql)[0][0])
