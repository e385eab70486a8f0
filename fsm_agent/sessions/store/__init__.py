"""The store of sessions and journals, in a SQLite file or in PostgreSQL: all sessions of one home, and how a
turn holds one, begins, is claimed by another process, and releases it. Nothing is lost, however the process
ends.

Which process may run a turn, and which turn may write to a session (``TurnClaims``)
--------------------------------------------------------------------------------
Four columns decide, and each has one meaning:

- ``turns.epoch`` counts the claims of a turn. A claim is one ``UPDATE`` that raises it, so of two processes
  that claim at once one succeeds. Every write for a turn names the epoch of its attempt and is refused when
  the database has another one (``Fence.refuse``). This alone keeps two processes from writing one turn; no
  lock is held and no clock is compared.
- ``turns.owner`` names the process that runs the turn. It is a hint about liveness, not a right to write.
  Each process locks a file of its own (``Owners``; an advisory lock in PostgreSQL), and the system releases
  that lock when the process dies. A claim without a rank succeeds only if the owner is gone. ``turns.rank``
  is for callers that dispatch turns themselves, such as workers and Temporal: an attempt with a higher rank
  takes the turn from a live owner, and a late attempt takes nothing.
- ``sessions.holder`` names the turn that has the session, with its owner. It is set in the transaction that
  begins or enters the turn and cleared in the one that ends, suspends or leaves it. A second turn on the
  session gets ``SessionBusy`` while the owner of the first one lives.
- ``sessions.revision`` counts the changes of a session: a turn began or ended, was given up or undone; the
  session was compacted or renamed. Work outside of a turn (an undo, a compaction) is written only if the
  revision is the one that it read. The rows that a running turn appends do not count; its epoch protects
  them, and readers detect them by the number of the newest row.

*Claim first, then read.* Nothing read before the claim is trusted, because the old owner may write until
that moment. ``Store.begin`` gives up unfinished turns of dead processes, reads the session, holds it and
writes the new turn in one transaction; ``enter`` sets aside rows written after the last move, and reads. No
copy of a session outlives a turn, so there is nothing to invalidate: ``StoredSessions`` keeps decoded rows by
revision, version and newest number, and compares these three within the transaction.

*Within one process* all turns have the same owner, so the file lock cannot separate them. ``Fences`` does: a
turn holds its session from its first step until it ends or is left, and a second turn is refused at once. A
turn whose object was dropped holds nothing, because fences are referenced weakly, and the next turn of the
session gives it up like that of a dead process. A turn that is between two steps may be resumed by another
object; the claim raises the epoch, and the older object loses its fence.

*When a turn is lost* (its epoch changed), the current step is canceled, nothing more is written, and
``OwnershipLost`` is raised where the turn runs. Children go with their parent: claiming a turn by rank
refuses the writes of all turns below it, except background turns.

What would break this: a statement that writes for a turn without the fence; a read of the visit before the
claim; a release of a session without owner and epoch, which would free what a later attempt holds here.
(Why: decisions 30, 48, 49 and 103.)
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsm_agent.errors import ConfigError, JournalError, OwnershipLost, SessionBusy
from fsm_agent.sessions import Session
from fsm_agent.sessions.store import rows
from fsm_agent.sessions.store.database import Durability, Job, SqlConnection
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.journal import Recording
from fsm_agent.sessions.store.journal.read import TurnInfo, close_out, give_up, open_turns, refuse_all
from fsm_agent.sessions.store.rows import (
    ELSEWHERE,
    Contents,
    Kept,
    count_revision,
    deduplicate,
    insert_session,
    is_current,
    json_with_checksum,
    next_turn_number,
    refuse_if_changed,
    store_content,
    turn_tree,
    write_notes,
)
from fsm_agent.sessions.store.stored_sessions import StoredSessions

__all__ = ["Begun", "Claim", "NewTurn", "Store", "store_for"]


# No lock around compaction. The store admits one turn per session at a time, and a compaction outside a turn
# holds the session like one. A separate lock would protect nothing more.


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run a turn, until it is claimed under a higher ``epoch``. ``rank`` orders the
    attempts of a dispatcher; ``owner`` is the process."""

    turn: str
    session: str
    epoch: int
    rank: int
    owner: str


