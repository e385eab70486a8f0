"""Writes groups of jobs to PostgreSQL, each group in one transaction that is sent as one pipeline.

A failed job aborts the whole transaction: all jobs are then run again, each alone and in order. After a
lost connection, the writer reconnects and runs the group again, until ``patience`` has passed. If the
answer to a commit was lost, the writer asks the server about the transaction by its number, so that nothing
is applied twice. (Why: decision 104.)"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg

from fsm_agent.errors import StoreError
from fsm_agent.runtime.events import measure
from fsm_agent.sessions.store.database import Database, Deferring, Job, Refusal, Values, Waiting, tell
from fsm_agent.sessions.store.postgres import masked_url
from fsm_agent.sessions.store.postgres.connecting import (
    Raw,
    as_store_error,
    connect,
    is_cut,
    is_passing,
    translate,
)

# A connection for the jobs of one transaction: statements are pipelined, and the writer waits for the
# server only where a job reads a result, or before the commit.


AT_ONCE = 1_000
"""Maximum number of statements in flight."""
Conflict = Callable[[Exception], Exception]


class _Sent(NamedTuple):
    """One statement in flight: the error to raise unless it yields exactly one row, and the error for a
    constraint violation."""

    cursor: psycopg.Cursor[tuple[Any, ...]]
    refusal: Refusal | None
    conflict: Conflict | None


class RefusedError(Exception):
    """One of several jobs did not find its required row. Running each job alone determines which one, and
    raises its own error."""


class Pipelined(Deferring):
    """Runs the statements of jobs, or of one ``alone``, on a connection in pipeline mode. Where a job waits,
    or in ``settle``, raises ``psycopg.Error`` and the errors given to ``expect`` and ``conflicts``."""

    def __init__(self, raw: Raw, pipeline: psycopg.Pipeline, alone: bool) -> None:
        self._raw, self._pipeline, self._alone = raw, pipeline, alone
        self._sent: list[_Sent] = []
        self._conflict: Conflict | None = None

    def execute(self, sql: str, values: Values = (), /) -> _Result:
        """Send a statement."""
        return _Result(self, self._send(sql, values, None))

    def executemany(self, sql: str, rows: Iterable[Any], /) -> _Results:
        """Send a statement for each of the rows."""
        return _Results(self, [self._send(sql, row, None) for row in rows])

    def expect(self, sql: str, values: Values, refusal: Refusal) -> None:
        """Send a statement that must yield exactly one row."""
        self._send(sql, values, refusal)

    @contextmanager
    def conflicts(self, make: Conflict) -> Iterator[None]:
        """Turn a constraint violation in the block into ``make(error)``."""
        before, self._conflict = self._conflict, make
        try:
            yield
        finally:
            self._conflict = before

    def settle(self) -> None:
        """Wait until all sent statements are done."""
        try:
            self._pipeline.sync()
        except psycopg.Error as error:
            raise self._explain(error) from error
        self._look()
        self._sent.clear()

    def _send(self, sql: str, values: Values, refusal: Refusal | None) -> psycopg.Cursor[tuple[Any, ...]]:
        if len(self._sent) >= AT_ONCE:
            self.settle()
        statement = translate(sql)
        cursor = self._raw.cursor()
        try:
            cursor.execute(statement.sql, statement.values(values))
        except psycopg.Error as error:
            raise self._explain(error) from error
        self._sent.append(_Sent(cursor, refusal, self._conflict))
        return cursor

    def _look(self) -> None:
        """Raise the first refusal."""
        for cursor, refusal, _ in self._sent:
            if refusal is not None and cursor.pgresult is not None and cursor.rowcount != 1:
                raise refusal() if self._alone else RefusedError

    def _explain(self, error: psycopg.Error) -> Exception:
        """Return the cause: a refusal before the failed statement takes precedence."""
        try:
            self._look()
        except Exception as refusal:
            return refusal
        failed = next((one for one in self._sent if one.cursor.pgresult is None), None)
        if isinstance(error, psycopg.IntegrityError) and failed is not None and failed.conflict is not None:
            return failed.conflict(error)
        return error


class _Result:
    """The result of one statement; reading it waits for the server."""

    def __init__(self, of: Pipelined, cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
        self._of, self._cursor = of, cursor

    def _settle(self) -> psycopg.Cursor[tuple[Any, ...]]:
        if self._cursor.pgresult is None:
            self._of.settle()
        return self._cursor

    @property
    def rowcount(self) -> int:
        """Return how many rows were written."""
        return self._settle().rowcount

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row."""
        return self._settle().fetchone()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the remaining rows."""
        return self._settle().fetchall()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.fetchall())


class _Results:
    """The result of a statement that was sent for several rows."""

    def __init__(self, of: Pipelined, cursors: list[psycopg.Cursor[tuple[Any, ...]]]) -> None:
        self._of, self._cursors = of, cursors

    @property
    def rowcount(self) -> int:
        """Return how many rows were written in total."""
        if any(one.pgresult is None for one in self._cursors):
            self._of.settle()
        return sum(one.rowcount for one in self._cursors)

    def fetchone(self) -> None:
        """Return nothing: such statements yield no rows."""

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return nothing."""
        return []

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(())


PATIENCE = 30.0
"""Seconds that a database may be unreachable before turns stop."""
RETRY_FROM, RETRY_TO = 0.05, 0.5
"""Range of seconds between two attempts."""


