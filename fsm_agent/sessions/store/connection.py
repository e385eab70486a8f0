"""What the store's SQL is given to: a connection to SQLite or to PostgreSQL, with the little that both have.

The SQL is one text for both, as SQLite reads it; ``postgres.dialect`` says what PostgreSQL is told instead.
``/* FOR UPDATE */`` behind a query means: nobody else may write these rows before this transaction has ended.
SQLite, which has one writer at a time, reads a comment."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

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


@runtime_checkable
class Deferring(Protocol):
    """A connection that sends statements without waiting for what comes of them."""

    def expect(self, sql: str, values: Values, refusal: Refusal) -> None:
        """Send a statement; unless exactly one row comes of it, the job raises ``refusal()``."""
        ...

    def conflicts(self, make: Callable[[Exception], Exception]) -> Any:
        """Return a context; what contradicts a constraint in it makes the job raise ``make(error)``."""
        ...


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
