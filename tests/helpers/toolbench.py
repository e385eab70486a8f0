"""Built-in tools, used the way a turn uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from fsm_agent.conversation.effects import RunTool, ToolOutcome
from fsm_agent.providers.scripted import FakeClock
from fsm_agent.support.threads import Interrupt
from fsm_agent.tools import Tool, ToolRunner
from tests.helpers.leaping import LeapingLoop
from tests.helpers.waiting import PATIENCE, until_so


class ToolBench:
    """The tools of one agent. ``use`` gives an outcome, ``ok`` the text of a result, ``error`` that of an error."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.runner = ToolRunner(tools, clock=FakeClock(), poll=0.02)

    def use(self, name: str, /, **arguments: Any) -> ToolOutcome:
        return asyncio.run(self._running(name, arguments, Interrupt()))

    def ok(self, name: str, /, **arguments: Any) -> str:
        outcome = self.use(name, **arguments)
        assert outcome.status == "ok", outcome
        return outcome.text

    def error(self, name: str, /, **arguments: Any) -> str:
        outcome = self.use(name, **arguments)
        assert outcome.status == "error", outcome
        return outcome.text

    def stopped(
        self, name: str, begun: Callable[[], bool], /, *, after: float = 0.0, **arguments: Any
    ) -> ToolOutcome:
        """A call that is interrupted once it has ``begun``, or for which ``after`` seconds go by then."""
        loop, interrupted = LeapingLoop(), Interrupt()

        async def main() -> ToolOutcome:
            running = asyncio.ensure_future(self._running(name, arguments, interrupted))
            await until_so(lambda: running.done() or begun())
            loop.leap(after) if after else interrupted.set()
            return await running

        with asyncio.Runner(loop_factory=lambda: loop) as made:
            return made.run(main())

    async def _running(self, name: str, arguments: dict[str, Any], interrupted: Interrupt) -> ToolOutcome:
        return await self.runner.run(RunTool("1", name, arguments, 2 * PATIENCE), interrupted)
