"""Search in earlier sessions for the current model (AGT-04). It asks no model."""

# The context engine's tool looks back. Compactions set messages aside and delete none, so the model can
# recover exact words (`look_back`) instead of asking again.

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.database import Database, SqlConnection
from fsm_agent.sessions.store.rows import compaction_chain, descendants, lineage, loads
from fsm_agent.sessions.store.search import KEPT, STANDING, Among, SearchHit, Standing, search, snippet_of
from fsm_agent.sessions.store.search.text_analysis import plain_text, query_of
from fsm_agent.support.texts import shorten
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.tool_context import here

# ----------------------------------------------------------------------------------------------------
# Search in earlier sessions (AGT-04): by words, around one message, or the most recent ones.
#
# No model is asked. Sessions of sub-agents are hidden, and so is the line of the session that asks: its agent
# knows it.


LIMIT, MOST = 3, 10
"""Sessions in one answer: default and maximum."""
WINDOW, WIDEST = 5, 20
"""Messages shown on each side of a hit: default and maximum."""
ENDS = 3
"""Messages shown of the beginning and of the end of a session."""
CLIP = 1_200
"""Maximum characters shown of one message."""
CATCH_UP = 2.0
"""Maximum seconds that an agent waits for the index."""
FROM = "FROM messages m JOIN sessions s ON s.id = m.session LEFT JOIN turns t ON t.id = m.turn"


@dataclass(frozen=True, slots=True)
class RecalledMessage:
    """One message. ``id`` names it in later searches, ``at`` is in seconds since the epoch, ``text`` is
    shortened. ``standing`` is empty if it is the same for all shown messages. ``hit``: the search matched
    it."""

    id: int
    role: str
    at: float
    text: str
    standing: Standing | Literal[""] = ""
    hit: bool = False


@dataclass(frozen=True, slots=True)
class RecalledSession:
    """One line of sessions with a hit: the session of the best hit, the messages around it, its first and its
    last ones. ``first`` and ``last`` do not repeat ``messages``. ``hits`` counts the examined hits of the
    whole line."""

    session: str
    title: str
    at: float
    hits: int
    messages: tuple[RecalledMessage, ...]
    first: tuple[RecalledMessage, ...]
    last: tuple[RecalledMessage, ...]


@dataclass(frozen=True, slots=True)
class SessionRecall:
    """A search result, best line first. ``relaxed``: no message has all the words; these have some. ``more``:
    other lines have hits too. ``waiting``: messages that are not indexed yet."""

    lines: tuple[RecalledSession, ...]
    relaxed: bool = False
    more: bool = False
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Around:
    """An excerpt of a session. ``before`` and ``after``: the number of its messages not shown on either
    side."""

    session: str
    title: str
    messages: tuple[RecalledMessage, ...]
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Recent:
    """One session of a list; ``asked`` is the message of its first turn, ``at`` the time of its last use."""

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
) -> SessionRecall:
    """Return the lines of sessions that match ``text`` best, among the newest hits. ``current`` is the
    calling session."""
    among = Among(roles=roles, days=days, without=_own(database, current))
    found = search(database, text, among, limit=10_000, seconds=CATCH_UP)
    lines: dict[str, list[SearchHit]] = {}
    for hit in found.hits:
        lines.setdefault(hit.lineage, []).append(hit)
    chosen = list(lines.values())[: _within(limit, 1, MOST)]
    with database.reading() as c:
        recalled = tuple(_recall(c, hits, text, _within(window, 0, WIDEST)) for hits in chosen)
    return SessionRecall(recalled, found.relaxed, len(lines) > len(chosen) or found.more, found.waiting)


