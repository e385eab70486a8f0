"""Messages between a debugger and its clients: commands, one class each, and events.

A page, an editor, and a row of the table ``controls`` encode a command as its ``name`` and JSON fields.
``read_command`` decodes it once, at that boundary; ``Controller.order`` executes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, get_args

from fsm_agent.conversation.effects import TurnRequest
from fsm_agent.debug.core.breakpoints import Arguments, Breakpoint, number, objects, text, texts
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.journal import Exchange, Step, reply_record, request_json
from fsm_agent.request import list_entry
from fsm_agent.sessions.store.journal.conversation_journal import reply_columns, request_columns


@dataclass(frozen=True, slots=True)
class PauseTurn:
    """Pause before the next request or move."""

    name: ClassVar[str] = "pause"


@dataclass(frozen=True, slots=True)
class StepMove:
    """Run to the next move."""

    name: ClassVar[str] = "step"


@dataclass(frozen=True, slots=True)
class StepInto:
    """Run one request and its reply, or the move that ends the state. If the state runs nested turns, run to
    their first request."""

    name: ClassVar[str] = "into"


@dataclass(frozen=True, slots=True)
class StepOver:
    """Run to the next request to the model. Without a model, run until the turn leaves this state, however
    often it repeats."""

    name: ClassVar[str] = "over"


@dataclass(frozen=True, slots=True)
class ContinueTurn:
    """Run until a breakpoint is hit or the turn ends."""

    name: ClassVar[str] = "continue"


@dataclass(frozen=True, slots=True)
class RunTo:
    """Run until a move meets the breakpoint ``until`` or has that number; other breakpoints also stop the
    turn. As JSON it is ``breakpoint`` (an object) or ``seq``."""

    name: ClassVar[str] = "to"
    until: Breakpoint | int


@dataclass(frozen=True, slots=True)
class InterruptTurn:
    """Interrupt the turn as its user would, with ``message``; it runs to its end and ignores breakpoints."""

    name: ClassVar[str] = "interrupt"
    message: str | None = None


@dataclass(frozen=True, slots=True)
class SteerTurn:
    """Send ``text`` to the turn without stopping it."""

    name: ClassVar[str] = "steer"
    text: str


@dataclass(frozen=True, slots=True)
class HoldRequests:
    """Hold requests to the model (``model``) or tool calls (``tool``) until a person answers or releases
    them; in a turn of another table, hold every request (``request``). Replaces the previous ``kinds``."""

    name: ClassVar[str] = "hold"
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Answer the pending request number ``id`` by hand; ``PendingRequest.reply`` documents ``said``."""

    name: ClassVar[str] = "answer"
    id: int
    said: Any


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """Release the held request number ``id``: it is performed."""

    name: ClassVar[str] = "let"
    id: int


@dataclass(frozen=True, slots=True)
class EditRequest:
    """Perform the held request number ``id`` with changes; for a request to the model, ``said`` is the new
    body, an object."""

    name: ClassVar[str] = "edit"
    id: int
    said: Any


@dataclass(frozen=True, slots=True)
class ReplaceBreakpoints:
    """Replace all breakpoints with ``all``."""

    name: ClassVar[str] = "breakpoints"
    all: tuple[Breakpoint, ...] = ()


Running = StepMove | StepInto | StepOver | ContinueTurn | RunTo | InterruptTurn
"""Commands after which the turn runs."""
Command = (
    PauseTurn
    | Running
    | SteerTurn
    | HoldRequests
    | AnswerRequest
    | ReleaseRequest
    | EditRequest
    | ReplaceBreakpoints
)
_BARE = {kind.name: kind() for kind in (PauseTurn, StepMove, StepInto, StepOver, ContinueTurn)}
NAMES: tuple[str, ...] = tuple(kind.name for kind in get_args(Command))


