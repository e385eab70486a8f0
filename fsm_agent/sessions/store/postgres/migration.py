"""Brings a database to this version, one process at a time."""

from __future__ import annotations

from itertools import zip_longest

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.postgres.address import shown
from fsm_agent.sessions.store.postgres.connecting import OLDEST, Raw, connected
from fsm_agent.sessions.store.postgres.dialect import definition
from fsm_agent.sessions.store.postgres.schema import FORMAT, OWN
from fsm_agent.sessions.store.schema import FIRST, Versions, newest, refusal


def found_format(raw: Raw) -> int:
    """Return the number of a database's format, 0 when it has no tables."""
    there = raw.execute("SELECT to_regclass($1)", (FORMAT,)).fetchone()
    if there is None or there[0] is None:
        return 0
    row = raw.execute(f"SELECT tables FROM {FORMAT}").fetchone()  # noqa: S608
    return row[0] if row else 0


def migrated(url: str, versions: Versions) -> None:
    """Make the tables, or bring them to this version. Raises ``StoreError`` for a newer or unreleased
    format, and ``psycopg.Error``."""
    with connected(url, application="fsm-agent schema") as raw:
        if raw.info.server_version < OLDEST:
            raise StoreError(
                f"the session store {shown(url)} cannot be used: PostgreSQL {OLDEST // 10_000} or newer is"
                f" needed, this is {raw.info.server_version // 10_000}"
            )
        if _is_current(raw, url, versions):
            return
        with raw.transaction():
            raw.execute("SELECT pg_advisory_xact_lock(hashtextextended('fsm_agent ' || current_schema(), 0))")
            if not _is_current(raw, url, versions):  # somebody was faster
                _lead_on(raw, versions)


def _is_current(raw: Raw, url: str, versions: Versions) -> bool:
    found = found_format(raw)
    if (refused := refusal(shown(url), found, versions)) is not None:
        raise refused
    return found == newest(versions)


def _lead_on(raw: Raw, versions: Versions) -> None:
    found = found_format(raw)
    with raw.pipeline():
        if not found:
            raw.execute(f"CREATE TABLE {FORMAT} (tables BIGINT NOT NULL)")
            raw.execute(f"INSERT INTO {FORMAT} VALUES (0)")  # noqa: S608
        for tables, own in list(zip_longest(versions, OWN, fillvalue=()))[max(0, found - FIRST + 1) :]:
            for statement in (*map(definition, tables), *own):
                raw.execute(statement)
        raw.execute(f"UPDATE {FORMAT} SET tables = $1", (newest(versions),))  # noqa: S608
