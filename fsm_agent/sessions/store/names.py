"""Sessions and turns by what people call them: an id, the beginning of one, or a title (SESS-08)."""

from __future__ import annotations

from typing import Literal

from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store.journal.read import TurnInfo, Turns
from fsm_agent.sessions.store.store import Store

SHOWN = 5
"""Candidates named when several fit."""


def find_session(store: Store, name: str) -> str:
    """The id of the session that ``name`` means. Raises ``ConfigError`` for none or several."""
    with store.database.reading() as c:
        for where in ("id = ?", "title = ? ORDER BY touched DESC"):
            if row := c.execute(f"SELECT id FROM sessions WHERE {where}", (name,)).fetchone():  # noqa: S608 - ours
                return str(row[0])
        begins = c.execute(
            "SELECT id FROM sessions WHERE substr(id, 1, ?) = ? ORDER BY touched DESC", (len(name), name)
        ).fetchall()
        begins = (
            begins
            or c.execute(
                "SELECT id FROM sessions WHERE substr(title, 1, ?) = ? ORDER BY touched DESC", (len(name), name)
            ).fetchall()
        )
        newest = c.execute("SELECT id FROM sessions ORDER BY touched DESC LIMIT ?", (SHOWN,)).fetchall()
    if not name or not begins:
        raise ConfigError("no such session", name, "an id, its beginning, or a title; the newest: " + _listed(newest))
    if len(begins) > 1:
        begins = _going_on(store, begins)
    if len(begins) > 1:
        raise ConfigError(f"{len(begins)} sessions begin so", name, _listed(begins))
    return str(begins[0][0])


def find_turn(store: Store, name: str) -> TurnInfo:
    """The unfinished turn that ``name`` means: a turn, or the newest one of a session. Raises ``ConfigError``."""
    turns = Turns(store.database)
    with store.database.reading() as c:
        found = c.execute("SELECT id FROM turns WHERE substr(id, 1, ?) = ? ORDER BY id", (len(name), name)).fetchall()
    exact = [row[0] for row in found if row[0] == name]
    if exact or (len(found) == 1 and name):
        return _unfinished(turns.info(exact[0] if exact else found[0][0]))
    session = store.newest(find_session(store, name))
    newest = turns.recent(1, session.id)
    if not newest:
        raise ConfigError("nothing to resume: the session has no turns", session.id)
    return _unfinished(newest[0])


def one_of(store: Store, name: str) -> tuple[Literal["session", "turn"], str]:
    """A session or a turn, ended or not. Raises ``ConfigError`` for none or several."""
    with store.database.reading() as c:
        if c.execute("SELECT 1 FROM turns WHERE id = ?", (name,)).fetchone():
            return "turn", name
        found = c.execute("SELECT id FROM turns WHERE substr(id, 1, ?) = ? ORDER BY id", (len(name), name)).fetchall()
    try:
        return "session", find_session(store, name)
    except ConfigError:
        if not name or len(found) != 1:
            raise
    return "turn", str(found[0][0])


def any_turn(store: Store, name: str) -> str:
    """The id of a turn, ended or not: by its id, the beginning of one, or its session, whose newest it is then."""
    kind, found = one_of(store, name)
    if kind == "turn":
        return found
    newest = Turns(store.database).recent(1, store.newest(found).id)
    if not newest:
        raise ConfigError("the session has no turns", found)
    return newest[0].id


def _going_on(store: Store, found: list[tuple[str]]) -> list[tuple[str]]:
    """Without those that went on as another session by compaction, when that leaves one."""
    with store.database.reading() as c:
        ended = {row[0] for row in c.execute("SELECT id FROM sessions WHERE successor IS NOT NULL")}
    left = [row for row in found if row[0] not in ended]
    return left if len(left) == 1 else found


def _unfinished(turn: TurnInfo) -> TurnInfo:
    if turn.ended is not None:
        raise ConfigError(
            f"nothing to resume: the turn ended with {turn.exit}",
            turn.id,
            "an unfinished turn; go on with a new message, or fork it",
        )
    return turn


def _listed(rows: list[tuple[str]]) -> str:
    names = [row[0] for row in rows[:SHOWN]]
    return ", ".join(names) + (", …" if len(rows) > SHOWN else "") if names else "none yet"
