"""One PostgreSQL database, or one schema in it: migrated to this version, written in groups, open to any
reader. Any number of processes and machines may use it at once."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import select
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import psycopg

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.sessions.store.fence import Owners
from fsm_agent.sessions.store.postgres import masked_url
from fsm_agent.sessions.store.postgres.connecting import (
    OLDEST,
    Raw,
    ReadConnection,
    as_store_error,
    connect,
    definition,
)
from fsm_agent.sessions.store.postgres.writer import PATIENCE, PostgresWriter
from fsm_agent.sessions.store.schema import (
    FIRST,
    VERSIONS,
    Health,
    Versions,
    newest,
    read_all,
    refusal,
    tables,
)

# ----------------------------------------------------------------------------------------------------
# Database objects that PostgreSQL needs besides the tables of ``store.schema``: the format, functions that
# SQLite has built in, the search index, the running processes, and notifications.
#
# ``OWN`` has one list per version of the tables, executed after it.


FORMAT = "fsm_agent_format"
"""The table that holds the format number."""

OWN: tuple[tuple[str, ...], ...] = (
    (
        # text is escaped ASCII: replace all escapes; PostgreSQL refuses NUL and half a surrogate pair
        """CREATE FUNCTION fsm_json_extract(body TEXT, path TEXT) RETURNS TEXT LANGUAGE SQL IMMUTABLE AS $$
            SELECT regexp_replace(body, '\\\\u[0-9a-fA-F]{4}', '\\\\u003f', 'g')::json
                #>> (string_to_array(replace(regexp_replace(substr(path, 2), '\\[(\\d+)\\]', '.\\1', 'g'),
                    '""', ''), '.'))[2:] $$""",
        """CREATE FUNCTION fsm_json_each(body TEXT) RETURNS TABLE (value TEXT) LANGUAGE SQL IMMUTABLE AS $$
            SELECT json_array_elements_text(body::json) $$""",
        """CREATE FUNCTION fsm_json_each(body TEXT, path TEXT) RETURNS TABLE (value TEXT)
            LANGUAGE SQL IMMUTABLE AS $$
            SELECT json_array_elements_text(fsm_json_extract(body, path)::json) $$""",
        """CREATE AGGREGATE fsm_total(DOUBLE PRECISION)
            (SFUNC = float8pl, STYPE = DOUBLE PRECISION, INITCOND = '0')""",
        # search: rows are indexed after their messages, in whatever order those become visible
        "ALTER TABLE messages ADD COLUMN words TSVECTOR",
        "CREATE INDEX messages_words ON messages USING GIN (words) WITH (fastupdate = off)",
        "CREATE INDEX messages_unread ON messages (id) WHERE words IS NULL",
        # running processes: see ``PostgresOwners``
        """CREATE TABLE owners (
            id TEXT PRIMARY KEY,
            key BIGINT NOT NULL,
            pid BIGINT NOT NULL,
            host TEXT NOT NULL,
            since DOUBLE PRECISION NOT NULL,
            seen TIMESTAMPTZ NOT NULL
        )""",
        # notifications: see ``Presence``
        """CREATE FUNCTION fsm_notify() RETURNS TRIGGER LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM pg_notify('fsm_agent_' || md5(TG_TABLE_SCHEMA), TG_TABLE_NAME);
                RETURN NULL;
            END $$""",
        """CREATE TRIGGER controls_notify AFTER INSERT ON controls
            FOR EACH STATEMENT EXECUTE FUNCTION fsm_notify()""",
        """CREATE TRIGGER pending_notify AFTER UPDATE ON pending
            FOR EACH STATEMENT EXECUTE FUNCTION fsm_notify()""",
    ),
)


# Migrates a database to this version, one process at a time.


def found_format(raw: Raw) -> int:
    """Return the format number of a database, 0 if it has no tables."""
    there = raw.execute("SELECT to_regclass($1)", (FORMAT,)).fetchone()
    if there is None or there[0] is None:
        return 0
    row = raw.execute(f"SELECT tables FROM {FORMAT}").fetchone()  # noqa: S608
    return row[0] if row else 0


def migrate(url: str, versions: Versions) -> None:
    """Create the tables, or migrate them to this version. Raises ``StoreError`` for a newer or unreleased
    format, and ``psycopg.Error``."""
    with connect(url, application="fsm-agent schema") as raw:
        if raw.info.server_version < OLDEST:
            raise StoreError(
                f"the session store {masked_url(url)} cannot be used: PostgreSQL {OLDEST // 10_000} or newer"
                f" is needed, this is {raw.info.server_version // 10_000}"
            )
        if _is_current(raw, url, versions):
            return
        with raw.transaction():
            raw.execute("SELECT pg_advisory_xact_lock(hashtextextended('fsm_agent ' || current_schema(), 0))")
            if not _is_current(raw, url, versions):  # another process was faster
                _lead_on(raw, versions)


def _is_current(raw: Raw, url: str, versions: Versions) -> bool:
    found = found_format(raw)
    if (refused := refusal(masked_url(url), found, versions)) is not None:
        raise refused
    return found == newest(versions)


def _lead_on(raw: Raw, versions: Versions) -> None:
    found = found_format(raw)
    with raw.pipeline():
        if not found:
            raw.execute(f"CREATE TABLE {FORMAT} (tables BIGINT NOT NULL)")
            raw.execute(f"INSERT INTO {FORMAT} VALUES (0)")  # noqa: S608
        for tables, own in list(zip_longest(versions, OWN, fillvalue=()))[max(0, found - FIRST + 1) :]:
            for statement in (*map(definition, tables), *own):
                raw.execute(statement)
        raw.execute(f"UPDATE {FORMAT} SET tables = $1", (newest(versions),))  # noqa: S608


NUMBERED = ("messages", "usage", "outbox", "controls", "contents", "unreported")
"""Tables with generated row numbers."""


class PostgresDatabase(PostgresWriter):
    """One database. Raises ``StoreError`` in one line when it cannot be used: out of reach, missing rights,
    or another format."""

    versions: Versions = VERSIONS
    path = None
    shared = True

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        super().__init__(url, patience)
        self.name = masked_url(url)
        self._lock = threading.RLock()
        self._listeners: list[weakref.WeakMethod[Callable[[str], None]]] = []
        try:
            migrate(url, self.versions)
            self._reader = ReadConnection(url)
        except (psycopg.Error, StoreError) as error:
            raise as_store_error(error, url) from error
        weakref.finalize(self, self._reader.close).atexit = False
        self.closed = False

    @contextlib.contextmanager
    def reading(self) -> Iterator[SqlConnection]:
        """Lend the connection for reads: all reads in the block see one snapshot. Raises ``StoreError``."""
        with self._lock, self._explaining(), self._reader.one_moment():
            yield self._reader

    def select(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Return all rows of one statement."""
        with self._lock, self._explaining():
            return self._reader.execute(sql, values).fetchall()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[SqlConnection]:
        """Lend a separate connection that sees one snapshot throughout."""
        with self._explaining(), contextlib.closing(ReadConnection(self.url)) as c, c.one_moment():
            yield c

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.Error, UnicodeEncodeError) as error:
            raise as_store_error(error, self.url) from error

    def listen(self, on_notice: Callable[[str], None]) -> bool:
        """Call ``heard``, a bound method, with the name of each table that received commands or answers."""
        with self._lock:
            self._listeners = [one for one in self._listeners if one() not in (None, on_notice)]
            self._listeners.append(weakref.WeakMethod(on_notice))
        return True

    def notify(self, table: str) -> None:
        """Notify all listeners, in the thread that receives the notification."""
        for one in tuple(self._listeners):
            if (listener := one()) is not None:
                listener(table)

    def close(self) -> None:
        """Finish submitted jobs, and close. Safe to call twice."""
        if self._thread is not None:
            self.submit(lambda connection: None).exception()
        self.closed = True
        with self._lock:
            self._reader.close()

    def continue_numbers(self, c: SqlConnection) -> None:
        """Continue numbering above the highest number, after rows were written with explicit numbers."""
        for table in NUMBERED:
            c.execute(
                f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), COALESCE(MAX(id), 1)) FROM {table}"  # noqa: S608
            )

    def rebuild(self) -> tuple[int, int]:
        """Release free space with ``VACUUM``; return the bytes of the tables before and after."""
        before = self.size()
        with self._explaining(), connect(self.url) as raw:
            for (table,) in raw.execute(
                "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = current_schema()"
                " AND tableowner = current_user"
            ).fetchall():
                raw.execute(f"VACUUM (ANALYZE) {table}")
        return before, self.size()

    def size(self) -> int:
        """Return the size of the tables and their indexes in bytes."""
        sql = (
            "SELECT COALESCE(SUM(pg_total_relation_size(c.oid)), 0) FROM pg_class c"
            " WHERE c.relkind = 'r' AND c.relnamespace = CAST(current_schema() AS regnamespace)"
        )
        return int(self.select(sql)[0][0])


