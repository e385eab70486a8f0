"""All sessions of one home, and how a turn takes hold of one, begins, is claimed by another process, and lets
go."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsm_agent.errors import ConfigError, JournalError
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store import rows
from fsm_agent.sessions.store.claims import Claim, TurnClaims
from fsm_agent.sessions.store.database import Durability, Job, SqlConnection
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.journal.log import Recording
from fsm_agent.sessions.store.journal.read import TurnInfo, close_out, give_up, open_turns, refuse_all
from fsm_agent.sessions.store.rows import (
    ELSEWHERE,
    Contents,
    Kept,
    StaleRevisionError,
    WentOnError,
    changed,
    checked,
    deduplicate,
    kept_once,
    next_turn_number,
    refuse_if_changed,
    refuse_if_stale,
    write_notes,
)

STORES: weakref.WeakValueDictionary[str, Store] = weakref.WeakValueDictionary()
"""The store of each home in use, and of each database."""
LOCK = threading.Lock()
"""Held while ``STORES`` changes."""


@dataclass(frozen=True, slots=True)
class Begun:
    """How a turn got its session: ``abandoned`` names a turn that was left unfinished in it and is given up
    now; ``recording`` is what the journal had of a resumed turn's visit when it was claimed."""

    abandoned: str | None = None
    recording: Recording | None = None


@dataclass(frozen=True, slots=True)
class NewTurn:
    """What is written of a turn when it begins, besides its snapshot. ``asked``: the words that name it in
    lists; ``table_name`` and ``digest`` of the table that moves it; ``settings`` as JSON values; ``parent``:
    the turn that delegated it; ``begins``: done in the same transaction, and may refuse it."""

    asked: str
    table_name: str
    digest: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None
    begins: Job | None = None


