"""Full-text search for messages in all sessions of a home.

The newest hits come from the index in the order of their numbers, which costs the same for a rare word and
for one that every message contains; only those are ranked. Ranking all hits takes seconds at a million
messages.
"""

# How messages are found. Scripts without blanks are indexed as pairs of characters, because LIKE on a trigram
# table finds nothing shorter than three. Only the newest 300 hits are ranked, because ranking reads every
# hit. The index is built on demand and lags behind the moves; a damaged one is rebuilt without touching any
# other commit.

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.sessions.store.database import Database, SqlConnection
from fsm_agent.sessions.store.rows import lineage, loads
from fsm_agent.sessions.store.search.indexes import full_text
from fsm_agent.sessions.store.search.text_analysis import (
    DAY,
    Folded,
    Query,
    compose_marks,
    day_tag,
    looks_damaged,
    plain_text,
    query_of,
    session_tag,
)

# How well a text matches a search, and the piece of it that shows why.
#
# FTS5 has ``snippet()`` and ``bm25()``, but they do not fit. The index keeps no copy of the messages, and
# without one ``snippet()`` returns NULL. Even with the texts in a separate table it splits words as SQLite
# does: two characters inside a Chinese sentence are never found, its pieces have at most 64 words where an
# agent is shown 4,000 characters, and it marks with text instead of positions. ``bm25()`` ranks all hits,
# which takes seconds at a million messages.

SNIPPET = 180
"""Maximum characters of a snippet."""
BEFORE = 50
"""Characters of a snippet before its first marked word."""
MATCHES = 200
"""Occurrences per term considered for the best piece of a text."""
SATURATION, LENGTH_WEIGHT = 1.2, 0.75
"""k1 and b of BM25, with their usual values."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of a text. ``marks`` are (start, end) of the matched words. ``cut``: whether the text continues
    before and after it."""

    text: str
    marks: tuple[tuple[int, int], ...] = ()
    cut: tuple[bool, bool] = (False, False)

    def marked(self, before: str = "**", after: str = "**") -> str:
        """Return the snippet as one line, with matched words between ``before`` and ``after``."""
        out, place = "…" if self.cut[0] else "", 0
        for start, end in self.marks:
            out += self.text[place:start] + before + self.text[start:end] + after
            place = end
        return out + self.text[place:] + ("…" if self.cut[1] else "")


EMPTY = Snippet("")


def scores(texts: Sequence[str], query: Query) -> list[float]:
    """Return how well each text matches the query (BM25, higher is better). The rarity of a term is counted
    among these texts alone."""
    if not texts:
        return []
    counts = [[term.count(text) for term in query.terms] for text in map(Folded.of, texts)]
    usual = sum(map(len, texts)) / len(texts) or 1.0
    weights = []
    for column in zip(*counts, strict=True):
        having = sum(count > 0 for count in column)
        weights.append(math.log(1 + (len(texts) - having + 0.5) / (having + 0.5)))
    return [_score(row, weights, len(text) / usual) for row, text in zip(counts, texts, strict=True)]


def _score(counts: Sequence[int], weights: Sequence[float], length: float) -> float:
    damped = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * length)
    return sum(
        weight * count * (SATURATION + 1) / (count + damped)
        for count, weight in zip(counts, weights, strict=True)
    )


def snippet_of(text: str, query: Query, size: int = SNIPPET) -> Snippet:
    """Return the piece of a text with the most terms, on one line."""
    line = " ".join(compose_marks(text).split())
    folded = Folded.of(line)
    places = sorted(
        (*place, number) for number, term in enumerate(query.terms) for place in term.places(folded, MATCHES)
    )
    start = _best(places, len(line), size)
    end = min(len(line), start + size)
    start, end = _at_words(line, start, end, {place for one in places for place in one[:2]})
    marks = _apart(
        (max(first, start) - start, min(last, end) - start)
        for first, last, _ in places
        if first < end and last > start
    )
    return Snippet(line[start:end], marks, (start > 0, end < len(line)))


def _best(places: Sequence[tuple[int, int, int]], length: int, size: int) -> int:
    """Return the start of the first window that holds the most different terms."""
    best, most = 0, 0
    for index, (first, _, _) in enumerate(places):
        terms = {
            number for start, _, number in places[index : index + MATCHES] if start < first + size - BEFORE
        }
        if len(terms) > most:
            best, most = first, len(terms)
    return max(0, min(best - BEFORE, length - size))


