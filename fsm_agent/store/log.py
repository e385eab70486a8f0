"""The journal of one running turn: one transaction a move, and an intent that is safe before anything unsafe begins.

What a turn writes is gathered and goes out together, in order: with each move, and before a tool runs or a person is asked.
Replies are written without waiting for them, because every later write stands behind them. Every write first compares the turn's
(seq, epoch) with what is stored: a turn that another process took over finds other figures, and stops.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from fsm_agent.codec import dumps
from fsm_agent.deltas import Tracker
from fsm_agent.errors import JournalError, StoreError
from fsm_agent.journal import UNKNOWN, Exchange, Step
from fsm_agent.messages import Usage
from fsm_agent.providers.prices import total_cost
from fsm_agent.requests import AskApproval, CallModel, RunTool, ToolOutcome
from fsm_agent.sessions import Session
from fsm_agent.store.database import Database, Job
from fsm_agent.store.recording import IN_DOUBT, Recording
from fsm_agent.store.rows import Kept, named, reply_json, request_json, write_notes

ACTS = (CallModel, RunTool, AskApproval)
"""Requests that take long or act on the world: they are in the journal while they are in flight."""
NOT_RUN = "not run: what is done cannot be written down at the moment ({problem}), so nothing is done that cannot be undone"


class TurnLog:
    """Writes one turn into the database. ``turn`` is a dataclass with turn_id, state, seq, history, rows, runtime.

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
        self._sent: Future[Any] | None = None
        self._begun: set[tuple[int, int, int]] = set()

    def opened(self) -> dict[str, Any]:
        """Take the turn and its session as they are now as what later changes are changes of; the whole snapshot."""
        self._tracker, self._kept = Tracker(self._turn), Kept.of(self.session)
        self._history, self._rows = self._place(), len(self._turn.rows)
        return self._tracker.start | {"history": self._history, "rows": []}

    def began(self, epoch: int) -> None:
        """The turn is in the database, under this epoch."""
        self._epoch = epoch

    # The journal

    async def asked(self, exchange: Exchange) -> Sequence[Any]:
        requests = exchange.requests
        known = [self._known(exchange, place, request) for place, request in enumerate(requests)]
        for place, request in enumerate(requests):
            if known[place] is not UNKNOWN:
                continue
            if isinstance(request, ACTS):
                self._jobs.append(self._intent(exchange, place, request))
        asked = [type(request) for request, reply in zip(requests, known, strict=True) if reply is UNKNOWN]
        if RunTool in asked or AskApproval in asked:
            await self._commit()
        elif CallModel in asked:
            self._send()
        if self.problem:
            known = [
                self._refused(request) if reply is UNKNOWN else reply for request, reply in zip(requests, known, strict=True)
            ]
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
            self._jobs.append(self._outcome(exchange, place, request, reply, 0.0))
        return reply

    def _refused(self, request: Any) -> Any:
        if isinstance(request, RunTool) and request.effect == "unsafe":
            return ToolOutcome(request.call_id, "not_started", NOT_RUN.format(problem=self.problem))
        return UNKNOWN

    async def got(self, exchange: Exchange, place: int, reply: Any, seconds: float) -> None:
        request = exchange.requests[place]
        self._note_rows()
        self._jobs.append(self._outcome(exchange, place, request, reply, seconds))
        if isinstance(request, CallModel):
            self._jobs += self._spent(request, reply)
        if isinstance(request, ACTS):
            self._send()

    async def moved(self, step: Step) -> None:
        self._note_session()
        delta = self._tracker.delta() | self._rows_delta()
        self._jobs.append(self._transition(step, dumps(delta)))
        self._recording = Recording()
        await self._commit()

    async def ended(self, result: Any) -> None:
        """The turn is over: write its result, and let go of the session. ``result`` has turn_exit_reason and a JSON form."""
        self._note_session()
        self._jobs.append(self._end(result, dumps(self._tracker.delta() | self._rows_delta())))
        await self._commit(last=True)
        if self.problem:
            self.session.unsaved += self._jobs
            self._jobs = []

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
        child.owner, child.revision = owner, 1
        self._note_rows()

        def follow(c: sqlite3.Connection) -> None:
            c.execute("UPDATE sessions SET holder = ?, owner = ?, revision = 1 WHERE id = ?", (turn_id, owner, child.id))
            c.execute("UPDATE sessions SET holder = NULL, owner = NULL WHERE id = ?", (parent.id,))
            c.execute("UPDATE turns SET session = ? WHERE id = ?", (child.id, turn_id))

        self._jobs.append(follow)

    def _note_session(self) -> None:
        """Rows, and what else is kept of a session: prompts, meter, guard, usage."""
        self._note_rows()
        kept = Kept.of(self.session)
        if kept == self._kept:
            return
        before, self._kept, session_id = self._kept.columns(), kept, self.session.id
        changed = {name: value for name, value in kept.columns().items() if value != before[name]}
        names, values = ", ".join(f"{name} = ?" for name in changed), (*changed.values(), session_id)
        if changed:
            self._jobs.append(lambda c: c.execute(f"UPDATE sessions SET {names} WHERE id = ?", values))  # noqa: S608 - ours

    # Writing

    def _send(self) -> Future[Any] | None:
        """Hand over what was gathered, without waiting."""
        if self.problem or not self._jobs:
            return None
        jobs, self._jobs = self._jobs, []
        self._sent = self._database.submit(lambda c: _all(c, jobs))
        self._sent.jobs = jobs  # type: ignore[attr-defined]
        return self._sent

    async def _commit(self, last: bool = False) -> None:
        before, problem = self._sent, self.problem
        if last:
            self.problem = ""
        sent = self._send()
        try:
            for future in (before, sent):
                if future is not None:
                    await asyncio.shield(asyncio.wrap_future(future))
            self._sent = None
        except StoreError as error:
            lost = [job for future in (before, sent) if future is not None and _failed(future) for job in future.jobs]  # type: ignore[attr-defined]
            self._jobs = [*lost, *self._jobs]
            self._sent = None
            if not problem:
                self._tell(f"{error}; the turn goes on, but is not stored")
            self.problem = str(error)

    def _intent(self, exchange: Exchange, place: int, request: Any) -> Job:
        values = (*self._effect(exchange, place, request), "in_flight", request_json(self.session, request), self._now())
        return lambda c: c.execute(
            "INSERT OR REPLACE INTO effects (turn, seq, ordinal, place, state, kind, name, class, key, status, request, at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            values,
        )

    def _outcome(self, exchange: Exchange, place: int, request: Any, reply: Any, seconds: float) -> Job:
        effect, at = self._effect(exchange, place, request), self._now() - seconds
        unknown = isinstance(reply, ToolOutcome) and reply.status in ("unknown", "timeout")
        values = (*effect, "unknown" if unknown else "done", request_json(self.session, request), reply_json(reply), at, seconds)
        return lambda c: c.execute("INSERT OR REPLACE INTO effects VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def _effect(self, exchange: Exchange, place: int, request: Any) -> tuple[Any, ...]:
        where = (self._turn.turn_id, exchange.seq, exchange.ordinal, place, exchange.state)
        return (*where, type(request).__name__, *named(request))

    def _spent(self, request: CallModel, reply: Any) -> list[Job]:
        """Tokens as they come in, in the transaction of the reply they came with."""
        usage: Usage | None = getattr(reply, "usage", None)
        if usage is None:
            return []
        turn = self._turn
        runtime = turn.runtime if request.auxiliary is None else turn.auxiliary[request.auxiliary]
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
        turn_id, epoch, at = self._turn.turn_id, self._epoch, self._now()
        values = (
            turn_id, step.seq, step.source, step.event, step.dest, step.row, step.exit, dumps(step.guards), dumps(step.changes),
            step.seconds, at, delta,
        )  # fmt: skip
        moved = (step.seq, step.dest, at, step.exit, turn_id, step.seq - 1, epoch)

        def move(c: sqlite3.Connection) -> None:
            done = c.execute(
                "UPDATE turns SET seq = ?, state = ?, moved = ?, exit = ? WHERE id = ? AND seq = ? AND epoch = ?", moved
            )
            _refuse_unless(done.rowcount == 1, turn_id)
            c.execute("INSERT INTO transitions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

        return move

    def _end(self, result: Any, delta: str) -> Job:
        turn_id, epoch, session_id, at = self._turn.turn_id, self._epoch, self.session.id, self._now()
        said = result.model_dump(mode="json", exclude={"messages", "states"})
        outcome = next(name for name in ("completed", "failed", "partial", "interrupted") if said[name])
        model = f"{said['provider']}:{said['model']}"

        def end(c: sqlite3.Connection) -> None:
            done = c.execute(
                "UPDATE turns SET ended = ?, exit = ?, outcome = ?, result = ?, final = ?, owner = NULL"
                " WHERE id = ? AND epoch = ? AND ended IS NULL",
                (at, said["turn_exit_reason"], outcome, dumps(said), delta, turn_id, epoch),
            )
            _refuse_unless(done.rowcount == 1, turn_id)
            c.execute(
                "UPDATE sessions SET holder = NULL, owner = NULL, turns = turns + 1, touched = ?, model = ? WHERE id = ?",
                (at, model, session_id),
            )

        return end


def _all(connection: sqlite3.Connection, jobs: Sequence[Job]) -> None:
    for job in jobs:
        job(connection)


def _failed(future: Future[Any]) -> bool:
    return future.done() and future.exception() is not None


def _refuse_unless(mine: bool, turn_id: str) -> None:
    if not mine:
        raise JournalError(f"turn {turn_id} was taken over by another process; this one stops here")
