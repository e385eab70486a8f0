"""``Debugger``: one turn under inspection. It has no user interface: a page, an editor, the command line, and
Python all use it.

>>> debugger = Debugger.start(agent, "what is the time?")      # doctest: +SKIP
>>> debugger.breakpoint("state", "ClassifyError", condition="retries >= 1")
>>> debugger.order("continue"); await debugger.settled()
>>> debugger.cursor.back(); debugger.record.snapshot(debugger.cursor.at)
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from fsm_agent.composition.turn_wiring import DIGEST, KIND, recompose, restore_turn
from fsm_agent.debug.core.breakpoints import Breakpoint, BreakpointHit, Breakpoints, MoveFacts
from fsm_agent.debug.core.commands import (
    Command,
    DebugEvent,
    HoldRequests,
    Listener,
    ReplaceBreakpoints,
    Running,
    Status,
    read_command,
)
from fsm_agent.debug.core.control import Controller
from fsm_agent.debug.core.record import WINDOW, Record
from fsm_agent.debug.core.remote import RemoteDebugClient
from fsm_agent.errors import ConfigError, OwnershipLost, TurnSuspended
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.pause_point import PausePoint, TurnKind
from fsm_agent.runtime.events import Stream
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.rewind import position_of
from fsm_agent.support.threads import LOOP

# ----------------------------------------------------------------------------------------------------
# The engine of a turn as a debugger sees it, wherever it runs: here, in another process, or nowhere.


class Runs(Protocol):
    """A turn that can be run: one of an ``Agent`` or of a ``Workflow``."""

    gate: PausePoint

    @property
    def id(self) -> str:
        """Return the id of the turn."""
        ...

    @property
    def result(self) -> object | None:
        """Return the result, ``None`` until the turn has ended."""
        ...

    async def arun(self) -> object:
        """Run the turn to its end."""
        ...


LEAVES = 1.0
"""Seconds within which a released turn must stop."""
log = logging.getLogger(__name__)


class Engine(Protocol):
    """Accepts commands from any thread and returns immediately; listeners receive their effects."""

    @property
    def breakpoints(self) -> Breakpoints:
        """Return the breakpoints; changes take effect at once."""
        ...

    def order(self, command: Command) -> None:
        """Execute a command. Raises ``ConfigError`` if it is not possible."""
        ...

    def status(self) -> Status:
        """Return where the turn is and what it does."""
        ...

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Subscribe ``listener`` to events; the returned function unsubscribes it."""
        ...

    def close(self) -> None:
        """Release the turn; if a process runs it, it continues without the debugger."""
        ...


class LocalEngine:
    """Engine of a turn of this process. With ``turn``, which nothing else runs, the engine runs it from the
    first command on."""

    def __init__(self, gate: PausePoint, turn: Runs | None = None, paused: bool = True) -> None:
        self.controller = Controller.at(gate, paused=paused)
        self._turn = turn
        self._running: concurrent.futures.Future[Any] | None = None
        self._left = threading.Event()
        self.problem: BaseException | None = None

    def start(self) -> None:
        """Run the turn to the pause point and wait there, unless it is already running."""
        if (
            self._turn is not None
            and (self._running is None or self._running.done())
            and self._turn.result is None
        ):
            self._left.clear()
            self._running = LOOP.submit(self._run(self._turn))
            self._running.add_done_callback(self._on_done)

    async def _run(self, turn: Runs) -> object:
        try:
            return await turn.arun()
        finally:
            self._left.set()

    def _on_done(self, running: concurrent.futures.Future[Any]) -> None:
        if not running.cancelled() and (error := running.exception()) is not None:
            self.problem = error
            if isinstance(error, OwnershipLost | TurnSuspended):
                log.info("%s", error)
            else:
                log.error("the turn stopped: %s", error, exc_info=error)

    @property
    def breakpoints(self) -> Breakpoints:
        return self.controller.breakpoints

    def order(self, command: Command) -> None:
        self.controller.order(command)
        if isinstance(command, Running):
            self.start()

    def status(self) -> Status:
        return self.controller.status()

    def listen(self, listener: Listener) -> Callable[[], None]:
        return self.controller.listeners.subscribe(listener, DebugEvent)

    def close(self) -> None:
        """Release the turn. A turn that only the debugger runs stays where it is and can be resumed."""
        if (
            self._running is not None
            and not self._running.done()
            and self.status().phase in ("paused", "waiting")
        ):
            running, self._running = self._running, None
            running.cancel()
            self._left.wait(LEAVES)  # or an immediate resume would find it running
            self.controller.go_away()
            self.controller.close(ended=False)  # no debugger is attached to receive it
            return
        self.controller.go_away()


