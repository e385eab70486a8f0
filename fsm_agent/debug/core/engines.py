"""The engine of a turn as a debugger sees it, wherever it runs: here, in another process, or nowhere."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fsm_agent.debug.core.control import Controller
from fsm_agent.debug.core.events import Event, Listener, Listeners, Status
from fsm_agent.debug.core.makers import Runs
from fsm_agent.debug.core.orders import RUNS, carry_out
from fsm_agent.debug.core.record import Record
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.pause_point import Gate
from fsm_agent.support.threads import LOOP

log = logging.getLogger(__name__)


class Engine(Protocol):
    """Orders may come from any thread and return at once; what they lead to is told to the listeners."""

    def order(self, name: str, body: Mapping[str, Any]) -> None: ...

    def status(self) -> Status: ...

    def listen(self, listener: Listener) -> Callable[[], None]: ...

    def close(self) -> None:
        """Leave the turn alone; it goes on by itself if somebody runs it."""
        ...


class Here:
    """A turn of this process. ``turn`` is given when nobody else runs it: then the engine does, from the
    first order on."""

    def __init__(self, gate: Gate, turn: Runs | None = None, paused: bool = True) -> None:
        self.controller = Controller(gate, paused=paused)
        self.controller.stand()
        self._turn = turn
        self._running: concurrent.futures.Future[Any] | None = None
        self.problem: BaseException | None = None

    def start(self) -> None:
        """Run the turn up to the gate, where it waits, unless somebody runs it already."""
        if self._turn is not None and (self._running is None or self._running.done()) and self._turn.result is None:
            self._running = LOOP.submit(self._turn.arun())
            self._running.add_done_callback(self._done)

    def _done(self, running: concurrent.futures.Future[Any]) -> None:
        if not running.cancelled() and (error := running.exception()) is not None:
            self.problem = error
            log.error("the turn stopped: %s", error, exc_info=error)

    def order(self, name: str, body: Mapping[str, Any]) -> None:
        carry_out(self.controller, name, body)
        if name in RUNS:
            self.start()

    def status(self) -> Status:
        return self.controller.status()

    def listen(self, listener: Listener) -> Callable[[], None]:
        return self.controller.listeners.add(listener)

    def close(self) -> None:
        """A turn that only the debugger runs stays where it is, and can be resumed."""
        if self._running is not None and not self._running.done() and self.status().phase in ("paused", "waiting"):
            running, self._running = self._running, None
            running.cancel()
            self.controller.go_away()
            self.controller.closed(ended=False)  # nobody is at the gate any more to hear of it
            return
        self.controller.go_away()


class Nowhere:
    """A turn that ended, or that no process runs: one can only look at it."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._listeners = Listeners()

    def order(self, name: str, body: Mapping[str, Any]) -> None:
        info = self._record.info
        if name in ("breakpoints", "hold"):
            return
        if info.ended is not None:
            raise ConfigError(f"the turn ended with {info.exit}; one can look at it, or fork it and go on from there", name)
        raise ConfigError("no process runs this turn; resume it, or fork it", name)

    def status(self) -> Status:
        info = self._record.info
        return Status("ended" if info.ended is not None else "idle", info.seq, info.state)

    def listen(self, listener: Listener) -> Callable[[], None]:
        return self._listeners.add(listener)

    def close(self) -> None:
        """Nothing to leave."""


async def settled(engine: Engine, timeout: float | None = None) -> Status:
    """Wait until the engine stands still: paused, waiting for a person, idle or ended. Raises
    ``TimeoutError``."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def hear(event: Event) -> None:
        loop.call_soon_threadsafe(changed.set)

    stop = engine.listen(hear)
    try:
        async with asyncio.timeout(timeout):
            while (status := engine.status()).phase == "running":
                await changed.wait()
                changed.clear()
            return status
    finally:
        stop()
