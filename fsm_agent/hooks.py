"""Code of yours that sees what goes through a turn, and may change or refuse it: hooks and guardrails.

Both are asked in their order, each sees what the one before made of it, and what one changes is in the
journal with its name. They may be plain functions, which run in a thread, or ``async``; each has
``settings.hook_timeout`` seconds. One that could have refused something and fails has refused it.

>>> def no_secrets(context: RunContext, text: str) -> Block | None:
...     return Block("that looks like a key") if "sk-" in text else None
>>> agent = Agent(input_guardrails=[no_secrets], output_guardrails=[no_secrets])
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fsm_agent.conversation.effects import ModelRequest, Runtime
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.tools.signature import RunContext

if TYPE_CHECKING:
    from fsm_agent.fsm.journal import Step

__all__ = [
    "Answer",
    "Block",
    "Guardrail",
    "Hooks",
    "RequestChange",
    "Retry",
    "Rewrite",
    "ShownCall",
    "ShownRequest",
]


# What they answer


@dataclass(frozen=True, slots=True)
class Block:
    """Refuse it. A refused message, request, or answer ends the turn with the exit reason
    ``guardrail_blocked``; for a refused call the model receives ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Continue with this text instead."""

    text: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Send the answer back to the model with this reason, as often as ``settings.output_retries`` says; then
    the turn ends with ``output_invalid``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """In the place of the model, which is not asked, or of the tool, which is not run."""

    text: str


@dataclass(frozen=True, slots=True)
class RequestChange:
    """``options``: fields of the request's body by their names in the provider's API, ``None`` for one to
    leave out; not those that say which model reads which conversation. ``rows``: messages in the form of that
    API, behind the others, in this request alone."""

    options: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()


# What they are shown


@dataclass(frozen=True)
class ShownRequest:
    """A request that is about to be sent: number ``attempt`` for the same thing. ``tokens`` is an estimate of
    its size."""

    request: ModelRequest
    runtime: Runtime
    attempt: int = 1

    @property
    def provider(self) -> str:
        """Return the name of who gets it."""
        return self.runtime.provider

    @property
    def model(self) -> str:
        """Return the model that it is for."""
        return self.runtime.model

    @property
    def tokens(self) -> int:
        """Return about how long the prompt is."""
        return self.request.estimate

    @cached_property
    def body(self) -> Mapping[str, Any]:
        """The JSON as it goes out, read when it is first looked at; changing it changes nothing."""
        read: Mapping[str, Any] = json.loads(self.request.body)
        return read


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A call of a tool, before anybody is asked whether it may run, or after it ran."""

    id: str
    name: str
    arguments: Mapping[str, Any]


# What is asked


Verdict = Block | Rewrite | Retry | None
"""What a guardrail says; ``None``: nothing is wrong. ``Retry`` is for answers."""


@dataclass(frozen=True)
class Guardrail:
    """``check``: a function of ``(context, text)``. ``name``: by default the function's. ``beside``: it looks
    at the message beside the first request, which costs no time, and cannot rewrite it; what the model says
    meanwhile is thrown away when it refuses."""

    check: Callable[[RunContext[Any], str], Verdict | Awaitable[Verdict]]
    name: str = ""
    beside: bool = False

    @property
    def title(self) -> str:
        """Return what the guardrail is called in lines and journals."""
        return self.name or getattr(self.check, "__name__", type(self.check).__name__)


class Hooks:
    """Override what you need. The methods that answer may change what they are shown, and a turn waits for
    them. The others are only told, in order, and cannot hurt the turn. The turns of an agent's children are
    seen by its hooks, too; ``context.turn_id`` tells them apart."""

    name = ""
    """What it is called in lines and journals; by default the name of the class."""

    def turn_begin(self, context: RunContext[Any], message: str) -> Any:
        """The turn begins, or resumes after its process ended. Returns nothing."""

    def before_request(self, context: RunContext[Any], request: ShownRequest) -> Any:
        """A request is about to be sent. Answers a ``RequestChange``, an ``Answer``, a ``Block``, or
        ``None``."""

    def after_request(self, context: RunContext[Any], reply: ModelReply) -> Any:
        """A model has replied. Answers another text of the reply, or ``None``. What was streamed was
        shown."""

    def before_tool(self, context: RunContext[Any], call: ShownCall) -> Any:
        """A call is about to be allowed. Answers other arguments, an ``Answer``, a ``Block``, or ``None``;
        or a ``WakeAt``, to suspend the turn until then, when it is asked again."""

    def after_tool(self, context: RunContext[Any], call: ShownCall, result: str, status: str) -> Any:
        """A tool has ended. Answers the text that the model gets instead, or ``None``."""

    def on_error(self, context: RunContext[Any], error: str) -> Any:
        """A request to a model or a tool failed. Answers nothing."""

    def on_move(self, context: RunContext[Any], step: Step) -> Any:
        """The turn made a move. Answers nothing."""

    def turn_end(self, context: RunContext[Any], answer: str) -> Any:
        """The turn ends with this answer. Answers another text to deliver, or ``None``; the transcript keeps
        what was said."""
