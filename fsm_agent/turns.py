"""``Turn``: one turn in the hands of its user. Run it, step through it, look at it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from fsm_agent.conditions import condition
from fsm_agent.journal import Exchange, Step
from fsm_agent.result import TurnResult
from fsm_agent.runner import RunnableTurn, Runner
from fsm_agent.sessions import Session
from fsm_agent.threads import LOOP


class Inspectable(RunnableTurn, Protocol):
    """What ``Turn`` shows of the turn it runs."""

    def counters(self) -> dict[str, int]: ...


class Turn:
    """A turn that has not moved yet, is moving, or has ended.

    The session is held from the first move to the end, so a second turn on it raises ``SessionBusy``. ``result`` is
    ``None`` until the turn has ended.
    """

    def __init__(self, state: Inspectable, runner: Runner, session: Session, finish: Callable[[list[Step]], TurnResult]) -> None:
        self.result: TurnResult | None = None
        self.steps: list[Step] = []
        self._state, self._runner, self._session, self._finish = state, runner, session, finish

    @property
    def id(self) -> str:
        return self._state.turn_id

    @property
    def state(self) -> str:
        """The name of the state that the turn is in."""
        return self._state.state

    def snapshot(self) -> dict[str, Any]:
        """State, counters, limits and facts as plain values; a copy."""
        return self._state.dump()

    async def step(self) -> Step | None:
        """Run the current state to its end and make one move. ``None`` when the turn has ended."""
        while True:
            happened = await self.step_into()
            if not isinstance(happened, Exchange):
                return happened

    async def step_into(self) -> Exchange | Step | None:
        """One request and its reply, or the move that ends the state; ``None`` when the turn has ended."""
        if self.result is not None:
            return None
        self._session.acquire(self.id)
        try:
            happened = await self._runner.step_into()
        except BaseException:
            self._session.release(self.id)
            raise
        if isinstance(happened, Step):
            self.steps.append(happened)
        elif happened is None:
            self.result = self._finish(self.steps)
            self._session.release(self.id)
        return happened

    async def run_until(
        self, *, state: str | None = None, event: str | None = None, row: str | None = None, when: str | None = None
    ) -> Step | None:
        """Step until a move enters ``state``, is made on ``event``, takes ``row``, and leaves the counters as ``when`` says
        (``"retries >= 2"``); what is not given does not matter. ``None`` when the turn ended first."""
        holds = condition(when, self._state.counters()) if when is not None else None
        while (step := await self.step()) is not None:
            wanted = ((state, step.dest), (event, step.event), (row, step.row))
            if any(asked is not None and asked != found for asked, found in wanted):
                continue
            if holds is None or holds(self._state.counters()):
                return step
        return None

    async def __aiter__(self) -> AsyncIterator[Step]:
        while (step := await self.step()) is not None:
            yield step

    async def arun(self) -> TurnResult:
        """Run to the end."""
        while await self.step() is not None:
            pass
        assert self.result is not None
        return self.result

    def run(self) -> TurnResult:
        """Run to the end, synchronously; also inside a running event loop."""
        return LOOP.run(self.arun())
