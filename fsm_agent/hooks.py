"""Code of yours that sees what goes through a turn, and may change or refuse it: hooks and guardrails.

Both are asked in their order, each sees what the one before made of it, and what one changes is in the
journal with its name. They may be plain functions, which run in a thread, or ``async``; each has
``settings.hook_timeout`` seconds. One that could have refused something and fails has refused it.

>>> def no_secrets(context: RunContext, text: str) -> Block | None:
...     return Block("that looks like a key") if "sk-" in text else None
>>> agent = Agent(input_guardrails=[no_secrets], output_guardrails=[no_secrets])
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fsm_agent.conversation.effects import (
    AnswerChecked,
    CallChanged,
    Checks,
    MessageChecked,
    ModelRequest,
    RequestChanged,
    Runtime,
    RunTool,
    ShowCall,
    ShowRequest,
    ToolOutcome,
    Transformed,
)
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.conversation.wire.options import changed_body
from fsm_agent.errors import ConfigError, near
from fsm_agent.runtime.deadline import UsersCode, answer_of
from fsm_agent.runtime.ports import Clock, NotYet
from fsm_agent.settings.model import Settings
from fsm_agent.tools.result import WakeAt
from fsm_agent.tools.run_context import RunContext

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
    """Refuse it. A message, a request or an answer that is refused ends the turn with the exit reason
    ``guardrail_blocked``; of a call the model is told ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Go on with this text instead."""

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
        """The turn begins, or goes on after its process ended. Answers nothing."""

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


# ----------------------------------------------------------------------------------------------------
# Asking the hooks and guardrails of one agent: in order, within their time, and what fails refuses.


log = logging.getLogger(__name__)

FIXED = frozenset({"model", "messages", "input", "stream"})
"""Fields of a request that no hook changes: they say which model reads which conversation."""
POINTS: Mapping[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(method).parameters)[1:]
    for name, method in vars(Hooks).items()
    if inspect.isfunction(method)
}
"""What hooks are called for, and the values that they get."""
PREFIXES = ("before_", "after_", "on_", "turn_")
"""How the names of points begin; a method that begins so is meant to be called."""
MESSAGE, ANSWER = (Block, Rewrite), (Block, Rewrite, Retry)


class HookCalls:
    """Those of one agent. ``tell`` hears a line about one that failed and refuses nothing.

    Raises ``ConfigError`` for a hook or guardrail that is none."""

    def __init__(
        self,
        hooks: Sequence[Hooks],
        before: Sequence[Guardrail | Callable[..., Any]],
        after: Sequence[Guardrail | Callable[..., Any]],
        *,
        clock: Clock,
        settings: Settings,
        tell: Callable[[str], None],
    ) -> None:
        for hook in hooks:
            if not isinstance(hook, Hooks):
                raise ConfigError("not a hook", hook, "objects of classes made from fsm_agent.hooks.Hooks")
            _check_methods(hook)
        guards = [_guardrail(one) for one in before]
        self._hooks = tuple(hooks)
        self._before = [one for one in guards if not one.beside]
        self._beside = [one for one in guards if one.beside]
        self._after = [_guardrail(one) for one in after]
        self._seconds, self._poll, self._clock = settings.hook_timeout, settings.poll.control, clock
        self._tell_line = tell
        self._tail: asyncio.Task[None] | None = None

    @property
    def there(self) -> bool:
        """Say whether there are hooks at all."""
        return bool(self._hooks)

    def checks(self) -> Checks:
        """Return what a turn is to ask."""
        return Checks(
            message=bool(self._before),
            beside=bool(self._beside),
            answer=bool(self._after),
            requests=bool(self._with("before_request")),
            calls=bool(self._with("before_tool")),
        )

    # Guardrails

    async def message(self, context: RunContext[Any], text: str, *, beside: bool) -> MessageChecked:
        """Return what those for messages say."""
        if not beside:
            checked = await self._passed(self._before, context, text, MESSAGE)
            return MessageChecked(checked.blocked, checked.text, checked.by)
        looked = (self._passed([one], context, text, (Block,)) for one in self._beside)
        refusals = [one for one in await asyncio.gather(*looked) if one.blocked]
        names = tuple(name for one in refusals for name in one.by)
        return MessageChecked("; ".join(one.blocked for one in refusals), None, names)

    async def answer(self, context: RunContext[Any], text: str) -> AnswerChecked:
        """Return what those for answers say."""
        return await self._passed(self._after, context, text, ANSWER)

    async def _passed(
        self, guards: Sequence[Guardrail], context: RunContext[Any], text: str, allowed: tuple[type, ...]
    ) -> AnswerChecked:
        by: tuple[str, ...] = ()
        now = text
        for guard in guards:
            code = self._code(f"guardrail {guard.title}")
            said, problem = await self._asked(code, context, guard.title, guard.check, now)
            if said is not None and not isinstance(said, allowed):
                words = " or ".join(one.__name__ for one in allowed)
                problem = (
                    f"guardrail {guard.title} answered with {type(said).__name__}: None or {words} is allowed"
                )
            if problem or isinstance(said, Block):
                return AnswerChecked(blocked=problem or said.reason, by=(guard.title,))
            if isinstance(said, Retry):
                return AnswerChecked(said.reason, by=(guard.title,))
            if isinstance(said, Rewrite) and said.text != now:
                now, by = said.text, (*by, guard.title)
        return AnswerChecked(text=now if by else None, by=by)

    # Hooks that may change what they see

    async def request(self, context: RunContext[Any], shown: ShowRequest, runtime: Runtime) -> RequestChanged:
        """Return what they make of a request."""
        changed, body = RequestChanged(), shown.request.body
        for hook in self._with("before_request"):
            seen = ShownRequest(replace(shown.request, body=body), runtime, shown.attempt)
            said, problem = await self._hooked(hook, "before_request", context, seen)
            by = (*changed.by, _title(hook))
            match said:
                case None if not problem:
                    continue
                case Answer() if not problem:
                    return replace(changed, answer=said.text, by=by)
                case RequestChange() if not problem and not FIXED & said.options.keys():
                    body = changed_body(body, said.options, said.rows)
                    options, rows = {**changed.options, **said.options}, (*changed.rows, *said.rows)
                    changed = RequestChanged(options, rows, by=by)
                case Block() if not problem:
                    return RequestChanged(blocked=said.reason, by=(_title(hook),))
                case _:
                    problem = problem or _wrong(hook, said, "RequestChange (not of which model reads which"
                                                " conversation), Answer, Block or None")  # fmt: skip
                    return RequestChanged(blocked=problem, by=(_title(hook),))
        return changed

    async def call(self, context: RunContext[Any], shown: ShowCall) -> CallChanged | NotYet:
        """Return what they make of a call, or that it comes later."""
        arguments = shown.arguments
        by: tuple[str, ...] = ()
        for hook in self._with("before_tool"):
            call = ShownCall(shown.call_id, shown.name, dict(arguments))
            said, problem = await self._hooked(hook, "before_tool", context, call)
            if said is None and not problem:
                continue
            by = (*by, _title(hook))
            match said:
                case Answer() if not problem:
                    return CallChanged(arguments, said.text, by)
                case Block() if not problem:
                    return CallChanged(arguments, f"not run: {said.reason}", by)
                case Mapping() if not problem:
                    arguments = dict(said)
                case WakeAt(due=float(due)) if not problem and due > self._clock.now():
                    return _resting(hook, said, shown, due)
                case WakeAt() if not problem:
                    by = by[:-1]
                case _:
                    problem = problem or _wrong(
                        hook, said, "a mapping of arguments, Answer, Block, WakeAt or None"
                    )
                    return CallChanged(arguments, f"not run: {problem}", by)
        return CallChanged(arguments if by else None, None, by)

    async def reply(self, context: RunContext[Any], reply: ModelReply) -> ModelReply:
        """Return the reply as they make it."""
        for hook in self._with("after_request"):
            text = await self._text(hook, "after_request", context, reply)
            if text is not None and text != reply.text:
                reply = replace(reply, text=text, changed_by=(*reply.changed_by, _title(hook)))
        return reply

    async def result(self, context: RunContext[Any], request: RunTool, outcome: ToolOutcome) -> ToolOutcome:
        """Return the outcome as they make it."""
        call = ShownCall(request.call_id, request.name, dict(request.arguments))
        for hook in self._with("after_tool"):
            text = await self._text(hook, "after_tool", context, call, outcome.text, outcome.status)
            if text is not None and text != outcome.text:
                outcome = replace(outcome, text=text, changed_by=(*outcome.changed_by, _title(hook)))
        return outcome

    async def ending(self, context: RunContext[Any], text: str) -> Transformed:
        """Return the answer as it is delivered."""
        now = text
        by: tuple[str, ...] = ()
        for hook in self._with("turn_end"):
            said = await self._text(hook, "turn_end", context, now)
            if said is not None and said != now:
                now, by = said, (*by, _title(hook))
        return Transformed(now if by else None, by)

    # Hooks that are told

    def tells(self, point: str) -> bool:
        """Say whether a hook wants to be told of ``point``."""
        return bool(self._with(point))

    def tell(self, point: str, context: RunContext[Any], *values: Any) -> None:
        """Tell the hooks, without waiting: what is asynchronous is queued behind what was told before."""
        for hook in self._with(point):
            try:
                answer = getattr(hook, point)(_for(context, hook), *values)
            except Exception:
                log.warning("hook %s failed in %s", _title(hook), point, exc_info=True)
                continue
            if inspect.isawaitable(answer):
                self._tail = asyncio.ensure_future(self._later(self._tail, answer, _title(hook), point))

    async def drain(self) -> None:
        """Wait until all that was told has been heard, each within its time."""
        while self._tail is not None and not self._tail.done():
            await asyncio.wait({self._tail})

    async def _later(self, before: asyncio.Task[None] | None, answer: Any, title: str, point: str) -> None:
        if before is not None and not before.done():
            await asyncio.wait({before})
        _, problem = await self._code(f"hook {title}").within(answer, self._seconds, here=True)
        if problem:
            log.warning("%s (%s)", problem, point)

    # Each

    def _with(self, point: str) -> list[Hooks]:
        return [hook for hook in self._hooks if getattr(type(hook), point) is not getattr(Hooks, point)]

    def _code(self, what: str) -> UsersCode:
        return UsersCode(what, self._clock, self._poll, then="")

    async def _hooked(
        self, hook: Hooks, point: str, context: RunContext[Any], *values: Any
    ) -> tuple[Any, str]:
        code = self._code(f"hook {_title(hook)}")
        return await self._asked(code, context, _title(hook), getattr(hook, point), *values)

    async def _asked(
        self,
        code: UsersCode,
        context: RunContext[Any],
        title: str,
        function: Callable[..., Any],
        *values: Any,
    ) -> tuple[Any, str]:
        work = answer_of(function, replace(context, tool=title), *values)
        return await code.within(work, self._seconds, here=True)

    async def _text(self, hook: Hooks, point: str, context: RunContext[Any], *values: Any) -> str | None:
        """Another text, if the hook gives one; one that fails leaves the text as it is, with a line."""
        said, problem = await self._hooked(hook, point, context, *values)
        if not problem and said is not None and not isinstance(said, str):
            problem = _wrong(hook, said, "a text or None")
        if problem:
            self._tell_line(f"{problem}; {point.replace('_', ' ')} changes nothing")
            return None
        return said if isinstance(said, str) else None


def _guardrail(one: Guardrail | Callable[..., Any]) -> Guardrail:
    if not (isinstance(one, Guardrail) or callable(one)):
        raise ConfigError("not a guardrail", one, "functions of (context, text), or Guardrail(function)")
    guard = one if isinstance(one, Guardrail) else Guardrail(one)
    _check_values(f"guardrail {guard.title}", guard.check, ("context", "text"))
    return guard


def _check_methods(hook: Hooks) -> None:
    """Raises ``ConfigError`` for a method that is never called, because no point has its name, and for one
    that does not take what it is given."""
    for name in dir(type(hook)):
        if name in POINTS:
            _check_values(f"{name} of hook {_title(hook)}", getattr(hook, name), POINTS[name])
        elif callable(getattr(type(hook), name)) and _is_meant(name):
            raise ConfigError(
                f"hook {_title(hook)} has a method that is never called",
                name,
                f"{near(name, POINTS)}; a helper begins with _",
            )


def _is_meant(name: str) -> bool:
    """Say whether a method of this name, which is no point, was probably meant to be one."""
    return name.startswith(PREFIXES) or bool(get_close_matches(name, POINTS, 1, 0.8))


def _check_values(what: str, function: Callable[..., Any], values: Sequence[str]) -> None:
    """Raises ``ConfigError`` for a function that cannot be called with so many values."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        return
    try:
        signature.bind(*values)
    except TypeError:
        raise ConfigError(f"{what} takes other values", str(signature), f"({', '.join(values)})") from None


def _title(hook: Hooks) -> str:
    return hook.name or type(hook).__name__


def _for(context: RunContext[Any], hook: Hooks) -> RunContext[Any]:
    return replace(context, tool=_title(hook))


def _resting(hook: Hooks, said: WakeAt, shown: ShowCall, due: float) -> NotYet:
    """The turn is suspended until then; the hook is asked again when it goes on."""
    untold = CallChanged(
        shown.arguments, "not run: it was to wait, and that cannot be written down", (_title(hook),)
    )
    digest = f"{_title(hook)} {due}"
    return NotYet("timer", shown.call_id, shown.name, said.asked, (), digest, due, untold)


def _wrong(hook: Hooks, said: Any, allowed: str) -> str:
    return f"hook {_title(hook)} answered with {type(said).__name__}: {allowed} is allowed"
