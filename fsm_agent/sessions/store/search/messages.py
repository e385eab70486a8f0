"""Finding messages by their words, in all sessions of a home.

The newest hits come from the index in the order of their numbers, which costs the same for a rare word and
for one that every message has; only those are ranked. Ranking all hits takes seconds at a million messages.
(Why: decision 73.)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.sessions.store.checksum import loads
from fsm_agent.sessions.store.connection import SqlConnection
from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.lineage import lineage
from fsm_agent.sessions.store.search.indexing import Progress, catch_up, forget, full_text
from fsm_agent.sessions.store.search.searched import looks_damaged
from fsm_agent.sessions.store.search.snippets import EMPTY, Snippet, scores, snippet_of
from fsm_agent.sessions.store.search.text_analysis import (
    DAY,
    Query,
    day_tag,
    plain_text,
    query_of,
    session_tag,
)

SCAN = 300
"""Newest hits that are ranked (AGT-04)."""
READ = 4_000_000
"""Characters of hits that are read for ranking; fewer hits are ranked when they are very long."""
DAYS = 31
"""Days that are asked of the index one by one; a longer time is compared row by row."""
KEPT = "NOT (m.active = 0 AND m.version < 0)"
"""Not what a visit wrote that was run again, nor copies that a compaction made for itself: the originals are
there."""
STANDING = (
    "CASE WHEN m.active = 0 AND t.undone IS NOT NULL THEN 'undone'"
    " WHEN m.active = 0 OR s.successor IS NOT NULL THEN 'put aside' ELSE 'current' END"
)
"""What a session holds that went on as another one by compaction is put aside as well."""
ROLES = ("user", "assistant", "tool")
Standing = Literal["current", "put aside", "undone", "summary"]


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One message that was found. ``lineage`` is the first session of the line it belongs to, ``at`` in
    seconds since the epoch. ``standing``: is it in the transcript that goes on (``current``), was it ``put
    aside`` by a compaction, or ``undone`` by its user; a ``summary`` stands for other messages. ``text`` is
    the whole message."""

    id: int
    session: str
    lineage: str
    title: str
    turn: str | None
    number: int
    role: str
    at: float
    standing: Standing
    text: str = field(repr=False)
    score: float = 0.0
    snippet: Snippet = EMPTY


@dataclass(frozen=True, slots=True)
class Found:
    """``hits``, best first. ``looked_at``: newest hits that were ranked; ``more``: there are older ones.
    ``relaxed``: no message has all the words, these have some. ``waiting``: messages that the index does not
    have yet."""

    hits: tuple[SearchHit, ...]
    looked_at: int = 0
    more: bool = False
    relaxed: bool = False
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Among:
    """Where to look. ``session``: the id of one; ``roles``: all when empty; ``days``: back from now;
    ``children``: sessions of sub-agents too, which one that is named always is; ``without``: ids of sessions
    to leave out."""

    session: str | None = None
    roles: Collection[str] = ()
    days: float | None = None
    children: bool = False
    without: Collection[str] = ()

    def __post_init__(self) -> None:
        if wrong := [role for role in self.roles if role not in ROLES]:
            raise ConfigError("no such role", wrong[0], ", ".join(ROLES))
        if self.days is not None and not 0 < self.days < 100_000:
            raise ConfigError("days are out of range", self.days, "more than 0, less than 100,000")


