"""``fsm-agent sessions copy``: a whole store into a database of PostgreSQL, or back into a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fsm_agent.cli.figures import count
from fsm_agent.cli.sessions import say, store_of
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.transfer.copying import copy_store


def copy(home: str | None, to: str, as_json: bool) -> int:
    """Copy all sessions of a home; returns the exit code."""
    source = store_of(home)
    is_url = to.startswith(("postgresql://", "postgres://"))
    target = Store(source.home if is_url else Path(to), database_url=to if is_url else None)
    try:
        copied = copy_store(source, target.database, _told if sys.stderr.isatty() else _untold)
        name = target.database.name
    finally:
        target.close()
    if as_json:
        print(json.dumps({"to": name, "rows": copied.rows, "sha256": copied.digest}))
        return 0
    rows, use = sum(copied.rows.values()), "store.database_url names it" if is_url else f"--home is {to}"
    sessions = count(copied.rows["sessions"], "session")
    say(f"{sessions} in {rows:,} rows copied into {name}, read back, and the same; used when {use}")
    return 0


def _told(table: str, done: int, of: int) -> None:
    print(f"\r\033[K{table}: {done:,} of {of:,}", end="\n" if done == of else "", file=sys.stderr, flush=True)


def _untold(table: str, done: int, of: int) -> None:
    pass
