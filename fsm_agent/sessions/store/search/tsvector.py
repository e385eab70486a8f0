"""The full-text index in PostgreSQL: what ``text_analysis`` finds in a message, as a ``tsvector`` in a column
beside it.

Numbers of messages become visible in any order when several machines write, so there is no mark that says how
far the index has come: what lacks its column is indexed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.sessions.store.search.text_analysis import IndexQuery, Query, Term, rows_to_index

WORD = re.compile(r"[^\W_]+")
MOST_PLACES, LAST_PLACE = 256, 16_383
"""What PostgreSQL keeps of the places of a word: how many, and how far."""
LONGEST = 500
"""Characters of a word that are looked at; PostgreSQL takes 2,046 bytes."""
ROOM = 900_000
"""Bytes of one vector, about; PostgreSQL takes 1,048,575."""
_UNREAD = (
    "SELECT m.id, m.role, m.session, m.at, s.kind, m.body, m.body_crc FROM messages m"
    " JOIN sessions s ON s.id = m.session WHERE m.words IS NULL ORDER BY m.id LIMIT ? /* SKIP LOCKED */"
)


def vector_of(words: str, chars: str, tags: str) -> str:
    """Return the three columns of ``text_analysis.columns`` as one vector: single characters and tags begin
    with a sign that no word has."""
    places: dict[str, list[int]] = defaultdict(list)
    room = ROOM
    for sign, text in (("#", tags), ("~", chars)):
        for word in text.split():
            places[sign + word] = []
    for place, found in enumerate(WORD.finditer(words), 1):
        word = found[0][:LONGEST]
        if word not in places:
            room -= len(word.encode()) + 8
            if room < 0:
                break
        if len(places[word]) < MOST_PLACES:
            places[word].append(min(place, LAST_PLACE))
    return " ".join(
        f"'{word}'" + (":" + ",".join(map(str, where)) if where else "") for word, where in places.items()
    )


def index_query(
    connection: SqlConnection, query: Query, tags: Iterable[Iterable[str]], without: Iterable[str]
) -> IndexQuery | None:
    """Return how the messages that answer a query are asked for: with one tag of each group, and none of
    ``without``; ``None`` when there is nothing to look for."""
    if not query.expression:
        return None
    parts = [_any(_all(map(_tsquery, group)) for group in query.groups)]
    parts += [f"!{_tsquery(term)}" for term in query.without]
    parts += [_any(f"'#{tag}'" for tag in group) for group in tags]
    parts += [f"!'#{tag}'" for tag in without]
    return IndexQuery("messages m", "m.words @@ CAST(? AS TSQUERY)", _all(parts), "m.id")


def _all(parts: Iterable[str]) -> str:
    return f"({' & '.join(parts)})"


def _any(parts: Iterable[str]) -> str:
    return f"({' | '.join(parts)})"


def _tsquery(term: Term) -> str:
    """``words : "a b" *`` and ``chars : "x"`` of FTS5 in PostgreSQL's words."""
    column, _, rest = term.asked.partition(" : ")
    if column == "chars":
        return "'~" + rest.strip('"') + "'"
    text, _, star = rest[1:].rpartition('"')
    words = [word[:LONGEST] for word in text.split()]
    phrase = " <-> ".join(f"'{word}'" for word in words[:-1])
    last = f"'{words[-1]}'" + (":*" if "*" in star else "")
    return f"({phrase} <-> {last})" if phrase else last


def waiting(connection: SqlConnection) -> int:
    """Return how many messages the index lacks."""
    return int(connection.execute("SELECT COUNT(*) FROM messages WHERE words IS NULL").fetchone()[0])


def index_batch(connection: SqlConnection, rows: int, chars: int) -> bool:
    """Index at most ``rows`` messages of about ``chars`` characters that no other process is indexing; return
    whether there may be more. Runs as a job of the writer."""
    batch, more = rows_to_index(connection.execute(_UNREAD, (rows,)), rows, chars)
    connection.executemany(
        "UPDATE messages SET words = CAST(? AS TSVECTOR) WHERE id = ?",
        [(vector_of(words, singles, tags), message) for message, words, singles, tags in batch],
    )
    return more


def make_anew(connection: SqlConnection) -> None:
    """Have the index rebuilt."""
    connection.execute("UPDATE messages SET words = NULL WHERE words IS NOT NULL")


def forget_message(connection: SqlConnection) -> None:
    """Nothing is to be done: a message takes its part of the index along."""
