"""What a database of PostgreSQL has beside the tables of ``store.schema``: its format, what SQLite has built
in, the index of the search, who is running, and what wakes those who wait.

``OWN`` has a list for each version of the tables, which is run behind that one."""

from __future__ import annotations

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
