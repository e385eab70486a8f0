"""``DurableTurns``: starts, resumes and forks the turns of one table in one store, for ``Agent`` and
``Workflow`` alike.

The three ways to a turn differ in where its state comes from and in how it takes its session, and in nothing
else. A new turn is written with the session that holds it. A resumed one is claimed in the store and read
again after that, because its former process may have written up to that moment; it continues with what is
recorded of its last visit. A fork copies what it needs into a session of its own. The caller makes the state,
because it alone knows its class, and gets a ``DurableTurn`` that has not moved.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.pause_point import PausePoint
from fsm_agent.fsm.properties import Watch, watcher
from fsm_agent.fsm.runner import Perform, Runner
from fsm_agent.fsm.turn_kind import TurnKind
from fsm_agent.runtime.turn_limiter import TurnLimiter
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store import Begun, Claim, Store, TurnLog
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.names import find_turn
from fsm_agent.sessions.store.rewind.positions import Position, forked, position_of, take_over
from fsm_agent.sessions.turn import DurableTurn, Enter, TurnEnding

Result = TypeVar("Result")
EnterBehind = Callable[[Fence], Awaitable[Begun]]
"""Takes the session of a turn that was there before, behind its fence."""
Continue = Callable[[Position, Session, EnterBehind], DurableTurn[Result]]
"""Makes the turn that continues from a position in a session."""


@dataclass(frozen=True)
class DurableTurns(Generic[Result]):
    """``tell`` receives lines for people; turns wait at the ``limiter`` until they may run."""

    kind: TurnKind
    machine: Machine
    store: Store
    watch: Watch
    tell: Callable[[str], None] = lambda text: None
    limiter: TurnLimiter | None = None

    @property
    def journal(self) -> Turns:
        """What the turns of this store did: their moves, requests, snapshots and results."""
        return Turns(self.store.database)

    def resume(
        self, session_or_turn_id: str, claim: Claim | None, continued: Continue[Result]
    ) -> DurableTurn[Result]:
        """An unfinished turn, where it was when its process ended. Raises ``ConfigError`` when there is
        nothing to resume, ``SessionBusy`` while another turn has the session."""
        info = find_turn(self.store, session_or_turn_id).moved_by(self.kind.table.name)
        session = self.store.resumable(info, claim)
        position = position_of(self.store, info.id, talks=self.kind.talks)
        session.release(session.acquire(info.id))  # refused at once, not at the first move

        async def enter(fence: Fence) -> Begun:
            return await take_over(self.store, position, session, claim, fence, talks=self.kind.talks)

        return continued(position, session, enter)

    def fork(
        self, turn_id: str, at: int, edited: Callable[[Position], Position], continued: Continue[Result]
    ) -> DurableTurn[Result]:
        """A new turn, in a session of its own, that begins where ``turn_id`` was after ``at`` moves, with the
        changes that ``edited`` makes. The old turn stays as it is. Raises ``ConfigError``."""
        self.journal.info(turn_id).moved_by(self.kind.table.name)
        position = edited(position_of(self.store, turn_id, at, talks=self.kind.talks))
        session = self.store.new_session()
        write = forked(self.store, position, session, new_turn_id(session), self.kind.table.digest)

        async def enter(fence: Fence) -> Begun:
            await self.store.written(write)
            return Begun()

        return continued(position, session, enter)

    def turn(
        self,
        state: Any,
        log: TurnLog,
        gate: PausePoint,
        perform: Perform,
        enter: Enter,
        ending: TurnEnding[Result],
        *,
        steps: Sequence[Step] = (),
    ) -> DurableTurn[Result]:
        """Put one turn together. ``steps``: the moves that it has made already."""
        watch = watcher(self.kind.table, state, self.watch, steps)
        runner = Runner(state, self.machine, self.kind.states, perform, log, watch)
        return DurableTurn(
            state, runner, self.store, log, enter, ending, gate, steps, tell=self.tell, limiter=self.limiter
        )

    def steps_before(self, position: Position, seq: int) -> Sequence[Step]:
        """The moves that a turn which continues from ``position`` has made."""
        return self.journal.steps(position.turn.id, 1, seq) if seq else []


def new_turn_id(session: Session) -> str:
    """An id for the next turn of a session."""
    return f"{session.id}-{uuid.uuid4().hex[:8]}"
