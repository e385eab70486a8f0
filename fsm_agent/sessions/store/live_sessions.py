"""Live copies of the sessions of one home: each is read from the database once, and again when somebody
changed it. (Why: decision 70.)"""

from __future__ import annotations

import logging
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.wire import WireCopy
from fsm_agent.runtime.budget import IterationBudget, Reservations
from fsm_agent.sessions.remote_commands import CommandPoller
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store.database import Database, Durability
from fsm_agent.sessions.store.fence import Fences, Owners
from fsm_agent.sessions.store.health import FILE
from fsm_agent.sessions.store.postgres.opening import database_at, owners_of
from fsm_agent.sessions.store.rows import (
    GUARD,
    METER,
    PROMPTS,
    USAGE,
    loads,
    message_of,
    newest_number,
    newest_of,
    transcript,
)
from fsm_agent.sessions.store.sqlite import SqliteDatabase

log = logging.getLogger(__name__)

Opened = Callable[[Path, Durability], Database]


class LiveSessions:
    """Holds one object for each session in use, for all who use it in this process. ``pause_points``: the
    turns of the home that run in this process, ``fences`` their right to write. ``at_work``: children in the
    background by their session, so that two agents never work on one; changed on the engine's loop only.
    ``trees``: the budgets of turns that have children, by the turn's id, as long as one of the tree is at
    work. ``reservations``: what requests that are under way may take of limits that turns share."""

    def __init__(
        self,
        home: Path,
        durability: Durability = "full",
        opened: Opened = SqliteDatabase,
        now: Callable[[], float] = time.time,
        database_url: str | None = None,
    ) -> None:
        self.home, self.now = home, now
        self._opened, self._durability, self._url = opened, durability, database_url
        self.fences = Fences()
        self._sessions: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
        self._unsaved: dict[str, Sequence[Session]] = {}
        self.pause_points = CommandPoller(self)
        self.at_work: dict[str, Any] = {}
        self.trees: weakref.WeakValueDictionary[str, IterationBudget] = weakref.WeakValueDictionary()
        self.reservations = Reservations()
        self._lock = threading.Lock()

    @cached_property
    def database(self) -> Database:
        """The database of the home, made and opened when it is first needed."""
        if self._url is None:
            return self._opened(self.home / FILE, self._durability)
        return database_at(self._url)

    @cached_property
    def owners(self) -> Owners:
        """The processes that run turns of the home."""
        if self._url is None:
            return Owners(self.home)
        return owners_of(weakref.ref(self))

    def session(self, session_id: str) -> Session:
        """Return the live copy of a session, or a new session when the database has none of this id. It
        lives as long as somebody holds it, and is read again when another process wrote to it."""
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                session = self._sessions[session_id] = Session(session_id)
                self.refresh(session)
            elif session.idle and self._revision(session_id) not in (None, session.revision):
                self.refresh(session)
        return session

    def session_of(self, turn_id: str, session_id: str) -> Session:
        """Return the session of a turn that was claimed here. An earlier attempt of this process at the turn
        keeps the live copy that it has; nobody else is given that any more."""
        with self._lock:
            held = self._sessions.get(session_id)
            if held is not None and held.holder == turn_id:
                del self._sessions[session_id]
        return self.session(session_id)

    def new_session(self) -> Session:
        """Return a session with an id of its own. Nothing is read for it."""
        session = Session(f"s-{uuid.uuid4().hex[:12]}")
        with self._lock:
            self._sessions[session.id] = session
        return session

    def newest(self, session_id: str) -> Session:
        """Return the session that goes on after compactions (SESS-07), however many there were."""
        session = self.session(session_id).newest()
        if self._only_here(session) and session.parent is not None:
            return self.newest(session.parent)
        with self.database.reading() as c:
            last = newest_of(c, session.id)
        return session if last == session.id else self.newest(last)

    def _only_here(self, session: Session) -> bool:
        """Was the session made by a compaction whose turn was taken over before it was stored? Nobody goes on
        in it."""
        return session.kind == "compression" and session.idle and self._revision(session.id) is None

    def _revision(self, session_id: str) -> int | None:
        rows = self.database.select("SELECT revision FROM sessions WHERE id = ?", session_id)
        return rows[0][0] if rows else None

    def refresh(self, session: Session) -> None:
        """Read the session from the database again, into the same object; what the copy said before is
        dropped."""
        if session.unsaved:
            log.warning(
                "session %s was changed by another process; what could not be saved of it before is lost",
                session.id,
            )
            self._saved(session)
        with self.database.reading() as c:
            row = c.execute(
                "SELECT version, revision, turns, title, kind, parent, end_reason, source, prompts,"
                " prompts_crc, meter, meter_crc, guard, guard_crc, usage, usage_crc FROM sessions"
                " WHERE id = ?",
                (session.id,),
            ).fetchone()
            if row is None:  # nothing of it was ever stored
                session.forget()
                return
            rows = transcript(c, session.id, row[0])
            last = newest_number(c, session.id)
        session.version, session.revision, session.turns = row[:3]
        session.title, session.kind, session.parent, session.end_reason, session.source = row[3:8]
        session.prompts = PROMPTS.decode(loads(*row[8:10]))
        _copy(METER.decode(loads(*row[10:12])), session.meter)
        _copy(GUARD.decode(loads(*row[12:14])), session.guard)
        session.usage = USAGE.decode(loads(*row[14:]))
        session.numbers = {message_of(body): number for number, body in rows}
        session.rows = list(session.numbers)
        session.next_number = last + 1
        session.wire, session.unwritten = WireCopy(), []
        session.successor = None  # what it went on as only in this copy; ``newest`` follows what is stored

    def archived(self, session_id: str) -> list[Message]:
        """Return the messages that compactions and undos put aside, oldest first."""
        sql = "SELECT body, body_crc FROM messages WHERE session = ? AND active = 0 ORDER BY number"
        return [message_of(*row) for row in self.database.select(sql, session_id)]

    def _saved(self, session: Session) -> None:
        session.unsaved = []
        self._unsaved.pop(session.id, None)

    def keep(self, line: Sequence[Session]) -> None:
        """Hold on to a session with writes that the database did not take, and to those that it goes on from,
        until its next turn has saved them."""
        if line[-1].unsaved:
            self._unsaved[line[-1].id] = line


def _copy(source: Any, target: Any) -> None:
    """The fields of one slotted dataclass into another of its kind, which others hold."""
    for name in type(source).__slots__:
        setattr(target, name, getattr(source, name))