class TurnClaims(StoredSessions):
    """The sessions of one home, and the process that owns each turn or session. Raises ``StoreError`` when
    the store cannot be used."""

    async def write(self, job: Job) -> Any:
        """Run the job in the next transaction; return its result once that is committed."""
        return await asyncio.wrap_future(self.database.submit(job))

    async def write_for(self, fence: Fence, job: Job) -> Any:
        """``written``, for a turn. Raises ``OwnershipLost``, and writes nothing, when another process owns
        it."""

        def write(c: SqlConnection) -> Any:
            fence.refuse(c)
            return job(c)

        return await self.write(write)

    async def claim(
        self,
        turn_id: str,
        rank: int | None = None,
        owner: str | None = None,
        *,
        digest: str = "",
        as_read: TurnInfo | None = None,
    ) -> Claim | None:
        """Make ``owner``, by default this process, the only one that may write for an unfinished turn; return
        ``None`` when the turn has ended. Claim before you trust anything read about the turn: its old owner
        may have written until now, and writes nothing from now on.

        ``rank`` starts at 1 and increases with each attempt; one that is not higher than the last raises
        ``OwnershipLost``. Children that the old owner may still run are taken from it, too. Without a
        rank the turn is claimed only when its owner's process has ended; otherwise ``SessionBusy`` is raised.
        ``digest``: that of this process's table; a turn of another table raises ``ConfigError`` and stays
        unchanged. ``as_read``: raise ``SessionBusy`` unless the turn is unchanged since then. Raises
        ``ConfigError`` for an unknown turn."""
        own = owner or self.owners.me

        def take(c: SqlConnection) -> Claim | None:
            if rank is None:
                done = self._seize(c, turn_id, own, digest, as_read)
            else:
                done = c.execute(_BY_RANK, (rank, own, turn_id, rank, digest)).rowcount == 1
                if done:
                    refuse_all(c, _children(c, turn_id))
            row = c.execute("SELECT session, epoch, rank, ended, digest FROM turns WHERE id = ?", (turn_id,))
            if (found := row.fetchone()) is None:
                raise ConfigError("no such turn", turn_id, "the id of a turn that is stored")
            session, epoch, last, ended, owner_digest = found
            if done:
                return Claim(turn_id, session, epoch, last, own)
            if ended is not None:
                return None
            if digest not in ("", owner_digest):
                raise ConfigError(
                    f"turn {turn_id} was begun with another version of its table", owner_digest, digest
                )
            if rank is None:
                raise SessionBusy(
                    f"turn {turn_id} was moved by another process since it was read; resume it again"
                )
            raise OwnershipLost(f"turn {turn_id} was claimed by a later attempt; this one stops here")

        claim: Claim | None = await self.write(take)
        if claim is not None:
            here = "in this process" if rank is None and own == self.owners.me else "by another process"
            self.fences.record_claim(turn_id, claim.epoch, here)
        return claim

    def _seize(self, c: SqlConnection, turn_id: str, own: str, digest: str, as_read: TurnInfo | None) -> bool:
        """Claim a turn whose owner is gone; return false if it cannot be claimed, or has moved."""
        row = c.execute("SELECT session, owner, epoch, seq, ended FROM turns WHERE id = ?", (turn_id,))
        if (found := row.fetchone()) is None or found[4] is not None:
            return False
        session, owner, epoch, seq, _ = found
        self.owners.refuse_if_alive(session, turn_id, owner)
        if as_read is not None and (epoch, seq) != (as_read.epoch, as_read.seq):
            return False
        return c.execute(_SEIZE, (own, turn_id, epoch, digest)).rowcount == 1

    def resumable(self, turn: TurnInfo, claim: Claim | None) -> Session:
        """Return the session of a turn to resume. Raises ``SessionBusy`` when a living process runs the turn,
        unless it was claimed, and while another turn of this process holds the session."""
        if claim is None:
            self.fences.refuse_if_held(turn.session, turn.id)
            self.refuse_if_run(turn)
        return self.session(turn.session)

    def watch(self, fence: Fence) -> None:
        """Watch a turn that runs here from now on. A dispatched turn may be dispatched again at any time, and
        no machine sees which processes live on the others that share a database."""
        owner, shared = self.owners.me, fence.handed_out or self.database.shared
        fence.alone = lambda: not shared and self.owners.is_alive_here(owner)
        self.fences.open(fence)

    async def enter(self, session: Session, fence: Fence, version: int, newest: int) -> None:
        """Hold the session for a claimed turn, and read it. Rows numbered above ``newest`` and transcripts
        above ``version`` were written after the turn's last move: they are set aside, because the visit that
        wrote them runs again. Raises ``OwnershipLost``, and ``SessionBusy`` while another turn has the
        session."""
        at = self.now()

        def take(c: SqlConnection) -> None:
            self._hold(c, session, fence.turn_id, at)
            c.execute(
                "UPDATE messages SET active = 0, version = -1 WHERE session = ? AND number > ?",
                (session.id, newest),
            )
            c.execute("DELETE FROM transcripts WHERE session = ? AND version > ?", (session.id, version))
            c.execute("UPDATE sessions SET version = ? WHERE id = ?", (version, session.id))
            self.read(c, session)

        await self.write_for(fence, take)
        session.owner = self.owners.me

    def _hold(self, c: SqlConnection, session: Session, holder: str, at: float) -> int:
        """Lock the session for ``holder`` unless a live process holds it. Return the new revision."""
        sql = "SELECT holder, owner FROM sessions WHERE id = ? /* FOR UPDATE */"
        row = c.execute(sql, (session.id,)).fetchone()
        if row is None:
            insert_session(c, session, at)
        elif row[0] not in (None, holder):
            self.refuse_if_alive(session.id, *row)
        c.execute(
            "UPDATE sessions SET holder = ?, owner = ?, touched = ? WHERE id = ?",
            (holder, self.owners.me, at, session.id),
        )
        return count_revision(c, session.id)

    async def hold_again(self, session: Session, fence: Fence) -> None:
        """Continue a turn that was paused. Raises ``OwnershipLost`` when it was taken over, ``JournalError``
        when its session was changed."""
        believed = session.revision

        def take(c: SqlConnection) -> int:
            if not is_current(c, session.id, believed):
                raise JournalError(
                    f"session {session.id} was changed while turn {fence.turn_id} stood still; resume the"
                    " turn"
                )
            return self._hold(c, session, fence.turn_id, self.now())

        session.revision = await self.write_for(fence, take)
        session.owner = self.owners.me

    def refuse_if_alive(self, session_id: str, turn_id: str, owner: str | None) -> None:
        """Raise ``SessionBusy`` when this process or another live one runs the turn."""
        self.fences.refuse_if_run(session_id, turn_id)
        self.owners.refuse_if_alive(session_id, turn_id, owner)

    def refuse_if_run(self, turn: TurnInfo) -> None:
        """Raise ``SessionBusy`` when a live process runs this turn."""
        if turn.owner is not None:
            self.owners.refuse_if_alive(turn.session, turn.id, turn.owner)

    async def suspend(self, fence: Fence) -> None:
        """Release a turn and its session, so that any process may resume it. Raises ``OwnershipLost``."""
        mine = (fence.turn_id, self.owners.me)

        def free(c: SqlConnection) -> None:
            c.execute("UPDATE turns SET owner = NULL WHERE id = ?", (fence.turn_id,))
            c.execute("UPDATE sessions SET holder = NULL, owner = NULL WHERE holder = ? AND owner = ?", mine)

        await self.write_for(fence, free)

    def let_go(self, holder: str, epoch: int | None = None) -> None:
        """Release what this process holds for ``holder``, without waiting for the write. Keep another
        process's claim on the same turn, and that of a later ``epoch`` in this process."""
        sql = """UPDATE sessions SET holder = NULL, owner = NULL WHERE holder = ? AND owner = ?
            AND (? IS NULL OR EXISTS (SELECT 1 FROM turns WHERE id = ? AND epoch = ?))"""
        values = (holder, self.owners.me, epoch, holder, epoch)
        self.fences.release_turn(holder, epoch)
        self.database.submit(lambda c: c.execute(sql, values) and None)


