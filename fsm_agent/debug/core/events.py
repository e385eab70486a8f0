"""Events that a debugger publishes to its clients: plain values that can be sent unchanged.

==============  ==============================================================================================
``moved``       a move was made: seq, source, event, dest, row, exit, guards, changes, seconds, at
``exchanged``   a request has its reply: seq, state, ordinal, kinds
``paused``      the engine is paused: seq, state, reason (entry, step, pause, breakpoint), text,
                breakpoints (ids)
``running``     the engine continues: seq, state
``waiting``     a person must answer: held, a list of the pending requests (see ``PendingRequest.shown``)
``log``         a logpoint was reached: seq, breakpoint, text
``ended``       the turn is over
``left``        the process that ran the turn has stopped; the turn can be resumed
==============  ==============================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fsm_agent.conversation.effects import TurnRequest
from fsm_agent.fsm.journal import Exchange, Step, reply_record, request_json
from fsm_agent.request import list_entry
from fsm_agent.sessions.store.journal.conversation_journal import reply_columns, request_columns

EventKind = Literal["moved", "exchanged", "paused", "running", "waiting", "log", "ended", "left"]
"""Where requests of this agent's turn are defined."""
Phase = Literal["paused", "running", "waiting", "ended", "idle"]
"""``paused`` between two requests, ``running``, ``waiting`` for a person's answer, ``ended``, or ``idle``:
unfinished, and no process runs it."""
Reason = Literal["", "entry", "step", "pause", "breakpoint"]
"""Why a turn is paused; empty while it is not."""
Where = Literal["here", "elsewhere", "nowhere"]
"""In this process, in another one, or in none."""


@dataclass(frozen=True, slots=True)
class DebugEvent:
    """``data`` are JSON values; every event has ``turn`` and ``seq``."""

    kind: EventKind
    data: Mapping[str, Any]


Listener = Callable[[DebugEvent], None]


@dataclass(frozen=True, slots=True)
class Status:
    """State of the engine. ``held``: questions for a person. ``hold``: the kinds of requests to hold back.
    ``inner``: the nested turns that the state runs, by id; the engine is paused while one of them is."""

    phase: Phase
    seq: int
    state: str
    reason: Reason = ""
    text: str = ""
    breakpoints: tuple[int, ...] = ()
    held: tuple[dict[str, Any], ...] = ()
    hold: tuple[str, ...] = ()
    where: Where = "nowhere"
    interrupted: bool = False
    inner: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def step_dict(step: Step, at: float | None = None) -> dict[str, Any]:
    """A move as JSON. ``guards`` [[label, value]], ``changes`` [[counter, before, after]]; ``at`` in seconds
    since the epoch."""
    return {
        "seq": step.seq,
        "source": step.source,
        "event": step.event,
        "dest": step.dest,
        "row": step.row,
        "guards": [list(pair) for pair in step.guards],
        "changes": [list(change) for change in step.changes],
        "seconds": step.seconds,
        "exit": step.exit,
        "at": at,
    }


def entries(exchange: Exchange) -> list[dict[str, Any]]:
    """An exchange as the journal's effects are shown; rows of messages by their number only."""
    replies = exchange.reply if isinstance(exchange.request, list) else [exchange.reply]
    return [
        {
            "seq": exchange.seq, "ordinal": exchange.ordinal, "place": place, "state": exchange.state,
            "kind": type(request).__name__,
            "name": list_entry(request)[0], "status": "done",
            **_forms(request, reply),
            "at": None, "seconds": None,
        }
        for place, (request, reply) in enumerate(zip(exchange.requests, replies, strict=True))
    ]  # fmt: skip


def _forms(request: Any, reply: Any) -> dict[str, Any]:
    """Request and reply as the journal keeps them."""
    if isinstance(request, TurnRequest):
        return {
            "request": json.loads(request_columns(None, request)[0]),
            "reply": json.loads(reply_columns(request, reply)[0]),
        }
    return {"request": request_json(request), "reply": reply_record(request, reply)}
