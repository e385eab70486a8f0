"""``fsm-agent sessions copy``: a whole store into a database of PostgreSQL, or back into a file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from fsm_agent.cli.figures import count
from fsm_agent.cli.sessions import say, store_of
from fsm_agent.errors import ConfigError
from fsm_agent.providers.config_file import config_of
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.transfer.copying import copy_store
from fsm_agent.settings.model import Settings, Storage
from fsm_agent.support.home import home_of


def copy(home: str | None, to: str, as_json: bool) -> int:
    """Copy all sessions of a home; returns the exit code. Raises ``ConfigError`` when there is nothing to
    copy, or when source and target are the same."""
    source = _source(home)
    is_url = to.startswith(("postgresql://", "postgres://"))
    target = Store(source.home if is_url else Path(to), database_url=to if is_url else None)
    try:
        name = target.database.name
        if _resolved(name) == _resolved(source.database.name):
            raise ConfigError(
                "source and target are the same store",
                name,
                "another source (--home) or another target (--to)",
            )
        if not source.database.select("SELECT 1 FROM sessions LIMIT 1"):
            raise ConfigError(
                "there are no sessions to copy", source.database.name, "a home with sessions (--home)"
            )
        copied = copy_store(source, target.database, _show_progress if sys.stderr.isatty() else _ignore)
    finally:
        target.close()
    if as_json:
        print(json.dumps({"to": name, "rows": copied.rows, "sha256": copied.digest}))
        return 0
    rows, use = sum(copied.rows.values()), "store.database_url names it" if is_url else f"--home is {to}"
    sessions = count(copied.rows["sessions"], "session")
    say(f"{sessions} in {rows:,} rows copied into {name}, read back, and the same; used when {use}")
    return 0


def _resolved(name: str) -> str:
    """A database's name; of a file, the same for all ways to it."""
    return name if "://" in name else str(Path(name).resolve())


def _source(home: str | None) -> Store:
    """The store in use; with ``--home`` the one that this home itself names, since the address in the
    environment may be where the sessions are to go."""
    if home is None:
        return store_of(None)
    folder = home_of(home, os.environ)
    given = config_of(folder).settings
    Settings.of(None, given)  # raises for what cannot be used
    own = Storage.model_validate(given.get("store", {}))
    return store_for(folder, own.durability, own.database)


def _show_progress(table: str, done: int, of: int) -> None:
    print(f"\r\033[K{table}: {done:,} of {of:,}", end="\n" if done == of else "", file=sys.stderr, flush=True)


def _ignore(table: str, done: int, of: int) -> None:
    pass
