"""One thread that writes to a SQLite file, in groups of jobs.

Commits are grouped: what is waiting when the writer is free goes into one transaction with one flush to disk,
each job behind a savepoint of its own, so that a job which is refused takes nothing of the others with it.
SQLite takes back a whole transaction by itself when it runs out of memory or of disk: who was not at fault is
then run again, alone and in order. Nobody is told that a job is done before it is in the file.
(Why: decision 62.)"""

from __future__ import annotations

import contextlib
import queue
import random
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fsm_agent.errors import StoreError
from fsm_agent.runtime.measures import measured
from fsm_agent.sessions.store.async_commit import Landing
from fsm_agent.sessions.store.integrity import as_store_error

Job = Callable[[sqlite3.Connection], Any]
Waiting = tuple[Job, Future[Any], bool]
"""A job, who waits for it, and whether it must be alone in its transaction."""
Finished = tuple[Future[Any], Any, Exception | None]
"""Who waited for a job, its result, and what was wrong with it."""
WRITE_RETRIES, RETRY_FROM, RETRY_TO = 15, 0.02, 0.15
"""SESS-01: a locked database is tried 15 times more, 20 to 150 ms apart."""
CHECKPOINT = 50
"""Commits after which the log is moved into the file (SESS-01)."""
GROUP = 512
"""Jobs of one commit at most."""
LATE = 0.02
"""Seconds that a job which nobody waits for stands back, at most: others may come to its commit."""
SAVEPOINT = "fsm_agent_job"
IDLE = 1.0
"""Seconds without work after which the writer's thread ends, and its connection with it."""


