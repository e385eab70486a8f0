"""``DurableTurn``: one turn in the hands of its user. Run it, step through it, look at it; it is stored as it
goes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from fsm_agent.errors import OwnershipLost, TurnSuspended
from fsm_agent.fsm.condition_parser import condition, refuse_unknown
from fsm_agent.fsm.journal import Exchange, Step
from fsm_agent.fsm.pause_point import PausePoint
from fsm_agent.fsm.runner import RunnableTurn, Runner, Stepping
from fsm_agent.runtime.events import SIZE, Events
from fsm_agent.runtime.registry import running
from fsm_agent.sessions.session import Moving, Session
from fsm_agent.sessions.session_lease import SessionLease
from fsm_agent.sessions.store.pending import Pending
from fsm_agent.support.threads import LOOP, warn_if_blocking

Result = TypeVar("Result")


class DurableTurn(Stepping, Generic[Result]):
    """A turn that has not moved yet, is moving, or has ended; of an ``Agent`` or of a ``Workflow``.

    The session is held from the first move to the end, so a second turn on it raises ``SessionBusy``.
    ``result`` is ``None`` until the turn has ended. ``suspended``: what it waits for, when it was suspended
    for a reply that comes later; nothing moves this object then, and ``resume`` gives another one."""

    def __init__(
        self,
        state: RunnableTurn,
        runner: Runner,
        session: Session,
        lease: SessionLease[Result],
        gate: PausePoint,
        steps: Iterable[Step] = (),
    ) -> None:
        self.result: Result | None = None
        self.suspended: tuple[Pending, ...] | None = None
        self.steps: list[Step] = list(steps)
        self._state, self._runner, self._session = state, runner, session
        self._lease, self.gate = lease, gate
        self._holding, self._claim = False, 0
        self._running_on = False

    @property
    def id(self) -> str:
        """Return the id of the turn."""
        return self._state.turn_id

    @property
    def state(self) -> str:
        """The name of the state that the turn is in."""
        return self._state.state

    @property
    def pipeline(self) -> Any:
        """What performs the requests of the turn; ``print`` lists its layers."""
        return self._runner.perform

    def snapshot(self) -> dict[str, Any]:
        """State, counters, limits and facts as plain values; a copy."""
        return self._state.dump()

    def lose(self, why: str) -> None:
        """Stop at once: the turn is somebody else's, ``why`` in a line. What it waits for is cancelled,
        nothing more is written, and whoever runs it gets ``OwnershipLost``. Safe from any thread."""
        self._lease.fence.lose(why)

    async def step_into(self) -> Exchange | Step | None:
        """One request and its reply, or the move that ends the state; ``None`` when the turn has ended, or
        is suspended. Raises ``OwnershipLost`` when it goes on elsewhere."""
        if self.result is not None or self.suspended is not None:
            return None
        self._acquire()
        try:
            with (
                running(self.gate.stream),
                Moving(self._session, self._claim),
                self.gate.stepping(),
                self._lease.fence,
            ):
                if not (self._holding or self._runner.ended):
                    await self._lease.enter()
                    self._holding = True
                    self.gate.opened()
                if self.gate.debugger is not None:
                    await self.gate.debugger.passing()
                self._lease.looked_at(not self._running_on or self.gate.debugger is not None)
                happened = await self._runner.step_into()
                if isinstance(happened, Step):
                    self.steps.append(happened)
                elif self._runner.suspended:
                    self.suspended = await self._lease.suspend()
                elif happened is None:
                    self.result = await self._lease.finish(self.steps)
                if happened is not None:
                    self.gate.stream.publish(happened)
        except OwnershipLost:
            await self._lease.lost()
            self._leave()
            raise
        except BaseException:
            self._leave()
            raise
        if happened is None:
            self._let_go()
            self.gate.closed("ended" if self.suspended is None else "suspended", self.result)
        return happened

    def _acquire(self) -> None:
        """Keep other turns of this process off the session. Raises ``SessionBusy``."""
        if not self._claim:
            self._claim = self._session.acquire(self.id)

    def _leave(self) -> None:
        """Whoever ran the turn has stopped; it can be gone on with."""
        held = self._holding
        if held:
            self._lease.leave()
        self._let_go()
        if held:  # only now: who hears of it may take the turn up at once
            self.gate.closed("left")

    def _let_go(self) -> None:
        self._session.release(self._claim)
        self._holding, self._claim = False, 0

    async def run_until(
        self,
        *,
        state: str | None = None,
        event: str | None = None,
        row: str | None = None,
        when: str | None = None,
    ) -> Step | None:
        """Step until a move enters ``state``, is made on ``event``, takes ``row``, and leaves the counters as
        ``when`` says (``"retries >= 2"``); what is not given does not matter. ``None`` when the turn ended,
        or was suspended, first. Raises ``ConfigError`` for a name that no move of this table has."""
        refuse_unknown(self.gate.kind.table, state=state, event=event, row=row)
        holds = condition(when, self._state.counters()) if when is not None else None
        while (step := await self.step()) is not None:
            wanted = ((state, step.dest), (event, step.event), (row, step.row))
            if any(asked is not None and asked != found for asked, found in wanted):
                continue
            if holds is None or holds(self._state.counters()):
                return step
        return None

    def events(self, *, run: bool = True, size: int = SIZE) -> Events:
        """What callbacks are told, as values, until the turn has ended: ``async for event in turn.events()``,
        or a plain ``for`` in a thread. Iterating runs the turn; with ``run=False`` somebody else does.
        ``size``: events that a slow listener may be behind before some are dropped, see
        ``fsm_agent.runtime.events``."""
        return Events(
            self.gate.stream,
            self.arun if run else None,
            size,
            over=self.result is not None or self.suspended is not None,
        )

    async def arun(self) -> Result:
        """Run to the end, as soon as it may. Raises ``TurnSuspended`` when the turn waits for an answer that
        nobody gives now."""
        if self.result is None and self.suspended is None:
            async with self._admitted():
                self._running_on = True
                try:
                    while await self.step_into() is not None:
                        pass
                finally:
                    self._running_on = False
        if self.suspended is not None:
            raise TurnSuspended(self.id, self.suspended)
        assert self.result is not None
        return self.result

    async def run_until_left(self, leaving: Callable[[], bool]) -> bool:
        """Run to the end, or until it is suspended, and return true; or to the first move after
        ``leaving()``, and return false: then any process may resume the turn, and this object does not go on
        with it."""
        self._running_on = True
        try:
            while (happened := await self.step_into()) is not None:
                if isinstance(happened, Step) and leaving():
                    await self._handed_over()
                    return False
        finally:
            self._running_on = False
        return True

    async def _handed_over(self) -> None:
        await self._lease.hand_over()
        self._let_go()
        self.gate.closed("left")

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """Wait until the turn may run."""
        yield

    def run(self) -> Result:
        """Run to the end, synchronously. Inside a running event loop that loop waits, and a
        ``RuntimeWarning`` says so."""
        warn_if_blocking("run", "await turn.arun()")
        return LOOP.run(self.arun())
