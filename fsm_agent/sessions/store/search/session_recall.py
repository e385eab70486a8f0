"""Earlier sessions as an agent recalls them (AGT-04): by words, around one message, or the most recent ones.

No model is asked. Sessions of sub-agents are hidden, and so is the line of the session that asks: its agent knows it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.lineage import descendants, lineage
from fsm_agent.sessions.store.sealed import loads
from fsm_agent.sessions.store.search.messages import KEPT, STANDING, Among, Hit, Standing, search
from fsm_agent.sessions.store.search.snippets import snippet_of
from fsm_agent.sessions.store.search.text_analysis import plain_text, query_of
from fsm_agent.support.texts import shorten

LIMIT, MOST = 3, 10
"""Sessions of one answer: by default, at most."""
WINDOW, WIDEST = 5, 20
"""Messages shown on each side of a hit: by default, at most."""
ENDS = 3
"""Messages shown of a session's beginning and of its end."""
CLIP = 1_200
"""Characters shown of one message."""
CATCH_UP = 2.0
"""Seconds that an agent waits for the index."""


@dataclass(frozen=True, slots=True)
class Said:
    """One message, shortened to ``CLIP``. ``id`` is what ``around`` takes."""

    id: int
    role: str
    at: float
    text: str
    standing: Standing
    hit: bool = False


@dataclass(frozen=True, slots=True)
class Recalled:
    """One line of sessions with a hit: the session of the best one, the messages around it, its first and its last ones. What
    is in ``messages`` is not repeated in ``first`` and ``last``. ``hits`` counts those of the whole line that were looked at."""

    session: str
    title: str
    at: float
    hits: int
    messages: tuple[Said, ...]
    first: tuple[Said, ...]
    last: tuple[Said, ...]


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
    messages: tuple[Said, ...]
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
    with database.reading() as c:
        row = c.execute(
            "SELECT m.session, s.title, m.number FROM messages m JOIN sessions s ON s.id = m.session"
            " WHERE m.id = ? AND s.kind != 'child'",
            (message,),
        ).fetchone()
        if row is None:
            raise ConfigError("no such message", message, "an id that a search gave")
        session, title, number = row
        said = _near(c, session, number, _within(window, 0, WIDEST), "")
        count = f"SELECT COUNT(*) FROM messages m WHERE m.session = ? AND {KEPT} AND m.id "  # noqa: S608 - ours
        before = c.execute(count + "< ?", (session, said[0].id if said else message)).fetchone()[0]
        after = c.execute(count + "> ?", (session, said[-1].id if said else message)).fetchone()[0]
    return Around(session, title, said, before, after)


def recent(database: Database, current: str | None = None, limit: int = LIMIT) -> tuple[Recent, ...]:
    """The sessions that were used last, newest first."""
    own = json.dumps(_own(database, current))
    with database.reading() as c:
        rows = c.execute(
            "SELECT s.id, s.title, s.touched, s.turns,"
            " COALESCE((SELECT asked FROM turns t WHERE t.session = s.id ORDER BY began LIMIT 1), ''), s.model"
            " FROM sessions s WHERE s.kind != 'child' AND s.successor IS NULL"
            " AND s.id NOT IN (SELECT value FROM json_each(?)) ORDER BY s.touched DESC LIMIT ?",
            (own, _within(limit, 1, MOST)),
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
    near = _near(c, best.session, best.number, window, text)
    shown = {said.id for said in near}
    ends = [
        tuple(said for said in _said(c, best.session, f"1 ORDER BY m.number {order} LIMIT {ENDS}", ()) if said.id not in shown)
        for order in ("ASC", "DESC")
    ]
    last = tuple(said for said in reversed(ends[1]) if said.id not in {one.id for one in ends[0]})
    return Recalled(best.session, best.title, best.at, len(hits), near, ends[0], last)


def _near(c: sqlite3.Connection, session: str, number: int, window: int, text: str) -> tuple[Said, ...]:
    before = _said(c, session, "m.number < ? ORDER BY m.number DESC LIMIT ?", (number, window))
    rest = _said(c, session, "m.number >= ? ORDER BY m.number LIMIT ?", (number, window + 1), number, text)
    return (*reversed(list(before)), *rest)


def _said(
    c: sqlite3.Connection, session: str, where: str, values: tuple[Any, ...], hit: int | None = None, text: str = ""
) -> Iterable[Said]:
    rows = c.execute(
        f"SELECT m.id, m.number, m.role, m.at, {STANDING}, m.body FROM messages m JOIN sessions s ON s.id = m.session"  # noqa: S608
        f" LEFT JOIN turns t ON t.id = m.turn WHERE m.session = ? AND {KEPT} AND {where}",
        (session, *values),
    ).fetchall()
    for message, number, role, at, standing, body in rows:
        said = loads(body)
        is_hit = number == hit and bool(text)
        yield Said(
            message,
            role,
            at,
            _clipped(plain_text(said), text if is_hit else ""),
            "summary" if said.get("summary") else standing,
            is_hit,
        )


def _clipped(whole: str, text: str) -> str:
    """The piece that was looked for, where a text is too long to be shown whole."""
    if len(whole) <= CLIP:
        return whole
    return snippet_of(whole, query_of(text), CLIP).marked("", "") if text else shorten(whole, CLIP)