class GroupWriter(ABC):
    """Runs jobs in the order given, grouped into transactions, in a thread that lives as long as there is
    work."""

    group, late = GROUP, LATE

    def __init__(self, path: Path) -> None:
        self.path = path
        self._jobs: queue.SimpleQueue[Waiting] = queue.SimpleQueue()
        self._standing_back: deque[Waiting] = deque()
        self._since = 0.0
        self._next: deque[Waiting] = deque()  # each of them alone, before anything that waits in the queue
        self._in_job = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self.landed = Landing().landed
        self.commits = self._tidied = 0

    @abstractmethod
    def writable(self) -> sqlite3.Connection:
        """Open a connection for the writer's thread. Raises ``StoreError`` or ``sqlite3.Error`` when the
        file must not be written."""

    def submit(self, job: Job, alone: bool = False, late: bool = False) -> Future[Any]:
        """Run ``job`` in the next transaction; the future has its result once that is committed. Jobs are
        done in the order given. ``late``: with the next one that is not, or after ``LATE`` seconds, or with
        ``hurry``. ``alone``: in a transaction without others and without a savepoint. A full-text table that
        was made and filled behind a savepoint, and is rolled back to it, keeps its rows in memory without
        tables to write them to: every commit with it would fail."""
        future: Future[Any] = Future()
        with self._starting:
            if not self._standing_back:
                self._since = time.monotonic()
            self._standing_back.append((job, future, alone))
            if not late:
                self._come_forward()
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_on, daemon=True, name="fsm-agent-store")
                self._thread.start()
        return future

    def hurry(self) -> None:
        """Begin with what stands back."""
        with self._starting:
            self._come_forward()

    def _come_forward(self) -> None:
        while self._standing_back:
            self._jobs.put(self._standing_back.popleft())

    def write(self, job: Job) -> Any:
        """Run ``job``, wait for its commit, and return its result. Raises what it raises, or
        ``StoreError``."""
        return self.submit(job).result()

    def _write_on(self) -> None:
        """Until nothing came for a while; the next job starts another thread."""
        connection: sqlite3.Connection | None = None
        while True:
            group = self._group()
            if not group:
                break
            try:
                connection = connection or self._connection()
                whole = self._commit(connection, group)
                self._tidy(connection)
            except BaseException as error:
                _fail(group, as_store_error(error, self.path))
                whole = False
            if connection is not None and not whole:
                with contextlib.suppress(sqlite3.Error):
                    connection.rollback()
                connection.close()
                connection = None
            del group  # what the jobs hold must not live until the next one comes
        if connection is not None:
            connection.close()

    def _connection(self) -> sqlite3.Connection:
        """One on which a job cannot begin or end a transaction: it shares that with others."""
        connection = self.writable()
        connection.set_authorizer(self._allowed)
        return connection

    def _allowed(self, action: int, *_: object) -> int:
        refused = self._in_job and action == sqlite3.SQLITE_TRANSACTION
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK

    def _group(self) -> list[Waiting]:
        """What is waiting, at least one job; nothing when the thread is to end."""
        if self._next:
            return [self._next.popleft()]
        idle, look = 0.0, min(self.late, IDLE)
        while True:
            with contextlib.suppress(queue.Empty):
                group = [self._jobs.get(timeout=look)]
                break
            with self._starting:
                idle = 0.0 if self._standing_back else idle + look
                if time.monotonic() - self._since >= self.late:
                    self._come_forward()
                if idle >= IDLE and self._jobs.empty():
                    self._thread = None
                    return []
        with contextlib.suppress(queue.Empty):
            while len(group) < self.group and not group[0][2]:
                more = self._jobs.get_nowait()
                if more[2]:
                    self._next.append(more)
                    break
                group.append(more)
        return group

    def _commit(self, connection: sqlite3.Connection, group: list[Waiting]) -> bool:
        """Run the jobs in one transaction, and tell everybody who waits. False when it was lost with all that
        was done in it: the jobs are next then, each alone. Raises when it cannot be begun, or the only job's
        cannot be committed."""
        waiting = [one for one in group if one[1].running() or one[1].set_running_or_notify_cancel()]
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
        _tell(done)
        return True

    def _run_all(self, connection: sqlite3.Connection, waiting: list[Waiting]) -> list[Finished] | None:
        """What came of the jobs; ``None`` when the transaction was lost with all of it, and they are next,
        each alone."""
        done: list[Finished] = []
        for place, (job, future, _) in enumerate(waiting):
            try:
                done.append((future, self._run(connection, job, len(waiting) > 1), None))
            except Exception as error:
                problem = as_store_error(error, self.path)
                done.append((future, None, problem))
                if _spoils_all(error) or not connection.in_transaction:
                    if len(waiting) == 1:
                        _tell(done)
                    else:
                        waiting[place] = (_raising(problem), future, True)
                        self._one_by_one(waiting)
                    return None
        return done

    def _one_by_one(self, jobs: list[Waiting]) -> None:
        """They are next, before everything that came after them."""
        self._next.extendleft(reversed(jobs))

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

    def _tidy(self, connection: sqlite3.Connection) -> None:
        """Every so many commits, when everybody has been told: move what was committed from the log into the
        file."""
        if self.commits - self._tidied < CHECKPOINT:
            return
        self._tidied = self.commits
        with contextlib.suppress(sqlite3.Error):  # nothing is lost; the next commit says what is wrong
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def committing(self) -> None:  # noqa: B027 - nothing, unless a test wants it
        """Called before each commit, in the writer's thread; for tests that end the process there."""

    def committed(self) -> None:  # noqa: B027 - the same
        """Called after each commit, before anybody is told of it."""


def _fail(group: Sequence[Waiting], failure: Exception) -> None:
    """Tell everybody who waits. Whoever raises it hangs what it holds on the exception, so nothing else may
    keep that."""
    for _, future, _ in group:
        if not future.done():
            future.set_exception(failure)


def _tell(done: Sequence[Finished]) -> None:
    for future, result, problem in done:
        if problem is not None:
            future.set_exception(problem)
        else:
            future.set_result(result)


def _raising(problem: Exception) -> Job:
    """In place of a job that failed already: who waits hears of it when those before it are done."""

    def fail(connection: sqlite3.Connection) -> None:
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
