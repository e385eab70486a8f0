"""One attempt to run a queued turn: claimed first, then read, then run to its end. Knows no dispatcher."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fsm_agent.conversation.handover import next_turn_id
from fsm_agent.dispatch.port import HandOver, Order, TurnLink
from fsm_agent.errors import ConfigError, OwnershipLost
from fsm_agent.runtime.measures import measured
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.queued import claim_queued, found, withdraw

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fsm_agent.agent import Agent, Turn

log = logging.getLogger(__name__)
MakeAgent = Callable[[Order], "tuple[Agent[Any, Any], Any]"]
SUSPENDED, WITHDRAWN, LOST, REFUSED = "suspended", "withdrawn", "lost", "refused"
"""How an attempt ends besides the exit reasons of turns: the turn waits for an answer; it was taken back
before it began; another worker has it; it can never begin, and the row of the queue says why."""


class OneAttempt:
    """The attempts that run in this process, one a turn: a later one of the same turn stops the one before
    and waits for its end; one that comes late has lost."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[int, TurnLink, asyncio.Event]] = {}

    @asynccontextmanager
    async def alone(self, turn: str, rank: int | None, link: TurnLink) -> AsyncIterator[None]:
        """Be the only attempt of the turn here. Raises ``OwnershipLost`` while a later one runs."""
        own = rank or 0
        while (other := self._running.get(turn)) is not None:
            if own < other[0]:
                raise OwnershipLost(f"a later attempt at turn {turn} runs here")
            other[1].lost.set()
            await other[2].wait()
        over = asyncio.Event()
        self._running[turn] = own, link, over
        try:
            yield
        finally:
            del self._running[turn]
            over.set()


async def run_turn(
    order: Order,
    rank: int | None,
    link: TurnLink,
    store: Store,
    make_agent: MakeAgent,
    release: Callable[[Agent[Any, Any]], object],
) -> str:
    """Run the turn, and those that follow it when it hands the conversation over, and return its exit reason
    or how else the attempt ended. ``release`` is given the agent when it is not needed any more. Raises
    ``HandOver`` when ``link`` says that this process is leaving, ``SessionBusy`` while another turn has the
    session."""
    try:
        return await _run(order, rank, link, store, make_agent, release)
    except OwnershipLost as lost:
        log.info("turn %s: %s", order.turn, lost)
        return LOST


async def _run(
    order: Order,
    rank: int | None,
    link: TurnLink,
    store: Store,
    make_agent: MakeAgent,
    release: Callable[[Agent[Any, Any]], object],
) -> str:
    queued = found(store, order.turn)
    if queued is not None and queued.begun is None:
        if (claimed := await claim_queued(store, order.turn, rank)) is None:
            return await _not_begun(store, order, rank)
        queued, begins = claimed
        agent, deps = make_agent(order)
        measured("queue_wait", max(0.0, store.now() - queued.at))
        try:
            turn = agent.begin_queued(order.turn, queued.request, begins, deps=deps)
        except ConfigError as error:  # it will not be usable next time either
            await withdraw(store, order.turn, str(error))
            log.warning("turn %s cannot begin: %s", order.turn, error)
            release(agent)
            return REFUSED
    else:
        turn_id = _last_of(store, order.turn)
        claim = await store.claim(turn_id, rank, digest=order.digest)
        info = Turns(store.database).info(turn_id)
        if claim is None and info.exit != "handed_over":
            return str(info.exit)
        if queued is not None and queued.withdrawn is not None:
            link.cancelled.set()
        agent, deps = make_agent(order)
        turn = agent.resume(turn_id, deps=deps, claim=claim)
    try:
        return await _to_the_end(agent, turn, deps, link)
    finally:
        release(agent)


async def _not_begun(store: Store, order: Order, rank: int | None) -> str:
    """What became of a turn that could not be claimed in the queue."""
    queued = found(store, order.turn)
    if queued is None or queued.begun is not None:
        raise OwnershipLost(f"turn {order.turn} was begun by another worker")
    return WITHDRAWN if queued.withdrawn is not None else LOST


def _last_of(store: Store, turn_id: str) -> str:
    """The turn itself, or the last that has begun of those that it handed the conversation over to. Raises
    ``ConfigError`` for a turn that is not there."""
    turns = Turns(store.database)
    while (info := turns.info(turn_id)).exit == "handed_over":
        follower = next_turn_id(info.session, turn_id)
        if not store.database.select("SELECT 1 FROM turns WHERE id = ?", follower):
            break
        turn_id = follower
    return turn_id


async def _to_the_end(agent: Agent[Any, Any], turn: Turn[Any], deps: Any, link: TurnLink) -> str:
    """Run one turn after the other, as long as each hands the conversation over."""
    following: Turn[Any] | None = turn
    while following is not None:
        turn = following
        await _stepped(agent, turn, link)
        if turn.result is None:
            return SUSPENDED
        if not turn.result.stored:
            raise OwnershipLost(f"the end of turn {turn.id} is not stored: another worker has it")
        following = agent.following(turn.result, deps=deps)
    assert turn.result is not None
    return turn.result.turn_exit_reason.value


async def _stepped(agent: Agent[Any, Any], turn: Turn[Any], link: TurnLink) -> None:
    """Run a turn to its end, or until it is suspended; an interrupt and the loss of it are heard meanwhile.
    Raises ``HandOver`` and ``OwnershipLost``."""
    running = asyncio.ensure_future(turn.run_until_left(link.leaving.is_set))
    lost, cancelled = (asyncio.ensure_future(one.wait()) for one in (link.lost, link.cancelled))
    try:
        waited: set[asyncio.Future[Any]] = {running, lost, cancelled}
        while not running.done():
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if lost.done() and not running.done():
                running.cancel()
                await asyncio.wait({running})
                raise OwnershipLost("another worker has the turn; this one has stopped")
            if cancelled in waited and cancelled.done():
                waited.discard(cancelled)
                agent.interrupt()
        if not running.result():
            raise HandOver(f"turn {turn.id} is handed over after {len(turn.steps)} moves")
    finally:
        for one in (running, lost, cancelled):
            one.cancel()