class RecordedEngine:
    """Engine of a turn that ended or that no process runs: it can only be inspected."""

    def __init__(self, record: Record, kind: TurnKind) -> None:
        self.breakpoints = Breakpoints(kind.table, kind)
        self._record = record
        self._listeners = Stream()

    def order(self, command: Command) -> None:
        match command:
            case ReplaceBreakpoints(all=wanted):
                self.breakpoints.replace(wanted)
            case HoldRequests():
                pass
            case _ if (info := self._record.info).ended is not None:
                raise ConfigError(
                    f"the turn ended with {info.exit}; inspect it, or fork it to continue from a position",
                    command.name,
                )
            case _:
                raise ConfigError("no process runs this turn; resume it, or fork it", command.name)

    def status(self) -> Status:
        info = self._record.info
        return Status("ended" if info.ended is not None else "idle", info.seq, info.state)

    def listen(self, listener: Listener) -> Callable[[], None]:
        return self._listeners.subscribe(listener, DebugEvent)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


# ----------------------------------------------------------------------------------------------------
# The inspected position, which is independent of the engine's. Going back only inspects; nothing runs again.


@dataclass(slots=True)
class Cursor:
    """Inspected position: ``at``. While ``following``, it is the newest one."""

    record: Record
    counters: tuple[str, ...]
    _at: int = 0
    following: bool = True

    @property
    def at(self) -> int:
        """Return the position; the newest one while it follows."""
        return self.record.count if self.following else self._at

    def to(self, at: int) -> int:
        """Move to a position, clamped to the turn. From the newest one on, follow the turn."""
        count = self.record.count
        self._at = max(0, min(at, count))
        self.following = self._at == count
        return self._at

    def back(self) -> int:
        """Go back one move and return the position."""
        return self.to(self.at - 1)

    def forward(self) -> int:
        """Go forward one move and return the position."""
        return self.to(self.at + 1)

    def back_to(self, breakpoints: Breakpoints) -> tuple[int, list[BreakpointHit]]:
        """Move to the last earlier position at which a breakpoint would have stopped, or to the start."""
        return self._seek(list(self._hits(breakpoints, self.at - 1))[-1:])

    def forward_to(self, breakpoints: Breakpoints) -> tuple[int, list[BreakpointHit]] | None:
        """Move to the next position at which a breakpoint would have stopped; ``None`` without one."""
        found = [(seq, hits) for seq, hits in self._hits(breakpoints, self.record.count) if seq > self.at][:1]
        return self._seek(found) if found else None

    def _seek(self, found: list[tuple[int, list[BreakpointHit]]]) -> tuple[int, list[BreakpointHit]]:
        at, hits = found[0] if found else (0, [])
        return self.to(at), hits

    def _hits(self, breakpoints: Breakpoints, last: int) -> list[tuple[int, list[BreakpointHit]]]:
        fresh, counters = breakpoints.fresh(), self.record.counters(0, self.counters)
        visit, spent = self.record.visit, self.record.cost_at
        found = []
        for first in range(1, last + 1, WINDOW):
            for step in self.record.steps(first, min(last, first + WINDOW - 1)):
                counters = after(counters, step)
                facts = MoveFacts(step, counters, partial(visit, step.seq - 1), partial(spent, step.seq))
                if hits := [hit for hit in fresh.match(facts) if hit.stops]:
                    found.append((step.seq, hits))
        return found


def after(counters: Mapping[str, int], step: Step) -> dict[str, int]:
    """Return the counters after a move, given those before it."""
    return {**counters, **{name: value for name, _, value in step.changes}}


# ----------------------------------------------------------------------------------------------------
# The request that a past move sent, composed again: its bytes are not stored, because they follow from the
# rest.


def compose_request(store: Store, turn_id: str, at: int) -> dict[str, Any]:
    """Compose the request sent from the state at this position. ``body`` is its JSON value; without one,
    ``why`` gives the reason. ``note`` says when it may differ from what was sent."""
    position = position_of(store, turn_id, at)
    if position.snapshot["state"] != "CallLLM":
        return {
            "body": None,
            "why": f"{position.snapshot['state']} does not send the conversation to the model",
        }
    turn = restore_turn(position)
    recompose(turn)
    request = turn.call.request
    if request is None:
        return {"body": None, "why": "no request was made here"}
    body = json.loads(request.body)
    note = (
        ""
        if position.turn.digest == DIGEST
        else "composed again by another version of the table than ran then"
    )
    return {
        "body": body,
        "mode": turn.setup.runtime.api_mode,
        "bytes": len(request.body),
        "estimate": request.estimate,
        "note": note,
    }


