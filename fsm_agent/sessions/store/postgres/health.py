"""What ``fsm-agent doctor`` says of a database of PostgreSQL, without changing it."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import psycopg

from fsm_agent.sessions.store.health import Health, read_all
from fsm_agent.sessions.store.postgres.address import shown
from fsm_agent.sessions.store.postgres.connecting import OLDEST, Raw, as_store_error, connected
from fsm_agent.sessions.store.postgres.database import PostgresDatabase
from fsm_agent.sessions.store.postgres.migration import found_format
from fsm_agent.sessions.store.schema import VERSIONS, refusal
from fsm_agent.sessions.store.tables import tables

APART = 2.0
"""Seconds that two clocks may differ by."""
ASKED = 5
"""How often the server is asked, to see how long an answer takes."""


def health_of(url: str) -> Health:
    """Connect, look at version, rights, encoding, durability, clock and distance, and read every text. Raises
    ``StoreError`` when the database cannot be reached, is damaged, or of a format that this program does not
    read."""
    try:
        with connected(url, read_only=True, application="fsm-agent doctor") as raw:
            apart, seconds = 0.0, 60.0
            for _ in range(ASKED):
                began = time.time()
                there = _one(raw, _NOW)[0]
                took = time.time() - began
                if took < seconds:
                    apart, seconds = there - began - took / 2, took
            schema, may, encoding, flushed, version = _one(raw, _FACTS)
            found = found_format(raw) if schema is not None else 0
    except psycopg.Error as error:
        raise as_store_error(error, url) from error
    if (refused := refusal(shown(url), found, VERSIONS)) is not None:
        raise refused
    wrong = [
        said
        for said, is_so in (
            (f"PostgreSQL {OLDEST // 10_000} or newer is needed", version < OLDEST),
            ("no schema of search_path is there: create one", schema is None),
            ("its user may not make tables there: GRANT CREATE ON SCHEMA", schema is not None and not may),
            (f"its encoding is {encoding}: create it with UTF8", encoding != "UTF8"),
            ("it may lose commits when it crashes: set fsync and synchronous_commit", flushed != "on on"),
            (f"its clock is {apart:+.1f} s away from this machine's: set both by NTP", abs(apart) > APART),
        )
        if is_so
    ]
    state = f"format {found}" if found else "no tables yet"
    clock = f"answers in {1000 * seconds:.1f} ms, clock {apart:+.2f} s"
    words = f"PostgreSQL {version // 10_000}, schema {schema}, {state}, {clock}"
    if wrong or not found:
        return Health(shown(url), version=found, server=words, wrong="; ".join(wrong))
    with contextlib.closing(PostgresDatabase(url)) as database, database.snapshot() as c:
        columns = {f"{table}.{name}" for table, (names, _) in tables().items() for name in names}
        return Health(shown(url), database.size(), found, *read_all(c, shown(url), columns), server=words)


def _one(raw: Raw, sql: str) -> tuple[Any, ...]:
    row = raw.execute(sql).fetchone()
    assert row is not None, "it asks for one row"
    return row


_NOW = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS FLOAT8)"
_FACTS = """SELECT current_schema(), COALESCE(has_schema_privilege(current_schema(), 'CREATE'), FALSE),
    current_setting('server_encoding'), current_setting('fsync') || ' ' ||
    CASE current_setting('synchronous_commit') WHEN 'off' THEN 'off' ELSE 'on' END,
    CAST(current_setting('server_version_num') AS INTEGER)"""
