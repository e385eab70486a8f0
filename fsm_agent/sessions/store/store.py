"""All sessions of one home, and how a turn takes hold of one, begins, is claimed by another process, and lets
go."""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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
    count_revision,
    deduplicate,
    json_with_checksum,
    next_turn_number,
    refuse_if_changed,
    store_content,
    write_notes,
)

log = logging.getLogger(__name__)

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


@dataclass(frozen=True, slots=True)
class _Late:
    """What a failing store did not take of a turn, and the sessions that the turn was in."""

    job: Job
    line: tuple[str, ...]


class Store(TurnClaims):
    """The sessions of one home, and which turn has each of them. Raises ``StoreError`` when the file cannot
    be used, and ``SessionBusy`` for a session that another turn holds."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._late: dict[str, _Late] = {}

    async def begin(
        self,
        session: Session,
        turn: Any,
        start: Callable[[], dict[str, Any]],
        new: NewTurn,
        moved: Callable[[Session], None] = lambda session: None,
    ) -> Begun:
        """Write a new turn and hold its session for it, all in one transaction: turns that were left
        unfinished are given up, the session is read as it is now, and the turn begins in that. ``start``
        gives the turn's snapshot then; before it, ``moved`` receives the session when that went on as another
        one. Both are called in the writer's thread. Raises ``SessionBusy``."""
        await self._save_late(session.id)
        at = self.now()

        def begin(c: SqlConnection) -> tuple[int, str | None]:
            before = session.id
            self.follow(c, session)
            abandoned = self._give_up(c, session.id, at)
            self.read(c, session)
            if session.id != before:
                moved(session)
            revision = self._hold(c, session, turn.turn_id, at)
            self._insert_turn(c, session, turn, start(), new, at)
            return revision, abandoned

        session.revision, abandoned = await self.written(begin)
        session.owner = self.owners.me
        session.wire = self._rows.take_wire(session.id)
        return Begun(abandoned)

    def _insert_turn(
        self,
        c: SqlConnection,
        session: Session,
        turn: Any,
        start: dict[str, Any],
        new: NewTurn,
        at: float,
    ) -> None:
        given = start.pop("supplied_history", None)
        shared: Contents = {}
        values = (
            turn.turn_id, session.id, new.parent, new.asked, turn.state, turn.seq, self.owners.me,
            new.table_name,
            new.digest, *json_with_checksum({ELSEWHERE: [store_content(new.settings, shared)]}),
            *json_with_checksum(deduplicate(start, shared)),
            at, at,
        )  # fmt: skip
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
            c.execute("INSERT INTO given VALUES (?, ?, ?)", (turn.turn_id, *json_with_checksum(given)))
        if new.begins is not None:
            new.begins(c)

    async def take_over(
        self,
        turn: TurnInfo,
        session: Session,
        claim: Claim | None,
        fence: Fence,
        version: int,
        newest: int,
    ) -> None:
        """Continue an unfinished turn of this process or another: ``claim`` it, unless that was done, and
        ``enter`` its session. Raises ``ConfigError`` when it has ended, ``SessionBusy`` while its owner lives
        and when it moved since ``turn`` was read, ``OwnershipLost`` when ``claim`` does not hold any more."""
        await self._save_late(session.id)
        fence.handed_out = claim is not None
        claim = claim or await self.claim(turn.id, as_read=turn)
        if claim is None:
            [(ended,)] = self.database.select("SELECT exit FROM turns WHERE id = ?", turn.id)
            raise ConfigError(
                f"nothing to resume: the turn ended with {ended}", turn.id, "an unfinished turn"
            )
        fence.epoch = claim.epoch
        await self.enter(session, fence, version, newest)
        session.wire = self._rows.take_wire(session.id)

    def keep_for_later(self, line: Sequence[Session], job: Job | None) -> None:
        """Keep what a failing store did not take of a turn that has ended, until the next turn of its session
        saves it. ``line``: the sessions that the turn was in."""
        if job is None:
            return
        late = _Late(job, tuple(one.id for one in line))
        self._late |= dict.fromkeys(late.line, late)

    async def _save_late(self, session_id: str) -> None:
        """Write what was kept for later, unless another process continued that turn, or went on without it.
        Raises ``StoreError``, and loses nothing, when it fails still."""
        if (late := self._late.get(session_id)) is None:
            return
        try:
            await self.written(late.job)
        except JournalError:
            log.warning(
                "session %s was changed by another process; what could not be saved of it before is lost",
                session_id,
            )
            self.not_stored(late.line)
        self._late = {one: other for one, other in self._late.items() if other is not late}

    def _give_up(self, c: SqlConnection, session_id: str, at: float) -> str | None:
        """Give up the turns of the session whose process is gone, and close what they left open in its
        transcript; return the last of them. Jobs are done in order, so rows that a cancelled turn of this
        process handed over, and did not wait for, are written before."""
        if not (found := self._open_turns(c, session_id)):
            return None
        close_out(c, session_id, found, at)
        give_up(c, found, at)
        c.execute("UPDATE sessions SET holder = NULL, owner = NULL WHERE id = ?", (session_id,))
        count_revision(c, session_id)
        return found[-1]

    def _open_turns(self, c: SqlConnection, session_id: str) -> list[str]:
        """The turns of a session that have not ended. Raises ``SessionBusy`` when one of them is run."""
        found = open_turns(c, session_id, to_write=True)
        for turn_id, owner in found:
            self.refuse_if_alive(session_id, turn_id, owner)
        return [turn_id for turn_id, _ in found]

    def unfinished(self, session_id: str) -> list[tuple[str, str | None]]:
        """Return (turn, owner) of the session's turns that have not ended, oldest first."""
        with self.database.reading() as c:
            return open_turns(c, session_id)

    @contextlib.asynccontextmanager
    async def held(self, session_id: str, holder: str) -> AsyncIterator[Session]:
        """Keep turns off a conversation in the block, and give its newest session as it is stored. Turns that
        were left unfinished stay so, but what their processes write is refused. Raises ``SessionBusy`` while
        a turn of it is run anywhere."""
        await self._save_late(session_id)
        session, fence, at = Session(session_id), Fence(holder), self.now()

        def take(c: SqlConnection) -> int:
            self.follow(c, session)
            refuse_all(c, self._open_turns(c, session.id))
            self.read(c, session)
            return self._hold(c, session, holder, at)

        self.fences.hold(fence, session_id)
        try:
            session.revision = await self.written(take)
            session.owner = self.owners.me
            yield session
        finally:
            self.let_go(holder)

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
            return [count_revision(c, one.id) for one in line]

        for one, revision in zip(line, await self.written(write), strict=True):
            one.revision = revision
            self.keep_rows(one)

    def close(self) -> None:
        """Close the database; only for a store that is not used any more."""
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


@atexit.register
def _finish_writing() -> None:
    """Lose nothing that was handed over when a program ends without closing its store."""
    for store in list(STORES.values()):
        if "database" in store.__dict__:
            store.database.finish()