class Store(TurnClaims):
    """The sessions of one home, and which turn has each of them. Raises ``StoreError`` when the file cannot
    be used, and ``SessionBusy`` for a session that another turn holds."""

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
            await self._save_late(session)
            if (before := self._uncompacted(session)) is not None:
                moved(session := before)
            abandoned = await self._clear(session) or abandoned
            try:
                return await self._begin(session, turn, start(), new, abandoned)
            except StaleRevisionError:
                self.refresh(session)
            except WentOnError:
                successor = self.newest(session.id)
                session.handed_to(successor)
                moved(successor)
                session = successor

    async def _begin(
        self, session: Session, turn: Any, start: dict[str, Any], new: NewTurn, abandoned: str | None
    ) -> Begun:
        at, given = self.now(), start.pop("supplied_history", None)
        shared: Contents = {}
        values = (
            turn.turn_id, session.id, new.parent, new.asked, turn.state, turn.seq, self.owners.me,
            new.table_name,
            new.digest, *checked({ELSEWHERE: [kept_once(new.settings, shared)]}),
            *checked(deduplicate(start, shared)),
            at, at,
        )  # fmt: skip

        def begin(c: SqlConnection) -> None:
            if c.execute("SELECT 1 FROM turns WHERE id = ?", (turn.turn_id,)).fetchone():
                raise ConfigError(
                    "a turn of this id is stored already", turn.turn_id, "another turn_id for each turn"
                )
            rows.write(c, shared)
            c.execute(
                "INSERT INTO turns (id, session, parent, asked, state, seq, owner, table_name, digest,"
                " settings, settings_crc, start, start_crc, began, moved, number)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*values, next_turn_number(c, session.id)),
            )
            if given is not None:
                c.execute("INSERT INTO given VALUES (?, ?, ?)", (turn.turn_id, *checked(given)))
            if new.begins is not None:
                new.begins(c)

        await self._take(session, turn.turn_id, begin)
        return Begun(abandoned)

    async def _take(self, session: Session, holder: str, job: Job) -> None:
        """Hold the session as this copy has it, and do ``job``: all or nothing. Raises ``StaleRevisionError``
        or ``WentOnError`` when the copy is not what the store has."""
        at, believed = self.now(), session.revision

        def take(c: SqlConnection) -> int:
            refuse_if_stale(c, session.id, believed)
            revision = self._hold(c, session, holder, at)
            job(c)
            return revision

        session.revision = await self.written(take)
        session.owner = self.owners.me

    async def take_over(
        self,
        turn: TurnInfo,
        session: Session,
        claim: Claim | None,
        fence: Fence,
        version: int,
        newest: int,
    ) -> None:
        """Go on with an unfinished turn of this process or another: ``claim`` it, unless that was done, and
        ``enter`` its session. Raises ``ConfigError`` when it has ended, ``SessionBusy`` while its owner lives
        and when it moved since ``turn`` was read, ``OwnershipLost`` when ``claim`` does not hold any more."""
        for one in list(session.onward()):
            await self._save_late(one)
        fence.handed_out = claim is not None
        claim = claim or await self.claim(turn.id, as_read=turn)
        if claim is None:
            [(ended,)] = self.database.select("SELECT exit FROM turns WHERE id = ?", turn.id)
            raise ConfigError(
                f"nothing to resume: the turn ended with {ended}", turn.id, "an unfinished turn"
            )
        fence.epoch = claim.epoch
        await self.enter(session, fence, version, newest)

    async def _save_late(self, session: Session) -> None:
        """Write what a failing store did not take when a turn of the session ended, unless another process
        went on with that turn, or without it. Raises ``StoreError``, and loses nothing, when it fails
        still."""
        if not (unsaved := session.unsaved):
            return

        def write(c: SqlConnection) -> None:
            for one in unsaved:
                one(c)

        with contextlib.suppress(JournalError):
            await self.written(write)
            self._saved(session)
        self.refresh(session)

    def _uncompacted(self, session: Session) -> Session | None:
        """Return the session in which a conversation goes on whose compaction into ``session`` could not be
        written, and was dropped when another process went on without it; ``None`` where that is not so.
        Raises ``SessionBusy`` while another turn has it."""
        if session.kind != "compression" or session.parent is None or self._revision(session.id) is not None:
            return None
        parent = self.session(session.parent)
        if parent.holder is None:
            self.refresh(parent)  # so that what it went on as is what is stored
        before = self.newest(parent.id)
        session.handed_to(before)
        return before

    async def _clear(self, session: Session) -> str | None:
        """Give up the turns of the session that nobody runs any more, and close what they left open in its
        transcript. What is open is read in the transaction that closes it: whoever ran such a turn may have
        written until then. Jobs are done in order, so rows that a cancelled turn of this process handed over,
        and nobody waited for, stand before it."""
        if not self.unfinished(session.id):
            return None
        at = self.now()

        def give_up_all(c: SqlConnection) -> str | None:
            found = open_turns(c, session.id, to_write=True)
            for turn_id, owner in found:
                self.owners.refuse_if_alive(session.id, turn_id, owner)
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
        """Return (turn, owner) of the session's turns that have not ended, oldest first."""
        with self.database.reading() as c:
            return open_turns(c, session_id)

    async def hold(self, session: Session, holder: str) -> Session:
        """Keep turns off the session, or off what it went on as, and return that one as the store has it
        now. Turns that were left unfinished stay so, but nobody writes them any more: what they wrote does
        not count the revision up, so it is read here. Raises ``SessionBusy`` while a turn of it runs
        anywhere else."""
        while True:
            await self._save_late(session)
            session = self._uncompacted(session) or session
            left: list[str] = []

            def free(c: SqlConnection, session: Session = session, left: list[str] = left) -> None:
                found = open_turns(c, session.id, to_write=True)
                left[:] = [turn_id for turn_id, _ in found]
                for turn_id, owner in found:
                    self.owners.refuse_if_alive(session.id, turn_id, owner)
                refuse_all(c, left)

            try:
                await self._take(session, holder, free)
                if left:
                    taken = session.revision
                    self.refresh(session)
                    session.revision = taken  # who changed it since is found out when it is saved
                return session
            except StaleRevisionError:
                self.refresh(session)
            except WentOnError:
                successor = self.newest(session.id)
                session.handed_to(successor)
                session = successor

    async def save(self, session: Session) -> None:
        """Write what was done to a session outside of a turn, into it and what it went on as. Raises
        ``SessionBusy``, and writes nothing, when it is not as it was when it was held."""
        at, believed, line = self.now(), session.revision, list(session.onward())
        notes = [(one, one.unwritten) for one in line]
        for one in line:
            one.unwritten = []

        def write(c: SqlConnection) -> list[int]:
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
        """Close the database; only for a store that nobody uses any more."""
        if "database" in self.__dict__:
            self.database.close()


def store_for(home: Path | str, durability: Durability = "full", database_url: str | None = None) -> Store:
    """Return the store of a home, in the file there or in a database elsewhere; agents of one process that
    name the same share it, and with it their sessions."""
    name = f"{home}\n{database_url or ''}"
    with LOCK:
        store = STORES.get(name)
        if store is None:
            store = STORES[name] = Store(Path(home), durability, database_url=database_url)
        return store
