"""Run one tool call: under a time limit, interruptible, and always with exactly one outcome. (Why: decision
4.)
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any

from fsm_agent.conversation.effects import RunTool, ToolOutcome, ToolSpec, ToolStatus
from fsm_agent.conversation.parts import Part, kind_of
from fsm_agent.errors import ConfigError, TurnSuspended
from fsm_agent.request import NotYet
from fsm_agent.runtime.clock import Finish, Stopwatch, wait_with_deadline
from fsm_agent.runtime.ports import Clock
from fsm_agent.support.redaction import format_traceback
from fsm_agent.support.threads import WORKERS, Interrupt, in_daemon_thread
from fsm_agent.support.untrusted import risks, wrap_untrusted
from fsm_agent.tools.decorator import Confinement, Tool, ToolSource
from fsm_agent.tools.result import ComesLater, ToolFailure, parts_in, text_of, text_of_error, words_of
from fsm_agent.tools.signature import KEY, TOOL_STOPPED, RunContext

# Start a handler so that whatever it does comes back as a value and cannot stop the engine.


@dataclass(frozen=True, slots=True)
class Returned:
    """The value that a handler returned."""

    value: object


@dataclass(frozen=True, slots=True)
class Raised:
    """The exception that a handler raised."""

    error: BaseException


Ending = Returned | Raised


def start(tool: Tool, arguments: Mapping[str, Any], context: Context) -> asyncio.Future[Ending]:
    """Run the handler in ``context``: an asynchronous one as a task of this loop, else in a thread.

    The future never holds an exception. It is cancelled if the handler let a cancellation through. Raises
    ``RuntimeError`` if the machine cannot start another thread.
    """
    loop = asyncio.get_running_loop()
    if tool.is_async:
        return loop.create_task(_contain(tool.handler, arguments), context=context)
    ending: asyncio.Future[Ending] = loop.create_future()

    def deliver(value: Ending) -> None:
        if not ending.done():
            ending.set_result(value)

    def work() -> None:
        nonlocal tool, arguments, context
        threading.current_thread().name = f"tool-{tool.spec.name}"
        value = context.run(_finish, tool.handler, arguments)
        del tool, arguments, context  # released before a waiter learns that the call has ended
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its waiters with it
            loop.call_soon_threadsafe(deliver, value)

    WORKERS.run(work)
    return ending


async def _contain(
    handler: Callable[..., Coroutine[Any, Any, object]], arguments: Mapping[str, Any]
) -> Ending:
    try:
        return Returned(await handler(**arguments))
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # a task's SystemExit or KeyboardInterrupt would end the loop
        return Raised(error)


def _finish(handler: Callable[..., Any], arguments: Mapping[str, Any]) -> Ending:
    try:
        value = handler(**arguments)
        return Returned(asyncio.run(_await(value)) if inspect.isawaitable(value) else value)
    except BaseException as error:
        return Raised(error)


async def _await(value: Any) -> object:
    return await value


log = logging.getLogger(__name__)

UNKNOWN_EFFECT = "It is unknown whether it took effect: check before you do it again."

OnBug = Callable[[BaseException], object]
BUG = "tool %s (call %s) failed:\n%s"
LATE = "tool %s (call %s) ended after its turn had moved on; its result is dropped"

NOWHERE: RunContext[Any] = RunContext(None, "", "", "")

Description = tuple[ToolStatus, str, tuple[Part, ...]]
"""The end of a call: its status, its text, its other parts."""
OnRisk = Callable[[str, tuple[str, ...]], None]
"""Called for suspicious content in the result of an external tool, with the tool's name and the reasons."""


