"""A stored message as an agent is shown it when it looks back: shortened, and with its neighbours."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from typing import Any, Literal

from fsm_agent.sessions.store.sealed import loads
from fsm_agent.sessions.store.search.messages import KEPT, STANDING, Standing
from fsm_agent.sessions.store.search.snippets import snippet_of
from fsm_agent.sessions.store.search.text_analysis import plain_text, query_of
from fsm_agent.support.texts import shorten

CATCH_UP = 2.0
"""Seconds that an agent waits for the index."""
WIDEST = 20
"""Messages that can be shown on each side of one."""
FROM = "FROM messages m JOIN sessions s ON s.id = m.session LEFT JOIN turns t ON t.id = m.turn"


@dataclass(frozen=True, slots=True)
class RecalledMessage:
    """One message. ``id`` names it in later searches, ``at`` is in seconds since the epoch, ``text`` is shortened;
    ``standing`` is empty where all that are shown stand alike. ``hit``: it is the one that was looked for."""

    id: int
    role: str
    at: float
    text: str
    standing: Standing | Literal[""] = ""
    hit: bool = False


def read_messages(c: sqlite3.Connection, where: str, values: tuple[Any, ...], clip: int, text: str = "") -> list[RecalledMessage]:
    """The messages of which the condition ``where`` is true, each of at most ``clip`` characters: the piece that
    answers ``text`` where it is given, else the beginning and the end. ``where`` may end with an order and a limit."""
    rows = c.execute(f"SELECT m.id, m.role, m.at, m.body, {STANDING} {FROM} WHERE {KEPT} AND {where}", values).fetchall()
    found = []
    for message, role, at, body, standing in rows:
        said = loads(body)
        shown = _clipped(plain_text(said), text, clip)
        found.append(RecalledMessage(message, role, at, shown, "summary" if said.get("summary") else standing))
    return found


def messages_around(
    c: sqlite3.Connection, session: str, number: int, window: int, clip: int, text: str = "", where: str = "1"
) -> list[RecalledMessage]:
    """The message of this number in the session with at most ``window`` before and behind it, in order, as far as the
    condition ``where`` is true of them. ``text`` is what it was found by, if it was."""
    place = f"m.session = ? AND {where} AND m.number"
    before = read_messages(c, f"{place} < ? ORDER BY m.number DESC LIMIT ?", (session, number, window), clip)
    found = read_messages(c, f"{place} = ?", (session, number), clip, text)
    after = read_messages(c, f"{place} > ? ORDER BY m.number LIMIT ?", (session, number, window), clip)
    return [*reversed(before), *(replace(one, hit=bool(text)) for one in found), *after]


def _clipped(whole: str, text: str, clip: int) -> str:
    if len(whole) <= clip:
        return whole
    return snippet_of(whole, query_of(text), clip).marked("", "") if text else shorten(whole, clip)
