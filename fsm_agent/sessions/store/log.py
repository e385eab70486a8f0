"""The journal of one running turn: one transaction a move, and an intent that is safe before anything unsafe begins.

What a turn writes is gathered and goes out together, in order: with each move, before a tool runs or a person is asked, and
after a reply when the turn next waits for something. Replies are not waited for, because every later write stands behind them.
Whatever is written first compares the turn's epoch with what is stored: a turn that another process took over finds another one,
writes nothing any more, and stops.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.conversation.effects import AskApproval, CallModel, RunTool, ToolOutcome
from fsm_agent.conversation.messages import Usage
from fsm_agent.errors import JournalError, StaleCopyError, StoreError
from fsm_agent.fsm.deltas import Tracker
from fsm_agent.fsm.journal import UNKNOWN, Exchange, Step
from fsm_agent.providers.prices import total_cost
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store.database import Database, Job
from fsm_agent.sessions.store.recording import IN_DOUBT, Origin, Recording
from fsm_agent.sessions.store.rows import Kept, changed, named, refuse_unless_ours, reply_json, request_json, write_notes
from fsm_agent.sessions.store.sealed import dumps, opened

ACTS = (CallModel, RunTool, AskApproval)
"""Requests that take long or act on the world: they are in the journal while they are in flight."""
UNREAD = -1
"""A revision that no session has."""
NOT_RUN = "not run: what is done cannot be written down at the moment ({problem}), so nothing is done that cannot be undone"


class TurnLog:
    """Writes one turn into the database. ``turn`` is a dataclass with turn_id, state, seq, history, rows, setup.

    A store that fails in mid-turn does not cost the answer: the turn goes on in memory, runs no unsafe tool any more, and
    ``problem`` says why; what was not written is tried again at the end and at the session's next turn.
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
        self.session = session
        self._database, self._turn, self._now, self._tell = database, turn, now, tell
        self._recording = recording or Recording()
        self._jobs: list[Job] = []
        self._epoch = 1
        self._sent: list[tuple[Future[Any], list[Job]]] = []
        self._line = [session]
        self._begun: set[tuple[int, int, int]] = set()

    def opened(self) -> dict[str, Any]:
        """Take the turn and its session as they are now as what later changes are changes of; the whole snapshot."""
        self._tracker, self._kept = Tracker(self._turn), Kept.of(self.session)
        self._history, self._rows = self._place(), len(self._turn.rows)
        return self._tracker.start | {"history": self._history, "rows": []}

    @property
    def epoch(self) -> int:
        return self._epoch

    def began(self, epoch: int, recording: Recording | None = None) -> None:
        """The turn is in the database, under this epoch. ``recording``: what was known of its visit when it was claimed."""
        self._epoch, self._recording = epoch, recording or self._recording

    def followed(self, session: Session) -> None:
        """The turn begins in another session than it was made for."""
        self.session = session
        self._line.append(session)

    # The journal

    async def asked(self, exchange: Exchange) -> Sequence[Any]:
        requests = exchange.requests
        known = [self._known(exchange, place, request) for place, request in enumerate(requests)]
        acts = [place for place, request in enumerate(requests) if known[place] is UNKNOWN and isinstance(request, ACTS)]
        if not acts:
            return known
        self._jobs += [self._intent(exchange, place, requests[place]) for place in acts]
        if all(isinstance(requests[place], CallModel) for place in acts):
            self._send_soon()
        else:
            await self._commit()
        if self.problem:
            for place in acts:
                known[place] = self._refused(requests[place])
        return known

    def _known(self, exchange: Exchange, place: int, request: Any) -> Any:
        """From the record of an earlier process, or of this one: who was cancelled here may ask a second time."""
        where = (exchange.seq, exchange.ordinal, place)
        if where in self._begun and isinstance(request, RunTool) and request.effect == "unsafe":
            return ToolOutcome(request.call_id, "unknown", IN_DOUBT)
        if isinstance(request, RunTool):
            self._begun.add(where)
        doubts = len(self._recording.doubts)
        reply = self._recording.reply(exchange.ordinal, place, request)
        for name, call_id in self._recording.doubts[doubts:]:
            self._tell(
                f"nobody knows whether {name} ({call_id}) took effect: the process ended while it ran; it is not run again"
            )
            self._note_effect(self._outcome(exchange, place, request, reply, 0.0))
        if (origin := self._recording.origins.get((exchange.ordinal, place))) is not None:
            self._note_effect(self._outcome(exchange, place, request, reply, 0.0, origin))
        return reply

    def _refused(self, request: Any) -> Any:
        if isinstance(request, RunTool) and request.effect == "unsafe":
            return ToolOutcome(request.call_id, "not_started", NOT_RUN.format(problem=self.problem))
        return UNKNOWN

    async def got(self, exchange: Exchange, place: int, reply: Any, seconds: float) -> None:
        request = exchange.requests[place]
        self._note_rows()
        self._note_effect(self._outcome(exchange, place, request, reply, seconds))
        if isinstance(request, CallModel):
            self._jobs += self._spent(request, reply)
        if isinstance(request, ACTS):
            self._send_soon()

    async def moved(self, step: Step) -> None:
        self._note_session()
        delta = self._tracker.delta() | self._rows_delta()
        self._jobs.append(self._transition(step, dumps(delta)))
        self._recording = Recording()
        await self._commit()

    async def ended(self, result: Any) -> None:
        """The turn is over: write its result, and let go of the session. ``result`` has turn_exit_reason and a JSON form.
        ``problem`` says when that is not stored. Raises ``StaleCopyError``, after which ``ended_anew`` is to be tried."""
        self._note_session()
        self._jobs.append(self._end(result, dumps(self._tracker.delta() | self._rows_delta())))
        try:
            await self._commit(last=True)
        except StaleCopyError:
            self._jobs = []
            raise
        except JournalError as error:  # another owner goes on with the turn; the answer that this one has is not lost
            self.problem, self._jobs = str(error), []
            self._tell(f"{error}; its answer is not stored")
            return
        if self.problem:
            self.session.unsaved.append(self._fenced(self._jobs))
            self._jobs = []
        else:
            self.session.revision += 1

    async def ended_anew(self, result: Any) -> None:
        """``ended``, on a copy of the session that was read again: rows of this turn that are not in it are written behind it."""
        with self._database.reading() as c:
            said = "SELECT body FROM messages WHERE session = ? AND turn = ?"
            stored = Counter(opened(body) for (body,) in c.execute(said, (self.session.id, self._turn.turn_id)))
        for row in self._turn.rows:
            if stored[body := opened(dumps(row.to_dict()))]:
                stored[body] -= 1
            else:
                self.session.append([row])
        self._kept = Kept.of(self.session)
        try:
            await self.ended(result)
        except StaleCopyError as error:
            self.problem = str(error)

    # Gathering

    def _place(self) -> list[Any]:
        """The transcript by reference: session, version, how many rows of that, and the newest number given so far."""
        return [self.session.id, self.session.version, len(self._turn.history), self.session.next_number - 1]

    def _rows_delta(self) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        if (place := self._place()) != self._history:
            changed["history"], self._history = {"to": place}, place
        if len(self._turn.rows) != self._rows:
            numbers = self.session.numbers
            new = [numbers.get(row) or row.to_dict() for row in self._turn.rows[self._rows :]]
            changed["rows"] = {"kept": self._rows, "added": new}
            self._rows = len(self._turn.rows)
        return changed

    def _note_rows(self) -> None:
        """What was done to the transcript since the last time; when it went on in another session, there too."""
        session, turn_id, at = self.session, self._turn.turn_id, self._now()
        notes, session.unwritten = session.unwritten, []
        if notes:
            self._jobs.append(lambda c: write_notes(c, session, notes, turn_id, at))
        if session.successor is not None:
            self._follow(session, session.successor)

    def _follow(self, parent: Session, child: Session) -> None:
        turn_id, owner = self._turn.turn_id, parent.owner
        self.session, self._kept, self._rows = child, Kept.of(child), 0
        self._line.append(child)
        child.owner, child.revision, parent.revision = owner, 1, parent.revision + 1
        self._note_rows()

        def follow(c: sqlite3.Connection) -> None:
            c.execute("UPDATE sessions SET holder = ?, owner = ?, revision = 1 WHERE id = ?", (turn_id, owner, child.id))
            c.execute("UPDATE sessions SET holder = NULL, owner = NULL WHERE id = ?", (parent.id,))
            changed(c, parent.id)
            c.execute("UPDATE turns SET session = ? WHERE id = ?", (child.id, turn_id))

        self._jobs.append(follow)

    def _note_session(self) -> None:
        """Rows, and what else is kept of a session: prompts, meter, guard, usage."""
        self._note_rows()
        if self._kept.still(self.session):
            return
        before, self._kept, session_id = self._kept, Kept.of(self.session), self.session.id
        changed = self._kept.columns(before)
        names, values = ", ".join(f"{name} = ?" for name in changed), (*changed.values(), session_id)
        self._jobs.append(lambda c: c.execute(f"UPDATE sessions SET {names} WHERE id = ?", values))  # noqa: S608 - ours

    def _note_effect(self, values: tuple[Any, ...]) -> None:
        """What was done in a row is written by one statement."""
        last = self._jobs[-1] if self._jobs else None
        if not isinstance(last, Effects):
            self._jobs.append(last := Effects())
        last.rows.append(values)

    # Writing

    def _send_soon(self) -> None:
        """Hand over what was gathered before anything else happens in this loop, together with what the turn does until it waits
        for something: most replies lead to a move at once."""
        asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        """Hand over what was gathered, without waiting."""
        if self._jobs and not self.problem:
            jobs, self._jobs = self._jobs, []
            self._sent.append((self._database.submit(self._fenced(jobs)), jobs))

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
                    f"session {session_id} was changed by somebody else while turn {turn_id} held it ({error});"
                    " what the turn did since is not stored"
                ) from error

        return write

    async def _commit(self, last: bool = False) -> None:
        """Hand over what was gathered, and wait until that and everything before it is safe."""
        problem = self.problem
        if last:
            self.problem = ""
        self._send()
        if not self._sent:
            return
        await self._database.landed(self._sent[-1][0])  # jobs are done in the order given
        sent, self._sent = self._sent, []
        try:
            for future, _ in sent:
                future.result()
        except StoreError as error:
            lost = [job for future, jobs in sent if future.exception() is not None for job in jobs]
            self._jobs = [*lost, *self._jobs]
            if not problem:
                self._tell(f"{error}; the turn goes on, but is not stored")
            self.problem = str(error)
        except JournalError:
            for session in self._line:  # what was done to these copies is not stored: they are read again before they are used
                session.revision = UNREAD
            raise

    def _intent(self, exchange: Exchange, place: int, request: Any) -> Job:
        asked = request_json(self.session, request)
        return Effects([(*self._effect(exchange, place, request), "in_flight", asked, None, self._now(), None, "")])

    def _outcome(
        self, exchange: Exchange, place: int, request: Any, reply: Any, seconds: float, origin: Origin = ""
    ) -> tuple[Any, ...]:
        """The row of a request that was answered; by whom, when it was not carried out."""
        unknown = isinstance(reply, ToolOutcome) and reply.status in ("unknown", "timeout")
        status, asked, at = "unknown" if unknown else "done", request_json(self.session, request), self._now() - seconds
        took = None if origin else seconds
        return (*self._effect(exchange, place, request), status, asked, reply_json(reply), at, took, origin)

    def _effect(self, exchange: Exchange, place: int, request: Any) -> tuple[Any, ...]:
        kept = self._recording.where(exchange.ordinal, place, request)
        where = (self._turn.turn_id, exchange.seq, *kept, exchange.state)
        return (*where, type(request).__name__, *named(request))

    def _spent(self, request: CallModel, reply: Any) -> list[Job]:
        """Tokens as they come in, in the transaction of the reply they came with."""
        usage: Usage | None = getattr(reply, "usage", None)
        if usage is None:
            return []
        turn = self._turn
        runtime = turn.setup.runtime if request.auxiliary is None else turn.setup.auxiliary[request.auxiliary]
        cost = total_cost({(runtime.provider, runtime.model): usage}, turn.settings.cache.ttl)
        tokens = (usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning)
        purpose = request.request.purpose
        values = (
            self.session.id, turn.turn_id, self._now(), runtime.provider, runtime.model, purpose, *tokens, cost.usd, cost.status,
        )  # fmt: skip
        return [
            lambda c: c.execute(
                "INSERT INTO usage (session, turn, at, provider, model, purpose, input, output, cache_read, cache_write,"
                " reasoning, cost, cost_status) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
        ]

    def _transition(self, step: Step, delta: str) -> Job:
        turn_id, at = self._turn.turn_id, self._now()
        values = (
            turn_id, step.seq, step.source, step.event, step.dest, step.row, step.exit, dumps(step.guards), dumps(step.changes),
            step.seconds, at, delta,
        )  # fmt: skip
        moved = (step.seq, step.dest, at, step.exit, turn_id, step.seq - 1)

        def move(c: sqlite3.Connection) -> None:
            done = c.execute("UPDATE turns SET seq = ?, state = ?, moved = ?, exit = ? WHERE id = ? AND seq = ?", moved)
            if done.rowcount != 1:
                raise JournalError(f"turn {turn_id} is not where this process left it; this one stops here")
            c.execute("INSERT INTO transitions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

        return move

    def _end(self, result: Any, delta: str) -> Job:
        turn_id, session_id, at = self._turn.turn_id, self.session.id, self._now()
        said = result.model_dump(mode="json", exclude={"messages", "states"})
        outcome = next(name for name in ("completed", "failed", "partial", "interrupted") if said[name])
        model = f"{said['provider']}:{said['model']}"

        def end(c: sqlite3.Connection) -> None:
            c.execute(
                "UPDATE turns SET ended = ?, exit = ?, outcome = ?, result = ?, final = ?, owner = NULL WHERE id = ?",
                (at, said["turn_exit_reason"], outcome, dumps(said), delta, turn_id),
            )
            c.execute(
                "UPDATE sessions SET holder = NULL, owner = NULL, turns = turns + 1, revision = revision + 1, touched = ?,"
                " model = ?, exit = ? WHERE id = ?",
                (at, model, said["turn_exit_reason"], session_id),
            )

        return end


@dataclass(slots=True)
class Effects:
    """The job that writes requests and replies, in order: what comes later replaces what it is the end of."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def __call__(self, connection: sqlite3.Connection) -> None:
        connection.executemany("INSERT OR REPLACE INTO effects VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", self.rows)
