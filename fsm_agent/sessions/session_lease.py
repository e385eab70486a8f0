"""A turn's stay in its session: how it comes in (new, continued, forked), and how it leaves.
(Why: decisions 48 and 49.)"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fsm_agent.errors import StaleCopyError
from fsm_agent.fsm.journal import Step
from fsm_agent.sessions.store import Begun, Closing, Store, TurnLog
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.pending import Pending, PendingItems

log = logging.getLogger(__name__)
Result = TypeVar("Result")


async def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class TurnEnding(Generic[Result]):
    """What is done with a turn that has ended. ``result`` makes its result from its moves, ``closing`` what
    is stored of that, ``follow_up`` does what others wait for, and says what it could not do; ``noted`` puts
    (was it stored, what went wrong) into the result. ``suspended`` is told what a turn waits for that has not
    ended; ``lost`` ends what runs for one that goes on elsewhere."""

    result: Callable[[list[Step]], Awaitable[Result]]
    closing: Callable[[Result], Closing]
    noted: Callable[[Result, bool, str], Result]
    follow_up: Callable[[], str] = lambda: ""
    suspended: Callable[[tuple[Pending, ...]], None] = lambda waits: None
    lost: Callable[[], Awaitable[None]] = _nothing


class SessionLease(Generic[Result]):
    """``enter`` is what has to be done once before the first move."""

    def __init__(
        self,
        store: Store,
        turn_id: str,
        log: TurnLog,
        enter: Callable[[], Awaitable[Begun]],
        ending: TurnEnding[Result],
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._store, self._turn_id, self._log = store, turn_id, log
        self._ending, self._tell = ending, tell
        self._enter: Callable[[], Awaitable[Begun]] | None = enter

    async def enter(self) -> None:
        """Take the session, or take it again. Raises ``SessionBusy`` when another turn has it."""
        if self._enter is None:
            await self._store.hold_again(self._log.session, self._log.fence)
            return
        begun = await self._enter()
        self._store.watch(self._log.fence)
        self._log.began(begun.recording)
        self._enter = None  # what the turn was begun with is not kept while it runs
        if begun.abandoned is not None:
            self._tell(
                f"turn {begun.abandoned} of this session was left unfinished when its process ended; it is"
                " given up now"
            )

    @property
    def fence(self) -> Fence:
        """Return what a step of the turn is made behind."""
        return self._log.fence

    def looked_at(self, moves: bool) -> None:
        """Does somebody look at each move? Then it is safe before it is told of."""
        self._log.looked_at = moves

    async def finish(self, steps: list[Step]) -> Result:
        """The turn has ended: make its result, write it, let go of the session."""
        result = await self._ending.result(steps)
        closing = self._ending.closing(result)
        await self._write_down(closing)
        self._store.keep(self._log.line)
        told = (
            self._turn_id,
            self._log.session.id,
            closing.exit,
            closing.outcome,
            closing.result.get("attempts", len(steps)),
        )
        log.info("turn %s of session %s ended: %s (%s), requests: %d", *told)
        stored = not self._log.problem
        problem = self._log.problem or self._ending.follow_up()
        return self._ending.noted(result, stored, problem) if problem else result

    async def _write_down(self, closing: Closing) -> None:
        """The end of the turn, if need be on a fresh copy of its session: no answer is lost to who wrote
        there meanwhile."""
        try:
            await self._log.ended(closing)
        except StaleCopyError as error:
            self._tell(f"{error}; it is written behind what is there now")
            self._store.refresh(self._log.session)
            await self._log.ended_anew(closing)

    async def suspend(self) -> tuple[Pending, ...]:
        """Let any process go on with the turn; what it waits for, nothing when that was answered by now."""
        await self._store.suspend(self._log.fence)
        asked = PendingItems(lambda: self._store.database).of_turn(self._turn_id)
        waits = tuple(one for one in asked if one.answered is None)
        self._ending.suspended(waits)
        log.info("turn %s is suspended: %s", self._turn_id, ", ".join(one.id for one in waits))
        return waits

    async def hand_over(self) -> None:
        """Let any process go on with the turn, which stands behind a move. Raises ``OwnershipLost``."""
        self._log.at_rest()
        await self._store.suspend(self._log.fence)

    async def lost(self) -> None:
        """The turn goes on elsewhere, and nothing of it here."""
        log.info("%s", self.fence.why)
        await self._ending.lost()

    def leave(self) -> None:
        """Let go of the session without having ended; the turn can be entered again."""
        self._log.at_rest()
        self._store.let_go(self._turn_id, self._log.fence.epoch)
