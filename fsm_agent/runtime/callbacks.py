"""Callbacks that report what a turn is doing. All are optional, sync or async, and none can break the
turn.

Names and arguments (a callback may declare fewer parameters than it is given):

====================  =====================================================================================
tool_start            call_id, name, arguments; not called for a blocked or denied call
tool_complete         call_id, name, arguments, result text, status
tool_progress         "started", "completed", "said" (by the tool itself) or "risk" (suspicious content in a
                      result), name, preview
thinking              True while the turn waits for the model, False at its first sign of life
reasoning             text
stream_delta          text, or None at a boundary
speech_delta          the same text, for a second sink such as a voice; no boundaries
output_partial        a typed answer so far, each time it has grown by a certain share
tool_gen              name of a tool call that the model begins to write
interim_assistant     text next to tool calls
step                  iteration (from 1), what the previous iteration's tools did
status                one line for people
transition            turn id, source, event, dest, counters
event                 name, data: model:attempt, turn:end, turn:suspended, session:compress, memory:review;
                      child:start, child:tool, child:status, child:suspended, child:end,
                      child:report (a task in the background has ended)
context               the user's text; answers a text that goes to the model with it and is not stored, or
                      None
transform             the final text; answers another text, or None to leave it
approval              ``AskApproval``; answers True, False, "once", "session", "always", "deny", or an
                      ``Approval``
clarify               question, up to four choices; answers a text, or None for no answer
before_tool           name, arguments; answers None, "approve" (no need to ask a person), "block" or
                      ("block", why)
after_tool            name, arguments, result text, status; answers the text that the model gets instead, or
                      None
====================  =====================================================================================

``turn.events()`` yields the same as values (``fsm_agent.runtime.events``), and the turn's waits for a person.
"""

# Callbacks may take fewer arguments. Users write `lambda text: …` for what they need. A failing callback
# never fails the turn. The one that answers (`approval`) runs beside the loop if it is synchronous, and no
# answer means no.

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fsm_agent.errors import ConfigError, near
from fsm_agent.runtime import events
from fsm_agent.runtime.events import TURN, EventValues, FirstChunk, StreamDelta
from fsm_agent.support.threads import in_daemon_thread

log = logging.getLogger(__name__)

LISTENING: Mapping[str, type] = {
    name: kind for name, kind in events.CHANNELS.items() if name not in ("approval", "clarify")
} | {"speech_delta": StreamDelta}
"""Callbacks that only listen, by channel, with the type of their events."""
CHANNELS = (*LISTENING, "approval", "clarify", "before_tool", "after_tool", "context", "transform")
ASKING = frozenset({"approval", "clarify", "before_tool"})
"""Channels that decide for the whole tree of turns: those of the agent that talks to a person."""


