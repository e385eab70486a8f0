"""Hooks and guardrails: your code that sees what passes through a turn, and may change or refuse it.

Both are called in order, each sees the changes of the previous one, and the journal records each change with
its author's name. They may be plain functions, which run in a thread, or ``async``; each has
``settings.hook_timeout`` seconds. If one that can refuse fails, it refuses.

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


# Their answers


@dataclass(frozen=True, slots=True)
class Block:
    """Refuse. A refused message, request, or answer ends the turn with the exit reason ``guardrail_blocked``;
    for a refused call the model receives ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Continue with this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Send the answer back to the model with this reason, at most ``settings.output_retries`` times; then the
    turn ends with ``output_invalid``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Replaces the answer of the model, which is not asked, or of the tool, which is not run."""

    text: str


@dataclass(frozen=True, slots=True)
class RequestChange:
    """Changes to a request. ``options``: fields of its body by their names in the provider's API, ``None`` to
    remove one; fields that determine which model reads which conversation are not allowed. ``rows``: messages
    in the form of that API, after the others, in this request only."""

    options: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()


# Their input


@dataclass(frozen=True)
class ShownRequest:
    """A request before it is sent. ``attempt``: its number among retries. ``tokens`` estimates its size."""

    request: ModelRequest
    runtime: Runtime
    attempt: int = 1

    @property
    def provider(self) -> str:
        """The provider of the request."""
        return self.runtime.provider

    @property
    def model(self) -> str:
        """The model of the request."""
        return self.runtime.model

    @property
    def tokens(self) -> int:
        """The estimated tokens of the prompt."""
        return self.request.estimate

    @cached_property
    def body(self) -> Mapping[str, Any]:
        """The JSON to be sent, parsed on first access; changing it has no effect."""
        read: Mapping[str, Any] = json.loads(self.request.body)
        return read


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A tool call, before anyone is asked for approval, or after it ran."""

    id: str
    name: str
    arguments: Mapping[str, Any]


# Guardrails and hooks


Verdict = Block | Rewrite | Retry | None
"""A guardrail's verdict; ``None``: nothing is wrong. ``Retry`` is for answers."""


@dataclass(frozen=True)
class Guardrail:
    """``check``: a function of ``(context, text)``. ``name``: by default the function's. ``beside``: check
    the message in parallel with the first request, which adds no latency but cannot rewrite it; a refusal
    discards the model's reply."""

    check: Callable[[RunContext[Any], str], Verdict | Awaitable[Verdict]]
    name: str = ""
    beside: bool = False

    @property
    def title(self) -> str:
        """The guardrail's name in status lines and journals."""
        return self.name or getattr(self.check, "__name__", type(self.check).__name__)


class Hooks:
    """Override the methods that you need. The methods that answer may change their input, and a turn waits
    for them. The others are only notified, in order, and cannot affect the turn. An agent's hooks also see
    the turns of its children; ``context.turn_id`` distinguishes them."""

    name = ""
    """The name in status lines and journals; by default the name of the class."""

    def turn_begin(self, context: RunContext[Any], message: str) -> Any:
        """The turn begins, or resumes after its process ended. Returns nothing."""

    def before_request(self, context: RunContext[Any], request: ShownRequest) -> Any:
        """A request is about to be sent. Answers a ``RequestChange``, an ``Answer``, a ``Block``, or
        ``None``."""

    def after_request(self, context: RunContext[Any], reply: ModelReply) -> Any:
        """A model has replied. Answers a new text of the reply, or ``None``. Streamed text was already
        shown."""

    def before_tool(self, context: RunContext[Any], call: ShownCall) -> Any:
        """A call is about to be allowed. Answers other arguments, an ``Answer``, a ``Block``, or ``None``;
        or a ``WakeAt``, to suspend the turn until then, when it is asked again."""

    def after_tool(self, context: RunContext[Any], call: ShownCall, result: str, status: str) -> Any:
        """A tool has ended. Answers a new text for the model, or ``None``."""

    def on_error(self, context: RunContext[Any], error: str) -> Any:
        """A request to a model or a tool failed. Answers nothing."""

    def on_move(self, context: RunContext[Any], step: Step) -> Any:
        """The turn made a move. Answers nothing."""

    def turn_end(self, context: RunContext[Any], answer: str) -> Any:
        """The turn ends with this answer. Answers a new text to deliver, or ``None``; the transcript keeps
        the original."""
