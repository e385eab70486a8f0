"""Is the file of the sessions whole? Looked at without changing anything."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.connection import SqlConnection
from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.integrity import as_store_error, format_of, look_through, looking
from fsm_agent.sessions.store.live_sessions import FILE
from fsm_agent.sessions.store.schema import JSON_COLUMNS, VERSIONS, newest, refusal
from fsm_agent.sessions.store.sealed import loads
from fsm_agent.sessions.store.tables import tables


@dataclass(frozen=True, slots=True)
class Health:
    """What was found in a whole file or database, which is at ``place``. ``size`` in bytes, with what is
    still in the log; ``version`` of its format; ``unfinished`` turns that have no end."""

    place: str
    size: int
    version: int
    sessions: int
    unfinished: int


def health(home: Path) -> Health | None:
    """Read every page and every text of a home's file, and return what is in it; ``None`` when there is
    none yet. Raises ``StoreError`` for one that is damaged, locked, or of a newer version."""
    path = home / FILE
    if not path.exists():
        return None
    try:
        with contextlib.closing(looking(path)) as c:
            version = format_of(c)
            if (refused := refusal(str(path), version, VERSIONS)) is not None:
                raise refused
            look_through(c, path)
            if version:
                _read_texts(c, str(path), _columns(c))
            sessions = c.execute("SELECT COUNT(*) FROM sessions").fetchone()[0] if version else 0
            unfinished = (
                c.execute("SELECT COUNT(*) FROM turns WHERE ended IS NULL").fetchone()[0] if version else 0
            )
    except sqlite3.Error as error:
        raise as_store_error(error, path) from error
    size = sum(one.stat().st_size for one in (path, path.with_name(f"{FILE}-wal")) if one.exists())
    return Health(str(path), size, version, sessions, unfinished)


def database_health(database: Database) -> Health:
    """Read every text of a database of PostgreSQL, and return what is in it. Raises ``StoreError`` for one
    that is damaged or cannot be used."""
    with database.snapshot() as c:
        _read_texts(c, database.name, {name: columns for name, (columns, _) in tables().items()})
        (count,) = c.execute("SELECT COUNT(*) FROM sessions").fetchone()
        (unfinished,) = c.execute("SELECT COUNT(*) FROM turns WHERE ended IS NULL").fetchone()
    return Health(database.name, database.size(), newest(VERSIONS), count, unfinished)


def _read_texts(c: SqlConnection, place: str, columns_of: Mapping[str, Collection[str]]) -> None:
    """Raise ``StoreError`` with the number of texts that are not what was written, and where the first of
    them is."""
    damaged: list[str] = []
    for table, columns in JSON_COLUMNS.items():
        there = columns_of[table]
        for column in (name for name in columns if name in there):
            key = "id" if "id" in there else "session" if "session" in there else "turn"
            for owner, text in c.execute(f"SELECT {key}, {column} FROM {table} WHERE {column} IS NOT NULL"):  # noqa: S608 - ours
                try:
                    loads(text)
                except StoreError:
                    damaged.append(f"{column} in {table}, {key} {owner}")
    if damaged:
        raise StoreError(
            f"{place} has {len(damaged)} damaged texts, the first is {damaged[0]}; its pages are whole, so it"
            " can be used without them; a backup has them"
        )


def _columns(c: sqlite3.Connection) -> Mapping[str, Collection[str]]:
    """The columns of each table of a file, which may be of an older version."""
    return {
        table: [name for _, name, *_ in c.execute(f"PRAGMA table_info({table})")] for table in JSON_COLUMNS
    }
