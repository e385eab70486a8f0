"""Connections that read, and cannot write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg

from fsm_agent.sessions.store.connection import Values
from fsm_agent.sessions.store.postgres.connecting import Raw, connected, is_cut
from fsm_agent.sessions.store.postgres.dialect import translated

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
Rows = psycopg.Cursor[tuple[Any, ...]]


class ReadConnection:
    """A connection for reads, made when it is needed, and again when it was cut. Raises
    ``psycopg.Error``."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._raw: Raw | None = None
        self._depth, self._begun = 0, False

    @contextlib.contextmanager
    def one_moment(self) -> Iterator[None]:
        """What is read in the block is of the moment when the first of it was."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0 and self._begun:
                self._begun = False
                self._end()

    def execute(self, sql: str, values: Values = (), /) -> Rows:
        """Run one statement. A connection that was cut before anything was read in this block is made
        anew."""
        statement, fresh = translated(sql), not self._begun
        given = statement.values(values)
        try:
            return self._asked(statement.sql, given)
        except psycopg.Error as error:
            if not (fresh and is_cut(error, self._raw)):
                raise
            self._begun = False
            self.close()
        return self._asked(statement.sql, given)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> Rows:
        """Refuse: nothing is written here."""
        raise psycopg.ProgrammingError("this connection only reads")

    def close(self) -> None:
        """Close the connection."""
        if self._raw is not None:
            self._raw.close()
            self._raw = None

    def _asked(self, sql: str, values: list[Any]) -> Rows:
        if self._raw is None or self._raw.closed:
            self._raw = connected(self._url, read_only=True, application="fsm-agent reader")
        if self._depth and not self._begun:
            self._raw.execute(_BEGIN)
            self._begun = True
        return self._raw.cursor().execute(sql, values)

    def _end(self) -> None:
        if self._raw is None:
            return
        try:
            self._raw.execute("ROLLBACK")
        except psycopg.Error:  # the next reader makes another connection
            self.close()
