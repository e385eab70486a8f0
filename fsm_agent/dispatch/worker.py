"""A worker: serves a dispatcher, looks for queued turns that nobody was told of, and keeps agents whose
tasks in the background are at work."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from fsm_agent.agent import Agent
from fsm_agent.dispatch.apps import App
from fsm_agent.dispatch.port import Dispatcher, HandOver, Order, TurnLink
from fsm_agent.dispatch.run_turn import LOST, OneAttempt, run_turn
from fsm_agent.dispatch.submit import DIGEST
from fsm_agent.errors import FsmAgentError, OwnershipLost, SessionBusy, StoreError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.queued import forget_ended, note_problem, to_be_run
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import one_line

log = logging.getLogger(__name__)
TOLD_EVERY = 60.0
"""Seconds between two lines about turns that wait for a worker with another table."""


class Worker:
    """Runs turns of one store with one app. ``sweep``: seconds between two looks for turns that nobody was
    told of, which were queued at least ``age`` seconds ago. ``tell`` is given lines for the operator."""

    def __init__(
        self,
        store: Store,
        app: App,
        dispatcher: Dispatcher,
        *,
        sweep: float,
        age: float = 0.0,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._store, self._app, self._dispatcher, self._tell = store, app, dispatcher, tell
        self._sweep, self._age = sweep, age
        self._attempts, self._releasing = OneAttempt(), set[asyncio.Task[None]]()
        self._settling: dict[int, Agent[Any, Any]] = {}
        self._told: dict[str, float] = {}
        self._again: dict[str, tuple[float, float]] = {}

    async def run(self, slots: int, stop: asyncio.Event) -> None:
        """Serve until ``stop``; turns that run then stop behind their next move, and other workers go on with
        them."""
        sweeping = asyncio.create_task(self._sweep_on(stop))
        try:
            await self._dispatcher.serve(self._attempt, slots, stop)
        finally:
            sweeping.cancel()
            for agent in list(self._settling.values()):
                await agent.aclose()
            await asyncio.gather(sweeping, *self._releasing, return_exceptions=True)
            await self._dispatcher.aclose()

    async def _attempt(self, order: Order, rank: int | None, link: TurnLink) -> str:
        try:
            async with self._attempts.alone(order.turn, rank, link):
                return await run_turn(order, rank, link, self._store, self._app.made, self._release)
        except OwnershipLost:
            return LOST
        except (HandOver, SessionBusy):
            raise
        except Exception as error:
            await self._note(order, error)
            raise

    async def _note(self, order: Order, error: Exception) -> None:
        """Why a turn could not be run, for whoever waits for it; it is tried again."""
        said = str(error) if isinstance(error, FsmAgentError) else f"{type(error).__name__}: {error}"
        line = one_line(mask(said), 300)
        self._tell(f"turn {order.turn} could not be run and is tried again: {line}")
        try:
            await note_problem(self._store, order.turn, line)
        except StoreError as failed:
            log.warning("the problem of turn %s cannot be written down: %s", order.turn, failed)

    # Agents that are not needed any more, once what they do in the background has ended

    def _release(self, agent: Agent[Any, Any]) -> None:
        task = asyncio.create_task(self._settled(agent))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _settled(self, agent: Agent[Any, Any]) -> None:
        self._settling[id(agent)] = agent
        try:
            await agent.background.settled()
        finally:
            del self._settling[id(agent)]
            try:
                await agent.aclose()
            except Exception:  # the turn has ended, and the worker goes on
                log.exception("an agent could not be closed")

    # Turns that no dispatcher knows

    async def _sweep_on(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self._look()
            except FsmAgentError as error:
                log.warning("queued turns cannot be looked for: %s", error)
            except Exception:  # the next look may be better
                log.exception("queued turns cannot be looked for")
            await asyncio.sleep(self._sweep * random.uniform(0.75, 1.25))  # noqa: S311 - workers look at different times

    async def _look(self) -> None:
        now = self._store.now()
        others: dict[str, int] = {}
        waiting = await asyncio.to_thread(to_be_run, self._store, now - self._age)
        self._again = {one.id: self._again[one.id] for one in waiting if one.id in self._again}
        for queued in waiting:
            if queued.digest != DIGEST:
                others[queued.digest] = others.get(queued.digest, 0) + 1
            elif now >= self._again.get(queued.id, (0.0, 0.0))[0]:
                await self._submitted(Order(queued.session, queued.id, queued.digest), now)
        for digest, count in others.items():
            if now - self._told.get(digest, 0.0) >= TOLD_EVERY:
                self._told[digest] = now
                wait = "turn waits" if count == 1 else "turns wait"
                self._tell(f"{count} {wait} for a worker with table {digest}; this one has {DIGEST}")
        await forget_ended(self._store)

    async def _submitted(self, order: Order, now: float) -> None:
        """Tell the dispatcher of a turn that it does not know. It is asked again after twice the time,
        because a turn may wait for long."""
        pause = max(self._age, 2 * self._again.get(order.turn, (0.0, 0.0))[1])
        self._again[order.turn] = now + pause, pause
        if order not in await self._dispatcher.waiting(order.session):
            await self._dispatcher.submit(order)
