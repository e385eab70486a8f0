"""The journal of a turn that talks to a model: besides its moves, the rows of the transcript, tokens, and
what became of tools.

A store that fails in mid-turn does not cost the answer: the turn goes on in memory, runs no unsafe tool any
more, and ``problem`` says why; what was not written is tried again at the end and at the session's next turn.
Only as long as nobody else can have the turn meanwhile: else it stops, and can be resumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fsm_agent.conversation.assumed_usage import assumed_usage
from fsm_agent.conversation.effects import LOST, CallModel, Runtime
from fsm_agent.conversation.messages import Usage
from fsm_agent.errors import StoreError
from fsm_agent.fsm.codec import dumps
from fsm_agent.fsm.deltas import Tracker
from fsm_agent.fsm.journal import UNKNOWN, Exchange
from fsm_agent.providers.prices import price_of, total_cost
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store.checksum import verify_checksum
from fsm_agent.sessions.store.connection import SqlConnection
from fsm_agent.sessions.store.database import Job
from fsm_agent.sessions.store.journal.conversation_recording import ConversationRecording
from fsm_agent.sessions.store.journal.log import Closing, TurnLog
from fsm_agent.sessions.store.rows import Kept, changed, reply_json, request_json, write_notes


class ConversationLog(TurnLog):
    """``turn`` has a transcript besides: ``history``, ``rows``, ``setup``. ``known_replies``: requests to
    models that are accounted for, and were not sent in this process."""

    _told = ""
    known_replies = 0

    def opened(self) -> dict[str, Any]:
        """The snapshot, with the transcript by reference."""
        self._tracker = Tracker(self._turn)
        self._kept = Kept.of(self.session)
        self._history, self._rows = self._place(), len(self._turn.rows)
        return self._tracker.start | {"history": self._history, "rows": []}

    async def ended_anew(self, closing: Closing) -> None:
        """``ended``, on a copy of the session that was read again: rows of this turn that are not in it are
        written behind it."""
        with self._database.reading() as c:
            said = "SELECT body, body_crc FROM messages WHERE session = ? AND turn = ? AND active = 1"
            stored = Counter(
                verify_checksum(*row) for row in c.execute(said, (self.session.id, self._turn.turn_id))
            )
        for row in self._turn.rows:
            if stored[body := dumps(row.to_dict())]:
                stored[body] -= 1
            else:
                self.session.append([row])
        self._kept = Kept.of(self.session)
        await super().ended_anew(closing)

    # Requests and replies

    def _nothing_known(self) -> ConversationRecording:
        return ConversationRecording()

    async def asked(self, exchange: Exchange) -> Sequence[Any]:
        """What is known of the requests; where nothing can be written down, no unsafe tool is run."""
        known = await super().asked(exchange)
        if not self.problem:
            return known
        if not self.fence.alone():
            raise StoreError(self.problem)
        asked = zip(exchange.requests, known, strict=True)
        return [
            request.unwritten(self.problem) or UNKNOWN if reply is UNKNOWN else reply
            for request, reply in asked
        ]

    def _known(self, exchange: Exchange, place: int, request: Any) -> Any:
        reply = super()._known(exchange, place, request)
        if isinstance(request, CallModel) and reply is not UNKNOWN:
            self.known_replies += getattr(reply, "sent", True)
        if reply is LOST:
            self._note_effect(self._outcome(exchange, place, request, reply, 0.0))
            which = f"{self._turn.turn_id} {exchange.seq}.{exchange.ordinal}.{place}"
            self._jobs += self._assumed(request, reply, which)
        return reply

    async def ended(self, closing: Closing) -> None:
        self._told, self.problem = self.problem, ""  # what could not be written is tried once more
        await super().ended(closing)

    def _failed(self, error: StoreError) -> None:
        if self._database.shared or not self.fence.alone():
            raise error  # another process may own the turn by now
        if not (self.problem or self._told):
            self._tell(f"{error}; the turn goes on, but is not stored")
        self.problem = str(error)

    def _request_json(self, request: Any) -> str:
        return request_json(self.session, request)

    def _reply_json(self, request: Any, reply: Any) -> str:
        return reply_json(reply)

    def _costs(self, request: Any, reply: Any) -> list[Job]:
        """Tokens as they come in, in the transaction of the reply they came with."""
        if not isinstance(request, CallModel):
            return []
        usage: Usage | None = reply.usage
        if usage is None:
            return self._assumed(request, reply)
        turn, runtime = self._turn, self._asked(request)
        cost = total_cost(
            {(runtime.provider, runtime.model): usage}, turn.settings.cache.ttl, turn.settings.prices
        )
        tokens = (usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning)
        purpose = request.request.purpose
        values = (
            self.session.id, turn.turn_id, self._now(), runtime.provider, runtime.model, purpose, *tokens,
            cost.usd, cost.status,
        )  # fmt: skip
        return [
            lambda c: c.execute(
                "INSERT INTO usage (session, turn, at, provider, model, purpose, input, output, cache_read,"
                " cache_write, reasoning, cost, cost_status) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
        ]

    def _asked(self, request: CallModel) -> Runtime:
        setup = self._turn.setup
        asked: Runtime = setup.runtime if request.auxiliary is None else setup.auxiliary[request.auxiliary]
        return asked

    def _assumed(self, request: CallModel, reply: Any, which: str | None = None) -> list[Job]:
        """What a request is taken to have used whose provider did not say; ``which`` request, where it may be
        noted twice."""
        usage, runtime = assumed_usage(request.request, reply), self._asked(request)
        if not usage.total:
            return []
        price = price_of(runtime.model, runtime.provider, self._turn.settings.prices)
        usd = 0.0 if price is None else price.most(usage.prompt, usage.output)
        values = (self._turn.turn_id, self._now(), usage.total, usd, which)
        insert = "INSERT OR IGNORE INTO unreported (turn, at, tokens, cost, request) VALUES (?, ?, ?, ?, ?)"
        return [lambda c: c.execute(insert, values)]

    # The transcript

    def _place(self) -> list[Any]:
        """The transcript by reference: session, version, how many rows of that, and the newest number given
        so far."""
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
        """What was done to the transcript since the last time; when it went on in another session, there
        too."""
        session = self.session
        if not session.unwritten and session.successor is None:
            return
        turn_id, at = self._turn.turn_id, self._now()
        notes, session.unwritten = session.unwritten, []
        if notes:
            self._jobs.append(lambda c: write_notes(c, session, notes, turn_id, at))
        if session.successor is not None:
            self._follow(session, session.successor)

    def _follow(self, parent: Session, child: Session) -> None:
        turn_id, owner = self._turn.turn_id, parent.owner
        self.session, self._kept, self._rows = child, Kept.of(child), 0
        self.line.append(child)
        child.owner, child.revision, parent.revision = owner, 1, parent.revision + 1
        self._note_rows()

        def follow(c: SqlConnection) -> None:
            c.execute(
                "UPDATE sessions SET holder = ?, owner = ?, revision = 1 WHERE id = ?",
                (turn_id, owner, child.id),
            )
            c.execute("UPDATE sessions SET holder = NULL, owner = NULL WHERE id = ?", (parent.id,))
            changed(c, parent.id)
            c.execute("UPDATE turns SET session = ? WHERE id = ?", (child.id, turn_id))

        self._jobs.append(follow)

    def _delta(self) -> dict[str, Any]:
        self._note_session()
        return super()._delta() | self._rows_delta()

    def _note_session(self) -> None:
        """Rows, and what else is kept of a session: prompts, meter, guard, usage."""
        self._note_rows()
        if self._kept.still(self.session):
            return
        before, self._kept, session_id = self._kept, Kept.of(self.session), self.session.id
        changed = self._kept.columns(before)
        names, values = ", ".join(f"{name} = ?" for name in changed), (*changed.values(), session_id)
        self._jobs.append(lambda c: c.execute(f"UPDATE sessions SET {names} WHERE id = ?", values))  # noqa: S608 - ours
