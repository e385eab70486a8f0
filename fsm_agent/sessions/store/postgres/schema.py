"""What a database of PostgreSQL has beside the tables of ``store.schema``: its format, what SQLite has built
in, the index of the search, who is running, and what wakes those who wait.

``OWN`` has a list for each version of the tables, which is run behind that one."""

from __future__ import annotations

from itertools import zip_longest

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.postgres.connecting import OLDEST, Raw, connected
from fsm_agent.sessions.store.postgres.dialect import definition
from fsm_agent.sessions.store.postgres.opening import shown
from fsm_agent.sessions.store.schema import FIRST, Versions, newest, refusal

FORMAT = "fsm_agent_format"
"""The table with the number of the format."""

OWN: tuple[tuple[str, ...], ...] = (
    (
        # text is escaped ASCII: what PostgreSQL refuses in JSON (NUL, half a surrogate pair) is blotted out
        """CREATE FUNCTION fsm_json_extract(body TEXT, path TEXT) RETURNS TEXT LANGUAGE SQL IMMUTABLE AS $$
            SELECT regexp_replace(body, '\\\\u[0-9a-fA-F]{4}', '\\\\u003f', 'g')::json
                #>> (string_to_array(replace(regexp_replace(substr(path, 2), '\\[(\\d+)\\]', '.\\1', 'g'),
                    '""', ''), '.'))[2:] $$""",
        """CREATE FUNCTION fsm_json_each(body TEXT) RETURNS TABLE (value TEXT) LANGUAGE SQL IMMUTABLE AS $$
            SELECT json_array_elements_text(body::json) $$""",
        """CREATE FUNCTION fsm_json_each(body TEXT, path TEXT) RETURNS TABLE (value TEXT)
            LANGUAGE SQL IMMUTABLE AS $$
            SELECT json_array_elements_text(fsm_json_extract(body, path)::json) $$""",
        """CREATE AGGREGATE fsm_total(DOUBLE PRECISION)
            (SFUNC = float8pl, STYPE = DOUBLE PRECISION, INITCOND = '0')""",
        # the search: rows are indexed behind their messages, in whatever order those become visible
        "ALTER TABLE messages ADD COLUMN words TSVECTOR",
        "CREATE INDEX messages_words ON messages USING GIN (words) WITH (fastupdate = off)",
        "CREATE INDEX messages_unread ON messages (id) WHERE words IS NULL",
        # who is running: see ``owners``
        """CREATE TABLE owners (
            id TEXT PRIMARY KEY,
            key BIGINT NOT NULL,
            pid BIGINT NOT NULL,
            host TEXT NOT NULL,
            since DOUBLE PRECISION NOT NULL,
            seen TIMESTAMPTZ NOT NULL
        )""",
        # what wakes those who wait: see ``listening``
        """CREATE FUNCTION fsm_notify() RETURNS TRIGGER LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM pg_notify('fsm_agent_' || md5(TG_TABLE_SCHEMA), TG_TABLE_NAME);
                RETURN NULL;
            END $$""",
        """CREATE TRIGGER controls_notify AFTER INSERT ON controls
            FOR EACH STATEMENT EXECUTE FUNCTION fsm_notify()""",
        """CREATE TRIGGER pending_notify AFTER UPDATE ON pending
            FOR EACH STATEMENT EXECUTE FUNCTION fsm_notify()""",
    ),
)


# Brings a database to this version, one process at a time.


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
