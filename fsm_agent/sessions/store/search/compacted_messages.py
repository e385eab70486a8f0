"""The messages that compactions took out of a session's transcript: by words, around one of them, and how
many there are."""

from __future__ import annotations

import json
from dataclasses import replace

from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.lineage import compacted_line
from fsm_agent.sessions.store.search.messages import KEPT, STANDING, Among, search
from fsm_agent.sessions.store.search.session_recall import (
    CATCH_UP,
    FROM,
    RecalledMessage,
    messages_around,
    read_messages,
)

MOST = 20
"""Messages of one answer."""
CLIP = 4_000
"""Characters shown of one message."""
_COMPACTED = f"{STANDING} = 'put aside' AND m.body NOT LIKE '%\"summary\":true%'"
_AMONG = "(SELECT value FROM json_each(?))"


def count_compacted(database: Database, session: str) -> int:
    """Return how many messages compactions took out of the session, and of those that it goes on from."""
    with database.reading() as c:
        line = json.dumps(compacted_line(c, session))
        query = f"SELECT COUNT(*) {FROM} WHERE m.session IN {_AMONG} AND {KEPT} AND {_COMPACTED}"
        return int(c.execute(query, (line,)).fetchone()[0])


def compacted_by_words(database: Database, session: str, text: str, limit: int) -> list[RecalledMessage]:
    """Return those of them that answer ``text`` best, at most ``limit``. Raises ``StoreError`` when there
    is no full-text search."""
    with database.reading() as c:
        line = compacted_line(c, session)
    hits = [
        hit
        for one in line
        for hit in search(database, text, Among(session=one), limit=200, seconds=CATCH_UP).hits
    ]
    ids = json.dumps([hit.id for hit in hits])
    with database.reading() as c:
        read = read_messages(c, f"m.id IN {_AMONG} AND {_COMPACTED}", (ids,), CLIP, text)
    known = {one.id: replace(one, standing="") for one in read}
    best = sorted((hit for hit in hits if hit.id in known), key=lambda hit: hit.score, reverse=True)
    return [known[hit.id] for hit in best[:limit]]


def compacted_around(database: Database, session: str, message: int, window: int) -> list[RecalledMessage]:
    """Return the message of this id with ``window`` more on each side of it in its session, in order;
    nothing when it was not taken out of this conversation."""
    with database.reading() as c:
        found = c.execute("SELECT session, number FROM messages WHERE id = ?", (message,)).fetchone()
        if found is None or found[0] not in compacted_line(c, session):
            return []
        near = messages_around(c, found[0], found[1], window, CLIP, where=_COMPACTED)
    if all(one.id != message for one in near):
        return []
    return [replace(one, standing="") for one in near]
