"""The journal of a turn that talks to a model: besides its moves, transcript rows, tokens, and the outcomes
of tools.

A store that fails during a turn does not cost the answer: the turn continues in memory, runs no further
unsafe tool, and ``problem`` gives the reason; the missing writes are tried again at the end and at the
session's next turn. This holds only as long as no other process can own the turn; otherwise it stops, and can
be resumed.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fsm_agent.conversation.arguments import signature
from fsm_agent.conversation.effects import (
    ENGINE,
    KINDS,
    LOST,
    MODEL,
    PURE_TOOL,
    QUESTION,
    TOOL,
    AnswerProgram,
    Approval,
    AskApproval,
    CallModel,
    CheckSignals,
    Done,
    Opened,
    Reply,
    Request,
    Runtime,
    RunTool,
    ToolOutcome,
    TurnRequest,
)
from fsm_agent.conversation.messages import Usage
from fsm_agent.conversation.result import estimate_usage
from fsm_agent.errors import StoreError
from fsm_agent.fsm.codec import codec_of, dumps
from fsm_agent.fsm.journal import UNKNOWN, Exchange, Tracker
from fsm_agent.providers.catalog import price_of, total_cost
from fsm_agent.request import IDEMPOTENT, PURE, UNSAFE
from fsm_agent.sessions import Session
from fsm_agent.sessions.store.database import Job, SqlConnection
from fsm_agent.sessions.store.journal import (
    END,
    LAST,
    LET_GO,
    SAID,
    STEP,
    SUSPENDED,
    Closing,
    Recorded,
    Recording,
    TurnLog,
)
from fsm_agent.sessions.store.journal.read import Effect
from fsm_agent.sessions.store.rows import (
    Checked,
    Kept,
    count_revision,
    json_with_checksum,
    verify_checksum,
    write_notes,
)

REQUEST, REPLY = codec_of(Request), codec_of(Reply)
FLUSHES = (
    MODEL, TOOL, PURE_TOOL, QUESTION, ENGINE, IDEMPOTENT, UNSAFE, PURE, SAID, STEP, LAST,
    SUSPENDED, END, LET_GO,
)  # fmt: skip
"""The rows of the table in docs/sessions.md."""


def request_columns(session: Session | None, request: Any) -> tuple[str, str, str, str, int]:
    """Return name, effect and key of a request for lists, and its text for the journal with the checksum."""
    match kept := request.journalled(session):
        case TurnRequest():
            return _small_columns(kept)
        case None:
            whole = REQUEST.encode(request)
        case _:
            whole = {"is": type(request).__name__, **kept}
    return (*request.listed(), *json_with_checksum(whole))


@functools.lru_cache(maxsize=64)
def _small_columns(request: TurnRequest) -> tuple[str, str, str, str, int]:
    """Cache the columns of the few requests that recur several times in every round."""
    return (*request.listed(), *json_with_checksum(REQUEST.encode(request)))


DONE = json_with_checksum(REPLY.encode(Done()))


def reply_columns(request: Any, reply: Any) -> Checked:
    """Encode a reply for the journal. The contents of ``Opened`` are in the turn's snapshot."""
    match reply:
        case Done(problems=()):
            return DONE
        case Opened():
            kept = {
                "rows": len(reply.session_rows),
                "tools": len(reply.tools),
                "workdir": reply.workdir,
                "notices": reply.notices,
            }
            return json_with_checksum({"is": "Opened", **kept})
    return json_with_checksum(REPLY.encode(reply))


# ----------------------------------------------------------------------------------------------------
# The record of an interrupted visit of a turn that talks to a model and runs tools.
#
# Replies of the outside world come from the record; requests about this process (keys, connections, messages
# of the session) are performed again. Approvals are requested again, too, because the rules may have changed
# and the record may come from elsewhere. Changed rules or tools also change the order; calls are therefore
# identified by their ids, and none runs twice.


NOTHING_TO_RUN = Approval(True, "its outcome is known; it is not run again")
"""Answers the question about a call whose result is recorded or given by a person: nothing runs."""


