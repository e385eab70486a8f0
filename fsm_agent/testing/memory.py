"""An external memory that notes every call, and can be made to hang or to fail."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fsm_agent.conversation.messages import Message
from fsm_agent.providers.scripted.clock import FakeClock
from fsm_agent.tools import Tool


class FakeMemory:
    """A ``MemoryProvider``. ``knows``: what it recalls for a text of the user. ``keeps``: what a summary must
    keep. ``block``: what it says in the system prompt.

    ``hang`` and ``fail`` name a method that never answers, or raises. Give ``clock`` to let simulated time
    run out while it hangs. ``calls`` holds every call in order: its name and arguments."""

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
        self._clock, self._hang, self._fail = clock, hang, fail

    async def initialize(self, session_id: str) -> None:
        await self._called("initialize", session_id)

    async def prompt_block(self) -> str:
        await self._called("prompt_block")
        return self._block

    async def prefetch(self, text: str) -> str:
        await self._called("prefetch", text)
        return self._knows.get(text, "")

    async def sync(self, user: str, answer: str) -> None:
        await self._called("sync", user, answer)

    def tools(self) -> Sequence[Tool]:
        return self._tools

    async def pre_compress(self, rows: Sequence[Message]) -> str:
        await self._called("pre_compress", tuple(rows))
        return self._keeps

    async def session_switch(self, session_id: str, previous: str) -> None:
        await self._called("session_switch", session_id, previous)

    async def shutdown(self) -> None:
        await self._called("shutdown")

    async def _called(self, name: str, *values: Any) -> None:
        self.calls.append((name, *values))
        if name == self._fail:
            raise RuntimeError(f"{name} failed, as it was told to")
        if name == self._hang:
            if self._clock is not None:
                self._clock.advance(3_600)
            await asyncio.Event().wait()