class ToolRunner:
    """The tools of a turn, by name.

    ``interrupt_grace``: seconds of real time that a running tool has to end after an interrupt (INT-06: 3).
    ``poll``: seconds between checks of the time limit (INT-07: at most 0.5). ``on_risk`` is notified of
    suspicious content (EXEC-26). ``more``: tools that may differ between turns. ``reserved``: names that the
    agent itself handles and that are refused here (AGT-01). Raises ``ConfigError`` if two tools have the same
    name."""

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        clock: Clock,
        interrupt_grace: float = 3.0,
        poll: float = 0.3,
        on_risk: OnRisk | None = None,
        more: ToolSource | None = None,
        reserved: Collection[str] = (),
    ) -> None:
        self._tools: dict[str, Tool] = {}
        self._reserved = frozenset(reserved)
        for tool in tools:
            if tool.spec.name in self._tools or tool.spec.name in self._reserved:
                raise ConfigError("two tools have the same name", tool.spec.name, "names that differ")
            self._tools[tool.spec.name] = tool
        self._clock, self._grace, self._poll = clock, interrupt_grace, poll
        self._on_risk, self._more = on_risk, more

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The model's descriptions of the tools that are available now."""
        late = self._more.tools() if self._more is not None else ()
        return tuple(tool.spec for tool in (*self._tools.values(), *late))

    @property
    def late_names(self) -> frozenset[str]:
        """Names of the tools that may differ between turns."""
        return (
            frozenset(tool.spec.name for tool in self._more.tools())
            if self._more is not None
            else frozenset()
        )

    @property
    def outside_names(self) -> frozenset[str]:
        """Names of external tools, whose calls leave this machine."""
        late = self._more.tools() if self._more is not None else ()
        return frozenset(tool.spec.name for tool in (*self._tools.values(), *late) if tool.external)

    @property
    def confinements(self) -> dict[str, Confinement]:
        """Sandboxes of tools, by tool name."""
        return {name: tool.confinement for name, tool in self._tools.items() if tool.confinement is not None}

    @property
    def lasting_names(self) -> tuple[str, ...]:
        """Names that are the same for every turn, so that a prompt made from them is too."""
        return (*self._tools, *(self._more.labels if self._more is not None else ()))

    def refuse_without(self, deps: object) -> None:
        """Raise ``ConfigError`` if a tool needs ``deps`` and there are none."""
        for tool in self._tools.values():
            tool.signature.refuse_without(deps, "tool")

    async def ready(self, interrupted: Interrupt) -> tuple[str, ...]:
        """Fix the tools of the next turn. Return messages for people about missing ones."""
        return (
            await self._more.ready((*self._tools, *self._reserved), interrupted)
            if self._more is not None
            else ()
        )

    async def aclose(self) -> None:
        """Close all tools, and end the programs behind those that may differ between turns."""
        if any(tool.closer is not None for tool in self._tools.values()):
            await in_daemon_thread(self.close)
        if self._more is not None:
            await self._more.aclose()

    def close(self) -> None:
        """Release the tools' processes and connections. Blocks for a moment; may be called twice."""
        for closer in {tool.closer for tool in self._tools.values() if tool.closer is not None}:
            try:
                closer()
            except Exception:  # an error of one tool must not keep the others' processes alive
                log.warning("a tool could not be closed", exc_info=True)

    async def run(
        self,
        request: RunTool,
        interrupted: Interrupt,
        scene: RunContext[Any] = NOWHERE,
        on_bug: OnBug | None = None,
    ) -> ToolOutcome | NotYet:
        """Run the call and return its outcome, or a placeholder if its result arrives later. Raises only
        ``CancelledError``, if the caller itself is cancelled. ``scene``: the context for the tool. ``on_bug``
        receives the exception of a tool that failed because of a bug.

        The status is ``ok`` or ``error`` if the handler ended; ``timeout`` after ``request.timeout`` seconds;
        after an interrupt ``not_started``, or the handler's own result if it ended within the grace period,
        or else ``cancelled`` for a tool that only reads and ``unknown`` for any other."""
        watch = Stopwatch(self._clock)
        description = await self._end_call(request, interrupted, watch, scene, on_bug)
        if isinstance(description, NotYet):
            return description
        status, text, parts = description
        return ToolOutcome(request.call_id, status, text, watch.elapsed(), parts)

    async def finish_late(self, request: RunTool, value: object) -> ToolOutcome:
        """Return the outcome of a call whose result arrived later, as if the tool returned ``value`` now."""
        tool = self._tools.get(request.name) or await self._late(request.name)
        description = await in_daemon_thread(self._describe_ending, request, Returned(value))
        status, text, parts = description if tool is None else self._mark_external(tool, description)
        return ToolOutcome(request.call_id, status, text, 0.0, parts)

    async def _end_call(
        self,
        request: RunTool,
        interrupted: Interrupt,
        watch: Stopwatch,
        scene: RunContext[Any],
        on_bug: OnBug | None,
    ) -> Description | NotYet:
        if request.name in self._reserved:
            return "error", f"{request.name} is a part of the agent and cannot be run as a tool.", ()
        tool = self._tools.get(request.name) or await self._late(request.name)
        if tool is None:
            names = ", ".join(spec.name for spec in self.specs) or "none"
            return "error", f"Unknown tool {request.name!r}. Available: {names}.", ()
        if interrupted.is_set():
            return "not_started", "Not started: the user interrupted.", ()
        signal, context = threading.Event(), contextvars.copy_context()
        context.run(TOOL_STOPPED.set, signal)
        try:
            work = start(tool, _arguments(tool, request, scene), context)
        except Exception as error:
            return self._describe_ending(request, Raised(error), on_bug)
        try:
            finish = await wait_with_deadline(
                work, left=lambda: request.timeout - watch.elapsed(), interrupted=interrupted, poll=self._poll
            )
            if finish != "done":
                signal.set()
                await self._wound_up(work, wait=tool.is_async or finish == "interrupted")
            if not work.done() and not tool.is_async:
                work.add_done_callback(lambda _: log.warning(LATE, request.name, request.call_id))
        finally:
            signal.set()
            if tool.is_async:
                work.cancel()
        ending = work.result() if work.done() and not work.cancelled() else None
        description: Description | None
        if isinstance(ending, Raised):
            if (later := _later(request, ending.error)) and (
                later.due is None or later.due > self._clock.now()
            ):
                return later
            ending = Returned(later.asked) if later else ending
        if isinstance(ending, Returned) and not isinstance(ending.value, str):
            # shrinking an image takes a while
            description = await in_daemon_thread(self._describe_ending, request, ending, on_bug)
        else:
            description = None if ending is None else self._describe_ending(request, ending, on_bug)
        return self._mark_external(tool, _outcome(tool, finish, description, request.timeout))

    @staticmethod
    def _describe_ending(request: RunTool, ending: Ending, on_bug: OnBug | None = None) -> Description:
        """Return how the call ended. The model reads the error; the log shows where the bug is."""
        description, bug = _describe(ending)
        if bug is not None:
            log.error(BUG, request.name, request.call_id, format_traceback(bug))
            if on_bug is not None:
                on_bug(bug)
        return description

    async def _late(self, name: str) -> Tool | None:
        if self._more is None:
            return None
        return next(
            (tool for tool in self._more.tools() if tool.spec.name == name), None
        ) or await self._more.find(name)

    def _mark_external(self, tool: Tool, description: Description) -> Description:
        """Mark an external result as data. Short answers are harmless and stay readable."""
        status, text, parts = description
        if not tool.external or status != "ok":
            return description
        if self._on_risk is not None and (found := risks(text)):
            self._on_risk(tool.spec.name, found)
        return status, wrap_untrusted(text, tool.spec.name), parts

    async def _wound_up(self, work: asyncio.Future[Ending], *, wait: bool) -> None:
        """Wait for the handler to end within the grace period; a thread that exceeded its time limit gets
        none, because it cannot be stopped."""
        if isinstance(work, asyncio.Task):
            work.cancel()
        if wait:
            await asyncio.wait({work}, timeout=self._grace)