_BY_RANK = (
    "UPDATE turns SET epoch = epoch + 1, rank = ?, owner = ? WHERE id = ? AND rank < ? AND ended IS NULL AND"
    " ? IN ('', digest)"
)
_SEIZE = (
    "UPDATE turns SET epoch = epoch + 1, rank = rank + 1, owner = ? WHERE id = ? AND epoch = ? AND ended IS"
    " NULL AND ? IN ('', digest)"
)


def _children(c: SqlConnection, turn_id: str) -> list[str]:
    """Return the unfinished turns below this one, except background turns: no turn waits for them."""
    marks = ", ".join("?" * len(tree := turn_tree(c, turn_id)))
    rows = c.execute(
        f"SELECT id FROM turns WHERE id IN ({marks}) AND id != ? AND ended IS NULL"  # noqa: S608 - marks
        " AND session NOT IN (SELECT child FROM delegations)",
        (*tree, turn_id),
    )
    return [str(child) for (child,) in rows]


# ----------------------------------------------------------------------------------------------------
# ``Store``: the interface for reading and writing sessions and turns.


log = logging.getLogger(__name__)

STORES: weakref.WeakValueDictionary[str, Store] = weakref.WeakValueDictionary()
"""The store of each home and database in use."""
LOCK = threading.Lock()
"""Held while ``STORES`` changes."""


@dataclass(frozen=True, slots=True)
class Begun:
    """How a turn got its session: ``abandoned`` names an unfinished turn of the session that is given up now;
    ``recording`` is the journal's record of a resumed turn's visit when it was claimed."""

    abandoned: str | None = None
    recording: Recording | None = None


@dataclass(frozen=True, slots=True)
class NewTurn:
    """The stored fields of a new turn, besides its snapshot. ``asked``: the words that name it in lists;
    ``table_name`` and ``digest`` of the table that moves it; ``settings`` as JSON values; ``parent``: the
    turn that delegated it; ``begins``: a job in the same transaction, which may refuse the turn."""

    asked: str
    table_name: str
    digest: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None
    begins: Job | None = None


