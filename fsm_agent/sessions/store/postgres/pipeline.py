"""A connection for the jobs of one transaction: statements are sent one behind the other, and the server is
waited for only where somebody reads what came, or before the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg

from fsm_agent.sessions.store.connection import Refusal, Values
from fsm_agent.sessions.store.postgres.connecting import Raw
from fsm_agent.sessions.store.postgres.dialect import translated

AT_ONCE = 1_000
"""Statements under way at most."""
Conflict = Callable[[Exception], Exception]


class _Sent(NamedTuple):
    """One statement that was sent: what is raised unless one row comes of it, and what a conflict with a
    constraint is."""

    cursor: psycopg.Cursor[tuple[Any, ...]]
    refusal: Refusal | None
    conflict: Conflict | None


class RefusedError(Exception):
    """One of several jobs did not find the row that it must. Which one, and what it says of that, is found
    out when each is run alone."""


class Pipelined:
    """Runs the statements of jobs, or of one ``alone``, on a connection in pipeline mode. Raises
    ``psycopg.Error``, and what ``expect`` and ``conflicts`` were given, where a job waits, or in
    ``settle``."""

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
        """Send a statement of which exactly one row must come."""
        self._send(sql, values, refusal)

    @contextmanager
    def conflicts(self, make: Conflict) -> Iterator[None]:
        """What contradicts a constraint in the block is ``make(error)``."""
        before, self._conflict = self._conflict, make
        try:
            yield
        finally:
            self._conflict = before

    def settle(self) -> None:
        """Wait until all that was sent is done."""
        try:
            self._pipeline.sync()
        except psycopg.Error as error:
            raise self._explained(error) from error
        self._look()
        self._sent.clear()

    def _send(self, sql: str, values: Values, refusal: Refusal | None) -> psycopg.Cursor[tuple[Any, ...]]:
        if len(self._sent) >= AT_ONCE:
            self.settle()
        statement = translated(sql)
        cursor = self._raw.cursor()
        try:
            cursor.execute(statement.sql, statement.values(values))
        except psycopg.Error as error:
            raise self._explained(error) from error
        self._sent.append(_Sent(cursor, refusal, self._conflict))
        return cursor

    def _look(self) -> None:
        """Raise the first refusal."""
        for cursor, refusal, _ in self._sent:
            if refusal is not None and cursor.pgresult is not None and cursor.rowcount != 1:
                raise refusal() if self._alone else RefusedError

    def _explained(self, error: psycopg.Error) -> Exception:
        """What is refused before the statement that failed is the reason."""
        try:
            self._look()
        except Exception as refusal:
            return refusal
        failed = next((one for one in self._sent if one.cursor.pgresult is None), None)
        if isinstance(error, psycopg.IntegrityError) and failed is not None and failed.conflict is not None:
            return failed.conflict(error)
        return error


class _Result:
    """What comes of one statement; whoever looks waits for it."""

    def __init__(self, of: Pipelined, cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
        self._of, self._cursor = of, cursor

    def _arrived(self) -> psycopg.Cursor[tuple[Any, ...]]:
        if self._cursor.pgresult is None:
            self._of.settle()
        return self._cursor

    @property
    def rowcount(self) -> int:
        """Return how many rows were written."""
        return self._arrived().rowcount

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row."""
        return self._arrived().fetchone()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows that are left."""
        return self._arrived().fetchall()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.fetchall())


class _Results:
    """What comes of a statement that was sent for several rows."""

    def __init__(self, of: Pipelined, cursors: list[psycopg.Cursor[tuple[Any, ...]]]) -> None:
        self._of, self._cursors = of, cursors

    @property
    def rowcount(self) -> int:
        """Return how many rows were written by all."""
        if any(one.pgresult is None for one in self._cursors):
            self._of.settle()
        return sum(one.rowcount for one in self._cursors)

    def fetchone(self) -> None:
        """Return nothing: no rows come of such statements."""

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return nothing."""
        return []

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(())
