"""The database of a session store: a SQLite file, or a PostgreSQL database.

The store reaches it only through ``Database``; tables and SQL are the same for both. One thread writes, and
tasks wait for it.
"""

# Which writes a turn waits for: moves, and the intent to run a tool or to ask a person, are on disk before
# the turn continues. Replies go to the writer without waiting: later writes queue behind them, and losing one
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

from fsm_agent.errors import ConfigError

# ----------------------------------------------------------------------------------------------------
# The interface for the store's SQL: a connection to SQLite or to PostgreSQL, with the few operations that
# both have.
#
# The SQL is one text for both, in SQLite's dialect; ``postgres.connecting`` translates it for PostgreSQL.
# ``/* FOR UPDATE */`` after a query locks its rows until the end of the transaction. SQLite, which has one
# writer at a time, ignores the comment.


Values = Sequence[Any] | Mapping[str, Any]
Refusal = Callable[[], Exception]


def unstorable(text: str | None) -> ConfigError:
    """Return the error for a text that no row can hold: half a surrogate pair, in PostgreSQL also a NUL."""
    return ConfigError("this text cannot be stored or looked for", text, "valid Unicode without NUL")


class SqlCursor(Protocol):
    """The result of a statement. Rows are tuples of strings, numbers and ``None``."""

    @property
    def rowcount(self) -> int:
        """Return how many rows were written."""
        ...

    def fetchone(self) -> Any:
        """Return the next row; ``None`` if there are no more."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all remaining rows."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Yield the remaining rows."""
        ...


class SqlConnection(Protocol):
    """Runs statements. A ``sqlite3.Connection`` satisfies it."""

    def execute(self, sql: str, values: Values = (), /) -> SqlCursor:
        """Run one statement, with ``values`` for its placeholders (question marks or names)."""
        ...

    def executemany(self, sql: str, rows: Iterable[Any], /) -> SqlCursor:
        """Run one statement for each of the rows."""
        ...


class Deferring(ABC):
    """A connection that sends statements without waiting for their results. It is not a protocol, because
    checking for one takes longer than a statement of SQLite."""

    @abstractmethod
    def expect(self, sql: str, values: Values, refusal: Refusal) -> None:
        """Send a statement; unless it yields exactly one row, the job raises ``refusal()``."""

    @abstractmethod
    def conflicts(self, make: Callable[[Exception], Exception]) -> AbstractContextManager[None]:
        """Return a context in which a constraint violation makes the job raise ``make(error)``."""


def must(c: SqlConnection, sql: str, values: Values, refusal: Refusal) -> None:
    """Run a statement that must read (``SELECT``) or write exactly one row. Raises ``refusal()`` otherwise,
    at once or before the transaction ends; nothing that the job did is stored then."""
    if isinstance(c, Deferring):
        c.expect(sql, values, refusal)
        return
    done = c.execute(sql, values)
    one = done.fetchone() is not None if sql.lstrip().startswith("SELECT") else done.rowcount == 1
    if not one:
        raise refusal()