def read_command(name: str, body: Mapping[str, Any]) -> Command:
    """Parse the command with this name from the JSON fields in ``body``; ignore other fields. Raises
    ``ConfigError`` for an unknown name and for a field that is missing or has the wrong type."""
    match name:
        case _ if name in _BARE:
            return _BARE[name]
        case "to":
            return RunTo(Breakpoint.of(body["breakpoint"]) if "breakpoint" in body else number(body, "seq"))
        case "interrupt":
            return InterruptTurn(text(body, "message") if body.get("message") else None)
        case "steer":
            return SteerTurn(text(body, "text"))
        case "hold":
            return HoldRequests(texts(body, "kinds"))
        case "answer":
            return AnswerRequest(number(body, "id", least=None), body.get("said"))
        case "edit":
            return EditRequest(number(body, "id", least=None), body.get("said"))
        case "let":
            return ReleaseRequest(number(body, "id", least=None))
        case "breakpoints":
            return ReplaceBreakpoints(breakpoints_in(body))
    raise ConfigError("no such order", name, ", ".join(NAMES))


def body_of(command: Command) -> dict[str, Any]:
    """Return the fields of a command as JSON values; ``read_command`` is the inverse."""
    match command:
        case RunTo(until=Breakpoint() as until):
            return {"breakpoint": until.to_dict()}
        case RunTo(until=seq):
            return {"seq": seq}
    return asdict(command)


def breakpoints_in(body: Arguments) -> tuple[Breakpoint, ...]:
    """Parse the breakpoints listed under ``all`` in ``body``. Raises ``ConfigError`` if one is invalid."""
    return tuple(Breakpoint.of(one) for one in objects(body, "all"))


# ----------------------------------------------------------------------------------------------------
# Events that a debugger publishes to its clients: plain values that can be sent unchanged.
#
# ==============  ============================================================================================
# ``moved``       a move was made: seq, source, event, dest, row, exit, guards, changes, seconds, at
# ``exchanged``   a request has its reply: seq, state, ordinal, kinds
# ``paused``      the engine is paused: seq, state, reason (entry, step, pause, breakpoint), text,
#                 breakpoints (ids)
# ``running``     the engine continues: seq, state
# ``waiting``     a person must answer: held, a list of the pending requests (see ``PendingRequest.shown``)
# ``log``         a logpoint was reached: seq, breakpoint, text
# ``ended``       the turn is over
# ``left``        the process that ran the turn has stopped; the turn can be resumed
# ==============  ============================================================================================

EventKind = Literal["moved", "exchanged", "paused", "running", "waiting", "log", "ended", "left"]
"""Where requests of this agent's turn are defined."""
Phase = Literal["paused", "running", "waiting", "ended", "idle"]
"""``paused`` between two requests, ``running``, ``waiting`` for a person's answer, ``ended``, or ``idle``:
unfinished, and no process runs it."""
Reason = Literal["", "entry", "step", "pause", "breakpoint"]
"""Why a turn is paused; empty if it is not paused."""
Where = Literal["here", "elsewhere", "nowhere"]
"""Where the turn runs: in this process, in another one, or in none."""


@dataclass(frozen=True, slots=True)
class DebugEvent:
    """``data`` are JSON values; every event has ``turn`` and ``seq``."""

    kind: EventKind
    data: Mapping[str, Any]


Listener = Callable[[DebugEvent], None]


@dataclass(frozen=True, slots=True)
class Status:
    """State of the engine. ``held``: questions for a person. ``hold``: kinds of requests to hold. ``inner``:
    ids of the nested turns that the state runs; the engine is paused while one of them is."""

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
    """Return a move as JSON. ``guards`` [[label, value]], ``changes`` [[counter, before, after]]; ``at`` in
    seconds since the epoch."""
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
    """Return an exchange in the form of the journal's effects; message rows appear by number only."""
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
    """Return request and reply in the journal's format."""
    if isinstance(request, TurnRequest):
        *_, asked, _ = request_columns(None, request)
        return {"request": json.loads(asked), "reply": json.loads(reply_columns(request, reply)[0])}
    return {"request": request_json(request), "reply": reply_record(request, reply)}
