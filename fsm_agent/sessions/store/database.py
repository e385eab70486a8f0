"""What a store of sessions is kept in: a SQLite file, or a database of PostgreSQL.

All that the store does goes through ``Database``; the tables are the same in both, and so is the SQL. One
thread writes, and tasks wait for it.
"""

# What the turn waits for. A move, and the intent to run a tool or to ask a person, are on disk before the
# turn continues. Replies go to the writer without waiting: later writes queue behind them, and losing one
# means asking a model again, running a pure tool again, or reporting an unknown outcome.

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

# ----------------------------------------------------------------------------------------------------
# The interface for the store's SQL: a connection to SQLite or to PostgreSQL, with the few operations that
# both have.
#
# The SQL is one text for both, in SQLite's dialect; ``postgres.connecting`` translates it for PostgreSQL.
# ``/* FOR UPDATE */`` after a query locks its rows until the end of the transaction. SQLite, which has one
# writer at a time, ignores the comment.


Values = Sequence[Any] | Mapping[str, Any]
Refusal = Callable[[], Exception]


class SqlCursor(Protocol):
    """What came of a statement. Rows are tuples of texts, numbers and ``None``."""

    @property
    def rowcount(self) -> int:
        """Return how many rows were written."""
        ...

    def fetchone(self) -> Any:
        """Return the next row; ``None`` when there is no more."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows that are left."""
        ...


class SqlConnection(Protocol):
    """Runs statements. A ``sqlite3.Connection`` is one as it is."""

    def execute(self, sql: str, values: Values = (), /) -> SqlCursor:
        """Run one statement with ``values`` in the places of its question marks or names."""
        ...

    def executemany(self, sql: str, rows: Iterable[Any], /) -> SqlCursor:
        """Run one statement for each of the rows."""
        ...


class Deferring(ABC):
    """A connection that sends statements without waiting for what comes of them. It is no protocol: asking
    for one takes longer than a statement of SQLite."""

    @abstractmethod
    def expect(self, sql: str, values: Values, refusal: Refusal) -> None:
        """Send a statement; unless exactly one row comes of it, the job raises ``refusal()``."""

    @abstractmethod
    def conflicts(self, make: Callable[[Exception], Exception]) -> AbstractContextManager[None]:
        """Return a context; what contradicts a constraint in it makes the job raise ``make(error)``."""


def must(c: SqlConnection, sql: str, values: Values, refusal: Refusal) -> None:
    """Run a statement of which exactly one row must come: read by a ``SELECT``, or written. Raises
    ``refusal()`` otherwise, at once or before the transaction ends; nothing that the job did is stored
    then."""
    if isinstance(c, Deferring):
        c.expect(sql, values, refusal)
        return
    done = c.execute(sql, values)
    one = done.fetchone() is not None if sql.lstrip().startswith("SELECT") else done.rowcount == 1
    if not one:
        raise refusal()


@contextmanager
def conflicts(c: SqlConnection, make: Callable[[Exception], Exception]) -> Iterator[None]:
    """What contradicts a constraint of the database in the block makes the job raise ``make(error)``."""
    if isinstance(c, Deferring):
        with c.conflicts(make):
            yield
        return
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise make(error) from error


# Waiting in an event loop for what the writer's thread does: one wake-up of the loop for all that is done
# when it looks.
#
# Waking a loop costs a system call in the writer's thread and two in the loop's. A commit of fifty turns
# wakes their loop once.
class CommitWaiter:
    """Lets tasks of any number of event loops wait for futures of a thread. A loop that was closed
    meanwhile is passed over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    async def wait(self, future: Future[Any]) -> None:
        """Wait until ``future`` is done, however it ended. Who stops waiting does not stop what is waited
        for."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        future.add_done_callback(lambda done: self._note(loop, waiter))
        await waiter

    def _note(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
        with self._lock:
            waiting = self._done.get(loop)
            if waiting is not None:
                waiting.append(waiter)
                return
            self._done = {one: waiters for one, waiters in self._done.items() if not one.is_closed()} | {
                loop: [waiter]
            }
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._tell, loop)

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            waiting = self._done.pop(loop, [])
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


# One thread that writes to a database, in groups of jobs.
#
# Commits are grouped: the jobs that wait when the writer is free share one transaction and one flush to
# disk. A refused job does not affect the others. A job is reported as done only when it is in the database.
# The database writes a group: ``sqlite_writer``, ``postgres.writer``. (Why: decision 62.)
Job = Callable[[SqlConnection], Any]
Waiting = tuple[Job, Future[Any], bool]
"""A job, who waits for it, and whether it must be alone in its transaction."""
Finished = tuple[Future[Any], Any, Exception | None]
"""Who waited for a job, its result, and what was wrong with it."""
GROUP = 512
"""Jobs of one commit at most."""
LATE = 0.02
"""Maximum delay in seconds of a job without a waiting caller, so that others can share its commit."""
IDLE = 1.0
"""Seconds without work after which the writer's thread ends, and its connection with it."""


AT_EXIT = 5.0
"""Seconds that a process which ends without closing its store waits for what was handed over."""


