"""Running one tool call: under a time limit, interruptible, and always with exactly one outcome."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Sequence

from fsm_agent.errors import ConfigError
from fsm_agent.messages import Part
from fsm_agent.ports import Clock
from fsm_agent.requests import RunTool, ToolOutcome, ToolSpec, ToolStatus
from fsm_agent.tools import handler
from fsm_agent.tools.cancel import SIGNAL
from fsm_agent.tools.decorator import Tool
from fsm_agent.tools.failure import ToolFailure
from fsm_agent.tools.result import images_of, text_of, text_of_error, words_of
from fsm_agent.watch import Finish, Stopwatch, race

UNKNOWN_EFFECT = "It is unknown whether it took effect: check before you do it again."

Told = tuple[ToolStatus, str, tuple[Part, ...]]
"""How a call ended: its status, its text, its images."""


class ToolRunner:
    """The tools of a turn, by name.

    ``interrupt_grace``: seconds of real time that a running tool gets to end after an interrupt (catalogue INT-06: 3).
    ``poll``: seconds between two looks at the time limit (INT-07: at most 0.5). Raises ``ConfigError`` when two tools
    have one name.
    """

    def __init__(self, tools: Sequence[Tool], *, clock: Clock, interrupt_grace: float = 3.0, poll: float = 0.3) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.spec.name in self._tools:
                raise ConfigError("two tools have the same name", tool.spec.name, "names that differ")
            self._tools[tool.spec.name] = tool
        self._clock, self._grace, self._poll = clock, interrupt_grace, poll

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    async def run(self, request: RunTool, interrupted: asyncio.Event) -> ToolOutcome:
        """Run the call and say how it ended. Raises nothing but ``CancelledError`` when the caller itself is cancelled.

        Status ``ok`` or ``error`` when the handler ended; ``timeout`` after ``request.timeout`` seconds; after an
        interrupt ``not_started``, or what the handler brought within the grace, or else ``cancelled`` for a tool that
        only reads and ``unknown`` for every other.
        """
        watch = Stopwatch(self._clock)
        status, text, images = await self._ended(request, interrupted, watch)
        return ToolOutcome(request.call_id, status, text, watch.elapsed(), images)

    async def _ended(self, request: RunTool, interrupted: asyncio.Event, watch: Stopwatch) -> Told:
        tool = self._tools.get(request.name)
        if tool is None:
            return "error", f"Unknown tool {request.name!r}. Available: {', '.join(self._tools) or 'none'}.", ()
        if interrupted.is_set():
            return "not_started", "Not started: the user interrupted.", ()
        signal, context = threading.Event(), contextvars.copy_context()
        context.run(SIGNAL.set, signal)
        try:
            work = handler.start(tool, tool.bind(request.arguments), context)
        except Exception as error:
            return _told(handler.Raised(error))
        try:
            finish = await race(work, left=lambda: request.timeout - watch.elapsed(), interrupted=interrupted, poll=self._poll)
            if finish != "done":
                signal.set()
                await self._wound_up(work, wait=tool.is_async or finish == "interrupted")
        finally:
            signal.set()
            if tool.is_async:
                work.cancel()
        return _outcome(tool, finish, work, request.timeout)

    async def _wound_up(self, work: asyncio.Future[handler.Ending], *, wait: bool) -> None:
        """Let the handler end within the grace; a thread that is late gets none, because nothing can make it end."""
        if isinstance(work, asyncio.Task):
            work.cancel()
        if wait:
            await asyncio.wait({work}, timeout=self._grace)


def _outcome(tool: Tool, finish: Finish, work: asyncio.Future[handler.Ending], timeout: float) -> Told:
    told = _told(work.result()) if work.done() and not work.cancelled() else None
    if finish == "late":
        late = f"\nWhat it brought after that: {told[1]}" if told else ""
        return "timeout", f"Timed out after {timeout:g} seconds. {UNKNOWN_EFFECT}{late}", ()
    if told:
        return told
    if finish == "done":
        return "error", "The tool cancelled itself.", ()
    if tool.spec.effect == "pure":
        return "cancelled", "Cancelled: the user interrupted. Nothing was changed.", ()
    return "unknown", f"The user interrupted and the tool did not end in time. {UNKNOWN_EFFECT}", ()


def _told(ending: handler.Ending) -> Told:
    """Judged by how the handler ended, never by words in its text."""
    try:
        if isinstance(ending, handler.Returned):
            return "ok", text_of(ending.value), images_of(ending.value)
        if isinstance(ending.error, ToolFailure):
            return "error", words_of(ending.error), ()
        return "error", text_of_error(ending.error), ()
    except Exception as error:  # a result that cannot be written down
        return "error", f"The tool ran, but its result is unusable: {text_of_error(error)}", ()
