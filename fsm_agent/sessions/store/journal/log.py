"""The journal of one running turn: one transaction a move, and an intent that is safe before anything unsafe
begins.

What a turn writes is gathered and goes out together, in order: with each move, before something begins that
cannot be undone, and after a reply when the turn next waits for something. Replies are not waited for,
because every later write stands behind them. Whatever is written first compares the turn's epoch with what is
stored: a turn that another process took over finds another one, writes nothing any more, and stops.
``TurnLog`` writes the turns of any table; what a transcript needs besides is in ``conversation_log``."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.errors import JournalError, StaleCopyError, StoreError
from fsm_agent.fsm.deltas import Tracker
from fsm_agent.fsm.exchange_form import effect_of, kept_reply, name_of, shown
from fsm_agent.fsm.journal import UNKNOWN, Exchange, Step
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store.database import Database, Job
from fsm_agent.sessions.store.journal.recording import Origin, Recording
from fsm_agent.sessions.store.rows import refuse_unless_ours
from fsm_agent.sessions.store.sealed import dumps

UNREAD = -1
"""A revision that no session has."""


@dataclass(frozen=True, slots=True)
class Closing:
    """How a turn ended, as it is stored: its exit reason, how well (``completed``, ``failed``, ``partial``,
    ``interrupted``), the result as JSON values, and for lists the ``model`` that it ran on."""

    exit: str
    outcome: str | None
    result: dict[str, Any]
    model: str = ""


class TurnLog:
    """Writes one turn into the database. ``turn`` is a dataclass with turn_id, state, seq; ``line``, the
    sessions that it was in, ``session`` the last of them.

    A store that fails stops the turn, which can be resumed: nothing is done that is not written down.
    """

    def __init__(
        self,
        database: Database,
        session: Session,
        turn: Any,
        recording: Recording | None = None,
        now: Callable[[], float] = time.time,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.problem = ""
        self.session, self.line = session, [session]
        self._database, self._turn, self._now, self._tell = database, turn, now, tell
        self._recording = recording or self._nothing_known()
        self._jobs: list[Job] = []
        self._epoch = 1
        self._sent: list[Handover] = []
        self._begun: set[tuple[int, int, int]] = set()
        self._step: Step | None = None
        self._closed = False

    def opened(self) -> dict[str, Any]:
        """Take the turn as it is now as what later changes are changes of; the whole snapshot. Its session
        has no transcript."""
        self._tracker = Tracker(self._turn)
        return self._tracker.start | {"history": [self.session.id, self.session.version, 0, 0], "rows": []}

    @property
    def epoch(self) -> int:
        """Return the epoch under which this process writes."""
        return self._epoch

    def began(self, epoch: int, recording: Recording | None = None) -> None:
        """The turn is in the database, under this epoch. ``recording``: what was known of its visit when it
        was claimed."""
        self._epoch, self._recording = epoch, recording or self._recording

    def followed(self, session: Session) -> None:
        """The turn begins in another session than it was made for."""
        self.session = session
        self.line.append(session)

    # The journal

    async def asked(self, exchange: Exchange) -> Sequence[Any]:
        requests = exchange.requests
        known = [self._known(exchange, place, request) for place, request in enumerate(requests)]
        acts = [
            place for place, request in enumerate(requests) if known[place] is UNKNOWN and self._acts(request)
        ]
        if not acts:
            return known
        self._jobs += [self._intent(exchange, place, requests[place]) for place in acts]
        if any(self._must_be_safe(requests[place]) for place in acts):
            await self._commit()
        else:
            self._send_soon()
        self._begun |= {(exchange.seq, exchange.ordinal, place) for place in acts}
        return known

    def _known(self, exchange: Exchange, place: int, request: Any) -> Any:
        """From the record of an earlier process, or of this one: who was cancelled here may ask a second
        time."""
        if (exchange.seq, exchange.ordinal, place) in self._begun and self._unrepeatable(request):
            return self._doubt(request)
        doubts = len(self._recording.doubts)
        reply = self._recording.reply(exchange.ordinal, place, request)
        for name, call_id in self._recording.doubts[doubts:]:
            self._tell(
                f"nobody knows whether {name} ({call_id}) took effect: the process ended while it ran; it is"
                " not run again"
            )
            self._note_effect(self._outcome(exchange, place, request, reply, 0.0))
        if (origin := self._recording.origins.get((exchange.ordinal, place))) is not None:
            self._note_effect(self._outcome(exchange, place, request, reply, 0.0, origin))
        return reply

    async def got(self, exchange: Exchange, place: int, reply: Any, seconds: float) -> None:
        request = exchange.requests[place]
        self._note_rows()
        self._note_effect(self._outcome(exchange, place, request, reply, seconds))
        self._jobs += self._costs(request, reply)
        if self._acts(request):
            self._send_soon()

    async def moved(self, step: Step) -> None:
        if step is not self._step:  # else it was noted, and waits to be written
            self._jobs.append(self._transition(step, dumps(self._delta())))
            self._recording, self._step, self._begun = self._nothing_known(), step, set()
        await self._commit()

    async def ended(self, closing: Closing) -> None:
        """The turn is over: write its result, and let go of the session. ``problem`` says when that is not
        stored. Raises ``StaleCopyError``, after which ``ended_anew`` is to be tried."""
        if not self._closed:  # else it was noted, and waits to be written
            self._jobs.append(self._end(closing, dumps(self._delta())))
            self._closed = True
        try:
            await self._commit()
        except StaleCopyError:
            self._jobs, self._closed = [], False
            raise
        except JournalError as error:
            # another owner goes on with the turn; the answer that this one has is not lost
            self.problem, self._jobs = str(error), []
            self._tell(f"{error}; its answer is not stored")
            return
        if self.problem:
            self.session.unsaved.append(self._fenced(self._jobs))
            self._jobs = []
        else:
            self.session.revision += 1

    async def ended_anew(self, closing: Closing) -> None:
        """``ended``, on a copy of the session that was read again."""
        try:
            await self.ended(closing)
        except StaleCopyError as error:
            self.problem = str(error)

    # What kinds of turns differ in

    def _nothing_known(self) -> Recording:
        return Recording()

    def _acts(self, request: Any) -> bool:
        """Is the request in the journal while it is in flight?"""
        return effect_of(request) != "pure"

    def _must_be_safe(self, request: Any) -> bool:
        """Must its intent be on disk before it begins?"""
        return effect_of(request) == "unsafe"

    def _unrepeatable(self, request: Any) -> bool:
        """Must a request that may have been carried out not be made again?"""
        return effect_of(request) == "unsafe"

    def _doubt(self, request: Any) -> Any:
        """What such a request is answered with."""
        return request.in_doubt()

    def _request_json(self, request: Any) -> str:
        return dumps(shown(request))

    def _reply_json(self, request: Any, reply: Any) -> str:
        return dumps(kept_reply(request, reply))

    def _named(self, request: Any) -> tuple[str, str, str]:
        """(name, class, key) of a request, for lists."""
        return name_of(request), effect_of(request), ""

    def _in_doubt(self, request: Any, reply: Any) -> bool:
        """Does the reply say that nobody knows what became of the request?"""
        return False

    def _costs(self, request: Any, reply: Any) -> list[Job]:
        """What is booked of a reply, in its transaction."""
        return []

    def _note_rows(self) -> None:
        """What was done to a transcript since the last time."""

    def _delta(self) -> dict[str, Any]:
        """What of the snapshot has changed since the last time."""
        return self._tracker.delta()

    # Gathering

    def _note_effect(self, values: tuple[Any, ...]) -> None:
        """What was done in a row is written by one statement."""
        last = self._jobs[-1] if self._jobs else None
        if not isinstance(last, Effects):
            self._jobs.append(last := Effects())
        last.rows.append(values)

    # Writing

    def _send_soon(self) -> None:
        """Hand over what was gathered before anything else happens in this loop, together with what the turn
        does until it waits for something: most replies lead to a move at once."""
        asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        """Hand over what was gathered, without waiting."""
        if self._jobs and not self.problem:
            group = Handover(self._jobs, self._fenced(self._jobs), self._sent[-1] if self._sent else None)
            group.future, self._jobs = self._database.submit(group), []
            self._sent.append(group)

    def _fenced(self, jobs: Sequence[Job]) -> Job:
        """The jobs, as one that does nothing when the turn is not ours any more."""
        turn_id, epoch, session_id = self._turn.turn_id, self._epoch, self.session.id

        def write(c: sqlite3.Connection) -> None:
            refuse_unless_ours(c, turn_id, epoch)
            try:
                for job in jobs:
                    job(c)
            except sqlite3.IntegrityError as error:
                raise StaleCopyError(
                    f"session {session_id} was changed by somebody else while turn {turn_id} held it"
                    f" ({error}); what the turn did since is not stored"
                ) from error

        return write

    async def _commit(self) -> None:
        """Hand over what was gathered, and wait until that and everything before it is safe."""
        self._send()
        if not self._sent:
            return
        await self._database.landed(self._sent[-1].future)  # jobs are done in the order given
        sent, self._sent = self._sent, []
        try:
            for group in sent:
                group.future.result()
        except StoreError as error:
            lost = [job for group in sent if group.future.exception() is not None for job in group.jobs]
            self._jobs = [*lost, *self._jobs]
            self._failed(error)
        except JournalError:
            for session in self.line:
                session.revision = UNREAD  # what was done to these copies is not stored: nobody believes them
            raise

    def _failed(self, error: StoreError) -> None:
        """The store did not take what was handed over, which is tried again with whatever comes next."""
        raise error

    def _intent(self, exchange: Exchange, place: int, request: Any) -> Job:
        asked = self._request_json(request)
        return Effects(
            [(*self._effect(exchange, place, request), "in_flight", asked, None, self._now(), None, "")]
        )

    def _outcome(
        self, exchange: Exchange, place: int, request: Any, reply: Any, seconds: float, origin: Origin = ""
    ) -> tuple[Any, ...]:
        """The row of a request that was answered; by whom, when it was not carried out."""
        status, at = "unknown" if self._in_doubt(request, reply) else "done", self._now() - seconds
        took = None if origin else seconds
        said = self._request_json(request), self._reply_json(request, reply)
        return (*self._effect(exchange, place, request), status, *said, at, took, origin)

    def _effect(self, exchange: Exchange, place: int, request: Any) -> tuple[Any, ...]:
        kept = self._recording.where(exchange.ordinal, place, request)
        where = (self._turn.turn_id, exchange.seq, *kept, exchange.state)
        return (*where, type(request).__name__, *self._named(request))

    def _transition(self, step: Step, delta: str) -> Job:
        turn_id, at = self._turn.turn_id, self._now()
        values = (
            turn_id, step.seq, step.source, step.event, step.dest, step.row, step.exit, dumps(step.guards),
            dumps(step.changes),
            step.seconds, at, delta,
        )  # fmt: skip
        moved = (step.seq, step.dest, at, step.exit, turn_id, step.seq - 1)

        def move(c: sqlite3.Connection) -> None:
            done = c.execute(
                "UPDATE turns SET seq = ?, state = ?, moved = ?, exit = ? WHERE id = ? AND seq = ?", moved
            )
            if done.rowcount != 1:
                raise JournalError(f"turn {turn_id} is not where this process left it; this one stops here")
            c.execute("INSERT INTO transitions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

        return move

    def _end(self, closing: Closing, delta: str) -> Job:
        turn_id, session_id, at = self._turn.turn_id, self.session.id, self._now()
        ended = (at, closing.exit, closing.outcome, dumps(closing.result), delta, turn_id)

        def end(c: sqlite3.Connection) -> None:
            c.execute(
                "UPDATE turns SET ended = ?, exit = ?, outcome = ?, result = ?, final = ?, owner = NULL WHERE"
                " id = ?",
                ended,
            )
            c.execute(
                "UPDATE sessions SET holder = NULL, owner = NULL, turns = turns + 1, revision = revision + 1,"
                " touched = ?, model = ?, exit = ? WHERE id = ?",
                (at, closing.model, closing.exit, session_id),
            )

        return end


class Handover:
    """What is handed over together, behind the group before it: one that is lost takes all later ones with
    it, so that they can be written again in order. ``future`` is how it ended."""

    future: Future[Any]

    def __init__(self, jobs: list[Job], write: Job, before: Handover | None) -> None:
        self.jobs, self._write, self._before, self._written = jobs, write, before, False

    def __call__(self, connection: sqlite3.Connection) -> None:
        self._written = False
        if self._before is not None and self._before.lost:
            raise StoreError("what stands before it could not be written")
        self._write(connection)
        self._written = True

    @property
    def lost(self) -> bool:
        """Seen from the next one: was it refused, or its transaction?"""
        return not self._written or (self.future.done() and self.future.exception() is not None)


@dataclass(slots=True)
class Effects:
    """The job that writes requests and replies, in order: what comes later replaces what it is the end of."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def __call__(self, connection: sqlite3.Connection) -> None:
        connection.executemany(
            "INSERT OR REPLACE INTO effects VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", self.rows
        )