class CutOffError(Exception):
    """The connection was lost; ``error`` is the cause. The jobs may be tried on another connection."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.error = error


class _Unsure(NamedTuple):
    """A commit without an answer: its transaction number, and the results of the jobs."""

    transaction: str
    results: list[Any]


class WriterLink:
    """The writer's connection, opened when needed, and reopened after a cut."""

    def __init__(self, url: str, database: PostgresWriter) -> None:
        self._url, self._database = url, database
        self._raw: Raw | None = None
        self._unsure: _Unsure | None = None

    def rollback(self) -> None:
        """Roll back the current transaction."""
        if self._raw is not None:
            self._raw.rollback()

    def close(self) -> None:
        """Close the connection; the next use opens another one."""
        if self._raw is not None:
            with contextlib.suppress(psycopg.Error):
                self._raw.close()
            self._raw = None

    def transaction(self, jobs: Sequence[Job]) -> list[Any]:
        """Run the jobs and commit; return their results. Raises ``CutOffError``, ``StoreError`` when it is
        unknown whether an earlier attempt was committed, and exceptions of the jobs."""
        raw = self._connect()
        if self._unsure is not None and (done := self._find_results(raw, self._unsure)) is not None:
            self._unsure = None
            return done
        self._unsure = None
        results, transaction = self._run(raw, jobs)
        self._database.committing()
        try:
            status = raw.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            if not is_cut(error, raw):
                self._give_up(raw)
                raise
            self._unsure = _Unsure(transaction, results) if transaction else None
            self.close()
            raise CutOffError(error) from error
        if status != "COMMIT":
            raise StoreError(f"PostgreSQL took back a transaction: {status}")
        return results

    def _connect(self) -> Raw:
        try:
            if self._raw is None or self._raw.closed:
                self._raw = connect(self._url, application="fsm-agent writer")
        except psycopg.Error as error:
            if is_cut(error):
                raise CutOffError(error) from error
            raise
        return self._raw

    def _run(self, raw: Raw, jobs: Sequence[Job]) -> tuple[list[Any], str | None]:
        """Run everything but the commit; return (results of the jobs, transaction number if it wrote)."""
        try:
            with raw.pipeline() as pipeline:
                raw.execute("BEGIN")
                c = Pipelined(raw, pipeline, alone=len(jobs) == 1)
                results = [job(c) for job in jobs]
                number = c.execute("SELECT CAST(pg_current_xact_id_if_assigned() AS TEXT)")
                c.settle()
            return results, number.fetchone()[0]  # type: ignore[index]
        except BaseException as error:
            if isinstance(error, psycopg.Error) and is_cut(error, raw):
                self.close()
                raise CutOffError(error) from error
            self._give_up(raw)
            raise

    def _give_up(self, raw: Raw) -> None:
        try:
            raw.execute("ROLLBACK")
        except psycopg.Error:
            self.close()

    def _find_results(self, raw: Raw, unsure: _Unsure) -> list[Any] | None:
        """Return the results of the jobs if their commit arrived, ``None`` if not."""
        try:
            (status,) = raw.execute(
                "SELECT pg_xact_status(CAST($1 AS xid8))", (unsure.transaction,)
            ).fetchone() or (None,)
        except psycopg.DataError:  # a future number: this server never saw the transaction
            return None
        except psycopg.Error as error:
            self.close()
            raise CutOffError(error) from error
        match status:
            case "committed":
                return unsure.results
            case "aborted":
                return None
            case "in progress":  # the server process has not noticed the cut yet
                raise CutOffError(psycopg.OperationalError("the last commit is still under way"))
        raise StoreError(
            f"the session store {masked_url(self._url)} cannot be used: the last commit may or may not"
            " have arrived; the turn can be resumed"
        )


class PostgresWriter(Database):
    """The writing half of a PostgreSQL database."""

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        super().__init__()
        self.url, self.patience = url, patience
        self._cut_since: float | None = None

    def writer_connection(self) -> WriterLink:
        """Return the link for the writer's thread."""
        return WriterLink(self.url, self)

    def explain(self, error: BaseException) -> Exception:
        """Return a ``StoreError`` for a fault of the database."""
        if isinstance(error, CutOffError):
            error = error.error
        return as_store_error(error, self.url)

    def commit_group(self, connection: WriterLink, group: list[Waiting]) -> bool:
        """Run the jobs in one transaction, and resolve their futures."""
        waiting = self._claim_jobs(group)
        began, contradicted = time.monotonic(), False
        while True:
            try:
                results = connection.transaction([job for job, _, _ in waiting])
                self._cut_since = None
                break
            except CutOffError:
                self._cut_since = self._cut_since or time.monotonic()
                if time.monotonic() - self._cut_since >= self.patience:
                    raise
            except Exception as error:
                if len(waiting) > 1:
                    self._one_by_one(waiting)
                    return True
                again = is_passing(error) and time.monotonic() - began < self.patience
                if not again or contradicted:
                    raise
                contradicted = isinstance(error, psycopg.IntegrityError)
            time.sleep(random.uniform(RETRY_FROM, RETRY_TO))  # noqa: S311 - spreads writers, no secret
        self.commits += 1
        measure("commit", time.monotonic() - began)
        self.committed()
        done = [(future, result, None) for (_, future, _), result in zip(waiting, results, strict=True)]
        # Release the objects held by the jobs before any notified caller continues.
        group.clear()
        waiting.clear()
        tell(done)
        return True