def around(database: Database, message: int, window: int = WINDOW) -> Around:
    """Return the messages before and after a hit, to read on. Raises ``ConfigError`` for an unknown id."""
    sql = (
        "SELECT session, title, number FROM messages m JOIN sessions s ON s.id = m.session WHERE m.id = ? AND"
        " s.kind != 'child'"
    )
    found = database.select(sql, message)
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
    """Return the most recently used sessions, newest first."""
    rows = database.select(
        "SELECT s.id, s.title, s.touched, s.turns,"
        " COALESCE((SELECT asked FROM turns t WHERE t.session = s.id ORDER BY number LIMIT 1), ''), s.model"
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


def _recall(c: SqlConnection, hits: Sequence[SearchHit], text: str, window: int) -> RecalledSession:
    best = hits[0]
    near = messages_around(c, best.session, best.number, window, CLIP, text)
    shown = {one.id for one in near}
    ends = []
    for order in ("ASC", "DESC"):
        at_end = read_messages(
            c, f"m.session = ? ORDER BY m.number {order} LIMIT {ENDS}", (best.session,), CLIP
        )
        ends.append([one for one in at_end if one.id not in shown])
        shown |= {one.id for one in at_end}
    return RecalledSession(
        best.session, best.title, best.at, len(hits), tuple(near), tuple(ends[0]), tuple(reversed(ends[1]))
    )


def read_messages(
    c: SqlConnection, where: str, values: tuple[Any, ...], clip: int, text: str = ""
) -> list[RecalledMessage]:
    """Return the messages for which the condition ``where`` holds, each of at most ``clip`` characters: the
    passage that matches ``text`` if given, else the beginning and the end. ``where`` may end with an order
    and a limit."""
    rows = c.execute(
        f"SELECT m.id, m.role, m.at, {STANDING}, m.body, m.body_crc {FROM} WHERE {KEPT} AND {where}", values
    ).fetchall()
    found = []
    for message, role, at, standing, *body in rows:
        row = loads(*body)
        shown = _clip(plain_text(row), text, clip)
        found.append(RecalledMessage(message, role, at, shown, "summary" if row.get("summary") else standing))
    return found


def messages_around(
    c: SqlConnection, session: str, number: int, window: int, clip: int, text: str = "", where: str = "1 = 1"
) -> list[RecalledMessage]:
    """Return the message of this number in the session with at most ``window`` messages before and after it,
    in order, as far as the condition ``where`` holds for them. ``text`` is the search text, if any."""
    place = f"m.session = ? AND {where} AND m.number"
    before = read_messages(c, f"{place} < ? ORDER BY m.number DESC LIMIT ?", (session, number, window), clip)
    found = read_messages(c, f"{place} = ?", (session, number), clip, text)
    after = read_messages(c, f"{place} > ? ORDER BY m.number LIMIT ?", (session, number, window), clip)
    return [*reversed(before), *(replace(one, hit=bool(text)) for one in found), *after]


def _clip(whole: str, text: str, clip: int) -> str:
    if len(whole) <= clip:
        return whole
    return snippet_of(whole, query_of(text), clip).marked("", "") if text else shorten(whole, clip)


# ----------------------------------------------------------------------------------------------------
# The messages that compactions took out of a session's transcript: a search by words, an excerpt around one
# of them, and their number.


MOST_MESSAGES = 20
"""Maximum messages in one answer."""
MESSAGE_CLIP = 4_000
"""Maximum characters shown of one message."""
_COMPACTED = f"{STANDING} = 'put aside' AND m.body NOT LIKE '%\"summary\":true%'"
_AMONG = "(SELECT value FROM json_each(?))"


def count_compacted(database: Database, session: str) -> int:
    """Return how many messages compactions took out of the session and the sessions that it continues."""
    with database.reading() as c:
        line = json.dumps(compaction_chain(c, session))
        query = f"SELECT COUNT(*) {FROM} WHERE m.session IN {_AMONG} AND {KEPT} AND {_COMPACTED}"
        return int(c.execute(query, (line,)).fetchone()[0])


def recall_by_words(database: Database, session: str, text: str, limit: int) -> list[RecalledMessage]:
    """Return the compacted messages that match ``text`` best, at most ``limit``. Raises ``StoreError`` when
    there is no full-text search."""
    with database.reading() as c:
        line = compaction_chain(c, session)
    hits = [
        hit
        for one in line
        for hit in search(database, text, Among(session=one), limit=200, seconds=CATCH_UP).hits
    ]
    ids = json.dumps([hit.id for hit in hits])
    with database.reading() as c:
        read = read_messages(c, f"m.id IN {_AMONG} AND {_COMPACTED}", (ids,), MESSAGE_CLIP, text)
    known = {one.id: replace(one, standing="") for one in read}
    best = sorted((hit for hit in hits if hit.id in known), key=lambda hit: hit.score, reverse=True)
    return [known[hit.id] for hit in best[:limit]]


def recall_around(database: Database, session: str, message: int, window: int) -> list[RecalledMessage]:
    """Return the message of this id with ``window`` more on each side in its session, in order; empty unless
    a compaction took it out of this conversation."""
    with database.reading() as c:
        found = c.execute("SELECT session, number FROM messages WHERE id = ?", (message,)).fetchone()
        if found is None or found[0] not in compaction_chain(c, session):
            return []
        near = messages_around(c, found[0], found[1], window, MESSAGE_CLIP, where=_COMPACTED)
    if all(one.id != message for one in near):
        return []
    return [replace(one, standing="") for one in near]


# ----------------------------------------------------------------------------------------------------
# The tools.


class Recollection:
    """The sessions of one home."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def session_search(
        self,
        query: Annotated[str, Field(max_length=2_000)] = "",
        message: int | None = None,
        limit: Annotated[int, Field(ge=1, le=MOST)] = LIMIT,
        window: Annotated[int, Field(ge=0, le=WIDEST)] = WINDOW,
        roles: list[Literal["user", "assistant", "tool"]] | None = None,
        days: Annotated[float | None, Field(gt=0, lt=100_000)] = None,
    ) -> dict[str, Any]:
        """Look into earlier sessions with this person: what was said, decided and done. The present one is
        left out.

        With query, the sessions that fit best, each with the messages around the best hit and its first and
        last ones. With message, more of the conversation around one message. With neither, the most recent
        sessions.

        Args:
            query: Words to look for; "quoted words" must be adjacent.
            message: The id of a message that an earlier search gave.
            limit: How many sessions.
            window: How many messages on each side of a hit.
            roles: Only messages of these.
            days: Only the last days: 7 for a week.
        """
        database, current = self._store.database, here().session.id
        try:
            if message is not None:
                return _object(around(database, message, window))
            if query.strip():
                found = by_words(
                    database, query, current, limit=limit, window=window, roles=roles or (), days=days
                )
                return _object(found)
            return {"sessions": [plain(asdict(one)) for one in recent(database, current, limit)]}
        except (ConfigError, StoreError) as error:
            raise ToolFailure(str(error)) from None


def recall_tool(store: Store) -> Tool:
    """Make ``session_search`` over a store."""
    return tool(concurrency="parallel", effect="pure")(Recollection(store).session_search)


def _object(answer: Around | SessionRecall) -> dict[str, Any]:
    return {name: plain(value) for name, value in asdict(answer).items() if value not in ("", None, False)}


def plain(value: Any) -> Any:
    """Format times for reading and drop empty and false values: a model pays for every word."""
    if isinstance(value, dict):
        return {
            key: datetime.fromtimestamp(one, UTC).strftime("%Y-%m-%d %H:%M UTC")
            if key == "at"
            else plain(one)
            for key, one in value.items()
            if one not in ("", None, False) and not (key == "standing" and one == "current")
        }
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


# ----------------------------------------------------------------------------------------------------
# What compactions took out of the conversation, for its model (AGT-10). It asks no model.
#
# A compaction sets rows aside and never deletes them, so the exact words behind a summary can be recovered.
# ``session_search`` searches all other sessions.


NAME = "look_back"


class LookingBack:
    """The calling session and its ancestors."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def look_back(
        self,
        query: Annotated[str, Field(max_length=2_000)] = "",
        message: int | None = None,
        limit: Annotated[int, Field(ge=1, le=MOST_MESSAGES)] = 5,
        window: Annotated[int, Field(ge=0, le=WIDEST)] = 2,
    ) -> dict[str, Any]:
        """Look into what was taken out of this conversation when it became too long, and is now only summed
        up in it.

        With query, the messages that fit best, word for word. With message, more of the conversation around
        one of them. With neither, how much there is. Use it before you ask the person for something that was
        said already.

        Args:
            query: Words to look for; "quoted words" must be adjacent.
            message: The id of a message that an earlier search gave.
            limit: How many messages a search gives.
            window: How many messages on each side of the one that message names.
        """
        database, session = self._store.database, here().session.id
        try:
            if message is not None:
                found = recall_around(database, session, message, window)
                if not found:
                    raise ToolFailure(f"Message {message} was not taken out of this conversation.")
                return {"messages": [plain(asdict(one)) for one in found]}
            if query.strip():
                return {
                    "messages": [
                        plain(asdict(one)) for one in recall_by_words(database, session, query, limit)
                    ]
                }
            return {"taken_out": count_compacted(database, session)}
        except StoreError as error:
            raise ToolFailure(str(error)) from None


def lookback_tool(store: Store) -> Tool:
    """Make ``look_back`` over a store."""
    return tool(concurrency="parallel", effect="pure")(LookingBack(store).look_back)
