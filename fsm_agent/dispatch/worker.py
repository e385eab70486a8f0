"""A worker: serves a dispatcher, sweeps for queued turns that no dispatcher announced, and keeps agents until
their background tasks end.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fsm_agent.agent import Agent
from fsm_agent.dispatch.dispatcher import DIGEST, Dispatcher, HandOver, Order, TurnLink
from fsm_agent.errors import ConfigError, FsmAgentError, OwnershipLost, SessionBusy, StoreError
from fsm_agent.options import AgentOptions, changed_options
from fsm_agent.providers.config_file import Config, config_of
from fsm_agent.runtime.events import measure
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.queued import (
    claim_queued,
    find_queued,
    forget_ended,
    last_turn,
    note_problem,
    to_be_run,
    withdraw,
)
from fsm_agent.settings import Settings
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import one_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fsm_agent.agent import Turn


# One attempt to run a queued turn: claim it, then read it, then run it to its end. Independent of
# dispatchers.

log = logging.getLogger(__name__)
MakeAgent = Callable[[Order], "tuple[Agent[Any, Any], Any]"]
SUSPENDED, WITHDRAWN, LOST, REFUSED = "suspended", "withdrawn", "lost", "refused"
"""Results of an attempt besides the exit reasons of turns: the turn waits for an answer; it was withdrawn
before it began; another worker has it; it can never begin, and the row of the queue says why."""


class OneAttempt:
    """The attempts that run in this process, one per turn: a later attempt stops the earlier one and waits
    for its end; one of lower rank fails."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[int, TurnLink, asyncio.Event]] = {}

    @asynccontextmanager
    async def alone(self, turn: str, rank: int | None, link: TurnLink) -> AsyncIterator[None]:
        """Run as the only attempt of the turn here. Raises ``OwnershipLost`` while a later one runs."""
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
    """Run the turn, and those that it hands the conversation over to, and return the exit reason or another
    result of the attempt. ``release`` receives the agent when it is no longer needed. Raises ``HandOver``
    when ``link`` signals that this process is leaving, ``SessionBusy`` while another turn has the session."""
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
    queued = find_queued(store, order.turn)
    if queued is not None and queued.begun is None:
        if (claimed := await claim_queued(store, order.turn, rank)) is None:
            return await _why_not_claimed(store, order, rank)
        queued, begins = claimed
        agent, deps = make_agent(order)
        measure("queue_wait", max(0.0, store.now() - queued.at))
        try:
            turn = agent.begin_queued(order.turn, queued.request, begins, deps=deps)
        except ConfigError as error:  # a later attempt would fail, too
            await withdraw(store, order.turn, str(error))
            log.warning("turn %s cannot begin: %s", order.turn, error)
            release(agent)
            return REFUSED
    else:
        turn_id = last_turn(store, order.turn).id
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


async def _why_not_claimed(store: Store, order: Order, rank: int | None) -> str:
    """Return why a queued turn could not be claimed."""
    queued = find_queued(store, order.turn)
    if queued is None or queued.begun is not None:
        raise OwnershipLost(f"turn {order.turn} was begun by another worker")
    return WITHDRAWN if queued.withdrawn is not None else LOST


async def _to_the_end(agent: Agent[Any, Any], turn: Turn[Any], deps: Any, link: TurnLink) -> str:
    """Run one turn after the other while each hands the conversation over."""
    following: Turn[Any] | None = turn
    while following is not None:
        turn = following
        await _run_turn(agent, turn, link)
        if turn.result is None:
            return SUSPENDED
        if not turn.result.stored:
            raise OwnershipLost(f"the end of turn {turn.id} is not stored: another worker has it")
        following = agent.following(turn.result, deps=deps)
    assert turn.result is not None
    return turn.result.turn_exit_reason.value


async def _run_turn(agent: Agent[Any, Any], turn: Turn[Any], link: TurnLink) -> None:
    """Run a turn to its end or until it is suspended, reacting to cancellation and loss of the turn. Raises
    ``HandOver`` and ``OwnershipLost``."""
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


