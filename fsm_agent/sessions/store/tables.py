"""The tables as the newest version of the schema has them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache

from fsm_agent.sessions.store.schema import VERSIONS


@cache
def tables() -> Mapping[str, tuple[Sequence[str], Sequence[str]]]:
    """Return the columns of each table, and those of its primary key, in order."""
    with closing(sqlite3.connect(":memory:")) as c:
        for statements in VERSIONS:
            for statement in statements:
                c.execute(statement)
        found: dict[str, tuple[Sequence[str], Sequence[str]]] = {}
        for (name,) in c.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            rows = c.execute(f"PRAGMA table_info({name})").fetchall()
            key = [row[1] for row in sorted(rows, key=lambda row: row[5]) if row[5]]
            found[name] = [row[1] for row in rows], key
        return found