# ----------------------------------------------------------------------------------------------------
# The checks of ``fsm-agent doctor`` for a PostgreSQL database, which do not change it.


APART = 2.0
"""Maximum difference of the two clocks in seconds."""
ASKED = 5
"""Number of queries that measure the round-trip time."""


def database_health(url: str) -> Health:
    """Connect, check version, rights, encoding, durability, clock and distance, and read every text. Raises
    ``StoreError`` when the database cannot be reached, is damaged, or has a format that this program does not
    read."""
    try:
        with connect(url, read_only=True, application="fsm-agent doctor") as raw:
            apart, seconds = 0.0, 60.0
            for _ in range(ASKED):
                began = time.time()
                there = _one(raw, _NOW)[0]
                took = time.time() - began
                if took < seconds:
                    apart, seconds = there - began - took / 2, took
            schema, may, encoding, flushed, version = _one(raw, _FACTS)
            found = found_format(raw) if schema is not None else 0
    except psycopg.Error as error:
        raise as_store_error(error, url) from error
    if (refused := refusal(masked_url(url), found, VERSIONS)) is not None:
        raise refused
    wrong = [
        finding
        for finding, is_so in (
            (f"PostgreSQL {OLDEST // 10_000} or newer is needed", version < OLDEST),
            ("no schema of search_path is there: create one", schema is None),
            ("its user may not make tables there: GRANT CREATE ON SCHEMA", schema is not None and not may),
            (f"its encoding is {encoding}: create it with UTF8", encoding != "UTF8"),
            ("it may lose commits when it crashes: set fsync and synchronous_commit", flushed != "on on"),
            (f"its clock is {apart:+.1f} s away from this machine's: set both by NTP", abs(apart) > APART),
        )
        if is_so
    ]
    state = f"format {found}" if found else "no tables yet"
    clock = f"answers in {1000 * seconds:.1f} ms, clock {apart:+.2f} s"
    words = f"PostgreSQL {version // 10_000}, schema {schema}, {state}, {clock}"
    if wrong or not found:
        return Health(masked_url(url), version=found, server=words, wrong="; ".join(wrong))
    with contextlib.closing(PostgresDatabase(url)) as database, database.snapshot() as c:
        columns = {f"{table}.{name}" for table, (names, _) in tables().items() for name in names}
        return Health(
            masked_url(url), database.size(), found, *read_all(c, masked_url(url), columns), server=words
        )


