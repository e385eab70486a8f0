"""All sessions of one home: live copies of those in use, everything else in the database."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.wire import WireCopy
from fsm_agent.errors import ConfigError, JournalError, SessionBusy
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store.database import Database, Durability, Job
from fsm_agent.sessions.store.journal.abandoned import close_out, give_up, open_turns
from fsm_agent.sessions.store.journal.read import TurnInfo
from fsm_agent.sessions.store.journal.recording import Recording
from fsm_agent.sessions.store.lineage import newest_of
from fsm_agent.sessions.store.owners import Owners
from fsm_agent.sessions.store.rows import (
    GUARD,
    METER,
    PROMPTS,
    USAGE,
    Kept,
    changed,
    insert_session,
    message_of,
    refuse_unless_ours,
    transcript,
    write_notes,
)
from fsm_agent.sessions.store.sealed import dumps, loads

log = logging.getLogger(__name__)

FILE = "sessions.db"
Opened = Callable[[Path, Durability], Database]


@dataclass(frozen=True, slots=True)
class Begun:
    """How a turn got its session: ``epoch`` fences it; ``abandoned`` names a turn that was left unfinished in
    it and is given up now; ``recording`` is what the journal had of a resumed turn's visit when it was
    claimed."""

    epoch: int
    abandoned: str | None = None
    recording: Recording | None = None


@dataclass(frozen=True, slots=True)
class NewTurn:
    """What is written of a turn when it begins, besides its snapshot. ``asked``: the words that name it in
    lists; ``table_name`` and ``digest`` of the table that moves it; ``settings`` as JSON values; ``parent``:
    the turn that delegated it."""

    asked: str
    table_name: str
    digest: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None


class _StaleError(Exception):
    """Another process wrote to the session since it was read."""


class _WentOnError(Exception):
    """Another process compacted the session into another one since it was read."""


class Store:
    """Raises ``StoreError`` when the file cannot be used, and ``SessionBusy`` for a session that another turn
    holds."""

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
        """The live copy, which lives as long as somebody holds it (an agent holds its own); a new one when
        the database does not know it. One that another process wrote to is read again."""
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                session = self._sessions[session_id] = Session(session_id)
                self.refresh(session)
            elif session.idle and self._revision(session_id) not in (None, session.revision):
                self.refresh(session)
        return session

    def newest(self, session_id: str) -> Session:
        """The session that goes on after compactions (SESS-07), however many there were."""
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
        with self.database.reading() as c:
            row = c.execute("SELECT revision FROM sessions WHERE id = ?", (session_id,)).fetchone()
        return row[0] if row else None

    def refresh(self, session: Session) -> None:
        """Read the session as the database has it, and nothing else is believed; the live copy stays the same
        object."""
        if session.unsaved:
            log.warning("session %s was changed by another process; what could not be saved of it before is lost", session.id)
            self._saved(session)
        with self.database.reading() as c:
            row = c.execute(
                "SELECT version, revision, turns, prompts, meter, guard, usage, title, kind, parent, end_reason, source"
                " FROM sessions WHERE id = ?",
                (session.id,),
            ).fetchone()
            if row is None:  # nothing of it was ever stored
                session.forget()
                return
            rows = transcript(c, session.id, row[0])
            last = c.execute("SELECT MAX(number) FROM messages WHERE session = ?", (session.id,)).fetchone()[0]
        session.version, session.revision, session.turns = row[:3]
        session.prompts = PROMPTS.decode(loads(row[3]))
        _copy(METER.decode(loads(row[4])), session.meter)
        _copy(GUARD.decode(loads(row[5])), session.guard)
        session.usage = USAGE.decode(loads(row[6]))
        session.title, session.kind, session.parent, session.end_reason, session.source = row[7:]
        session.numbers = {message_of(body): number for number, body in rows}
        session.rows = list(session.numbers)
        session.next_number = (last or 0) + 1
        session.wire, session.unwritten = WireCopy(), []
        session.successor = None  # what it went on as only in this copy; ``newest`` follows what is stored

    def archived(self, session_id: str) -> list[Message]:
        """Rows that compactions and undos put aside."""
        with self.database.reading() as c:
            rows = c.execute(
                "SELECT body FROM messages WHERE session = ? AND active = 0 ORDER BY number", (session_id,)
            ).fetchall()
        return [message_of(body) for (body,) in rows]

    # Turns

    async def begin(
        self,
        session: Session,
        turn: Any,
        start: Callable[[], dict[str, Any]],
        new: NewTurn,
        moved: Callable[[Session], None] = lambda session: None,
    ) -> Begun:
        """Write a new turn and hold its session for it, as the store has it now: a copy that others have
        changed the session behind is read again first. ``start`` gives the turn's snapshot for it; ``moved``
        is told of the session that a compaction elsewhere made of this one, and that the turn begins in then.
        Raises ``SessionBusy``."""
        abandoned = None
        while True:
            abandoned = await self._clear(session) or abandoned
            try:
                return await self._begin(session, turn, start(), new, abandoned)
            except _StaleError:
                self.refresh(session)
            except _WentOnError:
                successor = self.newest(session.id)
                session.handed_to(successor)
                moved(successor)
                session = successor

    async def _begin(self, session: Session, turn: Any, start: dict[str, Any], new: NewTurn, abandoned: str | None) -> Begun:
        at, given = self.now(), start.pop("supplied_history", None)
        values = (
            turn.turn_id, session.id, new.parent, new.asked, turn.state, turn.seq, self.owners.me, new.table_name,
            new.digest, dumps(new.settings), dumps(start), at, at,
        )  # fmt: skip

        def begin(c: sqlite3.Connection) -> None:
            if c.execute("SELECT 1 FROM turns WHERE id = ?", (turn.turn_id,)).fetchone():
                raise ConfigError("a turn of this id is stored already", turn.turn_id, "another turn_id for each turn")
            c.execute(
                "INSERT INTO turns (id, session, parent, asked, state, seq, owner, table_name, digest, settings, start, began,"
                " moved) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            if given is not None:
                c.execute("INSERT INTO given VALUES (?, ?)", (turn.turn_id, dumps(given)))

        await self._take(session, turn.turn_id, begin)
        return Begun(1, abandoned)

    async def _take(self, session: Session, holder: str, job: Job) -> None:
        """Hold the session as this copy has it, with what could not be written to it before, and do ``job``:
        all or nothing. Raises ``_StaleError`` or ``_WentOnError`` when the copy is not what the store has."""
        unsaved, at, believed = list(session.unsaved), self.now(), session.revision

        def take(c: sqlite3.Connection) -> int:
            _current(c, session.id, believed)
            for one in unsaved:
                one(c)
            revision = self._hold(c, session, holder, at)
            job(c)
            return revision

        try:
            session.revision = await self.written(take)
        except JournalError as error:  # what was not saved is of a turn that another process has given up, or took over
            raise _StaleError from error
        session.owner = self.owners.me
        self._saved(session)

    def _saved(self, session: Session) -> None:
        session.unsaved = []
        self._unsaved.pop(session.id, None)

    def keep(self, session: Session) -> None:
        """Hold a session with writes that the database did not take, until its next turn has saved them."""
        if session.unsaved:
            self._unsaved[session.id] = session

    async def _clear(self, session: Session) -> str | None:
        """Give up the turns of the session that nobody runs any more, and close what they left open in its
        transcript. What is open is read in the transaction that closes it: whoever ran such a turn may have
        written until then. Jobs are done in order, so rows that a cancelled turn of this process handed over,
        and nobody waited for, stand before it."""
        if session.unsaved or not self.unfinished(session.id):
            return None
        at = self.now()

        def give_up_all(c: sqlite3.Connection) -> str | None:
            found = open_turns(c, session.id)
            for turn_id, owner in found:
                self._refuse_if_alive(session.id, turn_id, owner)
            turn_ids = [turn_id for turn_id, _ in found]
            close_out(c, session.id, turn_ids, at)
            give_up(c, turn_ids, at)
            c.execute("UPDATE sessions SET holder = NULL, owner = NULL WHERE id = ?", (session.id,))
            changed(c, session.id)
            return turn_ids[-1] if turn_ids else None

        given_up: str | None = await self.written(give_up_all)
        self.refresh(session)
        return given_up

    def unfinished(self, session_id: str) -> list[tuple[str, str | None]]:
        """(turn, owner) of the session's turns that have not ended, oldest first."""
        with self.database.reading() as c:
            return open_turns(c, session_id)

    def _hold(self, c: sqlite3.Connection, session: Session, holder: str, at: float) -> int:
        """Make ``holder`` the one that has the session, if nobody alive has it. The revision then."""
        row = c.execute("SELECT holder, owner FROM sessions WHERE id = ?", (session.id,)).fetchone()
        if row is None:
            insert_session(c, session, at)
        elif row[0] not in (None, holder):
            self._refuse_if_alive(session.id, *row)
        c.execute("UPDATE sessions SET holder = ?, owner = ?, touched = ? WHERE id = ?", (holder, self.owners.me, at, session.id))
        return changed(c, session.id)

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

    async def claim(self, session: Session, turn: TurnInfo, version: int, newest: int) -> Begun:
        """Make this process the owner of an unfinished turn, under a new epoch: from then on its old owner
        can write nothing. Only what is read afterwards is believed. Rows that came after its last move are
        put aside: the visit that wrote them is run again. Raises ``SessionBusy`` while its owner lives, and
        for one that moved since it was read."""
        at, turn_id = self.now(), turn.id

        def take(c: sqlite3.Connection) -> None:
            owner, ended, exit_reason = c.execute("SELECT owner, ended, exit FROM turns WHERE id = ?", (turn_id,)).fetchone()
            if ended is not None:
                raise ConfigError(f"nothing to resume: the turn ended with {exit_reason}", turn_id, "an unfinished turn")
            self._refuse_if_alive(session.id, turn_id, owner)
            claimed = c.execute(
                "UPDATE turns SET owner = ?, epoch = epoch + 1 WHERE id = ? AND seq = ? AND epoch = ?",
                (self.owners.me, turn_id, turn.seq, turn.epoch),
            )
            if claimed.rowcount != 1:
                raise SessionBusy(f"turn {turn_id} was moved by another process since it was read; resume it again")
            self._hold(c, session, turn_id, at)
            c.execute("UPDATE messages SET active = 0, version = -1 WHERE session = ? AND number > ?", (session.id, newest))
            c.execute("DELETE FROM transcripts WHERE session = ? AND version > ?", (session.id, version))
            c.execute("UPDATE sessions SET version = ? WHERE id = ?", (version, session.id))

        await self.written(take)
        self.refresh(session)
        session.owner = self.owners.me
        return Begun(turn.epoch + 1)

    def let_go(self, holder: str, epoch: int | None = None) -> None:
        """Whoever this process held sessions for is not run any further for now; nobody waits for this to be
        written. What another process holds for the same turn stays held, and so does what a later ``epoch``
        of it holds here."""
        values = (holder, self.owners.me, epoch, holder, epoch)
        self.database.submit(
            lambda c: (
                c.execute(
                    "UPDATE sessions SET holder = NULL, owner = NULL WHERE holder = ? AND owner = ?"
                    " AND (? IS NULL OR EXISTS (SELECT 1 FROM turns WHERE id = ? AND epoch = ?))",
                    values,
                )
                and None
            )
        )

    async def written(self, job: Job) -> Any:
        """The job's result, once it is committed."""
        return await asyncio.wrap_future(self.database.submit(job))

    async def hold(self, session: Session, holder: str) -> Session:
        """Keep turns off the session, or off what it went on as; that one, as the store has it now. Raises
        ``SessionBusy`` while a turn of it runs anywhere else."""
        while True:

            def free(c: sqlite3.Connection, session: Session = session) -> None:
                for turn_id, owner in open_turns(c, session.id):
                    self._refuse_if_alive(session.id, turn_id, owner)

            try:
                await self._take(session, holder, free)
                return session
            except _StaleError:
                self.refresh(session)
            except _WentOnError:
                successor = self.newest(session.id)
                session.handed_to(successor)
                session = successor

    async def hold_again(self, session: Session, turn_id: str, epoch: int) -> None:
        """Go on with a turn that stood still. Raises ``JournalError`` when it was taken over, or its session
        changed."""
        believed = session.revision

        def take(c: sqlite3.Connection) -> int:
            refuse_unless_ours(c, turn_id, epoch)
            try:
                _current(c, session.id, believed)
            except (_StaleError, _WentOnError) as error:
                raise JournalError(
                    f"session {session.id} was changed while turn {turn_id} stood still; resume the turn"
                ) from error
            return self._hold(c, session, turn_id, self.now())

        session.revision = await self.written(take)
        session.owner = self.owners.me

    async def save(self, session: Session) -> None:
        """Write what was done to a session outside of a turn, into it and what it went on as. Raises
        ``SessionBusy``, and writes nothing, when it is not as it was when it was held."""
        at, believed = self.now(), session.revision
        line = [session]
        while line[-1].successor is not None:
            line.append(line[-1].successor)
        notes = [(one, one.unwritten) for one in line]
        for one in line:
            one.unwritten = []

        def write(c: sqlite3.Connection) -> list[int]:
            refuse_if_changed(c, session.id, believed)
            for one, waiting in notes:
                write_notes(c, one, waiting, None, at)
                columns = Kept.of(one).columns()
                names = ", ".join(f"{name} = ?" for name in columns)
                c.execute(f"UPDATE sessions SET {names} WHERE id = ?", (*columns.values(), one.id))  # noqa: S608 - ours
            return [changed(c, one.id) for one in line]

        for one, revision in zip(line, await self.written(write), strict=True):
            one.revision = revision

    def close(self) -> None:
        """Only for a store that nobody uses any more."""
        if "database" in self.__dict__:
            self.database.close()


