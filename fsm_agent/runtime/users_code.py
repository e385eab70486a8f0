"""Calling code of the user's that a turn waits for: within a time limit, until somebody interrupts, and with
a problem in words where it fails."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.runtime.deadline import Stopwatch, wait_with_deadline
from fsm_agent.runtime.ports import Clock
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import one_line
from fsm_agent.support.threads import LOOP, in_daemon_thread


class UsersCode:
    """What is called ``what`` in the lines that people read. It always runs on the engine's own loop,
    whichever loop a turn runs on, so that it may keep a connection, or ``here``, on the turn's. ``then``:
    what is said to happen when it takes too long."""

    def __init__(self, what: str, clock: Clock, poll: float, *, then: str = "; going on without it") -> None:
        self._what, self._clock, self._poll, self._then = what, clock, poll, then

    async def within(
        self,
        work: Coroutine[Any, Any, Any],
        seconds: float,
        interrupted: asyncio.Event | None = None,
        *,
        here: bool = False,
    ) -> tuple[Any, str]:
        """Return what ``work`` brings and an empty text; or ``None`` and a problem, that is empty after an
        interrupt."""
        if interrupted is not None and interrupted.is_set():
            work.close()
            return None, ""
        watch = Stopwatch(self._clock)
        future = asyncio.ensure_future(work) if here else asyncio.wrap_future(LOOP.submit(work))
        stop = interrupted or asyncio.Event()
        finish = await wait_with_deadline(
            future, left=lambda: seconds - watch.elapsed(), interrupted=stop, poll=self._poll
        )
        if finish != "done":
            future.cancel()
            late = f"{self._what} took longer than {seconds:g} s{self._then}"
            return None, late if finish == "late" else ""
        if future.cancelled():
            return None, f"{self._what} was cancelled"
        if (error := future.exception()) is not None:
            return None, f"{self._what} failed: {one_line(mask(repr(error)), 300)}"
        return future.result(), ""


async def answer_of(function: Callable[..., Any], *values: Any) -> Any:
    """Call a function that is asynchronous, or may block."""
    if inspect.iscoroutinefunction(function):
        return await function(*values)
    value = await in_daemon_thread(function, *values)
    return await value if inspect.isawaitable(value) else value


def required(thing: object, what: str, methods: Sequence[str], allowed: str) -> None:
    """Raises ``ConfigError`` for a thing that lacks one of the methods which make it ``what``."""
    if missing := [name for name in methods if not callable(getattr(thing, name, None))]:
        raise ConfigError(f"not {what}: {', '.join(missing)} missing", thing, allowed)
