"""Connections to PostgreSQL as the store uses them, and what is said when there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.adapt import Loader

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.postgres.opening import shown

if TYPE_CHECKING:
    from psycopg.abc import Buffer


import contextlib
from collections.abc import Iterable, Iterator

from fsm_agent.sessions.store.connection import Values
from fsm_agent.sessions.store.postgres.dialect import translated

Raw = psycopg.Connection[tuple[Any, ...]]
CONNECT = 5
"""Seconds that a server may take to answer a connection."""
SILENT = 10_000
"""Milliseconds without an acknowledgement after which a connection is taken to be cut."""
_SET = """SET client_encoding = 'UTF8'; SET extra_float_digits = 1; SET timezone = 'UTC';
    SET idle_in_transaction_session_timeout = '15s'; SET lock_timeout = '20s'"""
"""A process that stands still with rows locked loses them, and who waits for such rows is told."""
OLDEST = 140_000
"""The oldest server that is known to do."""


class _Number(Loader):
    """Sums of whole numbers are ``numeric`` in PostgreSQL."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data).decode()
        return int(text) if text.lstrip("-").isdigit() else float(text)


def connected(url: str, *, read_only: bool = False, application: str = "fsm-agent") -> Raw:
    """Return a connection that commits each statement by itself. Raises ``psycopg.Error``."""
    raw: Raw = psycopg.connect(
        url,
        autocommit=True,
        cursor_factory=psycopg.RawCursor,
        connect_timeout=CONNECT,
        keepalives_idle=30,
        keepalives_interval=5,
        keepalives_count=3,
        tcp_user_timeout=SILENT,
        application_name=application,
    )
    raw.adapters.register_loader("numeric", _Number)
    try:
        raw.execute(_SET + ("; SET default_transaction_read_only = on" if read_only else ""))
    except BaseException:
        raw.close()
        raise
    return raw


def is_cut(error: BaseException, raw: Raw | None = None) -> bool:
    """Return whether the connection, and not what was asked of it, is at fault: another one may do."""
    if raw is not None and raw.closed:
        return True
    gone = (
        psycopg.errors.AdminShutdown, psycopg.errors.CrashShutdown, psycopg.errors.CannotConnectNow,
        psycopg.errors.TooManyConnections,
    )  # fmt: skip
    if isinstance(error, gone):
        return True
    return isinstance(error, psycopg.OperationalError) and error.sqlstate is None and not _hopeless(error)


def _hopeless(error: BaseException) -> bool:
    """Was the connection refused for a reason that time does not mend?"""
    words = str(error).lower()
    signs = ("authentication failed", "no password", "does not exist", "no pg_hba.conf", "not permitted",
             "permission denied", "certificate", "could not translate host", "failed to resolve")  # fmt: skip
    return any(sign in words for sign in signs)


def is_passing(error: BaseException) -> bool:
    """Return whether the same job may succeed when it is run again: another one was in its way."""
    return isinstance(
        error,
        psycopg.errors.SerializationFailure
        | psycopg.errors.DeadlockDetected
        | psycopg.errors.LockNotAvailable
        | psycopg.errors.UniqueViolation
        | psycopg.errors.ForeignKeyViolation,
    )


def as_store_error(error: BaseException, url: str) -> Exception:
    """Return a ``StoreError`` of one line that says what is wrong with the database and what to do; errors
    that are no fault of it are returned as they are."""
    if not isinstance(error, psycopg.Error):
        return error if isinstance(error, Exception) else RuntimeError(repr(error))
    words = " ".join((error.diag.message_primary or _first_line(error)).split())
    hint = _HINTS.get(error.sqlstate or "", "") or (_HINTS.get((error.sqlstate or "")[:2], ""))
    if not error.sqlstate and isinstance(error, psycopg.OperationalError):
        hint = "" if _hopeless(error) else "is the server running, and can it be reached from here?"
    return StoreError(
        f"the session store {shown(url)} cannot be used: {words}" + (f"; {hint}" if hint else "")
    )


_HINTS = {
    "42501": "its user needs the right to make and change tables in this schema, see docs/postgresql.md",
    "42P01": "its tables are not there, or in another schema: look at search_path",
    "25006": "it can only be read: it is a standby, or was set so",
    "53100": "its disk is full; make room, turns can then be resumed",
    "53300": "it has no connection left: each process takes three",
    "28": "look at the user, the password and pg_hba.conf",
    "3F": "name a schema in search_path that is there, and that its user may use",
    "3D": "create it first: createdb",
}
"""What to do, by code or class of errors."""


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


# Connections that read, and cannot write.


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
