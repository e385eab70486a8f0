"""Brings a database to this version, one process at a time."""

from __future__ import annotations

from collections.abc import Sequence

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.postgres.address import shown
from fsm_agent.sessions.store.postgres.connecting import OLDEST, Raw, connected
from fsm_agent.sessions.store.postgres.dialect import definition
from fsm_agent.sessions.store.postgres.schema import FORMAT, OWN

Versions = Sequence[Sequence[str]]


def found_version(raw: Raw) -> tuple[int, int] | None:
    """Return the versions of a database's tables and of what is PostgreSQL's own; ``None`` when it has
    none."""
    there = raw.execute("SELECT to_regclass($1)", (FORMAT,)).fetchone()
    if there is None or there[0] is None:
        return None
    row = raw.execute(f"SELECT tables, own FROM {FORMAT}").fetchone()  # noqa: S608
    return (row[0], row[1]) if row else None


def newer(url: str, version: int, current: int) -> StoreError:
    """Return the error for a database whose format this version does not know."""
    return StoreError(
        f"{shown(url)} was written by a newer version of fsm-agent (format {version}, this one reads up to"
        f" {current}); update fsm-agent"
    )


def migrated(url: str, versions: Versions) -> None:
    """Make the tables, or bring them to this version. Raises ``StoreError`` for a newer one, and
    ``psycopg.Error``."""
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
    found = found_version(raw)
    if found is None:
        return False
    for version, current in zip(found, (len(versions), len(OWN)), strict=True):
        if version > current:
            raise newer(url, version, current)
    return found == (len(versions), len(OWN))


def _lead_on(raw: Raw, versions: Versions) -> None:
    tables, own = found_version(raw) or (0, 0)
    with raw.pipeline():
        if not tables:
            raw.execute(f"CREATE TABLE {FORMAT} (tables BIGINT NOT NULL, own BIGINT NOT NULL)")
            raw.execute(f"INSERT INTO {FORMAT} VALUES (0, 0)")  # noqa: S608
        for statements in versions[tables:]:
            for statement in statements:
                raw.execute(definition(statement))
        for statements in OWN[own:]:
            for statement in statements:
                raw.execute(statement)
        raw.execute(f"UPDATE {FORMAT} SET tables = $1, own = $2", (len(versions), len(OWN)))  # noqa: S608