def search(
    database: Database,
    text: str,
    among: Among = Among(),
    *,
    limit: int = 10,
    newest: bool = False,
    seconds: float | None = None,
    progress: Progress | None = None,
    now: Callable[[], float] = time.time,
) -> Found:
    """Return the best of the newest ``SCAN`` hits, or the newest of all with ``newest``. What the index
    lacks is added before, for at most ``seconds``. A text without a letter or digit finds nothing. Raises
    ``StoreError`` when there is no full-text search."""

    def once() -> Found:
        waiting, query, at = catch_up(database, seconds, progress), query_of(text), now()
        rows, more = _newest(database, query, among, at)
        relaxed = not rows and len(query.terms) > 1
        if relaxed:
            query = query.relaxed()
            rows, more = _newest(database, query, among, at)
        rated = _once(zip(scores([hit.text for hit in rows], query), rows, strict=True))
        rated.sort(key=(lambda one: -one[1].id) if newest else (lambda one: (-one[0], -one[1].id)))
        shown = tuple(
            replace(hit, score=score, snippet=snippet_of(hit.text, query)) for score, hit in rated[:limit]
        )
        return Found(shown, len(rows), more or len(rated) > limit, relaxed and bool(rows), waiting)

    try:
        return once()
    except (StoreError, MemoryError) as error:
        if not looks_damaged(error) and not looks_damaged(error.__cause__):
            raise
        forget(database)  # if not only the index is damaged, this fails in the same way
        return once()


def _newest(database: Database, query: Query, among: Among, now: float) -> tuple[list[SearchHit], bool]:
    """At most ``SCAN`` hits, newest first, none ranked; and whether there are more."""
    since = 0.0 if among.days is None else now - among.days * DAY
    where, values = ["m.at >= ?", KEPT], [since]
    if among.without:
        where.append("m.session NOT IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(list(among.without)))  # type: ignore[arg-type]
    hits: list[SearchHit] = []
    roots: dict[str, str] = {}
    read = 0
    with database.reading() as c:
        asked = full_text(database).asked(c, query, *_tagged(among, now))
        if asked is None:
            return [], False
        rows = c.execute(
            f"SELECT m.id, m.session, s.title, m.turn, m.number, m.role, m.at, {STANDING}, m.body_crc, m.body"  # noqa: S608
            f" FROM {asked.source} JOIN sessions s ON s.id = m.session LEFT JOIN turns t ON t.id = m.turn"
            f" WHERE {asked.condition} AND {' AND '.join(where)} ORDER BY {asked.number} DESC LIMIT ?",
            (asked.value, *values, SCAN + 1),
        )
        for row in rows:
            if len(hits) == SCAN or read > READ:
                return hits, True
            hits.append(_hit(c, row, roots))
            read += len(row[-1])
    return hits, False


def _tagged(among: Among, now: float) -> tuple[list[list[str]], list[str]]:
    """Groups of tags of which one must be there, and tags that must not. What never changes of a message is
    in the index, so that a search in few of many messages is as quick."""
    tags = [[session_tag(among.session)]] if among.session is not None else []
    if among.roles:
        tags.append(list(among.roles))
    if among.days is not None and among.days <= DAYS:
        back = (*range(int(among.days) + 1), among.days, -1)
        tags.append(sorted({day_tag(now - one * DAY) for one in back}))
    return tags, [] if among.children or among.session else ["child"]


def _hit(connection: SqlConnection, row: Sequence[Any], roots: dict[str, str]) -> SearchHit:
    message, session, title, turn, number, role, at, standing, crc, body = row
    if session not in roots:
        roots[session] = lineage(connection, session)
    said = loads(body, crc)
    if standing == "current" and said.get("summary"):
        standing = "summary"
    return SearchHit(
        message, session, roots[session], title, turn, number, role, at, standing, plain_text(said)
    )


def _once(rated: Iterable[tuple[float, SearchHit]]) -> list[tuple[float, SearchHit]]:
    """A compaction and a fork copy rows: what one line says twice is one hit, the one that still counts
    before the newest."""
    best: dict[tuple[str, str, str], tuple[float, SearchHit]] = {}
    for score, hit in rated:
        kept = best.setdefault((hit.lineage, hit.role, hit.text), (score, hit))[1]
        if kept.standing != "current" and hit.standing == "current":
            best[hit.lineage, hit.role, hit.text] = (score, hit)
    return list(best.values())