class GroupWriter(ABC):
    """Runs jobs in the order given, grouped into transactions, in a thread that lives as long as there is
    work."""

    group, late = GROUP, LATE

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()  # None: there is a delayed job
        self._standing_back: deque[Waiting] = deque()
        self._since = 0.0
        self._next: deque[Waiting] = deque()  # each of them alone, before anything that waits in the queue
        self._in_job = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self.wait_for = CommitWaiter().wait
        self.commits = 0

    @abstractmethod
    def writer_connection(self) -> Any:
        """Open what the writer's thread writes with: it can be rolled back and closed. Raises when the
        database must not be written to."""

    @abstractmethod
    def commit_group(self, connection: Any, group: list[Waiting]) -> bool:
        """Run the jobs in one transaction, and tell everybody who waits. False when it was lost with all that
        was done in it, and the connection is to be closed: the jobs are next then, each alone. Raises when it
        cannot be begun, or the only job's cannot be committed."""

    @abstractmethod
    def explained(self, error: BaseException) -> Exception:
        """Return a ``StoreError`` of one line for what is the database's fault; other errors as they
        are."""

    def tidy(self, connection: Any) -> None:  # noqa: B027 - nothing, where nothing is to be done
        """Called after each group, when everybody has been told."""

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
            elif len(self._standing_back) == 1:
                self._jobs.put(None)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_on, daemon=True, name="fsm-agent-store")
                self._thread.start()
        return future

    def hurry(self) -> None:
        """Write the delayed jobs now."""
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
        connection: Any = None
        while True:
            group = self._group()
            if not group:
                break
            try:
                connection = connection or self.writer_connection()
                whole = self.commit_group(connection, group)
                self.tidy(connection)
            except BaseException as error:
                _fail(group, self.explained(error))
                whole = False
            if connection is not None and not whole:
                with contextlib.suppress(Exception):  # it is not used any more
                    connection.rollback()
                connection.close()
                connection = None
            del group  # what the jobs hold must not live until the next one comes
        if connection is not None:
            connection.close()

    def _group(self) -> list[Waiting]:
        """What is waiting, at least one job; nothing when the thread is to end."""
        if self._next:
            return [self._next.popleft()]
        first: Waiting | None = None
        while first is None:
            delay = self._since + self.late - time.monotonic() if self._standing_back else IDLE
            with contextlib.suppress(queue.Empty):
                first = self._jobs.get(timeout=max(0.0, delay))
                continue
            with self._starting:
                if self._standing_back:
                    self._come_forward()
                elif self._jobs.empty():
                    self._thread = None
                    return []
        group = [first]
        with contextlib.suppress(queue.Empty):
            while len(group) < self.group and not first[2]:
                more = self._jobs.get_nowait()
                if more is None:
                    continue
                if more[2]:
                    self._next.append(more)
                    break
                group.append(more)
        return group

    def finish(self) -> None:
        """Write what was handed over, while the process ends; for at most ``AT_EXIT`` seconds."""
        with self._starting:
            working = self._thread is not None and self._thread.is_alive()
        if working:
            with contextlib.suppress(Exception):  # who waits for a job hears of its failure
                self.submit(lambda c: None).result(AT_EXIT)

    def _claim_jobs(self, group: list[Waiting]) -> list[Waiting]:
        """The jobs of the group whose futures are not canceled."""
        return [one for one in group if one[1].running() or one[1].set_running_or_notify_cancel()]

    def _one_by_one(self, jobs: list[Waiting]) -> None:
        """They are next, before everything that came after them."""
        self._next.extendleft(reversed(jobs))

    def committing(self) -> None:  # noqa: B027 - nothing, unless a test wants it
        """Called before each commit, in the writer's thread; for tests that end the process there."""

    def committed(self) -> None:  # noqa: B027 - the same
        """Called after each commit, before any caller is notified of it."""


def _fail(group: Sequence[Waiting], failure: Exception) -> None:
    """Fail every waiting caller. Raising the exception attaches the caller's objects to it, so no other
    reference may be kept."""
    for _, future, _ in group:
        if not future.done():
            future.set_exception(failure)


def tell(done: Sequence[Finished]) -> None:
    """Tell everybody who waits what came of their jobs."""
    for future, result, problem in done:
        if problem is not None:
            future.set_exception(problem)
        else:
            future.set_result(result)


Durability = Literal["full", "normal"]


class Database(GroupWriter):
    """Where sessions are kept. Raises ``StoreError`` in one line when it cannot be used."""

    closed = True
    shared = False
    """Is it used by processes on several machines, which this one does not see?"""
    path: Path | None
    """The file, where it is one."""
    name: str
    """What it is called before people, without passwords."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[SqlConnection]:
        """Lend the connection for reads, which sees all that was committed before. Raises ``StoreError``."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[SqlConnection]:
        """Lend a connection of its own that sees all as it was at one moment, for who reads for long. Raises
        ``StoreError``."""

    def select(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of one statement, with ``values`` in the places of its question marks."""
        with self.reading() as c:
            return c.execute(sql, values).fetchall()

    @abstractmethod
    def close(self) -> None:
        """Finish what was submitted, and close. Safe to call twice."""

    def listen(self, heard: Callable[[str], None]) -> bool:
        """Call ``heard`` in another thread with the name of each table that received commands or answers,
        as long as its object lives. False if the database sends no notifications: poll instead."""
        return False

    def numbers_given(self, c: SqlConnection) -> None:
        """Rows were written with numbers of their own: those that come get higher ones."""

    @abstractmethod
    def size(self) -> int:
        """Return how many bytes it takes."""

    @abstractmethod
    def rebuild(self) -> tuple[int, int]:
        """Give room that is free back to the disk; the size in bytes before and after. Raises
        ``StoreError``."""
