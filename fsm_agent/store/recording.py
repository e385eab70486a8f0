"""What is known of the visit of a state that a crash, a fork or a person interrupted: replies that need not be asked for.

States are pure, so a visit that is run again asks for the same things in the same order. Replies of the world are taken from the
record; what touches this process (keys, connections, rows of the session) is done again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

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
from fsm_agent.store.rows import REPLY, REQUEST

REPLAYED = (AskApproval, CallModel, CheckSignals, Prefetch, Preserve, RunTool, Tell, Wait)
IN_DOUBT = (
    "Unknown outcome: the process ended while this ran, and nobody can say whether it took effect. It was not run again. "
    "Find out what happened before repeating it."
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as the journal has it. ``reply`` is ``None`` while it was in flight."""

    kind: str
    request: dict[str, Any]
    status: str
    reply: Any = None


@dataclass(slots=True)
class Recording:
    """Replies by (ordinal, place) of one visit; ``answers`` are given by a person: tool results by call id, or a reply of the
    model. ``doubts`` collects the calls whose effect nobody knows."""

    entries: dict[tuple[int, int], Recorded] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    reply_of_model: Reply | None = None
    doubts: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, str, str, str, str | None]]) -> Recording:
        """From rows (ordinal, place, kind, status, request, reply)."""
        made = cls()
        for ordinal, place, kind, status, request, reply in rows:
            asked = json.loads(request)
            known = kind in _REPLAYED_NAMES and reply is not None
            made.entries[ordinal, place] = Recorded(kind, asked, status, REPLY.decode(json.loads(reply or "")) if known else None)
        return made

    def reply(self, ordinal: int, place: int, request: Any) -> Any:
        """The reply that is known for this request, or ``UNKNOWN``."""
        if isinstance(request, RunTool) and request.call_id in self.results:
            return ToolOutcome(request.call_id, "ok", self.results[request.call_id])
        if isinstance(request, CallModel) and self.reply_of_model is not None:
            reply, self.reply_of_model = self.reply_of_model, None
            return reply
        entry = self.entries.get((ordinal, place))
        if entry is None or not isinstance(request, REPLAYED) or not self._same(entry, request):
            return UNKNOWN
        if entry.reply is not None:
            return entry.reply
        if isinstance(request, RunTool) and request.effect == "unsafe":
            self.doubts.append((request.name, request.call_id))
            return ToolOutcome(request.call_id, "unknown", IN_DOUBT)
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
