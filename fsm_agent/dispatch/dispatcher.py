"""The dispatcher port: how queued turns reach workers, and what a dispatcher signals to a running turn."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from fsm_agent.composition.turn_wiring import TURN
from fsm_agent.errors import ConfigError, FsmAgentError, SessionBusy
from fsm_agent.fsm.codec import dumps
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.queued import ATTENDED, first_session, must_be, queue, withdraw
from fsm_agent.settings import DispatchSettings
from fsm_agent.support.installation import install_command
from fsm_agent.telemetry import current_traceparent


class Order(NamedTuple):
    """Reference to a turn to run: all that a dispatcher carries, less than 300 bytes. ``session``: the first
    session of its conversation, whose turns run one after the other; ``digest`` of the turn's table."""

    session: str
    turn: str
    digest: str


@dataclass(frozen=True, slots=True)
class TurnLink:
    """Signals from a dispatcher to a running turn. ``cancelled``: a person wants it to end, with its end in
    the journal. ``leaving``: this process shuts down, so the turn stops after its next move and another
    process continues it. ``lost``: another process has the turn; nothing more is written."""

    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)


class HandOver(FsmAgentError):
    """The turn has completed a move and is released: any worker may continue it at once."""


RunTurn = Callable[[Order, "int | None", TurnLink], Awaitable[str]]
"""Runs a turn to its end and returns the exit reason or another result of the attempt. The number is the rank
of the attempt: the higher one gets the turn. With ``None``, a live owner keeps it."""


class Dispatcher(Protocol):
    """Assigns turns to workers: per session one after the other, in the order of submission."""

    async def submit(self, order: Order) -> None:
        """Request that a stored turn be run. Submitting a waiting or running turn again has no effect. Raises
        ``ConfigError`` if the dispatcher cannot be reached."""
        ...

    async def cancel(self, order: Order) -> None:
        """Remove a waiting turn, or stop a running one."""
        ...

    async def waiting(self, session: str) -> list[Order]:
        """Return the session's running and waiting turns, oldest first."""
        ...

    async def about(self) -> str:
        """Describe the dispatcher and its workers in one line. Raises ``ConfigError`` if it cannot be
        reached."""
        ...

    async def serve(self, run: RunTurn, slots: int, stop: asyncio.Event) -> None:
        """Run turns, at most ``slots`` at once, until ``stop``; then ask the running ones to leave, and wait
        for them."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


# ----------------------------------------------------------------------------------------------------
# The dispatcher within one process: a queue per session, and slots shared by all sessions.


log = logging.getLogger(__name__)
RETRIES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Backoff in seconds after a turn could not be run; the last value repeats."""


