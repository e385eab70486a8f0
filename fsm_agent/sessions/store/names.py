"""What sessions are called, and which session or turn a name means (SESS-08)."""

from __future__ import annotations

import json
from typing import Any, Literal

from fsm_agent.errors import ConfigError
from fsm_agent.sessions import Session
from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns
from fsm_agent.sessions.store.rows import count_revision, first_user_words
from fsm_agent.sessions.store.store import Store
from fsm_agent.support.redaction import mask

SHOWN = 5
"""Candidates named when several fit."""
AUTOMATIC = 48
"""Characters of a title that is made of a message."""
LONGEST = 120
"""Characters of a title that a person gives."""
NUMBERED = 9
"""Sessions with the same beginning that are distinguished by a number; the rest use a part of their id."""


def find_session(store: Store, name: str) -> str:
    """Return the id of the session that ``name`` means: an id, a title, or the beginning of one. Raises
    ``ConfigError`` when it matches no session or several."""
    query = store.database.select
    for where in (
        "id = ?",
        "title = ?",
        "substr(id, 1, length(?)) = ?",
        "substr(title, 1, length(?)) = ?",
    ):
        sql = f"SELECT id, successor FROM sessions WHERE {where} ORDER BY touched DESC"  # noqa: S608
        found = query(sql, *[name] * where.count("?"))
        if not found or not name:
            continue
        going_on = [
            row for row in found if row[1] is None
        ]  # the others went on as another session by compaction
        if where == "title = ?" or len(found) == 1:
            return str(found[0][0])
        if len(going_on) == 1:
            return str(going_on[0][0])
        raise ConfigError(f"{len(found)} sessions begin so", name, _list_matches(found))
    newest = query("SELECT id FROM sessions ORDER BY touched DESC LIMIT ?", SHOWN)
    raise ConfigError(
        "no such session", name, "an id, its beginning, or a title; the newest: " + _list_matches(newest)
    )


def find_turn(store: Store, name: str) -> TurnInfo:
    """Return the unfinished turn that ``name`` means: a turn, or the newest one of a session. Raises
    ``ConfigError``."""
    found = _turns_called(store, name)
    turn_id = (
        found[0] if len(found) == 1 else _newest(store, find_session(store, name), "nothing to resume: ")
    )
    turn = Turns(store.database).info(turn_id)
    if turn.ended is not None:
        possible = "an unfinished turn; continue with a new message, or fork it"
        raise ConfigError(f"nothing to resume: the turn ended with {turn.exit}", turn.id, possible)
    return turn


def one_of(store: Store, name: str) -> tuple[Literal["session", "turn"], str]:
    """Return what ``name`` means, and its id: a session or a turn, ended or not. Raises ``ConfigError``
    for none or several."""
    found = _turns_called(store, name)
    if found == [name]:
        return "turn", name
    try:
        return "session", find_session(store, name)
    except ConfigError:
        if len(found) != 1:
            raise
    return "turn", found[0]


def any_turn(store: Store, name: str) -> str:
    """Return the id of the turn that ``name`` means, ended or not: a turn, or the newest one of a session.
    Raises ``ConfigError``."""
    kind, found = one_of(store, name)
    return found if kind == "turn" else _newest(store, found)


def _turns_called(store: Store, name: str) -> list[str]:
    """The turn of this id, else those whose ids begin so."""
    query = "SELECT id FROM turns WHERE substr(id, 1, length(?)) = ? ORDER BY id"
    ids = [turn_id for (turn_id,) in store.database.select(query, name, name)] if name else []
    return [name] if name in ids else ids


def _newest(store: Store, session_id: str, purpose: str = "") -> str:
    session = store.newest(session_id)
    newest = Turns(store.database).recent(1, session.id)
    if not newest:
        raise ConfigError(f"{purpose}the session has no turns", session.id)
    return newest[0].id


def _list_matches(rows: list[tuple[Any, ...]]) -> str:
    names = [row[0] for row in rows[:SHOWN]]
    return ", ".join(names) + (", …" if len(rows) > SHOWN else "") if names else "none yet"


def name_after(store: Store, session: Session, content: Any) -> None:
    """Give a session without a title the first words of its first message, or of ``content``, which is
    asked now."""
    if session.title:
        return
    first = next((row.content for row in session.rows if row.role == "user"), content)
    if words := first_words(first):
        with store.database.reading() as c:
            session.title = free_title(c, words, session.id)


def is_automatic(store: Store, session_id: str) -> bool:
    """Say whether a session is still called after its first words, without a title of its own."""
    session = store.session(session_id)
    first = next((row.content for row in session.rows if row.role == "user"), None)
    words = first_words(first)
    return bool(words) and session.title.startswith(words)


def first_words(content: Any) -> str:
    """Return as many whole words as fit into a title of ``AUTOMATIC`` characters; keys are masked."""
    text = _printable(mask(first_user_words(content)))
    if len(text) <= AUTOMATIC:
        return text
    head, blank, _ = text[: AUTOMATIC + 1].rpartition(" ")
    return (head if blank else text[:AUTOMATIC]).rstrip(" ,;:-–")


def free_title(c: SqlConnection, title: str, session_id: str) -> str:
    """Return the title, or one like it that no session has: ``words (2)``."""
    tries = [title, *(f"{title} ({number})" for number in range(2, NUMBERED + 1))]
    same = "SELECT title FROM sessions WHERE title IN (SELECT value FROM json_each(?))"
    taken = {row[0] for row in c.execute(same, (json.dumps(tries),))}
    return next((one for one in tries if one not in taken), f"{title} ({session_id[-6:]})")


def rename(store: Store, session_id: str, title: str) -> str:
    """Give a session another title, and return it with its blanks tidied. Raises ``ConfigError`` for one
    that is empty, too long, or taken."""
    words = _printable(" ".join(title.split()))
    if not 0 < len(words) <= LONGEST:
        raise ConfigError("a session cannot be called so", title, f"a title of 1 to {LONGEST} characters")

    def write(c: SqlConnection) -> None:
        same = "SELECT id FROM sessions WHERE ? IN (title, id) AND id != ?"
        if (other := c.execute(same, (words, session_id)).fetchone()) is not None:
            raise ConfigError(
                "another session is called so",
                words,
                f"a title that no session has; this one is {other[0]}'s",
            )
        if c.execute("UPDATE sessions SET title = ? WHERE id = ?", (words, session_id)).rowcount == 0:
            raise ConfigError(
                "a session gets its title with its first turn", session_id, "a session that had a turn"
            )
        count_revision(c, session_id)

    store.database.write(write)
    return words


def _printable(text: str) -> str:
    return "".join(character for character in text if character.isprintable()).strip()
