"""A whole store into another one: from a file into PostgreSQL, or back.

All of it is one transaction of the target, and what was written is read back and compared before the commit:
a copy is there whole, or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.sessions.store.database import Database, SqlConnection
from fsm_agent.sessions.store.schema import tables
from fsm_agent.sessions.store.store import Store

AT_ONCE = 500
"""Rows that are read and written together."""
LEFT_OUT = frozenset({"marks"})
"""Tables that say how far an index of the sessions has come: it is rebuilt."""
IN_ORDER = frozenset({"sessions", "turns"})
"""Tables whose rows are numbered in the order in which they were written, beside their keys."""
Progress = Callable[[str, int, int], None]


class Copied(NamedTuple):
    """How many rows of each table were copied, and a digest of all of them."""

    rows: dict[str, int]
    digest: str


def copy_store(
    source: Store,
    target: Database,
    progress: Progress = lambda table, done, of: None,
    *,
    at_rest: bool = True,
) -> Copied:
    """Copy all sessions into an empty database. ``progress`` is called with a table, the rows that were
    copied of it, and how many there are. ``at_rest``: no turn may be running, because both stores would
    continue it. Raises ``ConfigError`` when the target has sessions, or for a running turn, and
    ``StoreError`` when what is read back is not what was written; nothing is copied then."""
    with source.database.snapshot() as there:
        if at_rest:
            _refuse_if_run(source, there)

        def write(c: SqlConnection) -> Copied:
            _refuse_if_used(c, target)
            c.execute("PRAGMA defer_foreign_keys = ON")
            rows, digests = {}, []
            for table in _copy_tables():
                (total,) = there.execute(f"SELECT COUNT(*) FROM {table}").fetchone()  # noqa: S608 - ours
                before = _digest(_copying(there, c, table, total, progress))
                after = _digest(_all_rows(c, table))
                if before != after:
                    raise StoreError(f"{target.name} holds something else in {table}; nothing was copied")
                rows[table] = total
                digests.append(after)
            target.numbers_given(c)
            return Copied(rows, hashlib.sha256("".join(digests).encode()).hexdigest())

        copied: Copied = target.submit(write, alone=True).result()
        return copied


def _copy_tables() -> Iterator[str]:
    return (table for table in tables() if table not in LEFT_OUT and not table.startswith("sqlite_"))


def _refuse_if_run(source: Store, c: SqlConnection) -> None:
    running = "SELECT id, owner FROM turns WHERE ended IS NULL AND owner IS NOT NULL"
    for turn, owner in c.execute(running).fetchall():
        if (who := source.owners.alive(owner)) is not None:
            raise ConfigError(
                "a store cannot be copied while turns of it run",
                f"turn {turn} in process {who['pid']} on {who['host']}",
                "a store at rest: wait for its turns, or stop them",
            )


def _refuse_if_used(c: SqlConnection, target: Database) -> None:
    for table in ("sessions", "grants"):
        if c.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None:  # noqa: S608 - ours
            possible = "a database without sessions"
            raise ConfigError("a store is copied into an empty one only", target.name, possible)


def _copying(
    there: SqlConnection, c: SqlConnection, table: str, total: int, progress: Progress
) -> Iterator[Sequence[Any]]:
    """Write the rows of one table, and yield each as it was read."""
    columns, _ = tables()[table]
    insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - ours
    waiting: list[Sequence[Any]] = []
    done = 0
    for row in _all_rows(there, table):
        waiting.append(row)
        yield row
        done += 1
        if len(waiting) == AT_ONCE:
            c.executemany(insert, waiting)
            waiting = []
            progress(table, done, total)
    c.executemany(insert, waiting)
    progress(table, done, total)


def _all_rows(c: SqlConnection, table: str) -> Iterator[Sequence[Any]]:
    """All rows of a table in order, a piece at a time."""
    columns, key = tables()[table]
    key = ("rowid",) if table in IN_ORDER else key
    names = ", ".join((*key, *columns))
    last: Sequence[Any] = ()
    while True:
        behind = f"WHERE ({', '.join(key)}) > ({', '.join('?' * len(key))})" if last else ""
        sql = f"SELECT {names} FROM {table} {behind} ORDER BY {', '.join(key)} LIMIT {AT_ONCE}"  # noqa: S608 - ours
        rows = c.execute(sql, last).fetchall()
        for row in rows:
            yield row[len(key) :]
        if len(rows) < AT_ONCE:
            return
        last = rows[-1][: len(key)]


def _digest(rows: Iterator[Sequence[Any]]) -> str:
    """Of what both databases can hold: PostgreSQL has no NUL."""
    made = hashlib.sha256()
    for row in rows:
        made.update(repr(tuple(row)).replace("\\x00", "\N{REPLACEMENT CHARACTER}").encode())
    return made.hexdigest()
