"""Sessions that go on as others: by compaction, as a fork, or as a child of a turn.

A line has no limit: a conversation that was compacted a thousand times is as long. Every walk is one statement, and each
session is visited once (``UNION`` drops what was seen), so that a circle in a damaged file ends it too.
"""

from __future__ import annotations

import sqlite3


def newest_of(connection: sqlite3.Connection, session: str) -> str:
    """The last of the sessions that this one went on as after compactions; itself when it did not."""
    row = connection.execute(
        "WITH RECURSIVE line(id, successor) AS (SELECT id, successor FROM sessions WHERE id = ? UNION"
        " SELECT s.id, s.successor FROM line JOIN sessions s ON s.id = line.successor)"
        " SELECT id FROM line WHERE successor IS NULL",
        (session,),
    ).fetchone()
    return str(row[0]) if row else session


def compacted_line(connection: sqlite3.Connection, session: str) -> list[str]:
    """The session and those that it goes on from after compactions, the newest first."""
    rows = connection.execute(
        "WITH RECURSIVE line(id) AS (SELECT ? UNION SELECT s.parent FROM line JOIN sessions s ON s.id = line.id"
        " WHERE s.kind = 'compression' AND s.parent IS NOT NULL) SELECT id FROM line",
        (session,),
    )
    return [str(row[0]) for row in rows]


def lineage(connection: sqlite3.Connection, session: str) -> str:
    """The first session of the line that led to this one: by compactions, forks, and delegation."""
    row = connection.execute(
        "WITH RECURSIVE up(id, parent) AS (SELECT id, parent FROM sessions WHERE id = ? UNION"
        " SELECT s.id, s.parent FROM up JOIN sessions s ON s.id = up.parent) SELECT id FROM up WHERE parent IS NULL",
        (session,),
    ).fetchone()
    return str(row[0]) if row else session


def descendants(connection: sqlite3.Connection, session: str) -> list[str]:
    """The session and all that came of it."""
    rows = connection.execute(
        "WITH RECURSIVE down(id) AS (SELECT ? UNION SELECT s.id FROM down JOIN sessions s ON s.parent = down.id)"
        " SELECT id FROM down",
        (session,),
    )
    return [str(row[0]) for row in rows]
