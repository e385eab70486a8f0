"""One turn after the other, as long as each hands the conversation over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fsm_agent.conversation.result import TurnResult


class RunnableToEnd(Protocol):
    """A turn, or several that follow each other. ``result`` is ``None`` until all have ended."""

    @property
    def result(self) -> TurnResult | None:
        """What came of the last one."""
        ...

    async def arun(self) -> TurnResult:
        """Run to the end."""
        ...


class Relay:
    """A turn and those that follow it: ``onward`` returns the next one for the result of one, ``None`` behind
    the last."""

    def __init__(self, turn: RunnableToEnd, onward: Callable[[TurnResult], RunnableToEnd | None]) -> None:
        self.result: TurnResult | None = None
        self._turn, self._onward = turn, onward

    async def arun(self) -> TurnResult:
        """Run all of them; the result of the last."""
        turn: RunnableToEnd | None = self._turn
        while turn is not None:
            result = await turn.arun()
            turn = self._onward(result)
        self.result = result
        return result