# ``module:make_agent``: the factory of a turn's agent on a worker.


SHAPE = "a function without parameters, or with one (the order), that returns an Agent or (Agent, deps)"


@dataclass(slots=True)
class App:
    """The user's factory. ``made`` is called once per turn: an agent has one session, and its tools receive
    ``deps``."""

    factory: Callable[..., Any]
    takes_order: bool
    store: Store
    suspends: bool = False
    keeps: bool = False
    expect: Callable[[str], object] = str
    checked: tuple[Config, Any, Settings] | None = field(default=None, init=False, repr=False)

    @classmethod
    def of(
        cls,
        factory: object,
        name: str,
        store: Store,
        *,
        suspends: bool = False,
        keeps: bool = False,
        expect: Callable[[str], object] = str,
    ) -> App:
        """Wrap the factory called ``name``. ``suspends``: an unanswered question suspends the turn,
        regardless of the agent's settings. ``keeps``: use its agents as they are; the factory closes them
        itself. ``expect`` is called with the id of each turn before it runs. Raises ``ConfigError`` if it is
        not a factory."""
        if isinstance(factory, Agent):
            raise ConfigError("--app is an agent, and each turn needs one of its own", name, SHAPE)
        if not callable(factory) or isinstance(factory, type):
            raise ConfigError("--app is not a factory of agents", name, SHAPE)
        try:
            required = [
                one
                for one in inspect.signature(factory).parameters.values()
                if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
            ]
        except (TypeError, ValueError):
            required = []
        if len(required) > 1:
            raise ConfigError("--app wants more than the order", name, SHAPE)
        app = cls(factory, bool(required), store, suspends, keeps, expect)
        if not required:  # report errors before serving anything
            app._make_agent(None)
        return app

    def make(self, order: Order) -> tuple[Agent[Any, Any], Any]:
        """Return the agent for an order, in the worker's store, and the ``deps`` of its tools. Raises
        ``ConfigError``."""
        self.expect(order.turn)
        if self.keeps:
            return self._make_agent(order)
        with changed_options(self._adapt_unplaced):
            agent, deps = self._make_agent(order)
        source, suspends = agent.options["source"], agent.settings.approval.unanswered == "suspend"
        if agent.store is not self.store or source != _source(source) or suspends < self.suspends:
            agent = Agent.of(self._adapt(agent.options))  # created elsewhere, or with options for elsewhere
        agent.session_id = order.session
        return agent, deps

    def _adapt_unplaced(self, own: AgentOptions) -> AgentOptions:
        """Adapt only agents without a store or home of their own: the factory may create agents besides the
        one that it returns."""
        return self._adapt(own) if own["store"] is None and own["home"] is None else own

    def _adapt(self, own: AgentOptions) -> AgentOptions:
        """Return the options for an agent that runs here."""
        home = self.store.home
        there: AgentOptions = {**own, "store": self.store, "home": home, "source": _source(own["source"])}
        if self.suspends:
            there["settings"] = self._suspending(own["settings"], config_of(home))
        return there

    def _suspending(self, given: Settings | Mapping[str, Any] | None, config: Config) -> Settings:
        """Return the settings of an agent with questions that suspend its turn. Most factories return equal
        settings each time, so the validated ones are cached, for one environment and one config file."""
        if self.checked and self.checked[0] is config and self.checked[1] == given:
            return self.checked[2]
        settings = Settings.of(given, config.settings)
        asks = settings.approval.model_copy(update={"unanswered": "suspend"})
        self.checked = config, given, settings.model_copy(update={"approval": asks})
        return self.checked[2]

    def _make_agent(self, order: Order | None) -> tuple[Agent[Any, Any], Any]:
        try:
            result = self.factory(order) if self.takes_order else self.factory()
        except ConfigError:
            raise
        except Exception as error:  # user code may raise anything
            raise ConfigError(f"--app failed ({type(error).__name__}: {error})", None, SHAPE) from error
        agent, deps = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        if not isinstance(agent, Agent):
            raise ConfigError("--app gave no agent", type(agent).__name__, SHAPE)
        return agent, deps