class InProcess:
    """Dispatcher for use in one event loop. Waiting turns are in the store, too: other processes find them
    there."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[Order]] = {}
        self._links: dict[str, TurnLink] = {}
        self._submitted = asyncio.Event()

    async def submit(self, order: Order) -> None:
        line = self._lines.setdefault(order.session, deque())
        if order not in line:
            line.append(order)
            self._submitted.set()

    async def cancel(self, order: Order) -> None:
        if (link := self._links.get(order.turn)) is not None:
            link.cancelled.set()
        elif order in (line := self._lines.get(order.session, deque())):
            line.remove(order)

    async def waiting(self, session: str) -> list[Order]:
        return list(self._lines.get(session, ()))

    async def about(self) -> str:
        return "none: workers look for queued turns in the store"

    async def serve(self, run: RunTurn, slots: int, stop: asyncio.Event) -> None:
        free, at_work = asyncio.Semaphore(slots), dict[str, asyncio.Task[None]]()
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                self._submitted.clear()
                for session, line in list(self._lines.items()):
                    if line and session not in at_work:
                        task = asyncio.create_task(self._run_line(session, line, run, free, stop))
                        at_work[session] = task
                        task.add_done_callback(partial(self._over, session, at_work))
                submitted = asyncio.ensure_future(self._submitted.wait())
                await asyncio.wait({submitted, stopping}, return_when=asyncio.FIRST_COMPLETED)
                submitted.cancel()
        finally:
            stopping.cancel()
            for link in self._links.values():
                link.leaving.set()
            await asyncio.gather(*at_work.values(), return_exceptions=True)

    def _over(self, session: str, at_work: dict[str, asyncio.Task[None]], ended: asyncio.Task[None]) -> None:
        del at_work[session]
        if not self._lines.get(session):
            self._lines.pop(session, None)
        self._submitted.set()  # a turn may have been submitted while the last one ended

    async def _run_line(
        self, session: str, line: deque[Order], run: RunTurn, free: asyncio.Semaphore, stop: asyncio.Event
    ) -> None:
        failures = 0
        while line and not stop.is_set():
            order, link = line[0], TurnLink()
            async with free:
                if stop.is_set() or not line or line[0] is not order:
                    continue
                self._links[order.turn] = link
                try:
                    await run(order, None, link)
                    failed = False
                except HandOver:
                    return
                except SessionBusy as busy:
                    log.info("turn %s waits: %s", order.turn, busy)
                    failed = True
                except Exception as error:
                    log.warning("turn %s could not be run and is tried again: %s", order.turn, error)
                    failed = True
                finally:
                    del self._links[order.turn]
            failures = failures + 1 if failed else 0
            if not failed or link.cancelled.is_set():
                line.popleft()
            else:
                await _pause(RETRIES[min(failures, len(RETRIES)) - 1], stop)

    def drop(self) -> None:
        """Stop the running turns immediately, in the middle of a move."""
        for link in self._links.values():
            link.lost.set()

    async def aclose(self) -> None:
        """Do nothing: no connections are open."""


async def _pause(seconds: float, stop: asyncio.Event) -> None:
    waiting = asyncio.ensure_future(stop.wait())
    await asyncio.wait({waiting}, timeout=seconds)
    waiting.cancel()


# ----------------------------------------------------------------------------------------------------
# Queueing a message for the workers, and controlling its turn until it ends.


DIGEST = TURN.digest
"""Table of the turns queued here; workers with another table ignore them."""


def dispatcher_of(settings: DispatchSettings) -> Dispatcher:
    """Return the configured dispatcher, not yet connected. Raises ``ConfigError`` if its extra is not
    installed."""
    if settings.temporal is None:
        return InProcess()
    try:
        from fsm_agent.dispatch.temporal import TemporalDispatcher
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("temporalio"):
            raise
        raise ConfigError(
            "Temporal needs an extra that is not installed",
            settings.temporal,
            install_command("temporal"),
        ) from None
    return TemporalDispatcher(settings.temporal, settings.namespace, settings.heartbeat, DIGEST)


async def submit(
    store: Store,
    dispatcher: Dispatcher,
    user_message: Any,
    session_id: str | None = None,
    *,
    turn_id: str = "",
    attended: bool = False,
    waits: bool = True,
    **more: Any,
) -> Order:
    """Queue a message: store it first, then notify the dispatcher. ``session_id``: the session that it
    continues, by default a new one. ``turn_id``: a message submitted again under the same id is queued once.
    ``attended``: do not offer the turn to other processes. ``waits``: false raises ``SessionBusy`` while
    another turn of the session waits or runs. ``more``: other arguments of ``Agent.start``, as JSON values.
    Raises ``ConfigError`` if the dispatcher cannot be reached; the message is still queued, and
    a worker finds it."""
    session = f"s-{uuid.uuid4().hex[:12]}" if session_id is None else first_session(store, session_id)
    order = Order(session, turn_id or f"{session}-{uuid.uuid4().hex[:8]}", DIGEST)
    request = {"user_message": user_message, **more}
    if trace := current_traceparent():
        request["trace"] = trace
    digest = ATTENDED if attended else order.digest
    await queue(store, order.turn, order.session, digest, request, waits)
    await dispatcher.submit(order)
    return order


async def cancel(store: Store, dispatcher: Dispatcher, turn_id: str) -> None:
    """Withdraw a waiting turn, or interrupt a running one. Raises ``ConfigError`` for one that was not
    queued."""
    queued = must_be(store, turn_id)
    await withdraw(store, turn_id)
    if queued.begun is not None:
        await control(store, turn_id, "interrupt", {})
    await dispatcher.cancel(Order(queued.session, turn_id, queued.digest))


async def control(store: Store, turn_id: str, command: str, body: dict[str, Any]) -> None:
    """Send a command to the process that runs the turn: ``interrupt`` (message), ``steer`` (text)."""
    values = (turn_id, command, dumps(body), time.time())
    await store.write(
        lambda c: (
            c.execute("INSERT INTO controls (turn, command, body, at) VALUES (?, ?, ?, ?)", values) and None
        )
    )
