"""Asking an external memory within limits, and telling it in the background. It can never hold or hurt a
turn.
"""

# External memory runs on the engine's own loop. Its methods would otherwise run on the caller's loop, and a
# connection cannot move between loops. Pending writes survive the end of `asyncio.run`, and the end of the
# process up to a time limit.

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from fsm_agent.conversation.messages import Message
from fsm_agent.runtime.deadline import UsersCode, answer_of, require_method
from fsm_agent.runtime.ports import Clock
from fsm_agent.settings.model import Settings
from fsm_agent.support.threads import LOOP
from fsm_agent.tools import Tool

# ----------------------------------------------------------------------------------------------------
# Memory outside the home directory: a service that is asked before a turn and told after it. At most one an
# agent.


class MemoryProvider(Protocol):
    """What an external memory does. Every method but ``tools`` may be asynchronous, or block (it then runs in
    a thread).

    The asynchronous ones always run on the engine's own event loop, so a connection may be kept between them.
    A method that raises or takes too long costs its own result and a line for people, never the turn."""

    def initialize(self, session_id: str) -> Awaitable[None] | None:
        """Called once, before anything else but ``tools``."""

    def prompt_block(self) -> Awaitable[str] | str:
        """What the system prompt says of this memory: what it knows of the user in general, how its tools are
        used; empty for nothing. Asked when a session's prompt is built, and frozen in it; scanned for
        instructions that are none of its business. A provider without this method has no block."""

    def prefetch(self, text: str) -> Awaitable[str] | str:
        """What is worth knowing for this message of the user; empty for nothing. The model reads it with the
        message, and it is neither stored as the user's words nor shown."""

    def sync(self, user: str, answer: str) -> Awaitable[None] | None:
        """A turn was completed. Called in the background, one call at a time, in order; not after an
        interrupt."""

    def tools(self) -> Sequence[Tool]:
        """Tools that the model may call; asked once, when the agent is made."""

    def pre_compress(self, rows: Sequence[Message]) -> Awaitable[str] | str:
        """These messages are about to be summarized; return what the summary must keep, or nothing."""

    def session_switch(self, session_id: str, previous: str) -> Awaitable[None] | None:
        """The next turn belongs to another session."""

    def shutdown(self) -> Awaitable[None] | None:
        """Called once, after everything was stored."""


log = logging.getLogger(__name__)

MEMORIES: weakref.WeakSet[ExternalMemory] = weakref.WeakSet()
"""In use, to be waited for when the process ends."""
METHODS = ("initialize", "prefetch", "sync", "tools", "pre_compress", "session_switch", "shutdown")


class ExternalMemory:
    """One provider in the hands of an agent. Its asynchronous methods all run on the engine's loop, whichever
    loop a turn runs on. Answers come with a problem in words, empty when there was none."""

    def __init__(self, provider: MemoryProvider, clock: Clock, settings: Settings) -> None:
        self._provider, self._limits = provider, settings.memory
        self._code = UsersCode("the external memory", clock, settings.poll.control)
        self._session: str | None = None
        self._pending: set[concurrent.futures.Future[None]] = set()
        self._in_order = asyncio.Lock()

    def tools(self) -> list[Tool]:
        return list(self._provider.tools())

    async def prompt_block(self, session_id: str, interrupted: asyncio.Event) -> tuple[str | None, str]:
        """What the prompt of this session is to say of the memory; ``None`` when it did not answer."""
        if (asked := getattr(self._provider, "prompt_block", None)) is None:
            return "", ""
        work = self._ask(session_id, asked)
        return await self._code.within(work, self._limits.prefetch_timeout, interrupted)

    async def prefetch(self, session_id: str, text: str, interrupted: asyncio.Event) -> tuple[str, str]:
        """What to know for this message. Earlier turns are stored first, so that they can be found."""
        late = await self.drain(interrupted)
        work = self._ask(session_id, self._provider.prefetch, text)
        found, problem = await self._code.within(work, self._limits.prefetch_timeout, interrupted)
        return found or "", "; ".join(filter(None, (late, problem)))

    async def pre_compress(self, rows: Sequence[Message], interrupted: asyncio.Event) -> tuple[str, str]:
        """What a summary of these rows must keep; nothing as long as the provider was not used."""
        if self._session is None:
            return "", ""
        work = answer_of(self._provider.pre_compress, rows)
        kept, problem = await self._code.within(work, self._limits.prefetch_timeout, interrupted)
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
        _, problem = await self._code.within(_all_of(waiting), self._limits.drain_timeout, interrupted)
        for future in waiting:
            future.cancel()
        return problem

    async def aclose(self) -> None:
        """Store what is left and shut the provider down, if it was ever used."""
        problems = [await self.drain()]
        if self._session is not None:
            self._session = None
            problems.append(
                (await self._code.within(answer_of(self._provider.shutdown), self._limits.drain_timeout))[1]
            )
        for problem in filter(None, problems):
            log.warning(problem)

    def wait(self) -> None:
        """``drain`` for the end of the process."""
        concurrent.futures.wait(list(self._pending), timeout=self._limits.drain_timeout)

    async def _ask(self, session_id: str, method: Callable[..., Any], *values: Any) -> str:
        """Ask for a text, after setting the provider's session."""
        if self._session is None:
            await answer_of(self._provider.initialize, session_id)
        elif self._session != session_id:
            await answer_of(self._provider.session_switch, session_id, self._session)
        self._session = session_id
        return str(await answer_of(method, *values) or "")

    async def _store(self, user: str, answer: str) -> None:
        async with self._in_order:
            try:
                await answer_of(self._provider.sync, user, answer)
            except Exception:
                log.warning("the external memory could not store a turn", exc_info=True)


def check_provider(provider: object) -> None:
    """Raises ``ConfigError`` for what is no ``MemoryProvider``."""
    require_method(provider, "a memory provider", METHODS, "one object with the methods of MemoryProvider")


async def _all_of(futures: Sequence[concurrent.futures.Future[None]]) -> None:
    await asyncio.wait({asyncio.wrap_future(future) for future in futures})


@atexit.register
def _store_what_is_left() -> None:
    for memory in list(MEMORIES):
        memory.wait()
