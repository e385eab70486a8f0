"""What is known of an interrupted visit of a turn that talks to a model and runs tools.

Replies of the world are taken from the record; what touches this process (keys, connections, rows of the
session) is done again. So is asking a person: a yes is never taken from the record, because the rules may be
others by now, and the record a stranger's. Where rules or tools are others, the order is another one, too; so
calls are known by their ids, and none runs twice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fsm_agent.conversation.call_key import signature
from fsm_agent.conversation.effects import (
    KINDS,
    LOST,
    AnswerProgram,
    Approval,
    AskApproval,
    CallModel,
    CheckSignals,
    Reply,
    RunTool,
    ToolOutcome,
)
from fsm_agent.fsm.codec import dumps
from fsm_agent.fsm.journal import UNKNOWN
from fsm_agent.sessions.store.journal.read import Effect
from fsm_agent.sessions.store.journal.recording import Recorded, Recording
from fsm_agent.sessions.store.rows import REPLY, REQUEST

NOTHING_TO_RUN = Approval(True, "its outcome is known; it is not run again")
"""To the question about a call that is answered from the record, or by a person: nobody need be asked."""


@dataclass(slots=True)
class ConversationRecording(Recording):
    """``results`` by call id and ``reply_of_model`` are given by a person. The row that led to a ``resumed``
    visit has paid for one request to a model, which may or may not have left."""

    results: dict[str, str] = field(default_factory=dict)
    reply_of_model: Reply | None = None

    @classmethod
    def of(cls, effects: Iterable[Effect], answers: Mapping[str, Any] | None = None) -> ConversationRecording:
        """What the journal has of a visit; ``answers`` is what ``answers()`` gave for the turn of a fork."""
        made = cls()
        if answers is not None:
            made.results = dict(answers["results"])
            made.reply_of_model = REPLY.decode(answers["reply"]) if answers["reply"] else None
            for ordinal, place, kind, status, request, reply in answers["entries"]:
                made.entries[ordinal, place] = Recorded(
                    kind, request, status, REPLY.decode(reply), foreign=True
                )
        for e in effects:
            known = e.kind in KINDS and KINDS[e.kind].reused and e.reply is not None
            made.entries[e.ordinal, e.place] = Recorded(
                e.kind, e.request, e.status, REPLY.decode(e.reply) if known else None
            )
        return made

    def cut_off(self) -> frozenset[str]:
        """Return the keys of calls that were running when their process ended."""
        running = (one for one in self.entries.values() if one.kind == RunTool.__name__ and one.reply is None)
        return frozenset(str(one.request.get("key", "")) for one in running)

    def silent(self) -> bool:
        """Is nothing known, also by hand, and no request paid for in another process?"""
        return not (self.entries or self.results or self.reply_of_model or self.resumed)

    def taken_over(self) -> ConversationRecording:
        """For a fork: results of tools, which it takes over; the model is asked again."""
        kept = {
            place: replace(entry, foreign=True)
            for place, entry in self.entries.items()
            if entry.kind in ("AnswerProgram", "RunTool") and entry.reply is not None
        }
        return ConversationRecording(kept)

    def answers(self) -> dict[str, Any] | None:
        """What a fork begins with, as JSON values, so that it is still there when the process ends before the
        visit does; or ``None``."""
        entries = [
            [*where, one.kind, one.status, one.request, json.loads(dumps(REPLY.encode(one.reply)))]
            for where, one in self.entries.items()
        ]
        if not (entries or self.results or self.reply_of_model):
            return None
        reply = None if self.reply_of_model is None else json.loads(dumps(REPLY.encode(self.reply_of_model)))
        return {"results": self.results, "reply": reply, "entries": entries}

    def reply(self, ordinal: int, place: int, request: Any) -> Any:
        """The reply that is known for this request, or ``UNKNOWN``."""
        at = self._found(ordinal, place, request)
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
        """(ordinal, place) under which the journal keeps this request: where it is recorded already, else at
        its point of the visit, behind all calls of tools that are recorded there: whoever loses such an entry
        runs the call again."""
        if not self.entries:
            return ordinal, place
        if (at := self._found(ordinal, place, request)) is not None and not self.entries[at].foreign:
            return at
        own = [at for at, one in self.entries.items() if one.kind == RunTool.__name__ and not one.foreign]
        return ordinal, place + max((taken + 1 for one, taken in own if one == ordinal), default=0)

    def answered(self) -> frozenset[str]:
        """Names of the tools with a call in this visit that is not made again."""
        return frozenset(
            str(entry.request.get("name"))
            for entry in self.entries.values()
            if entry.kind == RunTool.__name__
            and (_is_settled(entry) or entry.request.get("call_id") in self.waiting)
        )

    def _found(self, ordinal: int, place: int, request: Any) -> tuple[int, int] | None:
        """Where the request is recorded: at the same point of the visit, or wherever its call is."""
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
        """Must a call that may have run not run again? The stricter of what its tool says now and said then
        counts, and nothing is repeated with other arguments."""
        return request.effect == "unsafe" or _was_unsafe(entry) or not _says(entry, request)

    def _by_hand(self, request: Any) -> Any:
        if isinstance(request, RunTool) and request.call_id in self.results:
            return ToolOutcome(request.call_id, "ok", self.results[request.call_id])
        if isinstance(request, CallModel) and self.reply_of_model is not None:
            reply, self.reply_of_model = self.reply_of_model, None
            return reply
        return UNKNOWN

    def _same(self, entry: Recorded, request: Any) -> bool:
        """Is it the request that was recorded? Calls of tools by their id; others by their kind."""
        if entry.kind != type(request).__name__:
            return False
        if isinstance(request, AnswerProgram):
            return all(entry.request.get(name) == getattr(request, name) for name in ("call_id", "number"))
        if isinstance(request, CheckSignals):
            return bool(entry.request.get("take_steer")) == request.take_steer
        return _is_call(entry, request) if isinstance(request, RunTool | AskApproval) else True


def _is_call(entry: Recorded, request: RunTool | AskApproval) -> bool:
    """Ids are unique within the reply that a visit works on. A fork may have another reply, so there all that
    the call says counts (its key is another one in any case)."""
    return entry.request.get("call_id") == request.call_id and (not entry.foreign or _says(entry, request))


def _says(entry: Recorded, request: RunTool | AskApproval) -> bool:
    asked = json.loads(dumps(REQUEST.encode(request)))
    return all(entry.request.get(name) == asked.get(name) for name in ("call_id", "name", "arguments"))


def _is_settled(call: Recorded) -> bool:
    """Is its outcome known, or is it known that nobody knows?"""
    return call.reply is not None or _was_unsafe(call)


def _was_unsafe(entry: Recorded) -> bool:
    """As its tool said when it began; the default is not written down."""
    return bool(entry.request.get("effect", "unsafe") == "unsafe")


def _steers(request: Any) -> bool:
    """Once in a visit, and what was said then is said by nobody again."""
    return isinstance(request, CheckSignals) and request.take_steer
