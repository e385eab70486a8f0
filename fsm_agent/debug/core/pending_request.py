"""Pending requests: a held request to the model, a held tool call, or an approval, and their answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fsm_agent.approvals.question import Question, rememberable
from fsm_agent.approvals.service import WORDS, read_answer
from fsm_agent.conversation.effects import (
    Approval,
    AskApproval,
    CallModel,
    Failure,
    RunTool,
    ToolOutcome,
    ToolStatus,
)
from fsm_agent.conversation.messages import ModelReply, ToolCall
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.base_turn import BaseTurn
from fsm_agent.fsm.codec import dumps
from fsm_agent.fsm.journal import convert_answer, plain
from fsm_agent.fsm.runner import State
from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.verify.reach import all_limit_names
from fsm_agent.request import answerable
from fsm_agent.workflow import Nested, Workflow

# ----------------------------------------------------------------------------------------------------
# A table without state functions, played by hand: at every state, a person chooses the event to report.


USUAL_LIMIT = 2
"""Assumed limit of an unspecified budget: enough for "some left", "one left" and "none left"."""


@dataclass(frozen=True, slots=True)
class ReportEvent:
    """Ask a person which event ``state`` reports."""

    state: str
    events: tuple[str, ...]


@dataclass
class ManualTurn(BaseTurn):
    """Name, counters, and the events reported so far."""

    name: str = ""
    path: list[str] = field(default_factory=list)

    def arrive(self, row: Row) -> None:
        super().arrive(row)
        self.path.append(row.event)


def manual_workflow(
    table: Table, limits: Mapping[str, int], home: str | os.PathLike[str] | None = None
) -> Workflow[ManualTurn]:
    """Return a workflow of ``table`` whose turns are played by hand, under these limits. Turns of the tables
    that it runs are also played by hand, as many as their limit allows."""
    chosen = {name: limits.get(name, USUAL_LIMIT) for name in all_limit_names(table) if "." not in name}
    events = {
        state: tuple(dict.fromkeys(event for source, event in table.by_event if source == state))
        for state in table.states
    }
    states: dict[str, State] = {state: _asks(state, events[state]) for state in table.states}
    for state, inner in table.inner.items():
        flows = [manual_workflow(one, _limits_of(one, limits), home) for one in inner.tables]
        states[state] = Nested(*flows, begin=_begins(flows * chosen.get(inner.most, 1)))
    return Workflow(
        table,
        states,
        ManualTurn,
        _nobody,
        begin=lambda text: ManualTurn(text, limits=dict(chosen)),
        home=home,
    )


def _begins(flows: Sequence[Workflow[ManualTurn]]) -> Callable[[ManualTurn], list[ManualTurn]]:
    return lambda turn: [flow.begin(turn.name) for flow in flows]


def _limits_of(table: Table, limits: Mapping[str, int]) -> dict[str, int]:
    """Return the limits of an inner table and of the tables that it runs."""
    own = {name.removeprefix(f"{table.name}."): most for name, most in limits.items()}
    return {name: most for name, most in own.items() if name in all_limit_names(table)}


def _asks(state: str, events: tuple[str, ...]) -> State:
    def ask(turn: ManualTurn) -> Generator[ReportEvent, str, str | None]:
        return (yield ReportEvent(state, events)) if events else None

    return ask


async def _nobody(request: Any) -> Any:
    raise ConfigError(f"no debugger is attached to say what {request.state} reports", None, "a debugger")


HeldKind = Literal["model", "tool", "approval", "request", "event"]
STATUSES: tuple[ToolStatus, ...] = ("ok", "error", "timeout", "unknown")


class Perform:
    """Sentinel in place of an answer: perform the request."""


PERFORM = Perform()


@dataclass(frozen=True, slots=True)
class PerformEdited:
    """Sentinel in place of an answer: perform this request instead."""

    request: Any


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A pending request. ``answer`` is set in the turn's loop. ``elsewhere``: another approver was asked too,
    and the first answer wins. ``allowable``: the rules have left the decision to a person; until then the
    request can only be denied."""

    id: int
    kind: HeldKind
    request: Any
    answer: asyncio.Future[Any]
    elsewhere: bool = False
    allowable: bool = True
    answered: bool = False
    _about: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self._about = _about(self.request)

    def describe(self) -> dict[str, Any]:
        """Return the question as JSON: for a call the ``question`` that every client shows, for a request to
        the model the body to send."""
        return {
            "id": self.id,
            "kind": self.kind,
            "elsewhere": self.elsewhere,
            "allowable": self.allowable,
            **self._about,
        }

    def edit(self, edit: Any) -> PerformEdited:
        """Return the request with a person's changes. Raises ``ConfigError`` unless it is a body for a
        request to the model: a call runs exactly as the model requested and the rules allowed."""
        if not isinstance(self.request, CallModel):
            allowed = "a request to the model; answer this by hand, or fork with another answer of the model"
            raise ConfigError("this request cannot be changed", self.kind, allowed)
        if not isinstance(edit, Mapping) or not edit:
            raise ConfigError("the body of a request is not an object", edit, "a JSON object")
        asked = self.request.request
        return PerformEdited(replace(self.request, request=replace(asked, body=dumps(edit).encode())))

    def reply(self, given: Any) -> Any:
        """Convert a person's answer to a reply. Raises ``ConfigError``."""
        match self.request:
            case CallModel():
                return model_reply(given)
            case RunTool(call_id=call_id):
                return tool_outcome(call_id, given)
            case AskApproval(name=name) as question:
                answer = approval(given)
                if answer.scope != "once" and not rememberable(question):
                    raise ConfigError(f"this call of {name} cannot be remembered", given, "once, deny")
                if answer.granted and not self.allowable:
                    raise ConfigError(
                        f"the rules about {name} have not spoken yet", given, "deny, or wait for them"
                    )
                return answer
            case ReportEvent(state=state, events=events):
                if given not in events:
                    raise ConfigError(f"{state} reports no such event", given, ", ".join(events))
                return given
        return convert_answer(self.request, given)