def _one(raw: Raw, sql: str) -> tuple[Any, ...]:
    row = raw.execute(sql).fetchone()
    assert row is not None, "it asks for one row"
    return row


_NOW = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS FLOAT8)"
_FACTS = """SELECT current_schema(), COALESCE(has_schema_privilege(current_schema(), 'CREATE'), FALSE),
    current_setting('server_encoding'), current_setting('fsync') || ' ' ||
    CASE current_setting('synchronous_commit') WHEN 'off' THEN 'off' ELSE 'on' END,
    CAST(current_setting('server_version_num') AS INTEGER)"""


# ----------------------------------------------------------------------------------------------------
# Which processes are running: each holds an advisory lock of the database on a connection of its own, and
# sends a heartbeat every few seconds.
#
# The lock is free as soon as a process has died for any reason. A stalled process, or one whose machine
# disappeared, keeps the lock but sends nothing: after ``SILENT`` seconds it counts as dead. A process whose
# connection was cut, or whose server was restarted, takes its lock again. If another process claimed its
# turns meanwhile, their fence stops it. (Why: decision 104.)


log = logging.getLogger(__name__)
BEAT = 5.0
"""Seconds between two heartbeats."""
SILENT = 30.0
"""Seconds without a heartbeat after which a process counts as dead."""
BACK = 10.0
"""Grace period in seconds after a server start, in which processes take their locks again."""
AGAIN, FAREWELL = 1.0, 2.0
"""Seconds between two attempts to reconnect, and maximum seconds to wait for the thread when leaving."""
FORGOTTEN = "1 day"
_LOCK = "SELECT pg_try_advisory_lock($1)"
_HERE = """INSERT INTO owners (id, key, pid, host, since, seen) VALUES ($1, $2, $3, $4, $5, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET seen = clock_timestamp()"""
_ALIVE = """SELECT pid, host, since FROM owners WHERE id = ?
    AND seen > clock_timestamp() - make_interval(secs => ?)
    AND (EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND (CAST(classid AS BIGINT) << 32) + CAST(objid AS BIGINT) = key)
        OR pg_postmaster_start_time() > clock_timestamp() - make_interval(secs => ?))"""