class Debugger:
    """``record`` is the turn's history, ``cursor`` the inspected position, ``status`` the state of the
    engine. Commands and listeners may be used from any thread; see ``fsm_agent.debug.core.commands``."""

    def __init__(self, store: Store, record: Record, engine: Engine, kind: TurnKind = KIND) -> None:
        self.record, self.engine, self.kind = record, engine, kind
        self._store = store
        self.table = kind.table
        self.cursor = Cursor(record, kind.counters)

    @classmethod
    def of(cls, store: Store, turn: Runs, *, paused: bool = True) -> Debugger:
        """Debug a turn of this process that is not running yet: an ``Agent`` or ``Workflow`` turn just
        started, resumed, or forked. It runs to the pause point before its first request and waits there."""
        engine = LocalEngine(turn.gate, turn, paused)
        engine.start()
        _wait_for(turn, engine, paused)
        return cls(store, Record(store, turn.id), engine, turn.gate.kind)

    @classmethod
    def attach(cls, store: Store, turn_id: str, kind: TurnKind = KIND) -> Debugger:
        """Debug an existing turn. A running turn, in this process or another, keeps running; one that
        ended, or that no process runs, can be inspected. ``kind``: its kind, or that of the outer turn, if
        it is not this agent's. Raises ``ConfigError`` for an unknown turn or one that already has a
        debugger."""
        record = Record(store, turn_id)
        info = record.info
        kind = kind.inner.get(info.table_name, kind)
        gate = store.pause_points.running(turn_id)
        if info.ended is None and gate is not None:
            return cls(store, record, LocalEngine(gate, paused=False), gate.kind)
        if (
            info.ended is None
            and info.owner not in (None, store.owners.me)
            and store.owners.alive(info.owner) is not None
        ):
            return cls(store, record, RemoteDebugClient(store, record, kind), kind)
        return cls(store, record, RecordedEngine(record, kind), kind)

    @property
    def id(self) -> str:
        """Return the turn's id."""
        return self.record.turn_id

    @property
    def breakpoints(self) -> Breakpoints:
        """Return the turn's breakpoints."""
        return self.engine.breakpoints

    @property
    def status(self) -> Status:
        """Return where the turn is and what it does."""
        return self.engine.status()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Subscribe ``listener`` to every event; the returned function unsubscribes it."""
        return self.engine.listen(listener)

    def order(self, command: Command | str, body: Mapping[str, Any] | None = None) -> None:
        """Send the engine a command and return at once. Instead of a command, its name with its fields as
        JSON values is accepted: ``order("steer", {"text": "left"})``. Raises ``ConfigError`` if it is not
        possible."""
        self.engine.order(read_command(command, body or {}) if isinstance(command, str) else command)

    async def settled(self, timeout: float | None = None) -> Status:
        """Wait until the engine is paused, waiting for a person, idle, or ended. Raises ``TimeoutError``
        after ``seconds``."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def hear(event: DebugEvent) -> None:
            loop.call_soon_threadsafe(changed.set)

        stop = self.listen(hear)
        try:
            async with asyncio.timeout(timeout):
                while (status := self.status).phase == "running":
                    await changed.wait()
                    changed.clear()
                return status
        finally:
            stop()

    def visit(self, at: int) -> list[dict[str, Any]]:
        """The requests made so far by the state at a position. For the current visit, include those not yet
        in the journal."""
        known = self.record.visit(at)
        if not isinstance(self.engine, LocalEngine) or at != self.status.seq:
            return known
        places = {(one["ordinal"], one["place"]) for one in known if one["status"] != "in_flight"}
        fresh = [
            one for one in self.engine.controller.visit() if (one["ordinal"], one["place"]) not in places
        ]
        replaced = {(one["ordinal"], one["place"]) for one in fresh}
        kept = [one for one in known if (one["ordinal"], one["place"]) not in replaced]
        return sorted([*kept, *fresh], key=lambda one: (one["ordinal"], one["place"]))

    def wire(self, at: int) -> dict[str, Any]:
        """Compose again the request that a position sent to the model: ``body``, or ``why`` it is
        unavailable."""
        if not self.kind.talks:
            return {"body": None, "why": "the turns of this table ask no model"}
        return compose_request(self._store, self.id, at)

    def breakpoint(self, kind: str, target: str, **options: Any) -> Breakpoint:
        """Set a breakpoint; see ``Breakpoint``. Raises ``ConfigError`` for an invalid one."""
        made = self.breakpoints.fresh().put(Breakpoint.of({"kind": kind, "target": target, **options}))
        same = [one for one in self.breakpoints if (one.kind, one.target) != (made.kind, made.target)]
        self.set_breakpoints([*same, replace(made, id=0)])
        return next(one for one in self.breakpoints if (one.kind, one.target) == (made.kind, made.target))

    def set_breakpoints(self, wanted: Iterable[Breakpoint]) -> list[Breakpoint]:
        """Replace all breakpoints and return the new ones, with their numbers."""
        self.order(ReplaceBreakpoints(tuple(wanted)))
        return list(self.breakpoints)

    def close(self) -> None:
        """Detach from the turn."""
        self.engine.close()


def _wait_for(turn: Runs, engine: LocalEngine, paused: bool) -> None:
    """Wait until the turn is in the store and at its pause point. Raises the error that prevented it."""
    there = threading.Event()
    stop = engine.listen(lambda event: there.set())
    try:
        for _ in range(200):
            at_gate = turn.gate.running and not (paused and engine.status().phase == "running")
            if at_gate or engine.problem is not None:
                break
            there.wait(0.05)
            there.clear()
    finally:
        stop()
    if engine.problem is not None:
        raise engine.problem
    if not turn.gate.running and turn.result is None:
        raise ConfigError("the turn could not be started", turn.id)