def _source(given: str) -> str:
    return "worker" if given == "python" else given


REPORT_EVERY = 60.0
"""Seconds between reports of turns that wait for a worker with another table."""


class Worker:
    """Runs turns of one store with one app. ``sweep``: seconds between sweeps for unannounced turns that were
    queued at least ``age`` seconds ago; ``None`` for no sweeps. ``tell`` receives lines for the operator."""

    def __init__(
        self,
        store: Store,
        app: App,
        dispatcher: Dispatcher,
        *,
        sweep: float | None,
        age: float = 0.0,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._store, self._app, self._dispatcher, self._tell = store, app, dispatcher, tell
        self._sweep, self._age = sweep, age
        self._attempts, self._releasing = OneAttempt(), set[asyncio.Task[None]]()
        self._settling: dict[int, Agent[Any, Any]] = {}
        self._reported: dict[str, float] = {}
        self._again: dict[str, tuple[float, float]] = {}

    async def run(self, slots: int, stop: asyncio.Event) -> None:
        """Serve until ``stop``; running turns then stop after their next move, and other workers continue
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
                return await run_turn(order, rank, link, self._store, self._app.make, self._release)
        except OwnershipLost:
            return LOST
        except HandOver as left:
            self._tell(str(left))
            raise
        except SessionBusy:
            raise
        except Exception as error:
            await self._note(order, error)
            raise

    async def _note(self, order: Order, error: Exception) -> None:
        """Record why a turn could not be run, for its clients; it is retried."""
        problem = str(error) if isinstance(error, FsmAgentError) else f"{type(error).__name__}: {error}"
        line = one_line(mask(problem), 300)
        self._tell(f"turn {order.turn} could not be run and is tried again: {line}")
        try:
            await note_problem(self._store, order.turn, line)
        except StoreError as failed:
            log.warning("the problem of turn %s cannot be written down: %s", order.turn, failed)

    # Release of agents once their background tasks have ended

    def _release(self, agent: Agent[Any, Any]) -> None:
        if self._app.keeps:
            return
        task = asyncio.create_task(self._wait_for_background(agent))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _wait_for_background(self, agent: Agent[Any, Any]) -> None:
        self._settling[id(agent)] = agent
        try:
            await agent.background.settled()
        finally:
            del self._settling[id(agent)]
            try:
                await agent.aclose()
            except Exception:  # the turn has ended, and the worker continues
                log.exception("an agent could not be closed")

    # Turns that no dispatcher announced

    async def _sweep_on(self, stop: asyncio.Event) -> None:
        while self._sweep is not None and not stop.is_set():
            try:
                await self._look()
            except FsmAgentError as error:
                log.warning("queued turns cannot be looked for: %s", error)
            except Exception:  # the next sweep may succeed
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
                await self._submit_unannounced(Order(queued.session, queued.id, queued.digest), now)
        for digest, count in others.items():
            if now - self._reported.get(digest, 0.0) >= REPORT_EVERY:
                self._reported[digest] = now
                wait = "turn waits" if count == 1 else "turns wait"
                self._tell(f"{count} {wait} for a worker with table {digest}; this one has {DIGEST}")
        await forget_ended(self._store)

    async def _submit_unannounced(self, order: Order, now: float) -> None:
        """Submit a turn unless the dispatcher knows it. The interval doubles with each query, because a turn
        may wait for long."""
        pause = max(self._age, 2 * self._again.get(order.turn, (0.0, 0.0))[1])
        self._again[order.turn] = now + pause, pause
        if order not in await self._dispatcher.waiting(order.session):
            await self._dispatcher.submit(order)
