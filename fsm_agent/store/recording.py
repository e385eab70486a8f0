"""What is known of the visit of a state that a crash, a fork or a person interrupted: replies that need not be asked for.

States are pure, so a visit that is run again asks for the same things in the same order. Replies of the world are taken from the
record; what touches this process (keys, connections, rows of the session) is done again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fsm_agent.codec import dumps
from fsm_agent.journal import UNKNOWN
from fsm_agent.requests import (
    AskApproval,
    CallModel,
    CheckSignals,
    Prefetch,
    Preserve,
    Reply,
    RunTool,
    Tell,
    ToolOutcome,
    Wait,
)
from fsm_agent.store.read import Effect
from fsm_agent.store.rows import REPLY, REQUEST

REPLAYED = (AskApproval, CallModel, CheckSignals, Prefetch, Preserve, RunTool, Tell, Wait)
Origin = Literal["", "by hand", "taken over"]
"""Who gave a reply: the world, a person at a fork, or the turn that was forked."""
IN_DOUBT = (
    "Unknown outcome: the process ended while this ran, and nobody can say whether it took effect. It was not run again. "
    "Find out what happened before repeating it."
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as the journal has it. ``reply`` is ``None`` while it was in flight. ``foreign``: it is in the journal of the
    turn that this one was forked from."""

    kind: str
    request: dict[str, Any]
    status: str
    reply: Any = None
    foreign: bool = False


@dataclass(slots=True)
class Recording:
    """Replies by (ordinal, place) of one visit; ``results`` by call id and ``reply_of_model`` are given by a person. ``doubts``
    collects the calls whose effect nobody knows, ``origins`` who gave the replies that the journal of this turn does not have."""

    entries: dict[tuple[int, int], Recorded] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    reply_of_model: Reply | None = None
    doubts: list[tuple[str, str]] = field(default_factory=list)
    origins: dict[tuple[int, int], Origin] = field(default_factory=dict)

    @classmethod
    def of(cls, effects: Iterable[Effect], answers: Mapping[str, Any] | None = None) -> Recording:
        """What the journal has of a visit; ``answers`` is what ``answers()`` gave for the turn of a fork."""
        made = cls()
        if answers is not None:
            made.results = dict(answers["results"])
            made.reply_of_model = REPLY.decode(answers["reply"]) if answers["reply"] else None
            for ordinal, place, kind, status, request, reply in answers["entries"]:
                made.entries[ordinal, place] = Recorded(kind, request, status, REPLY.decode(reply), foreign=True)
        for e in effects:
            known = e.kind in _REPLAYED_NAMES and e.reply is not None
            made.entries[e.ordinal, e.place] = Recorded(e.kind, e.request, e.status, REPLY.decode(e.reply) if known else None)
        return made

    def taken_over(self) -> Recording:
        """For a fork: results of tools, which it takes over; the model is asked again."""
        kept = {
            place: replace(entry, foreign=True)
            for place, entry in self.entries.items()
            if entry.kind == "RunTool" and entry.reply is not None
        }
        return Recording(kept)

    def answers(self) -> dict[str, Any] | None:
        """What a fork begins with, as JSON values, so that it is still there when the process ends before the visit does; or
        ``None``."""
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
        entry = self.entries.get((ordinal, place))
        if entry is not None and not (isinstance(request, REPLAYED) and self._same(entry, request)):
            entry = None
        if entry is None or entry.foreign or entry.reply is None:
            by_hand = self._by_hand(request)
            if by_hand is not UNKNOWN:
                self.origins[ordinal, place] = "by hand"
                return by_hand
        if entry is None:
            return UNKNOWN
        if entry.reply is not None:
            if entry.foreign:
                self.origins[ordinal, place] = "taken over"
            return entry.reply
        if isinstance(request, RunTool) and request.effect == "unsafe":
            self.doubts.append((request.name, request.call_id))
            return ToolOutcome(request.call_id, "unknown", IN_DOUBT)
        return UNKNOWN

    def _by_hand(self, request: Any) -> Any:
        if isinstance(request, RunTool) and request.call_id in self.results:
            return ToolOutcome(request.call_id, "ok", self.results[request.call_id])
        if isinstance(request, CallModel) and self.reply_of_model is not None:
            reply, self.reply_of_model = self.reply_of_model, None
            return reply
        return UNKNOWN

    def _same(self, entry: Recorded, request: Any) -> bool:
        """Is it the request that was recorded? A call of a tool by all that it says (its key is another one in a fork); others
        by their kind."""
        if entry.kind != type(request).__name__:
            return False
        if not isinstance(request, RunTool | AskApproval):
            return True
        asked = REQUEST.encode(request)
        return all(entry.request.get(name) == json.loads(dumps(asked.get(name))) for name in ("call_id", "name", "arguments"))


_REPLAYED_NAMES = frozenset(kind.__name__ for kind in REPLAYED)