class PostgresOwners(Owners):
    """Knows the processes that run turns in one database."""

    def __init__(self, store: Callable[[], Any]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._me, self._pid = "", 0
        self._presence: Presence | None = None

    def _database(self) -> PostgresDatabase:
        """Return the store's database, which is opened when first needed."""
        database: PostgresDatabase = self._store().database
        return database

    @property
    def me(self) -> str:
        """The name of this process in the database, created with its lock on first use. Raises
        ``StoreError``."""
        with self._lock:
            if not self._me or self._pid != os.getpid():
                database = self._database()
                self._presence = Presence(database)
                weakref.finalize(self, self._presence.leave)
                self._me, self._pid = self._presence.name, os.getpid()
            return self._me

    def leave_to_parent(self) -> None:
        """Nothing, in a forked process: the thread that says that the parent lives does not exist here."""

    def alive(self, owner: str | None) -> dict[str, Any] | None:
        """Return the owner's process (pid, host, since in seconds), or ``None`` when it is gone."""
        if not owner:
            return None
        found = self._database().select(_ALIVE, owner, SILENT, BACK)
        if owner == self._me and self._pid == os.getpid():
            return {"pid": self._pid, "host": platform.node(), "since": self._presence_since()}
        return dict(zip(("pid", "host", "since"), found[0], strict=True)) if found else None

    def _presence_since(self) -> float:
        return self._presence.since if self._presence is not None else 0.0


class Presence:
    """One process in the table of owners, with its own connection and thread, which also receives
    notifications."""

    def __init__(self, database: PostgresDatabase) -> None:
        self.name, self.since = uuid.uuid4().hex[:12], time.time()
        self._key = int(self.name, 16)
        self._pid, self._url, self._heard = os.getpid(), database.url, database.notify
        self._leaving = threading.Event()
        self._woken, self._wakes = socket.socketpair()
        try:
            self._raw = self._enter()
        except psycopg.Error as error:
            raise as_store_error(error, self._url) from error
        self._thread = threading.Thread(target=self._stay, daemon=True, name="fsm-agent-presence")
        self._thread.start()

    def _enter(self) -> Raw:
        raw = connect(self._url, application="fsm-agent presence")
        try:
            raw.execute(_LOCK, (self._key,))
            raw.execute(_HERE, (self.name, self._key, self._pid, platform.node(), self.since))
            raw.execute(f"DELETE FROM owners WHERE seen < clock_timestamp() - interval '{FORGOTTEN}'")  # noqa: S608
            (channel,) = raw.execute("SELECT 'fsm_agent_' || md5(current_schema())").fetchone() or ("",)
            raw.execute(f"LISTEN {channel}")
        except BaseException:
            raw.close()
            raise
        return raw

    def _stay(self) -> None:
        while not self._leaving.is_set():
            try:
                if self._raw.closed:
                    self._raw = self._enter()
                select.select([self._raw.fileno(), self._woken.fileno()], [], [], BEAT)
                for one in self._raw.notifies(timeout=0):
                    self._heard(one.payload)
                self._raw.execute("UPDATE owners SET seen = clock_timestamp() WHERE id = $1", (self.name,))
            except (psycopg.Error, OSError) as error:
                log.warning("this process is not seen by others: %s", as_store_error(error, self._url))
                self._raw.close()
                self._leaving.wait(AGAIN)
        with contextlib.suppress(psycopg.Error):
            self._raw.execute("DELETE FROM owners WHERE id = $1", (self.name,))
        self._raw.close()
        self._woken.close()

    def leave(self) -> None:
        """Leave when the process runs no more turns; a forked child leaves its parent's lock alone."""
        if self._pid != os.getpid() or self._leaving.is_set():
            return
        self._leaving.set()
        self._wakes.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(FAREWELL)
