"""Fakes for tests: an external memory that records its calls, and cancellation at a chosen await."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from fsm_agent.conversation.messages import Message
from fsm_agent.providers.scripted import FakeClock
from fsm_agent.tools import Tool

# ----------------------------------------------------------------------------------------------------
# An external memory that records every call, and can be made to hang or to fail.


class FakeMemory:
    """A ``MemoryProvider``. ``knows``: what it recalls, by user message. ``keeps``: what a summary must keep.
    ``block``: its text in the system prompt.

    ``hang`` and ``fail`` name a method that never returns, or raises, and can be changed later. Give
    ``clock`` to let simulated time run out while it hangs. ``calls`` holds every call in order: its name and
    arguments."""

    def __init__(
        self,
        knows: Mapping[str, str] | None = None,
        *,
        keeps: str = "",
        block: str = "",
        tools: Sequence[Tool] = (),
        clock: FakeClock | None = None,
        hang: str = "",
        fail: str = "",
    ) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._knows, self._keeps, self._tools = dict(knows or {}), keeps, tuple(tools)
        self._block = block
        self._clock, self.hang, self.fail = clock, hang, fail

    async def initialize(self, session_id: str) -> None:
        await self._record_call("initialize", session_id)

    async def prompt_block(self) -> str:
        await self._record_call("prompt_block")
        return self._block

    async def prefetch(self, text: str) -> str:
        await self._record_call("prefetch", text)
        return self._knows.get(text, "")

    async def sync(self, user: str, answer: str) -> None:
        await self._record_call("sync", user, answer)

    def tools(self) -> Sequence[Tool]:
        return self._tools

    async def pre_compress(self, rows: Sequence[Message]) -> str:
        await self._record_call("pre_compress", tuple(rows))
        return self._keeps

    async def session_switch(self, session_id: str, previous: str) -> None:
        await self._record_call("session_switch", session_id, previous)

    async def shutdown(self) -> None:
        await self._record_call("shutdown")

    async def _record_call(self, name: str, *values: Any) -> None:
        self.calls.append((name, *values))
        if name == self.fail:
            raise RuntimeError(f"{name} failed on request")
        if name == self.hang:
            if self._clock is not None:
                self._clock.advance(3_600)
            await asyncio.Event().wait()


# ----------------------------------------------------------------------------------------------------
# Cancelling a coroutine at its n-th await, as asyncio does it: for tests that try every await.


T = TypeVar("T")


class cancelled_at(Generic[T]):  # noqa: N801 - reads as a phrase: await cancelled_at(3, turn.arun())
    """Await ``work``, and cancel the running task when ``work`` waits for the ``nth`` time (from 1).

    ``reached`` tells whether it waited that many times. If it did not, the result of ``work`` is returned. An
    await whose result is ready suspends nothing and cannot be canceled."""

    def __init__(self, nth: int, work: Coroutine[Any, Any, T]) -> None:
        if nth < 1:
            work.close()
            raise ValueError(f"awaits are counted from 1; given: {nth}")
        self.reached = False
        self._nth, self._work = nth, work

    def __await__(self) -> Generator[Any, Any, T]:
        waits = 0
        inner = self._work.__await__()
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                waiting = inner.throw(error) if error is not None else inner.send(answer)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            waits += 1
            if waits == self._nth:
                task = asyncio.current_task()
                assert task is not None
                self.reached = True
                task.cancel(f"cancelled at await {waits}")
            answer, error = None, None
            try:
                answer = yield waiting
            except BaseException as thrown:
                error = thrown
