"""Asking an external memory within limits, and telling it in the background. It can never hold or hurt a
turn. (Why: decision 26.)"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import inspect
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fsm_agent.conversation.messages import Message
from fsm_agent.errors import ConfigError
from fsm_agent.memory.provider import MemoryProvider
from fsm_agent.runtime.deadline import Stopwatch, wait_with_deadline
from fsm_agent.runtime.ports import Clock
from fsm_agent.runtime.registry import MEMORIES
from fsm_agent.settings.model import Settings
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import one_line
from fsm_agent.support.threads import LOOP, in_daemon_thread
from fsm_agent.tools import Tool

log = logging.getLogger(__name__)

METHODS = ("initialize", "prefetch", "sync", "tools", "pre_compress", "session_switch", "shutdown")


class ExternalMemory:
    """One provider in the hands of an agent. Its asynchronous methods all run on the engine's loop, whichever
    loop a turn runs on. Answers come with a problem in words, empty when there was none."""

    def __init__(self, provider: MemoryProvider, clock: Clock, settings: Settings) -> None:
        self._provider, self._clock = provider, clock
        self._limits, self._poll = settings.memory, settings.poll.control
        self._session: str | None = None
        self._pending: set[concurrent.futures.Future[None]] = set()
        self._in_order = asyncio.Lock()

    def tools(self) -> list[Tool]:
        return list(self._provider.tools())

    async def prefetch(self, session_id: str, text: str, interrupted: asyncio.Event) -> tuple[str, str]:
        """What to know for this message. Earlier turns are stored first, so that they can be found."""
        late = await self.drain(interrupted)
        found, problem = await self._within(
            self._recall(session_id, text), self._limits.prefetch_timeout, interrupted
        )
        return found or "", "; ".join(filter(None, (late, problem)))

    async def pre_compress(self, rows: Sequence[Message], interrupted: asyncio.Event) -> tuple[str, str]:
        """What a summary of these rows must keep; nothing as long as the provider was not used."""
        if self._session is None:
            return "", ""
        work = _answer(self._provider.pre_compress, rows)
        kept, problem = await self._within(work, self._limits.prefetch_timeout, interrupted)
        return str(kept or ""), problem

    def sync(self, user: str, answer: str) -> None:
        """Tell of a completed turn, after those before it, without waiting."""
        MEMORIES.add(self)
        future = LOOP.submit(self._store(user, answer))
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)

    async def drain(self, interrupted: asyncio.Event | None = None) -> str:
        """Wait until everything is stored, within the limit; what is not by then is given up."""
        if not self._pending:
            return ""
        waiting = list(self._pending)
        _, problem = await self._within(_all_of(waiting), self._limits.drain_timeout, interrupted)
        for future in waiting:
            future.cancel()
        return problem

    async def aclose(self) -> None:
        """Store what is left and shut the provider down, if it was ever used."""
        problems = [await self.drain()]
        if self._session is not None:
            self._session = None
            problems.append(
                (await self._within(_answer(self._provider.shutdown), self._limits.drain_timeout))[1]
            )
        for problem in filter(None, problems):
            log.warning(problem)

    def wait(self) -> None:
        """``drain`` for the end of the process."""
        concurrent.futures.wait(list(self._pending), timeout=self._limits.drain_timeout)

    async def _within(
        self, work: Coroutine[Any, Any, Any], seconds: float, interrupted: asyncio.Event | None = None
    ) -> tuple[Any, str]:
        if interrupted is not None and interrupted.is_set():
            work.close()
            return None, ""
        watch, future = Stopwatch(self._clock), asyncio.wrap_future(LOOP.submit(work))
        stop = interrupted or asyncio.Event()
        finish = await wait_with_deadline(
            future, left=lambda: seconds - watch.elapsed(), interrupted=stop, poll=self._poll
        )
        if finish != "done":
            future.cancel()
            return (
                None,
                f"the external memory took longer than {seconds:g} s; going on without it"
                if finish == "late"
                else "",
            )
        if future.cancelled():
            return None, "the external memory was cancelled"
        if (error := future.exception()) is not None:
            return None, f"the external memory failed: {one_line(mask(repr(error)), 300)}"
        return future.result(), ""

    async def _recall(self, session_id: str, text: str) -> str:
        if self._session is None:
            await _answer(self._provider.initialize, session_id)
        elif self._session != session_id:
            await _answer(self._provider.session_switch, session_id, self._session)
        self._session = session_id
        return str(await _answer(self._provider.prefetch, text) or "")

    async def _store(self, user: str, answer: str) -> None:
        async with self._in_order:
            try:
                await _answer(self._provider.sync, user, answer)
            except Exception:
                log.warning("the external memory could not store a turn", exc_info=True)


def checked(provider: object) -> None:
    """Raises ``ConfigError`` for what is no ``MemoryProvider``."""
    if missing := [name for name in METHODS if not callable(getattr(provider, name, None))]:
        raise ConfigError(
            f"not a memory provider: {', '.join(missing)} missing",
            provider,
            "one object with the methods of MemoryProvider",
        )


async def _answer(function: Callable[..., Any], *values: Any) -> Any:
    """Call a method that is asynchronous or may block."""
    if inspect.iscoroutinefunction(function):
        return await function(*values)
    value = await in_daemon_thread(function, *values)
    return await value if inspect.isawaitable(value) else value


async def _all_of(futures: Sequence[concurrent.futures.Future[None]]) -> None:
    await asyncio.wait({asyncio.wrap_future(future) for future in futures})


@atexit.register
def _store_what_is_left() -> None:
    for memory in list(MEMORIES):
        memory.wait()
