"""What an engine can be told to do: one class a command.

A page, an editor and a row of the table ``controls`` say a command by its ``name``, with its fields as JSON.
``read_command`` decodes it once, at that border; ``Controller.order`` carries it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, get_args

from fsm_agent.debug.core.breakpoints import Arguments, Breakpoint, number, objects, text, texts
from fsm_agent.errors import ConfigError


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
    """Run one request and its reply, or the move that ends the state; where the state runs other turns, to
    their first request."""

    name: ClassVar[str] = "into"


@dataclass(frozen=True, slots=True)
class StepOver:
    """Run to the next request to the model; without a model, out of this state, however often it is
    repeated."""

    name: ClassVar[str] = "over"


@dataclass(frozen=True, slots=True)
class ContinueTurn:
    """Run until a breakpoint is met or the turn ends."""

    name: ClassVar[str] = "continue"


@dataclass(frozen=True, slots=True)
class RunTo:
    """Run until a move meets the breakpoint ``until``, or has that number; other breakpoints stop the turn
    too. As JSON it is ``breakpoint`` (an object) or ``seq``."""

    name: ClassVar[str] = "to"
    until: Breakpoint | int


@dataclass(frozen=True, slots=True)
class InterruptTurn:
    """Interrupt the turn as its user would, with ``message``; it runs to its end, past all breakpoints."""

    name: ClassVar[str] = "interrupt"
    message: str | None = None


@dataclass(frozen=True, slots=True)
class SteerTurn:
    """Tell the turn ``text`` without stopping it."""

    name: ClassVar[str] = "steer"
    text: str


@dataclass(frozen=True, slots=True)
class HoldRequests:
    """Hold requests to the model (``model``) or calls of tools (``tool``) back until a person answers them or
    lets them go; of a turn of another table every request (``request``). In place of the ``kinds`` before."""

    name: ClassVar[str] = "hold"
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Answer the request of number ``id``, which waits for a person, by hand; ``PendingRequest.reply`` says
    what may be ``said``."""

    name: ClassVar[str] = "answer"
    id: int
    said: Any


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """Let the request of number ``id``, which is held back, be performed."""

    name: ClassVar[str] = "let"
    id: int


@dataclass(frozen=True, slots=True)
class EditRequest:
    """Let the request of number ``id``, which is held back, be performed otherwise than it was asked for; of
    a request to the model ``said`` is the body that goes out, an object."""

    name: ClassVar[str] = "edit"
    id: int
    said: Any


@dataclass(frozen=True, slots=True)
class ReplaceBreakpoints:
    """Have ``all`` these breakpoints, and no others."""

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
    """Return the fields of a command as JSON values, such that ``read_command`` makes the same of them."""
    match command:
        case RunTo(until=Breakpoint() as until):
            return {"breakpoint": until.to_dict()}
        case RunTo(until=seq):
            return {"seq": seq}
    return asdict(command)


def breakpoints_in(body: Arguments) -> tuple[Breakpoint, ...]:
    """Parse the breakpoints listed under ``all`` in ``body``. Raises ``ConfigError`` if one is invalid."""
    return tuple(Breakpoint.of(one) for one in objects(body, "all"))
