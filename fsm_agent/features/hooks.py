"""The feature ``hooks``: calls the hooks and guardrails of an agent."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from fsm_agent.conversation.effects import (
    AnswerChecked,
    AnswerProgram,
    CallChanged,
    CallModel,
    CheckAnswer,
    CheckMessage,
    Failure,
    MessageChecked,
    RequestChanged,
    RunTool,
    ShowCall,
    ShowRequest,
    ToolOutcome,
    Transform,
    Transformed,
)
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.conversation.wire.options import change_body
from fsm_agent.errors import ConfigError, near
from fsm_agent.extension import Extension, Here, Part
from fsm_agent.features import Ground
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.runner import Layer, Perform
from fsm_agent.hooks import (
    Answer,
    Block,
    Guardrail,
    Hooks,
    RequestChange,
    Retry,
    Rewrite,
    ShownCall,
    ShownRequest,
)
from fsm_agent.request import NotYet
from fsm_agent.runtime.clock import UsersCode, answer_of
from fsm_agent.runtime.events import StatusText, Stream
from fsm_agent.tools.result import WakeAt
from fsm_agent.tools.signature import RunContext

log = logging.getLogger(__name__)

FIXED = frozenset({"model", "messages", "input", "stream"})
"""Fields of a request that no hook may change: they determine which model reads which conversation."""
POINTS: Mapping[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(method).parameters)[1:]
    for name, method in vars(Hooks).items()
    if inspect.isfunction(method)
}
"""The points at which hooks are called, with the names of their parameters."""
PREFIXES = ("before_", "after_", "on_", "turn_")
"""Prefixes of points; a public method with one is meant to be called."""
MESSAGE, ANSWER = (Block, Rewrite), (Block, Rewrite, Retry)


class HookCalls(Extension):
    """The hooks and guardrails of one agent: called in order, within their time. A failure refuses, or is
    reported if nothing can be refused.

    Raises ``ConfigError`` for an object that is not a hook or guardrail."""

    name = "hooks"

    def __init__(self, ground: Ground) -> None:
        options, settings = ground.options, ground.settings
        self._ground, self._hooks = ground, tuple(options["hooks"])
        for hook in self._hooks:
            if not isinstance(hook, Hooks):
                raise ConfigError("not a hook", hook, "objects of classes made from fsm_agent.hooks.Hooks")
            _check_methods(hook)
        guards = [_guardrail(one) for one in options["input_guardrails"]]
        self._before = [one for one in guards if not one.beside]
        self._beside = [one for one in guards if one.beside]
        self._after = [_guardrail(one) for one in options["output_guardrails"]]
        self._seconds, self._poll, self._clock = settings.hook_timeout, settings.poll.control, ground.clock
        self._tail: asyncio.Task[None] | None = None

    def in_turn(self, here: Here) -> Part:
        checks = {
            "message": bool(self._before),
            "beside": bool(self._beside),
            "answer": bool(self._after),
            "requests": self.tells("before_request"),
            "calls": self.tells("before_tool"),
        }
        return _Asked(self, here, checks, layered=bool(self._hooks))

    # Guardrails

    async def message(self, here: Here, request: CheckMessage) -> MessageChecked:
        """Return the verdict of the input guardrails."""
        context, text = here.scene(), request.text
        if not request.beside:
            checked = await self._check_answer(self._before, context, text, MESSAGE)
            return MessageChecked(checked.blocked, checked.text, checked.by)
        looked = (self._check_answer([one], context, text, (Block,)) for one in self._beside)
        refusals = [one for one in await asyncio.gather(*looked) if one.blocked]
        names = tuple(name for one in refusals for name in one.by)
        return MessageChecked("; ".join(one.blocked for one in refusals), None, names)

    async def answer(self, here: Here, request: CheckAnswer) -> AnswerChecked:
        """Return the verdict of the output guardrails."""
        return await self._check_answer(self._after, here.scene(), request.text, ANSWER)

    async def _check_answer(
        self, guards: Sequence[Guardrail], context: RunContext[Any], text: str, allowed: tuple[type, ...]
    ) -> AnswerChecked:
        by: tuple[str, ...] = ()
        now = text
        for guard in guards:
            code = self._code(f"guardrail {guard.title}")
            answer, problem = await self._ask_hook(code, context, guard.title, guard.check, now)
            if answer is not None and not isinstance(answer, allowed):
                words = " or ".join(one.__name__ for one in allowed)
                kind = type(answer).__name__
                problem = f"guardrail {guard.title} answered with {kind}: None or {words} is allowed"
            if problem or isinstance(answer, Block):
                return AnswerChecked(blocked=problem or answer.reason, by=(guard.title,))
            if isinstance(answer, Retry):
                return AnswerChecked(answer.reason, by=(guard.title,))
            if isinstance(answer, Rewrite) and answer.text != now:
                now, by = answer.text, (*by, guard.title)
        return AnswerChecked(text=now if by else None, by=by)

    # Hooks that may change values

    async def request(self, here: Here, shown: ShowRequest) -> RequestChanged:
        """Return the changes of the hooks to a request."""
        context, runtime = here.scene(attempt=shown.attempt), self._ground.backends.runtime()
        changed, body = RequestChanged(), shown.request.body
        for hook in self._with("before_request"):
            seen = ShownRequest(replace(shown.request, body=body), runtime, shown.attempt)
            answer, problem = await self._call_hook(hook, "before_request", context, seen)
            by = (*changed.by, _title(hook))
            match answer:
                case None if not problem:
                    continue
                case Answer() if not problem:
                    return replace(changed, answer=answer.text, by=by)
                case RequestChange() if not problem and not FIXED & answer.options.keys():
                    body = change_body(body, answer.options, answer.rows)
                    options, rows = {**changed.options, **answer.options}, (*changed.rows, *answer.rows)
                    changed = RequestChanged(options, rows, by=by)
                case Block() if not problem:
                    return RequestChanged(blocked=answer.reason, by=(_title(hook),))
                case _:
                    problem = problem or _wrong(hook, answer, "RequestChange (not of which model reads which"
                                                " conversation), Answer, Block or None")  # fmt: skip
                    return RequestChanged(blocked=problem, by=(_title(hook),))
        return changed

    async def call(self, here: Here, shown: ShowCall) -> CallChanged | NotYet:
        """Return the changes of the hooks to a call, or suspend it."""
        context = here.scene(call_id=shown.call_id)
        arguments = shown.arguments
        by: tuple[str, ...] = ()
        for hook in self._with("before_tool"):
            call = ShownCall(shown.call_id, shown.name, dict(arguments))
            answer, problem = await self._call_hook(hook, "before_tool", context, call)
            if answer is None and not problem:
                continue
            by = (*by, _title(hook))
            match answer:
                case Answer() if not problem:
                    return CallChanged(arguments, answer.text, by)
                case Block() if not problem:
                    return CallChanged(arguments, f"not run: {answer.reason}", by)
                case Mapping() if not problem:
                    arguments = dict(answer)
                case WakeAt(due=float(due)) if not problem and due > self._clock.now():
                    return _resting(hook, answer, shown, due)
                case WakeAt() if not problem:
                    by = by[:-1]
                case _:
                    problem = problem or _wrong(
                        hook, answer, "a mapping of arguments, Answer, Block, WakeAt or None"
                    )
                    return CallChanged(arguments, f"not run: {problem}", by)
        return CallChanged(arguments if by else None, None, by)

    async def reply(self, context: RunContext[Any], reply: ModelReply) -> ModelReply:
        """Return the reply after the hooks' changes."""
        for hook in self._with("after_request"):
            text = await self._text(hook, "after_request", context, reply)
            if text is not None and text != reply.text:
                reply = replace(reply, text=text, changed_by=(*reply.changed_by, _title(hook)))
        return reply

    async def result(self, context: RunContext[Any], request: RunTool, outcome: ToolOutcome) -> ToolOutcome:
        """Return the outcome after the hooks' changes."""
        call = ShownCall(request.call_id, request.name, dict(request.arguments))
        for hook in self._with("after_tool"):
            text = await self._text(hook, "after_tool", context, call, outcome.text, outcome.status)
            if text is not None and text != outcome.text:
                outcome = replace(outcome, text=text, changed_by=(*outcome.changed_by, _title(hook)))
        return outcome

    async def ending(self, context: RunContext[Any], text: str) -> Transformed:
        """Return the delivered answer after the hooks' changes."""
        now = text
        by: tuple[str, ...] = ()
        for hook in self._with("turn_end"):
            said = await self._text(hook, "turn_end", context, now)
            if said is not None and said != now:
                now, by = said, (*by, _title(hook))
        return Transformed(now if by else None, by)

    # Notified hooks

    def tells(self, point: str) -> bool:
        """Return whether any hook implements ``point``."""
        return bool(self._with(point))

    def tell(self, point: str, context: RunContext[Any], *values: Any) -> None:
        """Notify the hooks, without waiting: asynchronous ones are queued behind earlier notifications."""
        for hook in self._with(point):
            try:
                answer = getattr(hook, point)(_for(context, hook), *values)
            except Exception:
                log.warning("hook %s failed in %s", _title(hook), point, exc_info=True)
                continue
            if inspect.isawaitable(answer):
                self._tail = asyncio.ensure_future(self._later(self._tail, answer, _title(hook), point))

    async def drain(self) -> None:
        """Wait until all notifications have been handled, each within its time."""
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

    async def _call_hook(
        self, hook: Hooks, point: str, context: RunContext[Any], *values: Any
    ) -> tuple[Any, str]:
        code = self._code(f"hook {_title(hook)}")
        return await self._ask_hook(code, context, _title(hook), getattr(hook, point), *values)

    async def _ask_hook(
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
        """Return the hook's new text, if any. A failed hook changes nothing and is reported."""
        answer, problem = await self._call_hook(hook, point, context, *values)
        if not problem and answer is not None and not isinstance(answer, str):
            problem = _wrong(hook, answer, "a text or None")
        if problem:
            line = f"{problem}; {point.replace('_', ' ')} changes nothing"
            self._ground.callbacks.publish(StatusText(line))
            return None
        return answer if isinstance(answer, str) else None


def _guardrail(one: Guardrail | Callable[..., Any]) -> Guardrail:
    if not (isinstance(one, Guardrail) or callable(one)):
        raise ConfigError("not a guardrail", one, "functions of (context, text), or Guardrail(function)")
    guard = one if isinstance(one, Guardrail) else Guardrail(one)
    _check_values(f"guardrail {guard.title}", guard.check, ("context", "text"))
    return guard


def _check_methods(hook: Hooks) -> None:
    """Raise ``ConfigError`` for a method that is never called, because no point has its name, and for one
    that does not accept its parameters."""
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
    """Return whether a method that is not a point was probably meant to be one."""
    return name.startswith(PREFIXES) or bool(get_close_matches(name, POINTS, 1, 0.8))


def _check_values(what: str, function: Callable[..., Any], values: Sequence[str]) -> None:
    """Raise ``ConfigError`` for a function that cannot be called with these ``values``."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # implemented in C
        return
    try:
        signature.bind(*values)
    except TypeError:
        raise ConfigError(f"{what} takes other values", str(signature), f"({', '.join(values)})") from None


def _title(hook: Hooks) -> str:
    return hook.name or type(hook).__name__


def _for(context: RunContext[Any], hook: Hooks) -> RunContext[Any]:
    return replace(context, tool=_title(hook))


def _resting(hook: Hooks, wake: WakeAt, shown: ShowCall, due: float) -> NotYet:
    """Suspend the turn until then; when it resumes, the hook is called again."""
    unstored = CallChanged(
        shown.arguments, "not run: it was to wait, and that cannot be written down", (_title(hook),)
    )
    digest = f"{_title(hook)} {due}"
    return NotYet("timer", shown.call_id, shown.name, wake.asked, (), digest, due, unstored)


def _wrong(hook: Hooks, answer: Any, allowed: str) -> str:
    return f"hook {_title(hook)} answered with {type(answer).__name__}: {allowed} is allowed"


class _Asked(Part):
    """The hooks and guardrails in one turn."""

    def __init__(self, hooks: HookCalls, here: Here, checks: Mapping[str, bool], *, layered: bool) -> None:
        performs: dict[type, Perform] = {
            CheckMessage: partial(hooks.message, here),
            CheckAnswer: partial(hooks.answer, here),
            ShowRequest: partial(hooks.request, here),
            ShowCall: partial(hooks.call, here),
        }
        layers = (
            Layer("hooks", self._reply, (CallModel,)),
            Layer("hooks of results", self._result, (RunTool, AnswerProgram)),
            Layer("hooks of endings", self._ending, (Transform,)),
        )
        super().__init__(performs, layers if layered else (), checks)
        self._hooks, self._here = hooks, here

    def follow(self, stream: Stream) -> None:
        if self._hooks.tells("on_move"):
            stream.subscribe(lambda step: self._hooks.tell("on_move", self._here.scene(), step), Step)

    def began(self, text: str) -> None:
        if self._hooks.tells("turn_begin"):
            self._hooks.tell("turn_begin", self._here.scene(), text)

    async def closing(self) -> None:
        await self._hooks.drain()

    async def _reply(self, request: CallModel, turn: Any, call_next: Perform) -> Any:
        reply = await call_next(request)
        hooks, asked = self._hooks, request.request.purpose == "turn"
        if isinstance(reply, ModelReply) and asked and hooks.tells("after_request"):
            context = self._here.scene(attempt=request.attempt)
            return (await hooks.reply(context, reply)).cleaned()
        if isinstance(reply, Failure) and hooks.tells("on_error"):
            hooks.tell("on_error", self._here.scene(attempt=request.attempt), reply.message)
        return reply

    async def _result(self, request: RunTool | AnswerProgram, turn: Any, call_next: Perform) -> Any:
        """Let hooks change the outcome of a call. A program's request, and a call whose result comes later,
        have no outcome yet."""
        call, hooks = self._here.call_of(request), self._hooks
        outcome = await call_next(request)
        if call is None or not isinstance(outcome, ToolOutcome):
            return outcome
        context = self._here.scene(call_id=call.call_id)
        if hooks.tells("on_error") and outcome.status != "ok":
            hooks.tell("on_error", context, outcome.text)
        return await hooks.result(context, call, outcome) if hooks.tells("after_tool") else outcome

    async def _ending(self, request: Transform, turn: Any, call_next: Perform) -> Transformed:
        delivered: Transformed = await call_next(request)
        text = request.text if delivered.text is None else delivered.text
        ended = await self._hooks.ending(self._here.scene(), text)
        return delivered if ended.text is None else ended
