"""A review that can be run and stepped: the turn, two agents, and the engine's runner. No line of the engine is changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from examples.review_loop.requests import Answer, Ask, Rest
from examples.review_loop.states import STATES
from examples.review_loop.table import TABLE
from examples.review_loop.turn import ReviewTurn
from fsm_agent import Step, TurnResult
from fsm_agent.fsm.journal import MemoryJournal
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.runner import Runner
from fsm_agent.runtime.ports import Clock

MACHINE = Machine(TABLE)
"""Proved when it is made: every review ends."""


class Answering(Protocol):
    """Who answers prompts: an ``Agent``."""

    async def arun(self, user_message: str) -> TurnResult: ...


class Review:
    """One review of ``turn`` by two agents. ``journal`` holds every move, request and answer."""

    def __init__(self, turn: ReviewTurn, writer: Answering, reviewer: Answering, clock: Clock) -> None:
        self.turn, self.journal = turn, MemoryJournal()
        self._agents, self._clock = {"writer": writer, "reviewer": reviewer}, clock
        self.runner = Runner(turn, MACHINE, STATES, self._perform, self.journal)

    async def step(self) -> Step | None:
        """Run the current state to its end and make one move; ``None`` when the review has ended."""
        return await self.runner.step()

    async def __aiter__(self) -> AsyncIterator[Step]:
        while (step := await self.step()) is not None:
            yield step

    async def _perform(self, request: Any) -> Any:
        match request:
            case Ask(role=role, prompt=prompt):
                result = await self._agents[role].arun(prompt)
                text = (result.final_response or "").strip() if result.completed else ""
                return Answer(text, "" if text else result.error or "it said nothing")
            case Rest(seconds=seconds):
                return await self._clock.sleep(seconds)
        raise TypeError(f"a review has no request {type(request).__name__}")