def _at_words(line: str, start: int, end: int, keep: set[int]) -> tuple[int, int]:
    """Move the ends to word boundaries, where a blank is near and no marked word is lost."""
    first = line.find(" ", start, start + BEFORE // 2) if start > 0 else -1
    last = line.rfind(" ", end - BEFORE // 2, end) if end < len(line) else -1
    cut_first = first > 0 and not any(start <= place < first for place in keep)
    cut_last = last > 0 and not any(last < place <= end for place in keep)
    return first + 1 if cut_first else start, last if cut_last else end


def _apart(marks: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return marks in order, with overlapping ones merged."""
    out: list[tuple[int, int]] = []
    for start, end in sorted(marks):
        if out and start < out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        elif end > start:
            out.append((start, end))
    return tuple(out)


SCAN = 300
"""Number of newest hits that are ranked (AGT-04)."""
READ = 4_000_000
"""Maximum characters of hits read for ranking; fewer hits are ranked when they are very long."""
DAYS = 31
"""Maximum days matched by index tags; a longer period is compared row by row."""
KEPT = "NOT (m.active = 0 AND m.version < 0)"
"""Excludes rows of a visit that was run again, and copies that a compaction made for itself: the originals
exist."""
STANDING = (
    "CASE WHEN m.active = 0 AND t.undone IS NOT NULL THEN 'undone'"
    " WHEN m.active = 0 OR s.successor IS NOT NULL THEN 'put aside' ELSE 'current' END"
)
"""Messages of a session that continues as another one after a compaction count as put aside, too."""
ROLES = ("user", "assistant", "tool")
Standing = Literal["current", "put aside", "undone", "summary"]


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One message that was found. ``lineage``: the first ancestor of its session; ``at`` in seconds since the
    epoch. ``standing``: ``current`` in the transcript that continues, ``put aside`` by a compaction, or
    ``undone`` by its user; a ``summary`` replaces other messages. ``text``: the whole message."""

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
    """``hits``, best first. ``looked_at``: the number of newest hits that were ranked; ``more``: older ones
    exist. ``relaxed``: no message has all the words, these have some. ``waiting``: the number of messages not
    indexed yet."""

    hits: tuple[SearchHit, ...]
    looked_at: int = 0
    more: bool = False
    relaxed: bool = False
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Among:
    """Where to search. ``session``: the id of one; ``roles``: all if empty; ``days``: back from now;
    ``children``: include sessions of sub-agents (``session`` is always searched); ``without``: ids of
    sessions to exclude."""

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
    """Return the best of the newest ``SCAN`` hits, or, with ``newest``, the newest ones. Missing messages are
    indexed first, for at most ``seconds``. A text without a letter or digit finds nothing. Raises
    ``StoreError`` when full-text search is not available."""

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
        forget(database)  # if more than the index is damaged, this fails in the same way
        return once()


def _newest(database: Database, query: Query, among: Among, now: float) -> tuple[list[SearchHit], bool]:
    """Return at most ``SCAN`` hits, newest first and unranked, and whether there are more."""
    since = 0.0 if among.days is None else now - among.days * DAY
    where, values = ["m.at >= ?", KEPT], [since]
    if among.without:
        where.append("m.session NOT IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(list(among.without)))  # type: ignore[arg-type]
    hits: list[SearchHit] = []
    roots: dict[str, str] = {}
    read = 0
    with database.reading() as c:
        asked = full_text(database).index_query(c, query, *_tag_groups(among, now))
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


def _tag_groups(among: Among, now: float) -> tuple[list[list[str]], list[str]]:
    """Return groups of tags, of which each group must match, and tags that must not match. Fixed properties
    of a message are in the index, so that a search in few of many messages is as quick."""
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
    fields = loads(body, crc)
    if standing == "current" and fields.get("summary"):
        standing = "summary"
    return SearchHit(
        message, session, roots[session], title, turn, number, role, at, standing, plain_text(fields)
    )


def _once(rated: Iterable[tuple[float, SearchHit]]) -> list[tuple[float, SearchHit]]:
    """Merge copies made by compactions and forks: equal messages of one lineage are one hit, preferably the
    current one, otherwise the newest."""
    best: dict[tuple[str, str, str], tuple[float, SearchHit]] = {}
    for score, hit in rated:
        kept = best.setdefault((hit.lineage, hit.role, hit.text), (score, hit))[1]
        if kept.standing != "current" and hit.standing == "current":
            best[hit.lineage, hit.role, hit.text] = (score, hit)
    return list(best.values())


# The full-text index, filled in small batches behind the messages.
#
# Never in the transaction of a move. ``catch_up`` precedes a search; ``keep_up`` runs beside turns, one short
# transaction at a time, so that no turn waits long for the writer.


BESIDE = (64, 200_000)
"""Messages and characters per transaction beside running turns: a few milliseconds."""
AT_ONCE = (400, 800_000)
"""The same limits while a caller waits for the end."""
PAUSE = 0.005
"""Seconds between transactions: turns of other processes also need to write."""
Progress = Callable[[int, int], None]


def catch_up(database: Database, seconds: float | None = None, progress: Progress | None = None) -> int:
    """Index new messages for at most ``seconds``, and return the number of messages still missing.
    ``progress`` is called with (done, total)."""
    until = None if seconds is None else time.monotonic() + seconds
    waiting = total = pending(database)
    more = waiting > 0
    while more and (until is None or time.monotonic() < until):
        more = database.submit(lambda c: full_text(database).index_batch(c, *AT_ONCE), alone=True).result()
        waiting = pending(database)
        time.sleep(PAUSE if more else 0)
        if progress is not None:
            progress(max(0, total - waiting), total)
    return waiting


def keep_up(database: Database) -> None:
    """Index new messages without waiting. Failures of the store are ignored."""

    def go_on(done: Future[Any]) -> None:
        if done.exception() is None and done.result():
            keep_up(database)

    database.submit(lambda c: full_text(database).index_batch(c, *BESIDE), alone=True).add_done_callback(
        go_on
    )


def pending(database: Database) -> int:
    """Return at most how many messages the index lacks: numbers never assigned count too."""
    with database.reading() as c:
        return full_text(database).waiting(c)


def forget(database: Database) -> None:
    """Mark the index as damaged, so that the next search rebuilds it. Nothing else is lost."""
    database.write(full_text(database).make_anew)