def _later(request: RunTool, error: BaseException) -> NotYet | None:
    """Return the placeholder if the handler ended because its result arrives later."""
    if isinstance(error, TurnSuspended):  # a child's turn, which says what it waits for
        return NotYet(otherwise=ToolOutcome(request.call_id, "error", str(error)))
    return error.later(request) if isinstance(error, ComesLater) else None


def _arguments(tool: Tool, request: RunTool, scene: RunContext[Any]) -> dict[str, Any]:
    """Return the checked arguments, with the call's key and the context for a handler that takes them. Raises
    ``ToolFailure``."""
    bound = tool.bind(request.arguments)
    if tool.signature.keyed:
        bound[KEY] = request.key
    if tool.signature.context:
        bound[tool.signature.context] = replace(
            scene,
            tool=request.name,
            call_id=request.call_id,
            idempotency_key=request.key,
            loop=asyncio.get_running_loop(),
        )
    return bound


def _outcome(tool: Tool, finish: Finish, description: Description | None, timeout: float) -> Description:
    """Return how the call ended. ``description``: of the handler's own ending, ``None`` if it did not end."""
    if finish == "late":
        late = f"\nWhat it brought after that: {description[1]}" if description else ""
        return "timeout", f"Timed out after {timeout:g} seconds. {UNKNOWN_EFFECT}{late}", ()
    if description:
        return description
    if finish == "done":
        return "error", "The tool cancelled itself.", ()
    if tool.spec.effect == "pure":
        return "cancelled", "Cancelled: the user interrupted. Nothing was changed.", ()
    return "unknown", f"The user interrupted and the tool did not end in time. {UNKNOWN_EFFECT}", ()


def _describe(ending: Ending) -> tuple[Description, BaseException | None]:
    """Return how the call ended, and the bug that caused it, if any. Judged by how the handler ended, never
    by words in its text."""
    try:
        if isinstance(ending, Returned):
            parts = parts_in(ending.value)
            media = tuple(part for part in parts if kind_of(part))
            return ("ok", text_of(ending.value, parts), media), None
        if isinstance(ending.error, ToolFailure):
            return (ending.error.status, words_of(ending.error), ()), None
        return ("error", text_of_error(ending.error), ()), ending.error
    except Exception as error:  # a result without a text form
        text = f"The tool ran, but its result is unusable: {text_of_error(error)}"
        return ("error", text, ()), error
