"""What sessions are called: by their users, or by the first words of what was asked."""

from __future__ import annotations

import sqlite3
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store.rows import asked_words, changed
from fsm_agent.sessions.store.store import Store
from fsm_agent.support.redaction import mask

AUTOMATIC = 48
"""Characters of a title that is made of somebody's words."""
LONGEST = 120
"""Characters of a title that somebody gives."""
NUMBERED = 9
"""Sessions that begin alike and are told apart by a number; the rest by a part of their id."""


def name_after(store: Store, session: Session, content: Any) -> None:
    """Give a session without a title the first words of its first message; ``content`` is what is asked now."""
    if session.title:
        return
    first = next((row.content for row in session.rows if row.role == "user"), content)
    if words := first_words(first):
        with store.database.reading() as c:
            session.title = free_title(c, words, session.id)


def first_words(content: Any) -> str:
    """As many whole words as fit into a title; keys are masked."""
    text = _printable(mask(asked_words(content)))
    if len(text) <= AUTOMATIC:
        return text
    head, blank, _ = text[: AUTOMATIC + 1].rpartition(" ")
    return (head if blank else text[:AUTOMATIC]).rstrip(" ,;:-–")


def free_title(c: sqlite3.Connection, title: str, session_id: str) -> str:
    """The title, or one like it that no session has: ``words (2)``."""
    tries = [title, *(f"{title} ({number})" for number in range(2, NUMBERED + 1))]
    marks = ", ".join("?" * len(tries))
    taken = {row[0] for row in c.execute(f"SELECT title FROM sessions WHERE title IN ({marks})", tries)}  # noqa: S608
    return next((one for one in tries if one not in taken), f"{title} ({session_id[-6:]})")


def rename(store: Store, session_id: str, title: str) -> str:
    """Give a session another title; what it is now. Raises ``ConfigError`` for one that is empty, too long, or taken."""
    words = _printable(" ".join(title.split()))
    if not 0 < len(words) <= LONGEST:
        raise ConfigError("a session cannot be called so", title, f"a title of 1 to {LONGEST} characters")
    session = store.session(session_id)

    def write(c: sqlite3.Connection) -> None:
        other = c.execute(
            "SELECT id FROM sessions WHERE (title = ? OR id = ?) AND id != ?", (words, words, session_id)
        ).fetchone()
        if other is not None:
            raise ConfigError("another session is called so", words, f"a title that no session has; this one is {other[0]}'s")
        if c.execute("UPDATE sessions SET title = ? WHERE id = ?", (words, session_id)).rowcount == 0:
            raise ConfigError("a session gets its title with its first turn", session_id, "a session that had a turn")
        changed(c, session_id)

    store.database.write(write)
    session.title = words
    return words


def _printable(text: str) -> str:
    return "".join(character for character in text if character.isprintable()).strip()
