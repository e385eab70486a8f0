"""Writes groups of jobs to a SQLite file.

Each job of a group stands behind a savepoint of its own. SQLite takes back a whole transaction by itself when
it runs out of memory or of disk: who was not at fault is then run again, alone and in order."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsm_agent.errors import StoreError
from fsm_agent.runtime.measures import measured
from fsm_agent.sessions.store.connection import SqlConnection
from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.health import as_store_error
from fsm_agent.sessions.store.writer import Finished, Job, Waiting, tell

WRITE_RETRIES, RETRY_FROM, RETRY_TO = 15, 0.02, 0.15
"""SESS-01: a locked database is tried 15 times more, 20 to 150 ms apart."""
CHECKPOINT = 50
"""Commits after which the log is moved into the file (SESS-01)."""
SAVEPOINT = "fsm_agent_job"


class SqliteWriter(Database):
    """The half of a SQLite file's database that writes."""

    path: Path

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.name = path, str(path)
        self._tidied = 0
        self._in_job = False

    @abstractmethod
    def writable(self) -> sqlite3.Connection:
        """Open a connection for the writer's thread. Raises ``StoreError`` or ``sqlite3.Error`` when the
        file must not be written."""

    def explained(self, error: BaseException) -> Exception:
        """Return a ``StoreError`` for what is the file's fault."""
        return as_store_error(error, self.path)

    def writer_connection(self) -> sqlite3.Connection:
        """One on which a job cannot begin or end a transaction: it shares that with others."""
        connection = self.writable()
        connection.set_authorizer(self._allowed)
        return connection

    def _allowed(self, action: int, *_: object) -> int:
        refused = self._in_job and action == sqlite3.SQLITE_TRANSACTION
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK

    def commit_group(self, connection: sqlite3.Connection, group: list[Waiting]) -> bool:
        waiting = self._claimed(group)
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
            measured("commit", time.perf_counter() - began)
            self.committed()
        # what the jobs hold is let go of before anybody goes on who was told that they are done
        group.clear()
        waiting.clear()
        tell(done)
        return True

    def _run_all(self, connection: sqlite3.Connection, waiting: list[Waiting]) -> list[Finished] | None:
        """What came of the jobs; ``None`` when the transaction was lost with all of it, and they are next,
        each alone."""
        done: list[Finished] = []
        for place, (job, future, _) in enumerate(waiting):
            try:
                done.append((future, self._run(connection, job, len(waiting) > 1), None))
            except Exception as error:
                problem = self.explained(error)
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
        """The job's result. When it raises, nothing of it is left in the transaction, or there is no
        transaction any more."""
        try:
            if not shared:
                return self._called(connection, job)
            connection.execute(f"SAVEPOINT {SAVEPOINT}")
            try:
                return self._called(connection, job)
            except Exception:
                if connection.in_transaction:
                    connection.execute(f"ROLLBACK TO {SAVEPOINT}")
                raise
            finally:
                if connection.in_transaction:
                    connection.execute(f"RELEASE {SAVEPOINT}")
        except sqlite3.OperationalError as error:
            if SAVEPOINT in str(error):
                # SQLite took it back with the transaction, and the job opened another
                connection.rollback()
            raise

    def _called(self, connection: sqlite3.Connection, job: Job) -> Any:
        self._in_job = True
        try:
            result = job(connection)
        finally:
            self._in_job = False
        if not connection.in_transaction:
            raise StoreError("an error of SQLite took back what was written, and the job went on without it")
        return result

    def tidy(self, connection: sqlite3.Connection) -> None:
        """Every so many commits, when everybody has been told: move what was committed from the log into the
        file."""
        if self.commits - self._tidied < CHECKPOINT:
            return
        self._tidied = self.commits
        with contextlib.suppress(sqlite3.Error):  # nothing is lost; the next commit says what is wrong
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _raising(problem: Exception) -> Job:
    """In place of a job that failed already: who waits hears of it when those before it are done."""

    def fail(connection: SqlConnection) -> None:
        raise problem

    return fail


def patiently(attempt: Callable[[], object]) -> None:
    """Call ``attempt`` again while another process holds the lock, with a random wait between (SESS-01)."""
    for number in range(WRITE_RETRIES + 1):
        try:
            attempt()
            return
        except sqlite3.OperationalError as error:
            if number == WRITE_RETRIES or "locked" not in str(error):
                raise
            time.sleep(random.uniform(RETRY_FROM, RETRY_TO))  # noqa: S311 - spreads writers, no secret


def _spoils_all(error: Exception) -> bool:
    """Is it the file, and not the job, that is at fault? Then nothing more is done on this connection."""
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
