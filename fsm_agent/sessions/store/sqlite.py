"""One SQLite file: opened, migrated to this version, checked before writes, read from any thread.

``SqliteWriter`` is the thread that writes, and groups jobs into transactions.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sqlite3
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fsm_agent.errors import StoreError
from fsm_agent.runtime.events import measure
from fsm_agent.sessions.store.database import (
    Database,
    Durability,
    Finished,
    Job,
    SqlConnection,
    Waiting,
    tell,
)
from fsm_agent.sessions.store.schema import (
    FIRST,
    VERSIONS,
    Versions,
    application_id,
    as_store_error,
    create_index,
    format_of,
    look_through,
    looking,
    newest,
    refusal,
)
from fsm_agent.support.files import private_folder, touch, write_new

# ----------------------------------------------------------------------------------------------------
# Writes groups of jobs to a SQLite file.
#
# Each job of a group has its own savepoint. SQLite rolls back a whole transaction by itself when it runs out
# of memory or disk: the jobs that did not cause this then run again, alone and in order.


WRITE_RETRIES, RETRY_FROM, RETRY_TO = 15, 0.02, 0.15
"""SESS-01: a locked database is retried 15 times, 20 to 150 ms apart."""
READ_PATIENCE = 2.5
"""Seconds that a reader waits for a lock, which the first write to a new file takes."""
CHECKPOINT = 50
"""Commits after which the log is moved into the file (SESS-01)."""
SAVEPOINT = "fsm_agent_job"


class SqliteWriter(Database):
    """The writing half of a SQLite database."""

    path: Path

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.name = path, str(path)
        self._tidied = 0
        self._in_job = False

    @abstractmethod
    def writable(self) -> sqlite3.Connection:
        """Open a connection for the writer's thread. Raises ``StoreError`` or ``sqlite3.Error`` when the file
        must not be written to."""

    def explain(self, error: BaseException) -> Exception:
        """Return a ``StoreError`` for a fault of the file."""
        return as_store_error(error, self.path)

    def writer_connection(self) -> sqlite3.Connection:
        """Open a connection on which jobs cannot begin or end a transaction: a group shares it."""
        connection = self.writable()
        connection.set_authorizer(self._authorize)
        return connection

    def _authorize(self, action: int, *_: object) -> int:
        refused = self._in_job and action == sqlite3.SQLITE_TRANSACTION
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK

    def commit_group(self, connection: sqlite3.Connection, group: list[Waiting]) -> bool:
        waiting = self._claim_jobs(group)
        patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        done = self._run_all(connection, waiting)
        if done is None:
            return False
        if all(problem is not None for _, _, problem in done):
            connection.rollback()
        else:
            began = time.perf_counter()
            try:
                self.committing()
                patiently(connection.commit)
            except sqlite3.Error:
                if len(waiting) == 1:
                    raise
                self._one_by_one(waiting)
                return False
            self.commits += 1
            measure("commit", time.perf_counter() - began)
            self.committed()
        # release the objects held by the jobs before their waiters continue
        group.clear()
        waiting.clear()
        tell(done)
        return True

    def _run_all(self, connection: sqlite3.Connection, waiting: list[Waiting]) -> list[Finished] | None:
        """Run the jobs and return their outcomes; ``None`` if the transaction was lost with all of them: they
        run next, each alone."""
        done: list[Finished] = []
        for place, (job, future, _) in enumerate(waiting):
            try:
                done.append((future, self._run(connection, job, len(waiting) > 1), None))
            except Exception as error:
                problem = self.explain(error)
                done.append((future, None, problem))
                if _spoils_all(error) or not connection.in_transaction:
                    if len(waiting) == 1:
                        tell(done)
                    else:
                        waiting[place] = (_raising(problem), future, True)
                        self._one_by_one(waiting)
                    return None
        return done

    def _run(self, connection: sqlite3.Connection, job: Job, shared: bool) -> Any:
        """Return the job's result. If it raises, none of its writes remain in the transaction, or the
        transaction is gone."""
        try:
            if not shared:
                return self._run_job(connection, job)
            connection.execute(f"SAVEPOINT {SAVEPOINT}")
            try:
                return self._run_job(connection, job)
            except Exception:
                if connection.in_transaction:
                    connection.execute(f"ROLLBACK TO {SAVEPOINT}")
                raise
            finally:
                if connection.in_transaction:
                    connection.execute(f"RELEASE {SAVEPOINT}")
        except sqlite3.OperationalError as error:
            if SAVEPOINT in str(error):
                # SQLite dropped it with the transaction, and the job opened another
                connection.rollback()
            raise

    def _run_job(self, connection: sqlite3.Connection, job: Job) -> Any:
        self._in_job = True
        try:
            result = job(connection)
        finally:
            self._in_job = False
        if not connection.in_transaction:
            raise StoreError("an error of SQLite took back what was written, and the job went on without it")
        return result

    def tidy(self, connection: sqlite3.Connection) -> None:
        """Move commits from the log into the file, once every ``CHECKPOINT`` commits, after their waiters
        were woken."""
        if self.commits - self._tidied < CHECKPOINT:
            return
        self._tidied = self.commits
        with contextlib.suppress(sqlite3.Error):  # nothing is lost; the next commit reports the problem
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _raising(problem: Exception) -> Job:
    """Replace a failed job, so that its caller hears of the failure after the jobs before it are done."""

    def fail(connection: SqlConnection) -> None:
        raise problem

    return fail


def patiently(attempt: Callable[[], object]) -> None:
    """Retry ``attempt`` while another process holds the lock, with random waits between (SESS-01)."""
    for number in range(WRITE_RETRIES + 1):
        try:
            attempt()
            return
        except sqlite3.OperationalError as error:
            if number == WRITE_RETRIES or "locked" not in str(error):
                raise
            time.sleep(random.uniform(RETRY_FROM, RETRY_TO))  # noqa: S311 - spreads writers, no secret


def _spoils_all(error: Exception) -> bool:
    """Return whether the file is at fault, and not the job: the connection is not used again then."""
    words = str(error).lower()
    return isinstance(error, sqlite3.DatabaseError) and any(
        word in words
        for word in (
            "disk",
            "full",
            "malformed",
            "locked",
            "readonly",
            "not a database",
            "i/o",
            "unable to open",
        )
    )


OPEN: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()
"""The files that this process has opened."""
INHERITED: list[SqliteDatabase] = []
"""Files that were open when this process was forked. SQLite keeps in memory which locks a process holds on a
file, so a forked process must not use such a file, not even through a new connection, and not close it."""


def _leave_to_parent() -> None:
    INHERITED.extend(one for one in OPEN if not one.closed or one._thread is not None)
    OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


class SqliteDatabase(SqliteWriter):
    """One SQLite file. Raises ``StoreError`` in one line when it cannot be used: not writable, of a newer or
    unreleased format, or open when this process was forked. A damaged file is never written to; its readable
    part can be read."""

    versions: Versions = VERSIONS

    def __init__(self, path: Path, durability: Durability = "full") -> None:
        super().__init__(path)
        if any(os.path.realpath(one.path) == os.path.realpath(path) for one in INHERITED):
            raise StoreError(
                f"the session store {path} cannot be used: it was open when this process was forked, which"
                " SQLite does not allow; fork before the first turn, or start processes with 'spawn'"
            )
        self._durability = durability
        self._reading = threading.Lock()
        self._looked_through = False
        self._damage = ""
        self._reader = self._prepare()
        self._close_when_dropped()
        self.closed = False
        OPEN.add(self)

    # Reading

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection for reads, which sees everything committed before. Raises ``StoreError``."""
        with self._reading:
            try:
                yield self._reader
            except (sqlite3.Error, UnicodeEncodeError) as error:
                raise as_store_error(error, self.path) from error

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Lend a separate connection, which sees the file as of its first read."""
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
        """Finish submitted jobs, and close. Safe to call twice."""
        if self._thread is not None:
            self.submit(
                lambda connection: None
            ).exception()  # waited for; the other callers learn the outcome of their jobs
        self.closed = True
        with self._reading:
            self._reader.close()

    def rebuild(self) -> tuple[int, int]:
        """Rewrite the file without its free space; return its bytes before and after, including its log.
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
        """Return the size of the file and its log in bytes."""
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        return sum(one.stat().st_size for one in files if one.exists())

    # Opening

    def _prepare(self) -> sqlite3.Connection:
        try:
            private_folder(self.path.parent)
            if not self.path.exists():
                self._create()
            if not self._is_current():
                with contextlib.closing(self._connect()) as connection:
                    patiently(lambda: self._migrate(connection))
            return self._open(READ_PATIENCE)
        except (sqlite3.Error, OSError) as error:
            raise as_store_error(error, self.path) from error

    def _create(self) -> None:
        try:
            self._looked_through = write_new(self.path, _empty_database(self.versions))
        except OSError:  # no hard links in this file system: create the tables in the empty file
            touch(self.path)

    def _is_current(self) -> bool:
        """Return false if the file must, and may, be migrated before use."""
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
        """Return a connection to an undamaged file: the first call checks it."""
        if self._damage:
            raise StoreError(self._damage)
        if not self._looked_through:
            self._look_through()
        return self._connect()

    def _look_through(self) -> None:
        """Raise the damage of the file, which is never written to then."""
        connection = looking(self.path)
        try:
            look_through(connection, self.path)
        except sqlite3.OperationalError:  # nothing was determined
            connection.close()
            raise
        except sqlite3.DatabaseError as error:
            self._damage = str(as_store_error(error, self.path))
            with self._reading:  # if it is the last connection, closing it moves the log into the file
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

    def _connect(self) -> sqlite3.Connection:
        with _closed_when_it_fails(self._open(0.1)) as connection:
            # without WAL the rollback journal stays; another process that opens the file may hold the lock
            patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"))
            connection.execute(f"PRAGMA synchronous = {self._durability.upper()}")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA wal_autocheckpoint = 1000")
        return connection

    def _open(self, patience: float) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=patience)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        if 0 < _version(connection) < newest(self.versions):
            self._back_up(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = _version(connection)  # another process may have migrated it first
            if (refused := refusal(str(self.path), version, self.versions)) is not None:
                raise refused
            _upgrade(connection, self.versions, version)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    def _back_up(self, connection: sqlite3.Connection) -> None:
        """Copy the whole file beside it, before anything in it is changed."""
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
    """Return the bytes of a database without rows. A new file begins with them, because running the
    statements of all versions and creating the index takes ten milliseconds."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _upgrade(connection, versions, 0)
        with contextlib.suppress(StoreError):  # raised again at the first search
            create_index(connection)
        return connection.serialize()


def _upgrade(connection: sqlite3.Connection, versions: Versions, version: int) -> None:
    """Create the tables, or migrate them from ``version`` to the newest one."""
    for statements in versions[max(0, version - FIRST + 1) :]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {newest(versions)}")
    connection.execute(f"PRAGMA application_id = {application_id(newest(versions))}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
