"""Which process may run a turn: claiming it, keeping its session, letting go of both.

A claim is one statement that gives the turn a new epoch, so of two that claim at once one has it, and what
the other writes is refused from then on. Whoever hands out turns numbers its attempts with a ``rank``: an
attempt that comes late has a lower one, and takes nothing from a later one that runs. (Why: decision 103.)"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from fsm_agent.errors import ConfigError, JournalError, OwnershipLost, SessionBusy
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store.database import Job, SqlConnection
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.journal.read import TurnInfo, refuse_all
from fsm_agent.sessions.store.live_sessions import LiveSessions
from fsm_agent.sessions.store.rows import (
    StaleRevisionError,
    WentOnError,
    changed,
    insert_session,
    refuse_if_stale,
    turn_tree,
)


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run a turn, until somebody claims it under a higher ``epoch``. ``rank`` orders the
    attempts of whoever hands out turns; ``owner`` is the process."""

    turn: str
    session: str
    epoch: int
    rank: int
    owner: str


class TurnClaims(LiveSessions):
    """The sessions of one home, and which process has a turn or a session. Raises ``StoreError`` when the
    store cannot be used."""

    async def written(self, job: Job) -> Any:
        """Run the job in the next transaction, and return its result once that is committed."""
        return await asyncio.wrap_future(self.database.submit(job))

    async def written_for(self, fence: Fence, job: Job) -> Any:
        """``written``, for a turn. Raises ``OwnershipLost``, and writes nothing, when it is somebody
        else's."""

        def write(c: SqlConnection) -> Any:
            fence.refuse(c)
            return job(c)

        return await self.written(write)

    async def claim(
        self,
        turn_id: str,
        rank: int | None = None,
        owner: str | None = None,
        *,
        digest: str = "",
        as_read: TurnInfo | None = None,
    ) -> Claim | None:
        """Make ``owner``, by default this process, the only one whose writes of an unfinished turn are taken;
        ``None`` when the turn has ended. To be called before anything of the turn is believed: its old owner
        may have written until now, and writes nothing from now on.

        ``rank`` is from 1 and higher for each later attempt; one that is not higher than the last raises
        ``OwnershipLost``; children that the old owner may still run are taken from it with their parent.
        Without a rank the turn is claimed only when the process of its owner has ended, else ``SessionBusy``
        is raised. ``digest`` of the table that this process has: ``ConfigError`` is raised for a turn of
        another one, which stays as it is. ``as_read``: claim it only as it was then, else ``SessionBusy`` is
        raised. Raises ``ConfigError`` for a turn that is not there."""
        own = owner or self.owners.me

        def take(c: SqlConnection) -> Claim | None:
            if rank is None:
                done = self._seized(c, turn_id, own, digest, as_read)
            else:
                done = c.execute(_BY_RANK, (rank, own, turn_id, rank, digest)).rowcount == 1
                if done:
                    refuse_all(c, _children(c, turn_id))
            row = c.execute("SELECT session, epoch, rank, ended, digest FROM turns WHERE id = ?", (turn_id,))
            if (found := row.fetchone()) is None:
                raise ConfigError("no such turn", turn_id, "the id of a turn that is stored")
            session, epoch, last, ended, theirs = found
            if done:
                return Claim(turn_id, session, epoch, last, own)
            if ended is not None:
                return None
            if digest not in ("", theirs):
                raise ConfigError(
                    f"turn {turn_id} was begun with another version of its table", theirs, digest
                )
            if rank is None:
                raise SessionBusy(
                    f"turn {turn_id} was moved by another process since it was read; resume it again"
                )
            raise OwnershipLost(f"turn {turn_id} was claimed by a later attempt; this one stops here")

        claim: Claim | None = await self.written(take)
        if claim is not None:
            self.fences.claimed(turn_id, claim.epoch)
        return claim

    def _seized(
        self, c: SqlConnection, turn_id: str, own: str, digest: str, as_read: TurnInfo | None
    ) -> bool:
        """Claim a turn whose owner is gone; false when somebody was faster, or it cannot be claimed."""
        row = c.execute("SELECT session, owner, epoch, seq, ended FROM turns WHERE id = ?", (turn_id,))
        if (found := row.fetchone()) is None or found[4] is not None:
            return False
        session, owner, epoch, seq, _ = found
        self.owners.refuse_if_alive(session, turn_id, owner)
        if as_read is not None and (epoch, seq) != (as_read.epoch, as_read.seq):
            return False
        return c.execute(_SEIZE, (own, turn_id, epoch, digest)).rowcount == 1

    def resumable(self, turn: TurnInfo, claim: Claim | None) -> Session:
        """Return the session of a turn that is to be gone on with. Raises ``SessionBusy`` when a living
        process runs it, unless it was claimed."""
        if claim is not None:
            return self.session_of(turn.id, turn.session)
        self.refuse_if_run(turn)
        return self.session(turn.session)

    def watch(self, fence: Fence) -> None:
        """Keep an eye on a turn that runs here from now on. One that was handed out may be handed out again
        at any time, and no machine sees which processes live on the others that share a database."""
        owner, shared = self.owners.me, fence.handed_out or self.database.shared
        fence.alone = lambda: not shared and self.owners.seen(owner)
        self.fences.opened(fence)

    async def enter(self, session: Session, fence: Fence, version: int, newest: int) -> None:
        """Keep the session for a turn that was claimed, and read it. Rows numbered above ``newest`` and
        transcripts above ``version`` came after the turn's last move: they are put aside, because the visit
        that wrote them is run again. Raises ``OwnershipLost``, and ``SessionBusy`` while another turn has
        the session."""
        at = self.now()

        def take(c: SqlConnection) -> None:
            self._hold(c, session, fence.turn_id, at)
            c.execute(
                "UPDATE messages SET active = 0, version = -1 WHERE session = ? AND number > ?",
                (session.id, newest),
            )
            c.execute("DELETE FROM transcripts WHERE session = ? AND version > ?", (session.id, version))
            c.execute("UPDATE sessions SET version = ? WHERE id = ?", (version, session.id))

        await self.written_for(fence, take)
        self.refresh(session)
        session.owner = self.owners.me

    def _hold(self, c: SqlConnection, session: Session, holder: str, at: float) -> int:
        """Make ``holder`` the one that has the session, if nobody alive has it. The revision then."""
        sql = "SELECT holder, owner FROM sessions WHERE id = ? /* FOR UPDATE */"
        row = c.execute(sql, (session.id,)).fetchone()
        if row is None:
            insert_session(c, session, at)
        elif row[0] not in (None, holder):
            self.owners.refuse_if_alive(session.id, *row)
        c.execute(
            "UPDATE sessions SET holder = ?, owner = ?, touched = ? WHERE id = ?",
            (holder, self.owners.me, at, session.id),
        )
        return changed(c, session.id)

    async def hold_again(self, session: Session, fence: Fence) -> None:
        """Go on with a turn that stood still. Raises ``OwnershipLost`` when it was taken over,
        ``JournalError`` when its session was changed."""
        believed = session.revision

        def take(c: SqlConnection) -> int:
            try:
                refuse_if_stale(c, session.id, believed)
            except (StaleRevisionError, WentOnError) as error:
                raise JournalError(
                    f"session {session.id} was changed while turn {fence.turn_id} stood still; resume the"
                    " turn"
                ) from error
            return self._hold(c, session, fence.turn_id, self.now())

        session.revision = await self.written_for(fence, take)
        session.owner = self.owners.me

    def refuse_if_run(self, turn: TurnInfo) -> None:
        """Raise ``SessionBusy`` when a living process runs this turn."""
        if turn.owner is not None:
            self.owners.refuse_if_alive(turn.session, turn.id, turn.owner)

    async def suspend(self, fence: Fence) -> None:
        """Let go of a turn and of its session, so that any process may resume it. Raises
        ``OwnershipLost``."""
        mine = (fence.turn_id, self.owners.me)

        def free(c: SqlConnection) -> None:
            c.execute("UPDATE turns SET owner = NULL WHERE id = ?", (fence.turn_id,))
            c.execute("UPDATE sessions SET holder = NULL, owner = NULL WHERE holder = ? AND owner = ?", mine)

        await self.written_for(fence, free)

    def let_go(self, holder: str, epoch: int | None = None) -> None:
        """Let go of what this process held for ``holder``, without waiting until that is written. What
        another process holds for the same turn stays held, and so does what a later ``epoch`` of it holds
        here."""
        sql = """UPDATE sessions SET holder = NULL, owner = NULL WHERE holder = ? AND owner = ?
            AND (? IS NULL OR EXISTS (SELECT 1 FROM turns WHERE id = ? AND epoch = ?))"""
        values = (holder, self.owners.me, epoch, holder, epoch)
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
    """The turns below this one that have not ended, those in the background apart: they are not waited
    for."""
    marks = ", ".join("?" * len(tree := turn_tree(c, turn_id)))
    rows = c.execute(
        f"SELECT id FROM turns WHERE id IN ({marks}) AND id != ? AND ended IS NULL"  # noqa: S608 - marks
        " AND session NOT IN (SELECT child FROM delegations)",
        (*tree, turn_id),
    )
    return [str(child) for (child,) in rows]