@dataclass(slots=True)
class ConversationRecording(Recording):
    """``results`` by call id and ``reply_of_model`` are given by a person. The row that led to a ``resumed``
    visit has paid for one model request, which may or may not have been sent."""

    results: dict[str, str] = field(default_factory=dict)
    reply_of_model: Reply | None = None

    @classmethod
    def of(cls, effects: Iterable[Effect], answers: Mapping[str, Any] | None = None) -> ConversationRecording:
        """Read a visit from the journal; ``answers``: the stored ``answers()`` of a fork."""
        recording = cls()
        if answers is not None:
            recording.results = dict(answers["results"])
            recording.reply_of_model = REPLY.decode(answers["reply"]) if answers["reply"] else None
            for ordinal, place, kind, status, request, reply in answers["entries"]:
                recording.entries[ordinal, place] = Recorded(
                    kind, request, status, REPLY.decode(reply), foreign=True
                )
        for e in effects:
            known = e.kind in KINDS and KINDS[e.kind].reused and e.reply is not None
            recording.entries[e.ordinal, e.place] = Recorded(
                e.kind, e.request, e.status, REPLY.decode(e.reply) if known else None
            )
        return recording

    def cut_off(self) -> frozenset[str]:
        """Return the keys of calls that were running when their process ended."""
        running = (one for one in self.entries.values() if one.kind == RunTool.__name__ and one.reply is None)
        return frozenset(str(one.request.get("key", "")) for one in running)

    def silent(self) -> bool:
        """Return whether no reply is known, and no request was paid for by another process."""
        return not (self.entries or self.results or self.reply_of_model or self.resumed)

    def taken_over(self, *, whole: bool = False) -> ConversationRecording:
        """Return the recording for a fork: it takes over results of tools; the model is asked again, unless
        the ``whole`` visit is answered from the record."""
        kept = {
            place: replace(entry, foreign=True)
            for place, entry in self.entries.items()
            if (whole or entry.kind in ("AnswerProgram", "RunTool")) and entry.reply is not None
        }
        return ConversationRecording(kept)

    def answers(self) -> dict[str, Any] | None:
        """Return the replies that a fork begins with, as JSON values, so that they survive a process that
        ends before the visit does; ``None`` if there are none."""
        entries = [
            [*where, one.kind, one.status, one.request, json.loads(dumps(REPLY.encode(one.reply)))]
            for where, one in self.entries.items()
        ]
        if not (entries or self.results or self.reply_of_model):
            return None
        reply = None if self.reply_of_model is None else json.loads(dumps(REPLY.encode(self.reply_of_model)))
        return {"results": self.results, "reply": reply, "entries": entries}

    def reply(self, ordinal: int, place: int, request: Any) -> Any:
        """Return the known reply to this request, or ``UNKNOWN``."""
        at = self._find(ordinal, place, request)
        entry = None if at is None else self.entries[at]
        if isinstance(request, AskApproval):
            return self._answer(request, entry)
        if entry is None or entry.foreign or entry.reply is None:
            by_hand = self._by_hand(request)
            if by_hand is not UNKNOWN:
                self.origins[ordinal, place] = "by hand"
                return by_hand
        if self.resumed and isinstance(request, CallModel) and (entry is None or entry.reply is None):
            return LOST
        if entry is None:
            return UNKNOWN
        if entry.reply is not None:
            if entry.foreign:
                self.origins[ordinal, place] = "taken over"
            return entry.reply
        if isinstance(request, RunTool) and self.waiting.get(request.call_id) == signature(
            request.name, request.arguments
        ):
            return UNKNOWN
        if isinstance(request, RunTool) and self._unrepeatable(entry, request):
            self.doubts.append((request.name, request.call_id))
            return request.in_doubt()
        return UNKNOWN

    def where(self, ordinal: int, place: int, request: Any) -> tuple[int, int]:
        """Return the (ordinal, place) under which the journal keeps this request: its recorded place, or its
        point of the visit, after all tool calls recorded there. If such an entry is lost, the call runs
        again."""
        if (at := self._find(ordinal, place, request)) is not None and not self.entries[at].foreign:
            return at
        own = [at for at, one in self.entries.items() if one.kind == RunTool.__name__ and not one.foreign]
        return ordinal, place + max((taken + 1 for one, taken in own if one == ordinal), default=0)

    def answered(self) -> frozenset[str]:
        """Return the names of tools with a call in this visit that does not run again."""
        return frozenset(
            str(entry.request.get("name"))
            for entry in self.entries.values()
            if entry.kind == RunTool.__name__
            and (_is_settled(entry) or entry.request.get("call_id") in self.waiting)
        )

    def _find(self, ordinal: int, place: int, request: Any) -> tuple[int, int] | None:
        """Find the recorded request: at the same point of the visit, or, for a call, anywhere in it."""
        if not request.reused:
            return None
        entry = self.entries.get((ordinal, place))
        if entry is not None and self._same(entry, request):
            return ordinal, place
        if not isinstance(request, AnswerProgram | RunTool | AskApproval) and not _steers(request):
            return None
        elsewhere = [at for at, one in self.entries.items() if self._same(one, request)]
        return min(elsewhere, key=lambda at: self.entries[at].foreign, default=None)

    def _answer(self, request: AskApproval, entry: Recorded | None) -> Any:
        if entry is not None and isinstance(entry.reply, Approval) and not entry.reply.granted:
            return entry.reply
        if request.call_id in self.results or request.call_id in self.waiting:
            return NOTHING_TO_RUN
        known = (one for one in self.entries.values() if one.kind == RunTool.__name__ and _is_settled(one))
        return NOTHING_TO_RUN if any(_is_call(one, request) for one in known) else UNKNOWN

    def _unrepeatable(self, entry: Recorded, request: RunTool) -> bool:
        """Return whether a call that may have run must not run again. The stricter of the tool's current and
        recorded effects counts, and a call is never repeated with other arguments."""
        return request.effect == "unsafe" or _was_unsafe(entry) or not _says(entry, request)

    def _by_hand(self, request: Any) -> Any:
        if isinstance(request, RunTool) and request.call_id in self.results:
            return ToolOutcome(request.call_id, "ok", self.results[request.call_id])
        if isinstance(request, CallModel) and self.reply_of_model is not None:
            reply, self.reply_of_model = self.reply_of_model, None
            return reply
        return UNKNOWN

    def _same(self, entry: Recorded, request: Any) -> bool:
        """Return whether this is the recorded request: tool calls match by id, others by kind."""
        if entry.kind != type(request).__name__:
            return False
        if isinstance(request, AnswerProgram):
            return all(entry.request.get(name) == getattr(request, name) for name in ("call_id", "number"))
        if isinstance(request, CheckSignals):
            return bool(entry.request.get("take_steer")) == request.take_steer
        return _is_call(entry, request) if isinstance(request, RunTool | AskApproval) else True


