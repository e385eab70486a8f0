"""A turn's stay in its session: how it comes in (new, continued, forked), and how it leaves."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from fsm_agent.conversation.result import TurnResult
from fsm_agent.errors import StaleCopyError, StoreError
from fsm_agent.fsm.journal import Step
from fsm_agent.sessions.store import Begun, Store, TurnLog
from fsm_agent.sessions.store.search.indexing import keep_up
from fsm_agent.sessions.store.transfer.trajectory import save_trajectory
from fsm_agent.settings.model import Storage

log = logging.getLogger(__name__)
TRAJECTORIES = "trajectories.jsonl"


class Tenancy:
    """``enter`` is what has to be done once before the first move; ``result`` makes the result of the ended turn."""

    def __init__(
        self,
        store: Store,
        turn_id: str,
        log: TurnLog,
        enter: Callable[[], Awaitable[Begun]],
        result: Callable[[list[Step]], TurnResult],
        tell: Callable[[str], None],
        settings: Storage,
    ) -> None:
        self._store, self._turn_id, self._log = store, turn_id, log
        self._enter, self._result, self._tell, self._settings = enter, result, tell, settings
        self._entered = False

    async def enter(self) -> None:
        if self._entered:
            await self._store.hold_again(self._log.session, self._turn_id, self._log.epoch)
            return
        begun = await self._enter()
        self._log.began(begun.epoch, begun.recording)
        self._entered = True
        if begun.abandoned is not None:
            self._tell(f"turn {begun.abandoned} of this session was left unfinished when its process ended; it is given up now")

    async def finish(self, steps: list[Step]) -> TurnResult:
        result = self._result(steps)
        await self._write_down(result)
        self._store.keep(self._log.session)
        how = result.turn_exit_reason
        told = (self._turn_id, result.session_id, how.value, how.outcome.value, result.attempts)
        log.info("turn %s of session %s ended: %s (%s), requests: %d", *told)
        stored = not self._log.problem
        problem = self._log.problem or self._followed_up()
        if not problem:
            return result
        return result.model_copy(update={"stored": stored, "cleanup_errors": [*result.cleanup_errors, problem]})

    async def _write_down(self, result: TurnResult) -> None:
        """The end of the turn, if need be on a fresh copy of its session: no answer is lost to who wrote there meanwhile."""
        try:
            await self._log.ended(result)
        except StaleCopyError as error:
            self._tell(f"{error}; it is written behind what is there now")
            self._store.refresh(self._log.session)
            await self._log.ended_anew(result)

    def _followed_up(self) -> str:
        """What is done for others with an ended turn; in words what could not be done."""
        if self._settings.index:
            keep_up(self._store.database)
        if self._settings.trajectories:
            try:
                save_trajectory(self._store.database, self._turn_id, self._store.home / TRAJECTORIES)
            except (OSError, StoreError) as error:
                return f"the trajectory was not saved: {error}"
        return ""

    def leave(self) -> None:
        self._store.let_go(self._turn_id, self._log.epoch)
