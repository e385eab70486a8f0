"""Sessions that go on as others: by compaction, as a fork, or as a child of a turn.

A line has no limit: a conversation that was compacted a thousand times is as long. Every walk is one
statement, and each session is visited once (``UNION`` drops what was seen), so that a circle in a damaged
file ends it too. (Why: decision 50.)"""

from __future__ import annotations

import sqlite3


def newest_of(connection: sqlite3.Connection, session: str) -> str:
    """Return the last of the sessions that this one went on as after compactions; itself when it did not."""
    after = "s.id = (SELECT successor FROM sessions WHERE id = line.id)"
    return next(iter(_walk(connection, session, after, "successor IS NULL")), session)


def compacted_line(connection: sqlite3.Connection, session: str) -> list[str]:
    """Return the session and those that it goes on from after compactions, the newest first."""
    before = "s.id = (SELECT parent FROM sessions WHERE id = line.id AND kind = 'compression')"
    return _walk(connection, session, before)


def lineage(connection: sqlite3.Connection, session: str) -> str:
    """Return the first session of the line that led to this one: by compactions, forks, and delegation."""
    before = "s.id = (SELECT parent FROM sessions WHERE id = line.id)"
    return next(iter(_walk(connection, session, before, "parent IS NULL")), session)


def descendants(connection: sqlite3.Connection, session: str) -> list[str]:
    """Return the session and all that came of it: by compactions, forks, and delegation."""
    return _walk(connection, session, "s.parent = line.id")


def _walk(connection: sqlite3.Connection, session: str, step: str, wanted: str = "1") -> list[str]:
    """The session, then those that ``step`` leads to from each that was reached, in that order; the
    ``wanted`` ones."""
    rows = connection.execute(
        f"WITH RECURSIVE line(id) AS (SELECT ? UNION SELECT s.id FROM line JOIN sessions s ON {step})"  # noqa: S608 - ours
        f" SELECT id FROM line LEFT JOIN sessions USING (id) WHERE {wanted}",
        (session,),
    )
    return [str(row[0]) for row in rows]