def _is_call(entry: Recorded, request: RunTool | AskApproval) -> bool:
    """Match by id, which is unique within the reply that a visit works on. A fork may have another reply, so
    there the name and the arguments must match too (its key differs in any case)."""
    return entry.request.get("call_id") == request.call_id and (not entry.foreign or _says(entry, request))


def _says(entry: Recorded, request: RunTool | AskApproval) -> bool:
    asked = json.loads(dumps(REQUEST.encode(request)))
    return all(entry.request.get(name) == asked.get(name) for name in ("call_id", "name", "arguments"))


def _is_settled(call: Recorded) -> bool:
    """Return whether the outcome is known, or known to be unknown."""
    return call.reply is not None or _was_unsafe(call)


def _was_unsafe(entry: Recorded) -> bool:
    """Return whether the tool was unsafe when the call began; the default is not stored."""
    return bool(entry.request.get("effect", "unsafe") == "unsafe")


def _steers(request: Any) -> bool:
    """Return whether the request takes steering: once per visit, and recorded text is not taken again."""
    return isinstance(request, CheckSignals) and request.take_steer


class ConversationLog(TurnLog):
    """``turn`` also has a transcript: ``history``, ``rows``, ``setup``."""

    _reported = ""
    _request_columns = staticmethod(request_columns)
    _reply_columns = staticmethod(reply_columns)

    def open(self) -> dict[str, Any]:
        """Return the snapshot, with the transcript by reference."""
        self._tracker = Tracker(self._turn)
        self._kept = Kept.of(self.session)
        self._history, self._rows = self._place(), len(self._turn.rows)
        return self._tracker.start | {"history": self._history, "rows": []}

    async def end_again(self, closing: Closing) -> None:
        """``ended``, on a session that was read again: rows of this turn that it lacks are appended."""
        with self._database.reading() as c:
            query = "SELECT body, body_crc FROM messages WHERE session = ? AND turn = ? AND active = 1"
            stored = Counter(
                verify_checksum(*row) for row in c.execute(query, (self.session.id, self._turn.turn_id))
            )
        for row in self._turn.rows:
            if stored[body := dumps(row.to_dict())]:
                stored[body] -= 1
            else:
                self.session.append([row])
        self._kept = Kept.of(self.session)
        await super().end_again(closing)

    # Requests and replies

    def _without_store(self, exchange: Exchange, known: Sequence[Any]) -> Sequence[Any]:
        """Refuse unsafe tools. Raises ``StoreError`` when another process may own the turn."""
        if not self.fence.alone():
            raise StoreError(self.problem)
        asked = zip(exchange.requests, known, strict=True)
        return [
            request.unwritten(self.problem) or UNKNOWN if reply is UNKNOWN else reply
            for request, reply in asked
        ]

    def _recorded_reply(self, exchange: Exchange, place: int, request: Any) -> Any:
        reply = super()._recorded_reply(exchange, place, request)
        if reply is LOST:
            self._jobs.append(self._outcome(exchange, place, request, reply, 0.0))
            key = f"{self._turn.turn_id} {exchange.seq}.{exchange.ordinal}.{place}"
            self._jobs += self._assume_usage(request, reply, key)
        return reply

    async def end(self, closing: Closing) -> None:
        self._reported, self.problem = self.problem, ""  # missing writes are tried once more
        await super().end(closing)

    def _on_store_failure(self, error: StoreError) -> None:
        if self._database.shared or not self.fence.alone():
            raise error  # another process may own the turn by now
        if not (self.problem or self._reported):
            self._tell(f"{error}; the turn continues, but is not stored")
        self.problem = str(error)

    def _costs(self, request: CallModel, reply: Any) -> list[Job]:
        """Book the tokens of a reply in its transaction."""
        usage: Usage | None = reply.usage
        if usage is None:
            return self._assume_usage(request, reply)
        turn, runtime = self._turn, self._asked_model(request)
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

    def _asked_model(self, request: CallModel) -> Runtime:
        setup = self._turn.setup
        asked: Runtime = setup.runtime if request.auxiliary is None else setup.auxiliary[request.auxiliary]
        return asked

    def _assume_usage(self, request: CallModel, reply: Any, key: str | None = None) -> list[Job]:
        """Book the estimated usage of a request for which the provider reported none; ``which`` identifies a
        request that may be booked twice."""
        usage, runtime = estimate_usage(request.request, reply), self._asked_model(request)
        if not usage.total:
            return []
        price = price_of(runtime.model, runtime.provider, self._turn.settings.prices)
        usd = 0.0 if price is None else price.most(usage.prompt, usage.output)
        values = (self._turn.turn_id, self._now(), usage.total, usd, key)
        insert = "INSERT OR IGNORE INTO unreported (turn, at, tokens, cost, request) VALUES (?, ?, ?, ?, ?)"
        return [lambda c: c.execute(insert, values)]

    # The transcript

    def _place(self) -> list[Any]:
        """Return the transcript by reference: session, version, the number of its rows, and the newest number
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
        """Gather the changes of the transcript since the last call, and of the sessions that continue it."""
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
            count_revision(c, parent.id)
            c.execute("UPDATE turns SET session = ? WHERE id = ?", (child.id, turn_id))

        self._jobs.append(follow)

    def _delta(self) -> dict[str, Any]:
        self._note_session()
        return super()._delta() | self._rows_delta()

    def _note_session(self) -> None:
        """Gather rows and the other stored fields of a session: prompts, meter, guard, usage."""
        self._note_rows()
        if self._kept.still(self.session):
            return
        before, self._kept, session_id = self._kept, Kept.of(self.session), self.session.id
        changed = self._kept.columns(before)
        names, values = ", ".join(f"{name} = ?" for name in changed), (*changed.values(), session_id)
        self._jobs.append(lambda c: c.execute(f"UPDATE sessions SET {names} WHERE id = ?", values))  # noqa: S608 - ours