class Callbacks:
    """The user's functions by channel: subscribers to the events of one agent's turns, and functions that
    answer. Their exceptions never reach the turn.

    ``publish`` never waits: an async callback is queued behind earlier ones. ``drain`` waits for them."""

    def __init__(self, source: object | Mapping[str, Callable[..., Any]] | None = None) -> None:
        self._functions = _functions_of(source)
        self._channels: dict[type, tuple[str, ...]] = {}
        for name, kind in LISTENING.items():
            if name in self._functions:
                self._channels[kind] = (*self._channels.get(kind, ()), name)
        self._tail: asyncio.Task[None] | None = None

    def elsewhere(self) -> Callbacks:
        """Return the same functions for another event loop: a queue of async callbacks belongs to one."""
        other = Callbacks()
        other._functions, other._channels = self._functions, self._channels
        return other

    def has(self, channel: str) -> bool:
        """Return whether ``channel`` has a listener."""
        return channel in self._functions

    def hears(self, kind: type) -> bool:
        """Return whether events of this type have a listener; costly ones are built only then."""
        return kind in self._channels or TURN.get().hears(kind)

    def publish(self, event: EventValues | FirstChunk) -> None:
        """Publish an event of the running turn; exceptions of listeners are not raised."""
        TURN.get().publish(event)
        if (kind := type(event)) in self._channels:
            for channel in self._channels[kind]:
                if channel != "speech_delta" or event != (None,):  # a voice hears no boundaries (STR-08)
                    self._call(channel, event)

    def _call(self, channel: str, values: tuple[Any, ...]) -> None:
        try:
            answer = self._functions[channel](*values)
        except Exception:
            log.warning("callback %s failed", channel, exc_info=True)
            return
        if inspect.isawaitable(answer):
            self._tail = asyncio.ensure_future(self._after(self._tail, answer, channel))

    async def drain(self) -> None:
        """Wait until every queued async callback has run."""
        while self._tail is not None and not self._tail.done():
            await asyncio.wait({self._tail})

    async def ask(self, channel: str, *values: Any) -> Any:
        """Call a function that answers and may block (it runs in a thread). Return ``None`` if it is absent
        or fails."""
        try:
            return await self.demand(channel, *values)
        except Exception:
            log.warning("callback %s failed", channel, exc_info=True)
            return None

    async def demand(self, channel: str, *values: Any) -> Any:
        """Like ``ask``, but raise the function's exception."""
        function = self._functions.get(channel)
        if function is None:
            return None
        if function.is_async:
            return await function(*values)
        answer = await in_daemon_thread(function, *values)
        return await answer if inspect.isawaitable(answer) else answer

    async def ask_text(self, channel: str, *values: Any) -> str | None:
        """Ask a function that answers a text or ``None``. Any other answer is logged as a warning and
        returned as ``None``."""
        answer = await self.ask(channel, *values)
        if answer is not None and not isinstance(answer, str):
            given = type(answer).__name__
            log.warning("callback %s changes nothing; given: %s; allowed: a text or None", channel, given)
        return answer if isinstance(answer, str) else None

    @staticmethod
    async def _after(before: asyncio.Task[None] | None, answer: Awaitable[Any], channel: str) -> None:
        if before is not None and not before.done():
            await asyncio.wait({before})
        try:
            await answer
        except Exception:
            log.warning("callback %s failed", channel, exc_info=True)


def child_callbacks(
    own: object | Mapping[str, Callable[..., Any]] | None, watch: Mapping[str, Callable[..., Any]] | None
) -> dict[str, Callable[..., Any]]:
    """Return the callbacks of an agent that works for another one: its own except those that ask people, and
    the listeners of ``watch``."""
    mine = {name: one for name, one in _functions_of(own).items() if name not in ASKING}

    def both(name: str, other: _Function) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            other(*values)
            return mine[name](*values)

        return call if name in mine else other

    return {**mine, **{name: both(name, one) for name, one in _functions_of(watch).items()}}


class _Function:
    """A callback, called with only as many values as it declares."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self._most = _parameters(function)

    def __call__(self, *values: Any) -> Any:
        return self._function(*(values if self._most is None else values[: self._most]))


def _parameters(function: Callable[..., Any]) -> int | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _functions_of(source: object | Mapping[str, Callable[..., Any]] | None) -> dict[str, _Function]:
    if source is None:
        return {}
    if isinstance(source, Mapping):
        unknown = sorted(set(source) - set(CHANNELS))
        if unknown:
            raise ConfigError("unknown callback", unknown[0], near(unknown[0], CHANNELS))
        found = dict(source)
    else:
        found = {name: getattr(source, name) for name in CHANNELS if getattr(source, name, None) is not None}
        if not found:
            raise ConfigError(
                "callbacks has the wrong type", source, f"a mapping or an object with {', '.join(CHANNELS)}"
            )
    for name, function in found.items():
        if not callable(function):
            raise ConfigError(f"callback {name} cannot be called", function, "a function, sync or async")
    return {name: _Function(function) for name, function in found.items()}
