"""Earlier sessions as an agent recalls them (AGT-04): by words, around one message, or the most recent ones.

No model is asked. Sessions of sub-agents are hidden, and so is the line of the session that asks: its agent knows it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.lineage import descendants, lineage
from fsm_agent.sessions.store.search.messages import KEPT, Among, Hit, search
from fsm_agent.sessions.store.search.recalled_message import (
    CATCH_UP,
    WIDEST,
    RecalledMessage,
    messages_around,
    read_messages,
)

LIMIT, MOST = 3, 10
"""Sessions of one answer: by default, at most."""
WINDOW = 5
"""Messages shown on each side of a hit by default."""
ENDS = 3
"""Messages shown of a session's beginning and of its end."""
CLIP = 1_200
"""Characters shown of one message."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """One line of sessions with a hit: the session of the best one, the messages around it, its first and its last ones. What
    is in ``messages`` is not repeated in ``first`` and ``last``. ``hits`` counts those of the whole line that were looked at."""

    session: str
    title: str
    at: float
    hits: int
    messages: tuple[RecalledMessage, ...]
    first: tuple[RecalledMessage, ...]
    last: tuple[RecalledMessage, ...]


@dataclass(frozen=True, slots=True)
class Recall:
    """Best line first. ``relaxed``: nothing has all the words, these have some. ``more``: other lines have hits too.
    ``waiting``: messages that the index does not have yet."""

    lines: tuple[Recalled, ...]
    relaxed: bool = False
    more: bool = False
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Around:
    """``before`` and ``after``: how many messages of the session are not shown on either side."""

    session: str
    title: str
    messages: tuple[RecalledMessage, ...]
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Recent:
    """One session of a list; ``asked`` is what its first turn was asked, ``at`` when it was last used."""

    session: str
    title: str
    at: float
    turns: int
    asked: str
    model: str


def by_words(
    database: Database,
    text: str,
    current: str | None = None,
    *,
    limit: int = LIMIT,
    window: int = WINDOW,
    roles: Sequence[str] = (),
    days: float | None = None,
) -> Recall:
    """The lines of sessions that answer ``text`` best, out of the newest hits. ``current`` is the session that asks."""
    among = Among(roles=roles, days=days, without=_own(database, current))
    found = search(database, text, among, limit=10_000, seconds=CATCH_UP)
    lines: dict[str, list[Hit]] = {}
    for hit in found.hits:
        lines.setdefault(hit.lineage, []).append(hit)
    chosen = list(lines.values())[: _within(limit, 1, MOST)]
    with database.reading() as c:
        recalled = tuple(_recalled(c, hits, text, _within(window, 0, WIDEST)) for hits in chosen)
    return Recall(recalled, found.relaxed, len(lines) > len(chosen) or found.more, found.waiting)


def around(database: Database, message: int, window: int = WINDOW) -> Around:
    """The messages before and after one that was found, to read on. Raises ``ConfigError`` for an id that is not there."""
    sql = "SELECT session, title, number FROM messages m JOIN sessions s ON s.id = m.session WHERE m.id = ? AND s.kind != 'child'"
    found = database.query(sql, message)
    if not found:
        raise ConfigError("no such message", message, "an id that a search gave")
    session, title, number = found[0]
    with database.reading() as c:
        near = messages_around(c, session, number, _within(window, 0, WIDEST), CLIP)
        shown = (near[0].id, near[-1].id) if near else (message, message)
        counts = f"""SELECT COUNT(*) FILTER (WHERE m.id < ?), COUNT(*) FILTER (WHERE m.id > ?)
            FROM messages m WHERE m.session = ? AND {KEPT}"""  # noqa: S608 - ours
        before, after = c.execute(counts, (*shown, session)).fetchone()
    return Around(session, title, tuple(near), before, after)


def recent(database: Database, current: str | None = None, limit: int = LIMIT) -> tuple[Recent, ...]:
    """The sessions that were used last, newest first."""
    rows = database.query(
        "SELECT s.id, s.title, s.touched, s.turns,"
        " COALESCE((SELECT asked FROM turns t WHERE t.session = s.id ORDER BY began LIMIT 1), ''), s.model"
        " FROM sessions s WHERE s.kind != 'child' AND s.successor IS NULL"
        " AND s.id NOT IN (SELECT value FROM json_each(?)) ORDER BY s.touched DESC LIMIT ?",
        json.dumps(_own(database, current)),
        _within(limit, 1, MOST),
    )
    return tuple(Recent(*row) for row in rows)


def _own(database: Database, current: str | None) -> list[str]:
    if current is None:
        return []
    with database.reading() as c:
        return descendants(c, lineage(c, current))


def _within(value: int, least: int, most: int) -> int:
    return max(least, min(value, most))


def _recalled(c: sqlite3.Connection, hits: Sequence[Hit], text: str, window: int) -> Recalled:
    best = hits[0]
    near = messages_around(c, best.session, best.number, window, CLIP, text)
    shown = {one.id for one in near}
    ends = []
    for order in ("ASC", "DESC"):
        at_end = read_messages(c, f"m.session = ? ORDER BY m.number {order} LIMIT {ENDS}", (best.session,), CLIP)
        ends.append([one for one in at_end if one.id not in shown])
        shown |= {one.id for one in at_end}
    return Recalled(best.session, best.title, best.at, len(hits), tuple(near), tuple(ends[0]), tuple(reversed(ends[1])))
