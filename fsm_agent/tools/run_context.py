"""What a tool can know of the turn that calls it, for a function whose first parameter is annotated
``RunContext``.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import types
import typing
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic

from typing_extensions import TypeVar

from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import one_line

Deps = TypeVar("Deps", default=Any)
LONGEST = 300
"""Characters of a line of progress."""


@dataclass(frozen=True, slots=True)
class RunContext(Generic[Deps]):
    """``deps``: what the turn was started with, never stored; a turn that is resumed has what it was resumed
    with. ``task_id`` and ``call_id``: of the turn, and of this call. ``idempotency_key``: the same whenever
    this very call is repeated. ``attempt``: for a tool 2 when its process ended in the call before, else 1;
    for a hook the number of the request for the same thing. ``iterations_left``: of the turn, ``None`` where
    they are not counted. ``tools``: names that the model may call now."""

    deps: Deps
    session_id: str
    turn_id: str
    task_id: str
    tool: str = ""
    call_id: str = ""
    idempotency_key: str = ""
    attempt: int = 1
    iterations_left: int | None = None
    tools: tuple[str, ...] = ()
    tell: Callable[[str, str], None] = field(default=lambda name, text: None, repr=False, compare=False)
    loop: asyncio.AbstractEventLoop | None = field(default=None, repr=False, compare=False)

    def progress(self, text: str) -> None:
        """Say in a line how far the call has come, to the ``tool_progress`` callback and to ``events()``;
        from any thread, and without waiting."""
        line = one_line(mask(text), LONGEST)
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.tell, self.tool, line, context=contextvars.copy_context())

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger ``fsm_agent.tool.<name>``, whose records have the ids of the call."""
        ids = {"session_id": self.session_id, "turn_id": self.turn_id, "call_id": self.call_id}
        return logging.LoggerAdapter(logging.getLogger(f"fsm_agent.tool.{self.tool}"), ids)


def deps_of(hint: Any) -> Any:
    """Return the type of ``deps`` that an annotation names, ``Any`` for none; ``None`` when the annotation is
    no ``RunContext``."""
    if hint is RunContext:
        return Any
    if typing.get_origin(hint) is not RunContext:
        return None
    [wanted] = typing.get_args(hint)
    return wanted


def must_have(deps: Any) -> bool:
    """Say whether a tool with this type of ``deps`` cannot do without them."""
    if typing.get_origin(deps) in (typing.Union, types.UnionType):
        return type(None) not in typing.get_args(deps)
    return deps not in (None, type(None), Any, object) and not isinstance(deps, typing.TypeVar)


# The cooperative stop signal of a running tool.


TOOL_STOPPED: ContextVar[threading.Event | None] = ContextVar("fsm_agent_tool_stopped", default=None)
"""Tells the tool that runs here to stop."""


def cancelled() -> bool:
    """Should the tool that is running here stop? True after the user's interrupt and after the tool's time
    limit.

    For synchronous handlers, which cannot be stopped from outside; asynchronous ones are also cancelled by
    asyncio. False outside a tool."""
    signal = TOOL_STOPPED.get()
    return signal is not None and signal.is_set()