def _about(request: Any) -> dict[str, Any]:
    match request:
        case CallModel(request=body):
            return {
                "name": body.purpose,
                "editable": True,
                "wire": body.body.decode("utf-8", "replace"),
                "estimate": body.estimate,
            }
        case AskApproval() | RunTool():
            return call_form(request)
        case ReportEvent(state=state, events=events):
            return {"name": state, "events": list(events)}
    return {"name": type(request).__name__, "request": plain(request), "answerable": answerable(request)}


def call_form(request: AskApproval | RunTool) -> dict[str, Any]:
    """Return a pending call as JSON. A person sees ``question``; the other fields are for programs."""
    more = {"pattern": request.pattern, "origin": request.origin} if isinstance(request, AskApproval) else {}
    return {
        "name": request.name,
        "call_id": request.call_id,
        "arguments": dict(request.arguments),
        **more,
        "question": Question.of(request).to_dict(),
    }


def kind_of(request: Any) -> HeldKind:
    """Return the kind of a request: the name under which a person holds such requests, and the form of its
    answer."""
    match request:
        case CallModel():
            return "model"
        case RunTool():
            return "tool"
        case AskApproval():
            return "approval"
        case ReportEvent():
            return "event"
    return "request"


def model_reply(answer: Any) -> ModelReply | Failure:
    """Build the model's reply from a text, or {"text", "reasoning", "tool_calls": [{"name", "arguments",
    "id"}]}; or {"failure": message, "status": 503} for an error of the provider. Raises ``ConfigError``."""
    words = {"text": answer} if isinstance(answer, str) else answer
    if not isinstance(words, Mapping):
        raise ConfigError(
            "the model cannot say this", type(answer).__name__, 'a text, or {"text", "tool_calls"}'
        )
    if "failure" in words:
        return _failure(words)
    calls = tuple(_call(number, call) for number, call in enumerate(words.get("tool_calls") or ()))
    if not calls and not str(words.get("text") or "") and not words.get("reasoning"):
        raise ConfigError("the model's answer is empty", answer, "a text, or at least one tool call")
    return ModelReply(
        str(words.get("text") or ""),
        reasoning=str(words.get("reasoning") or ""),
        tool_calls=calls,
        finish="tool_calls" if calls else "stop",
    )


def _failure(words: Mapping[str, Any]) -> Failure:
    message, status = str(words["failure"]), words.get("status")
    if status is not None and not (isinstance(status, int) and 400 <= status < 600):
        raise ConfigError("no such status of an error", status, "400 to 599, or none for a broken connection")
    kind: Literal["http", "transport"] = "http" if status is not None else "transport"
    return Failure(kind, message, status=status, detail=message.lower(), sent=False)


def _call(number: int, call: Any) -> ToolCall:
    if not isinstance(call, Mapping) or not call.get("name"):
        raise ConfigError("not a tool call", call, '{"name": …, "arguments": {…}}')
    arguments = call.get("arguments", {})
    text = arguments if isinstance(arguments, str) else dumps(arguments)
    return ToolCall(str(call.get("id") or f"call_by_hand_{number}"), str(call["name"]), text)


def tool_outcome(call_id: str, answer: Any) -> ToolOutcome:
    """Build the result of a call from a text, or {"text", "status"}; status ok, error, timeout or unknown."""
    words = {"text": answer} if isinstance(answer, str) else answer
    if not isinstance(words, Mapping) or not isinstance(words.get("text"), str):
        raise ConfigError("a tool cannot give this back", answer, 'a text, or {"text", "status"}')
    for status in STATUSES:
        if status == words.get("status", "ok"):
            return ToolOutcome(call_id, status, words["text"])
    raise ConfigError("no such status of a tool's result", words["status"], ", ".join(STATUSES))


def approval(given: Any) -> Approval:
    """Parse an approval: ``once``, ``session`` or true grant; ``deny``, false, or {"deny": why} deny."""
    if isinstance(given, Mapping):
        return Approval(False, str(given.get("deny") or "the user said no"))
    if (answer := read_answer(given)) is None:
        raise ConfigError("an approval cannot be answered so", given, ", ".join(WORDS))
    return answer
