"""Sessions that go on as others: by compaction, as a fork, or as a child of a turn; turns and their children.

A line has no limit: a conversation that was compacted a thousand times is as long. Every walk is one
statement, and each session is visited once (``UNION`` drops what was seen), so that a circle in a damaged
file ends it too. (Why: decision 50.)"""

from __future__ import annotations

import json

from fsm_agent.sessions.store.connection import SqlConnection


def newest_of(connection: SqlConnection, session: str) -> str:
    """Return the last of the sessions that this one went on as after compactions; itself when it did not."""
    after = "s.id = (SELECT successor FROM sessions WHERE id = line.id)"
    return next(iter(_walk(connection, session, after, "successor IS NULL")), session)


def compacted_line(connection: SqlConnection, session: str) -> list[str]:
    """Return the session and those that it goes on from after compactions, the newest first."""
    before = "s.id = (SELECT parent FROM sessions WHERE id = line.id AND kind = 'compression')"
    return _walk(connection, session, before)


def next_turn_number(connection: SqlConnection, session: str) -> int:
    """Return the number of the next turn of the session. They go up along what it goes on from after
    compactions, so that they order the turns of a conversation, whatever the clocks of its machines say."""
    highest = "SELECT MAX(number) FROM turns WHERE session IN (SELECT value FROM json_each(?))"
    (last,) = connection.execute(highest, (json.dumps([session]),)).fetchone()
    if last is None:
        (last,) = connection.execute(highest, (json.dumps(compacted_line(connection, session)),)).fetchone()
    return 1 + (last or 0)


def lineage(connection: SqlConnection, session: str) -> str:
    """Return the first session of the line that led to this one: by compactions, forks, and delegation."""
    before = "s.id = (SELECT parent FROM sessions WHERE id = line.id)"
    return next(iter(_walk(connection, session, before, "parent IS NULL")), session)


def descendants(connection: SqlConnection, session: str) -> list[str]:
    """Return the session and all that came of it: by compactions, forks, and delegation."""
    return _walk(connection, session, "s.parent = line.id")


def conversation_begin(connection: SqlConnection, session: str) -> str:
    """Return the first session of the conversation: this one goes on from it after compactions, or was begun
    in it by a turn as its child's."""
    before = "s.id = (SELECT parent FROM sessions WHERE id = line.id AND kind IN ('compression', 'child'))"
    return _walk(connection, session, before)[-1]


def conversation(connection: SqlConnection, first: str) -> list[str]:
    """Return the first session of a conversation, and all that came of it by compactions and delegation."""
    return _walk(connection, first, "s.parent = line.id AND s.kind IN ('compression', 'child')")


def turn_line(connection: SqlConnection, turn: str) -> list[str]:
    """Return the turn, the one that has it as a child, and so on to the root of the tree."""
    rows = connection.execute(
        "WITH RECURSIVE line(id) AS (SELECT ? UNION SELECT t.parent FROM line JOIN turns t ON t.id = line.id"
        " WHERE t.parent IS NOT NULL AND t.forked_at IS NULL) SELECT id FROM line",
        (turn,),
    )
    return [str(row[0]) for row in rows]


def turn_tree(connection: SqlConnection, root: str) -> list[str]:
    """Return the turn, its children and theirs, whose ids begin with ``c-``, its own and a dot."""
    rows = connection.execute(
        "WITH RECURSIVE tree(id) AS (SELECT ? UNION SELECT t.id FROM tree JOIN turns t"
        " ON t.id >= 'c-' || tree.id || '.' AND t.id < 'c-' || tree.id || '/'"
        " WHERE t.parent = tree.id AND t.forked_at IS NULL) SELECT id FROM tree",
        (root,),
    )
    return [str(row[0]) for row in rows]


def _walk(connection: SqlConnection, session: str, step: str, wanted: str = "") -> list[str]:
    """The session, then those that ``step`` leads to from each that was reached, in that order; the
    ``wanted`` ones."""
    where = f"WHERE EXISTS (SELECT 1 FROM sessions s WHERE s.id = line.id AND {wanted})" if wanted else ""  # noqa: S608 - ours
    rows = connection.execute(
        f"WITH RECURSIVE line(id) AS (SELECT ? UNION SELECT s.id FROM line JOIN sessions s ON {step})"  # noqa: S608 - ours
        f" SELECT id FROM line {where}",
        (session,),
    )
    return [str(row[0]) for row in rows]
