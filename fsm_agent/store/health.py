"""Is the file of the sessions whole? Looked at without changing anything."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from fsm_agent.errors import StoreError
from fsm_agent.store.database import as_store_error
from fsm_agent.store.schema import VERSIONS
from fsm_agent.store.store import FILE


@dataclass(frozen=True, slots=True)
class Health:
    """``size`` in bytes, with what is still in the log; ``version`` of its format; ``unfinished`` turns that have no end."""

    path: Path
    size: int
    version: int
    sessions: int
    unfinished: int


def health(home: Path) -> Health | None:
    """What is in the file of a home, every page of it read; ``None`` when there is none yet. Raises ``StoreError`` for one that
    is damaged, locked, or of a newer version."""
    path = home / FILE
    if not path.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1)) as c:
            version = int(c.execute("PRAGMA user_version").fetchone()[0])
            if version > len(VERSIONS):
                raise StoreError(f"{path} was written by a newer version of fsm-agent (format {version}); update fsm-agent")
            if (said := c.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(f"malformed: {' '.join(said.split())}")
            sessions = c.execute("SELECT COUNT(*) FROM sessions").fetchone()[0] if version else 0
            unfinished = c.execute("SELECT COUNT(*) FROM turns WHERE ended IS NULL").fetchone()[0] if version else 0
    except sqlite3.Error as error:
        raise as_store_error(error, path) from error
    size = sum(one.stat().st_size for one in (path, path.with_name(f"{FILE}-wal")) if one.exists())
    return Health(path, size, version, sessions, unfinished)