@dataclass(frozen=True, slots=True)
class _Late:
    """The write of a turn that the store failed to take, and the turn's sessions."""

    job: Job
    line: tuple[str, ...]


class Store(TurnClaims):
    """The sessions of one home, and the turn that holds each of them. Raises ``StoreError`` when the file
    cannot be used, and ``SessionBusy`` for a session that another turn holds."""

    def _start(self) -> None:
        super()._start()
        self._late: dict[str, _Late] = {}

    async def begin(
        self,
        session: Session,
        turn: Any,
        start: Callable[[], dict[str, Any]],
        new: NewTurn,
        moved: Callable[[Session], None] = lambda session: None,
    ) -> Begun:
        """Write a new turn and hold its session, in one transaction: give up unfinished turns, read the
        current session, and begin the turn in it. ``start`` then returns the turn's snapshot; before it,
        ``moved`` receives the session if that continues as another one. Both are called in the writer's
        thread. Raises ``SessionBusy``."""
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

        session.revision, abandoned = await self.write(begin)
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
        """Continue an unfinished turn of this process or another: ``claim`` it unless it is claimed already,
        and ``enter`` its session. Raises ``ConfigError`` when it has ended, ``SessionBusy`` while its owner
        lives or when it moved since ``turn`` was read, ``OwnershipLost`` when ``claim`` is no longer
        valid."""
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
        """Keep the unwritten job of a turn that has ended, until the next turn of its session saves it.
        ``line``: the sessions of the turn."""
        if job is None:
            return
        late = _Late(job, tuple(one.id for one in line))
        self._late |= dict.fromkeys(late.line, late)

    async def _save_late(self, session_id: str) -> None:
        """Write what was kept for later, unless another process continued that turn, or continued the session
        without it. Raises ``StoreError``, and loses nothing, when the store still fails."""
        if (late := self._late.get(session_id)) is None:
            return
        try:
            await self.write(late.job)
        except JournalError:
            log.warning(
                "session %s was changed by another process; what could not be saved of it before is lost",
                session_id,
            )
            self.mark_lost(late.line)
        self._late = {one: other for one, other in self._late.items() if other is not late}

    def _give_up(self, c: SqlConnection, session_id: str, at: float) -> str | None:
        """Give up the session's turns whose process is gone, and close what they left open in its transcript;
        return the last of them. Jobs run in order, so rows that a canceled turn of this process submitted
        without waiting are written before."""
        if not (found := self._open_turns(c, session_id)):
            return None
        close_out(c, session_id, found, at)
        give_up(c, found, at)
        c.execute("UPDATE sessions SET holder = NULL, owner = NULL WHERE id = ?", (session_id,))
        count_revision(c, session_id)
        return found[-1]

    def _open_turns(self, c: SqlConnection, session_id: str) -> list[str]:
        """Return the session's unfinished turns. Raises ``SessionBusy`` when one of them is running."""
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
        """Keep turns off a conversation in the block, and yield its newest session as it is stored.
        Unfinished turns stay unfinished, but writes of their processes are refused. Raises ``SessionBusy``
        while a turn of the session is running anywhere."""
        await self._save_late(session_id)
        session, fence, at = Session(session_id), Fence(holder), self.now()

        def take(c: SqlConnection) -> int:
            self.follow(c, session)
            refuse_all(c, self._open_turns(c, session.id))
            self.read(c, session)
            return self._hold(c, session, holder, at)

        self.fences.hold(fence, session_id)
        try:
            session.revision = await self.write(take)
            session.owner = self.owners.me
            yield session
        finally:
            self.let_go(holder)

    async def save(self, session: Session) -> None:
        """Write the changes made to a session and its successors outside of a turn. Raises ``SessionBusy``,
        and writes nothing, when the session changed since it was held."""
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

        for one, revision in zip(line, await self.write(write), strict=True):
            one.revision = revision
            self.keep_rows(one)

    def close(self) -> None:
        """Close the database; call it only when the store is no longer used."""
        if "database" in self.__dict__:
            self.database.close()


def store_for(home: Path | str, durability: Durability = "full", database_url: str | None = None) -> Store:
    """Return the store of a home, in its file or in a database elsewhere. Agents of one process that name the
    same store share it, and its sessions."""
    name = f"{home}\n{database_url or ''}"
    with LOCK:
        store = STORES.get(name)
        if store is None:
            store = STORES[name] = Store(Path(home), durability, database_url=database_url)
        return store


@atexit.register
def _finish_writing() -> None:
    """Write submitted jobs when a program ends without closing its store."""
    for store in list(STORES.values()):
        if "database" in store.__dict__:
            store.database.finish()
