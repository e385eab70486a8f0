"""``Turn``: a turn of an ``Agent``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Generic

from typing_extensions import TypeVar

from fsm_agent.conversation.result import TurnResult
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.pause_point import PausePoint
from fsm_agent.fsm.runner import RunnableTurn, Runner
from fsm_agent.runtime.registry import running
from fsm_agent.runtime.turn_door import TurnDoor
from fsm_agent.sessions.durable_turn import DurableTurn
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.session_lease import SessionLease

Out = TypeVar("Out", default=Any)


class Turn(DurableTurn[TurnResult[Out]], Generic[Out]):
    """One message of a user and what becomes of it. ``result`` is a ``TurnResult`` once it has ended,
    ``None`` before. ``door``: where it waits until it may run; who makes its steps one by one does not
    wait."""

    def __init__(
        self,
        state: RunnableTurn,
        runner: Runner,
        session: Session,
        lease: SessionLease[TurnResult[Out]],
        gate: PausePoint,
        door: TurnDoor,
        steps: Iterable[Step] = (),
    ) -> None:
        super().__init__(state, runner, session, lease, gate, steps)
        self._door = door

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """Wait for a place, and keep the session meanwhile. Raises ``ConfigError`` when the agent is closed
        before there is one."""
        self._acquire()
        try:
            with running(self.gate.stream):
                async with self._door.passed():
                    yield
        except BaseException:
            self._leave()
            raise