def refuse_if_changed(c: sqlite3.Connection, session_id: str, believed: int) -> None:
    """The fence of what is done to a session outside of a turn: raises ``SessionBusy`` when somebody had it
    since it was held."""
    try:
        _current(c, session_id, believed)
    except (_StaleError, _WentOnError) as error:
        raise SessionBusy(f"session {session_id} was changed by another process in the meantime; try again") from error


def _current(c: sqlite3.Connection, session_id: str, believed: int) -> None:
    """Is the copy of a session that was read at revision ``believed`` the session as it is now?"""
    row = c.execute("SELECT revision, successor FROM sessions WHERE id = ?", (session_id,)).fetchone()
    revision, successor = row or (0, None)
    if revision != believed:
        raise _StaleError
    if successor is not None:
        raise _WentOnError


def _copy(source: Any, target: Any) -> None:
    """The fields of one slotted dataclass into another of its kind, which others hold."""
    for name in type(source).__slots__:
        setattr(target, name, getattr(source, name))


_STORES: weakref.WeakValueDictionary[str, Store] = weakref.WeakValueDictionary()
_STORES_LOCK = threading.Lock()


def store_for(home: Path | str, durability: Durability = "full") -> Store:
    """The store of a home; agents of one process that name the same home share it, and with it their
    sessions."""
    with _STORES_LOCK:
        store = _STORES.get(str(home))
        if store is None:
            store = _STORES[str(home)] = Store(Path(home), durability)
        return store
