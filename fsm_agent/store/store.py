"""All sessions of one home: live copies of those in use, everything else in the database."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fsm_agent.codec import dumps
from fsm_agent.errors import JournalError, SessionBusy
from fsm_agent.messages import Message
from fsm_agent.sessions import Note, Session
from fsm_agent.store.abandoned import close_out, give_up, open_turns
from fsm_agent.store.database import Database, Durability, Job
from fsm_agent.store.owners import Owners
from fsm_agent.store.read import TurnInfo
from fsm_agent.store.rows import (
    GUARD,
    METER,
    PROMPTS,
    USAGE,
    Kept,
    asked_words,
    insert_session,
    message_of,
    transcript,
    write_notes,
)
from fsm_agent.wire import WireCopy

FILE = "sessions.db"
DEPTH = 32
"""Sessions that continue each other, at most (SESS-07)."""
Opened = Callable[[Path, Durability], Database]


@dataclass(frozen=True, slots=True)
class Begun:
    """How a turn got its session: ``epoch`` fences it; ``abandoned`` names a turn that was left unfinished in it and is given
    up now."""

    epoch: int
    abandoned: str | None = None


class _StaleError(Exception):
    """Another process wrote to the session since it was read."""


class Store:
    """Raises ``StoreError`` when the file cannot be used, and ``SessionBusy`` for a session that another turn holds."""

    def __init__(
        self,
        home: Path,
        durability: Durability = "full",
        opened: Opened = Database,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.home, self.now = home, now
        self._opened, self._durability = opened, durability
        self.owners = Owners(home)
        self._sessions: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
        self._unsaved: dict[str, Session] = {}
        self._lock = threading.Lock()

    @cached_property
    def database(self) -> Database:
        """Opened, and made, when it is first needed."""
        return self._opened(self.home / FILE, self._durability)

    # Sessions

    def session(self, session_id: str) -> Session:
        """The live copy, which lives as long as somebody holds it (an agent holds its own); a new one when the database does not
        know it. One that another process wrote to is read again."""
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                session = self._sessions[session_id] = Session(session_id)
                self.refresh(session)
            elif session.holder is None and not session.unsaved and self._revision(session_id) not in (None, session.revision):
                self.refresh(session)
        return session

    def newest(self, session_id: str) -> Session:
        """The session that goes on after compactions (SESS-07)."""
        session = self.session(session_id)
        for _ in range(DEPTH):
            successor = session.successor or self._successor(session.id)
            if successor is None:
                break
            session.successor = session.successor or (successor if isinstance(successor, Session) else self.session(successor))
            session = session.successor
        return session

    def _successor(self, session_id: str) -> str | None:
        with self.database.reading() as c:
            row = c.execute("SELECT successor FROM sessions WHERE id = ?", (session_id,)).fetchone()
        return row[0] if row else None

    def _revision(self, session_id: str) -> int | None:
        with self.database.reading() as c:
            row = c.execute("SELECT revision FROM sessions WHERE id = ?", (session_id,)).fetchone()
        return row[0] if row else None

    def refresh(self, session: Session) -> None:
        """Read the session as the database has it; the live copy stays the same object."""
        with self.database.reading() as c:
            row = c.execute(
                "SELECT version, revision, turns, prompts, meter, guard, usage, title, kind, parent, end_reason, source"
                " FROM sessions WHERE id = ?",
                (session.id,),
            ).fetchone()
            if row is None:
                return
            rows = transcript(c, session.id, row[0])
            last = c.execute("SELECT MAX(number) FROM messages WHERE session = ?", (session.id,)).fetchone()[0]
        session.version, session.revision, session.turns = row[:3]
        session.prompts = PROMPTS.decode(json.loads(row[3]))
        _copy(METER.decode(json.loads(row[4])), session.meter)
        _copy(GUARD.decode(json.loads(row[5])), session.guard)
        session.usage = USAGE.decode(json.loads(row[6]))
        session.title, session.kind, session.parent, session.end_reason, session.source = row[7:]
        session.numbers = {message_of(body): number for number, body in rows}
        session.rows = list(session.numbers)
        session.next_number = (last or 0) + 1
        session.wire, session.unwritten = WireCopy(), []

    def archived(self, session_id: str) -> list[Message]:
        """Rows that compactions and undos put aside."""
        with self.database.reading() as c:
            rows = c.execute(
                "SELECT body FROM messages WHERE session = ? AND active = 0 ORDER BY number", (session_id,)
            ).fetchall()
        return [message_of(body) for (body,) in rows]

    # Turns

    async def begin(
        self, session: Session, turn: Any, start: Callable[[], dict[str, Any]], digest: str, parent: str | None = None
    ) -> Begun:
        """Write a new turn and hold its session for it. ``start`` gives its snapshot for the session as it is then; ``parent`` is
        the turn that delegated it."""
        abandoned = await self._clear(session)
        while True:
            try:
                return await self._begin(session, turn, start(), digest, parent, abandoned)
            except _StaleError:
                self.refresh(session)

    async def _begin(
        self, session: Session, turn: Any, start: dict[str, Any], digest: str, parent: str | None, abandoned: str | None
    ) -> Begun:
        unsaved, at = list(session.unsaved), self.now()
        given = start.pop("supplied_history", None)
        values = (
            turn.turn_id, session.id, parent, asked_words(turn.user_content), turn.state, turn.seq, self.owners.me, digest,
            dumps(turn.settings.model_dump(mode="json")), dumps(start), at, at,
        )  # fmt: skip

        def begin(c: sqlite3.Connection) -> None:
            for job in unsaved:
                job(c)
            if self._hold(c, session, turn.turn_id, at) != session.revision:
                raise _StaleError
            c.execute(
                "INSERT INTO turns (id, session, parent, asked, state, seq, owner, digest, settings, start, began, moved)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            if given is not None:
                c.execute("INSERT INTO given VALUES (?, ?)", (turn.turn_id, dumps(given)))

        try:
            await self.written(begin)
        except JournalError as error:  # what could not be saved is of a turn that another process has given up
            session.unsaved = []
            raise _StaleError from error
        session.unsaved = []
        self._unsaved.pop(session.id, None)
        session.revision, session.owner = session.revision + 1, self.owners.me
        return Begun(1, abandoned)

    def keep(self, session: Session) -> None:
        """Hold a session with writes that the database did not take, until its next turn has saved them."""
        if session.unsaved:
            self._unsaved[session.id] = session

    async def _clear(self, session: Session) -> str | None:
        """Give up the turns of the session that nobody runs any more, and close what they left open in its transcript."""
        while not session.unsaved:
            with self.database.reading() as c:
                found = open_turns(c, session.id)
            if not found:
                return None
            await self.written(lambda c: None)  # rows that a cancelled turn of this process handed over, and nobody waited for
            self.refresh(session)
            with self.database.reading() as c:
                for turn_id, _ in found:
                    close_out(c, session, turn_id)
            notes, session.unwritten = session.unwritten, []
            with contextlib.suppress(_StaleError):
                await self.written(self._giving_up(session, found, notes, self.now()))
                session.revision += 1
                return found[-1][0]
        return None

    def _giving_up(self, session: Session, found: list[tuple[str, str | None]], notes: list[Note], at: float) -> Job:
        def write(c: sqlite3.Connection) -> None:
            for turn_id, owner in found:
                self._refuse_if_alive(session.id, turn_id, owner)
            revision = c.execute("SELECT revision FROM sessions WHERE id = ?", (session.id,)).fetchone()[0]
            if open_turns(c, session.id) != found or revision != session.revision:
                raise _StaleError
            give_up(c, [turn_id for turn_id, _ in found], at)
            write_notes(c, session, notes, None, at)
            c.execute("UPDATE sessions SET holder = NULL, owner = NULL, revision = revision + 1 WHERE id = ?", (session.id,))

        return write

    def _hold(self, c: sqlite3.Connection, session: Session, turn_id: str, at: float) -> int:
        """Make ``turn_id`` the holder, if nobody alive is. The revision before."""
        row = c.execute("SELECT holder, owner, revision FROM sessions WHERE id = ?", (session.id,)).fetchone()
        if row is None:
            insert_session(c, session, at)
        holder, owner, revision = row or (None, None, 0)
        if holder not in (None, turn_id):
            self._refuse_if_alive(session.id, holder, owner)
        c.execute(
            "UPDATE sessions SET holder = ?, owner = ?, revision = ?, touched = ? WHERE id = ?",
            (turn_id, self.owners.me, revision + 1, at, session.id),
        )
        return int(revision)

    def _refuse_if_alive(self, session_id: str, holder: str, owner: str | None) -> None:
        if owner == self.owners.me:
            return  # ours, and no live copy holds it: the turn was dropped
        if (who := self.owners.alive(owner)) is not None:
            since = time.strftime("%H:%M:%S", time.localtime(who["since"]))
            raise SessionBusy(
                f"session {session_id} is busy: turn {holder} is running in process {who['pid']} on {who['host']}"
                f" (up since {since}); wait for it, or stop that process and resume the turn"
            )

    def refuse_if_run(self, turn: TurnInfo) -> None:
        """Raise ``SessionBusy`` when a living process runs this turn."""
        if turn.owner is not None:
            self._refuse_if_alive(turn.session, turn.id, turn.owner)

    async def take_over(self, session: Session, turn: TurnInfo, version: int, newest: int) -> Begun:
        """Make this process the owner of an unfinished turn. Rows that came after its last move are put aside: the visit that
        wrote them is run again. Raises ``SessionBusy`` while its owner lives."""
        at, turn_id = self.now(), turn.id

        def take(c: sqlite3.Connection) -> int:
            owner, seq, ended = c.execute("SELECT owner, seq, ended FROM turns WHERE id = ?", (turn_id,)).fetchone()
            self._refuse_if_alive(session.id, turn_id, owner)
            if seq != turn.seq or ended is not None:
                raise JournalError(f"turn {turn_id} has moved since it was read; resume it again")
            self._hold(c, session, turn_id, at)
            c.execute("UPDATE messages SET active = 0, version = -1 WHERE session = ? AND number > ?", (session.id, newest))
            c.execute("DELETE FROM transcripts WHERE session = ? AND version > ?", (session.id, version))
            c.execute("UPDATE sessions SET version = ? WHERE id = ?", (version, session.id))
            c.execute("UPDATE turns SET owner = ?, epoch = epoch + 1 WHERE id = ?", (self.owners.me, turn_id))
            return int(c.execute("SELECT epoch FROM turns WHERE id = ?", (turn_id,)).fetchone()[0])

        epoch = await self.written(take)
        self.refresh(session)
        session.owner = self.owners.me
        return Begun(epoch)

    def let_go(self, session: Session, turn_id: str) -> None:
        """The turn is not run any further for now; nobody waits for this to be written."""
        self.database.submit(
            lambda c: c.execute("UPDATE sessions SET holder = NULL, owner = NULL WHERE holder = ?", (turn_id,)) and None
        )

    async def written(self, job: Job) -> Any:
        """The job's result, once it is committed."""
        return await asyncio.wrap_future(self.database.submit(job))

    async def hold(self, session: Session, holder: str) -> None:
        """Keep turns of other processes off the session."""
        revision = await self.written(lambda c: self._hold(c, session, holder, self.now()))
        if revision != session.revision:
            self.refresh(session)
        session.revision, session.owner = revision + 1, self.owners.me

    async def save(self, session: Session) -> None:
        """Write what was done to a session outside of a turn, into it and what it went on as."""
        at = self.now()
        line = [session]
        while line[-1].successor is not None:
            line.append(line[-1].successor)
        notes = [(one, one.unwritten) for one in line]
        for one in line:
            one.unwritten = []

        def write(c: sqlite3.Connection) -> None:
            for one, waiting in notes:
                write_notes(c, one, waiting, None, at)
                columns = Kept.of(one).columns()
                names = ", ".join(f"{name} = ?" for name in columns)
                c.execute(f"UPDATE sessions SET {names} WHERE id = ?", (*columns.values(), one.id))  # noqa: S608 - ours

        await self.written(write)

    def close(self) -> None:
        """Only for a store that nobody uses any more."""
        if "database" in self.__dict__:
            self.database.close()


def _copy(source: Any, target: Any) -> None:
    """The fields of one slotted dataclass into another of its kind, which others hold."""
    for name in type(source).__slots__:
        setattr(target, name, getattr(source, name))


_STORES: weakref.WeakValueDictionary[str, Store] = weakref.WeakValueDictionary()
_STORES_LOCK = threading.Lock()


def store_for(home: Path | str, durability: Durability = "full") -> Store:
    """The store of a home; agents of one process that name the same home share it, and with it their sessions."""
    with _STORES_LOCK:
        store = _STORES.get(str(home))
        if store is None:
            store = _STORES[str(home)] = Store(Path(home), durability)
        return store