def take_turns(c: SqlConnection, name: str) -> None:
    """Run the rest of this transaction alone among all that take turns under this name: what it reads then
    includes what the one before wrote. SQLite has one writer at a time anyway."""
    if isinstance(c, Deferring):
        c.execute("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (name,))


@contextmanager
def conflicts(c: SqlConnection, make: Callable[[Exception], Exception]) -> Iterator[None]:
    """Make the job raise ``make(error)`` if a statement in the block violates a constraint."""
    if isinstance(c, Deferring):
        with c.conflicts(make):
            yield
        return
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise make(error) from error


# Waiting in an event loop for the writer's thread, with one wake-up of the loop for all jobs that are done
# when it looks.
#
# Waking a loop costs a system call in the writer's thread and two in the loop's. A commit of fifty turns
# wakes their loop once.
class CommitWaiter:
    """Lets tasks of any number of event loops wait for futures of a thread. A loop that was closed meanwhile
    is skipped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    async def wait(self, future: Future[Any]) -> None:
        """Wait until ``future`` is done, whatever its outcome. Canceling the wait does not cancel
        ``future``."""
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
# The database writes a group: ``SqliteWriter``, ``PostgresWriter``. (Why: decision 62.)
Job = Callable[[SqlConnection], Any]
Waiting = tuple[Job, Future[Any], bool]
"""A job, its future, and whether it needs a transaction of its own."""
Finished = tuple[Future[Any], Any, Exception | None]
"""The future of a job, its result, and its error."""
GROUP = 512
"""Maximum number of jobs in one commit."""
LATE = 0.02
"""Maximum delay in seconds of a job without a waiting caller, so that others can share its commit."""
IDLE = 1.0
"""Idle seconds after which the writer's thread ends and closes its connection."""


AT_EXIT = 5.0
"""Seconds that a process which ends without closing its store waits for submitted jobs."""


class GroupWriter(ABC):
    """Runs jobs in the order given, grouped into transactions, in a thread that lives as long as there is
    work."""

    group, late = GROUP, LATE

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()  # None: a job is delayed
        self._standing_back: deque[Waiting] = deque()
        self._since = 0.0
        self._next: deque[Waiting] = deque()  # each alone, before the queue
        self._in_job = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self.wait_for = CommitWaiter().wait
        self.commits = 0

    @abstractmethod
    def writer_connection(self) -> Any:
        """Open the connection of the writer's thread, which needs ``rollback`` and ``close``. Raises when the
        database must not be written to."""

    @abstractmethod
    def commit_group(self, connection: Any, group: list[Waiting]) -> bool:
        """Run the jobs in one transaction, and resolve their futures. Return false if the transaction was
        lost with everything in it and the connection must be closed: the jobs run next, each alone. Raises
        when the transaction cannot begin, or when that of a single job cannot be committed."""

    @abstractmethod
    def explain(self, error: BaseException) -> Exception:
        """Return a ``StoreError`` of one line for a fault of the database; other errors unchanged."""

    def tidy(self, connection: Any) -> None:  # noqa: B027 - nothing, where nothing is to be done
        """Called after each group, when its futures are resolved."""

    def submit(self, job: Job, alone: bool = False, late: bool = False) -> Future[Any]:
        """Run ``job`` in the next transaction; the future has its result once that is committed. Jobs run in
        the order given. ``late``: delay the job until the next one without ``late``, ``LATE`` seconds, or
        ``hurry``. ``alone``: in a transaction without other jobs and without a savepoint. A full-text table
        that is created and filled after a savepoint, and rolled back to it, keeps its rows in memory without
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
        """Run ``job``, wait for its commit, and return its result. Raises the job's exception, or
        ``StoreError``."""
        return self.submit(job).result()

    def _write_on(self) -> None:
        """Write until the queue stays empty for a while; the next job starts another thread."""
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
                _fail(group, self.explain(error))
                whole = False
            if connection is not None and not whole:
                with contextlib.suppress(Exception):  # the connection is closed in any case
                    connection.rollback()
                connection.close()
                connection = None
            del group  # objects held by the jobs must not live until the next group
        if connection is not None:
            connection.close()

    def _group(self) -> list[Waiting]:
        """Wait for jobs; return at least one, or none when the thread must end."""
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
        """Write submitted jobs while the process ends, for at most ``AT_EXIT`` seconds."""
        with self._starting:
            working = self._thread is not None and self._thread.is_alive()
        if working:
            with contextlib.suppress(Exception):  # each job's future carries its own failure
                self.submit(lambda c: None).result(AT_EXIT)

    def _claim_jobs(self, group: list[Waiting]) -> list[Waiting]:
        """Return the jobs of the group whose futures are not canceled."""
        return [one for one in group if one[1].running() or one[1].set_running_or_notify_cancel()]

    def _one_by_one(self, jobs: list[Waiting]) -> None:
        """Run these jobs next, each alone, before all that came later."""
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
    """Resolve the futures of finished jobs."""
    for future, result, problem in done:
        if problem is not None:
            future.set_exception(problem)
        else:
            future.set_result(result)


Durability = Literal["full", "normal"]


class Database(GroupWriter):
    """The database of a store. Raises ``StoreError`` in one line when it cannot be used."""

    closed = True
    shared = False
    """True if processes on several machines use it: this one cannot see whether they live."""
    path: Path | None
    """The file, if it is one."""
    name: str
    """Name for display, without passwords."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[SqlConnection]:
        """Lend the connection for reads, which sees everything committed before. Raises ``StoreError``."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[SqlConnection]:
        """Lend a separate connection that sees one moment throughout, for long reads. Raises
        ``StoreError``."""

    def select(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Return all rows of one statement, with ``values`` for its question marks."""
        with self.reading() as c:
            return c.execute(sql, values).fetchall()

    @abstractmethod
    def close(self) -> None:
        """Finish submitted jobs, and close. Safe to call twice."""

    def listen(self, on_notice: Callable[[str], None]) -> bool:
        """Call ``heard`` in another thread with the name of each table that received commands or answers,
        as long as its object lives. False if the database sends no notifications: poll instead."""
        return False

    def continue_numbers(self, c: SqlConnection) -> None:
        """Continue numbering above the highest number, after rows were written with explicit numbers."""

    @abstractmethod
    def size(self) -> int:
        """Return the size in bytes."""

    @abstractmethod
    def rebuild(self) -> tuple[int, int]:
        """Give free space back to the disk; return the size in bytes before and after. Raises
        ``StoreError``."""
