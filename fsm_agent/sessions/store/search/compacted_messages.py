"""The messages that compactions took out of a session's transcript: by words, around one of them, and how many there are."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.lineage import compacted_line
from fsm_agent.sessions.store.sealed import loads
from fsm_agent.sessions.store.search.messages import KEPT, STANDING, Among, search
from fsm_agent.sessions.store.search.snippets import snippet_of
from fsm_agent.sessions.store.search.text_analysis import plain_text, query_of
from fsm_agent.support.texts import shorten

MOST, WIDEST = 20, 20
"""Messages of one answer; messages on each side."""
CLIP = 4_000
"""Characters shown of one message."""
CATCH_UP = 2.0
"""Seconds that an agent waits for the index."""
_FROM = "FROM messages m JOIN sessions s ON s.id = m.session LEFT JOIN turns t ON t.id = m.turn"
_ASIDE = f"{STANDING} = 'put aside' AND {KEPT} AND m.body NOT LIKE '%\"summary\":true%'"


@dataclass(frozen=True, slots=True)
class Aside:
    """One message, shortened to ``CLIP``; ``at`` in seconds since the epoch."""

    id: int
    role: str
    at: float
    text: str


def asides(database: Database, session: str) -> int:
    """How many messages were taken out of the session, and of those that it goes on from."""
    with database.reading() as c:
        line = json.dumps(compacted_line(c, session))
        query = f"SELECT COUNT(*) {_FROM} WHERE m.session IN (SELECT value FROM json_each(?)) AND {_ASIDE}"  # noqa: S608 - ours
        return int(c.execute(query, (line,)).fetchone()[0])


def aside_by_words(database: Database, session: str, text: str, limit: int) -> list[Aside]:
    """Those that answer ``text`` best. Raises ``StoreError`` when there is no full-text search."""
    with database.reading() as c:
        line = compacted_line(c, session)
    hits = [hit for one in line for hit in search(database, text, Among(session=one), limit=200, seconds=CATCH_UP).hits]
    with database.reading() as c:
        known = {one.id: one for one in _aside(c, [hit.id for hit in hits], text)}
    best = sorted((hit for hit in hits if hit.id in known), key=lambda hit: hit.score, reverse=True)
    return [known[hit.id] for hit in best[:limit]]


def aside_around(database: Database, session: str, message: int, window: int) -> list[Aside]:
    """One of them with its neighbours of the same session, in order; nothing when it is none of them."""
    with database.reading() as c:
        line = json.dumps(compacted_line(c, session))
        own = "m.session = (SELECT session FROM messages WHERE id = ?) AND m.session IN (SELECT value FROM json_each(?))"
        ids = [row[0] for row in c.execute(f"SELECT m.id {_FROM} WHERE {own} AND {_ASIDE} ORDER BY m.number", (message, line))]
        if message not in ids:
            return []
        at = ids.index(message)
        return _aside(c, ids[max(0, at - window) : at + window + 1], "")


def _aside(c: sqlite3.Connection, ids: Sequence[int], text: str) -> list[Aside]:
    rows = c.execute(
        f"SELECT m.id, m.role, m.at, m.body {_FROM}"  # noqa: S608 - ours
        f" WHERE m.id IN (SELECT value FROM json_each(?)) AND {_ASIDE} ORDER BY m.number",
        (json.dumps(list(ids)),),
    ).fetchall()
    return [Aside(number, role, at, _clipped(plain_text(loads(body)), text)) for number, role, at, body in rows]


def _clipped(whole: str, text: str) -> str:
    if len(whole) <= CLIP:
        return whole
    return snippet_of(whole, query_of(text), CLIP).marked("", "") if text else shorten(whole, CLIP)
