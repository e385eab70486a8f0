"""A turn's stay in its session: how it comes in (new, continued, forked), and how it leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fsm_agent.journal import Step
from fsm_agent.result import TurnResult
from fsm_agent.sessions import Session
from fsm_agent.store import Begun, Store, TurnLog


class Tenancy:
    """``enter`` is what has to be done once before the first move; ``result`` makes the result of the ended turn."""

    def __init__(
        self,
        store: Store,
        session: Session,
        turn_id: str,
        log: TurnLog,
        enter: Callable[[], Awaitable[Begun]],
        result: Callable[[list[Step]], TurnResult],
        tell: Callable[[str], None],
    ) -> None:
        self._store, self._session, self._turn_id, self._log = store, session, turn_id, log
        self._enter, self._result, self._tell = enter, result, tell
        self._entered = False

    async def enter(self) -> None:
        if self._entered:
            await self._store.hold(self._log.session, self._turn_id)
            return
        begun = await self._enter()
        self._log.began(begun.epoch)
        self._entered = True
        if begun.abandoned is not None:
            self._tell(f"turn {begun.abandoned} of this session was left unfinished when its process ended; it is given up now")

    async def finish(self, steps: list[Step]) -> TurnResult:
        result = self._result(steps)
        await self._log.ended(result)
        if not self._log.problem:
            return result
        return result.model_copy(update={"cleanup_errors": [*result.cleanup_errors, self._log.problem]})

    def leave(self) -> None:
        self._store.let_go(self._session, self._turn_id)
