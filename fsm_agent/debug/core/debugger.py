"""``Debugger``: one turn under inspection. No face of its own: a page, an editor, the command line and Python
all use this.

>>> debugger = Debugger.start(agent, "what is the time?")      # doctest: +SKIP
>>> debugger.breakpoint("state", "ClassifyError", condition="retries >= 1")
>>> debugger.order("continue"); await debugger.settled()
>>> debugger.look.back(); debugger.record.snapshot(debugger.look.at)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fsm_agent.composition.turn_wiring import KIND
from fsm_agent.debug.core.breakpoints import Breakpoint, Breakpoints
from fsm_agent.debug.core.distant import Distant
from fsm_agent.debug.core.engines import Engine, Here, Nowhere, settled
from fsm_agent.debug.core.events import Listener, Status
from fsm_agent.debug.core.look import Look
from fsm_agent.debug.core.makers import Runs
from fsm_agent.debug.core.record import Record
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.pause_point import GATES
from fsm_agent.fsm.turn_kind import TurnKind
from fsm_agent.sessions.store import Store


class Debugger:
    """``record`` is what the turn did, ``look`` where a person looks, ``status`` where the engine is. Orders
    and listeners may be used from any thread; see ``fsm_agent.debug.core.orders`` and ``events`` for their
    names."""

    def __init__(self, record: Record, engine: Engine, breakpoints: Breakpoints, subject: TurnKind = KIND) -> None:
        self.record, self.engine, self.breakpoints, self.subject = record, engine, breakpoints, subject
        self.table = subject.table
        self.look = Look(record, subject.counters)

    @classmethod
    def of(cls, store: Store, turn: Runs, *, paused: bool = True) -> Debugger:
        """Debug a turn of this process that nobody runs yet: one just started, resumed or forked, of an
        ``Agent`` or a ``Workflow``. It is taken to the gate and waits there, before its first request."""
        engine = Here(turn.gate, turn, paused)
        engine.start()
        _wait_for(turn, engine, paused)
        return cls(Record(store, turn.id), engine, engine.controller.breakpoints, turn.gate.kind)

    @classmethod
    def attach(cls, store: Store, turn_id: str, subject: TurnKind = KIND) -> Debugger:
        """Debug a turn that there is: one that runs in this process or in another goes on running; one that
        ended, or that no process runs, can be looked at. ``subject``: its kind, where it is not this agent's.
        Raises ``ConfigError`` for a turn that is not there, or has a debugger already."""
        record = Record(store, turn_id)
        info = record.info
        gate = GATES.get(turn_id)
        if info.ended is None and gate is not None and gate.running:
            here = Here(gate, paused=False)
            return cls(record, here, here.controller.breakpoints, gate.kind)
        if info.ended is None and info.owner not in (None, store.owners.me) and store.owners.alive(info.owner) is not None:
            distant = Distant(store, record, subject.table)
            return cls(record, distant, distant.breakpoints, subject)
        return cls(record, Nowhere(record), Breakpoints(subject.table), subject)

    @property
    def id(self) -> str:
        return self.record.turn_id

    @property
    def status(self) -> Status:
        return self.engine.status()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell ``listener`` of every event, until what this returns is called."""
        return self.engine.listen(listener)

    def order(self, name: str, body: Mapping[str, Any] | None = None) -> None:
        """An order to the engine; returns at once. Raises ``ConfigError`` for one that cannot be carried
        out."""
        self.engine.order(name, body or {})

    async def settled(self, timeout: float | None = None) -> Status:
        """Wait until the engine stands still. Raises ``TimeoutError`` after so many seconds."""
        return await settled(self.engine, timeout)

    def visit(self, at: int) -> list[dict[str, Any]]:
        """What the state at a position asked for so far; of the visit that goes on here, also what is not in
        the journal yet."""
        known = self.record.visit(at)
        if not isinstance(self.engine, Here) or at != self.status.seq:
            return known
        places = {(one["ordinal"], one["place"]) for one in known if one["status"] != "in_flight"}
        fresh = [one for one in self.engine.controller.visit() if (one["ordinal"], one["place"]) not in places]
        replaced = {(one["ordinal"], one["place"]) for one in fresh}
        kept = [one for one in known if (one["ordinal"], one["place"]) not in replaced]
        return sorted([*kept, *fresh], key=lambda one: (one["ordinal"], one["place"]))

    def breakpoint(self, kind: str, target: str, **options: Any) -> Breakpoint:
        """Set one; see ``Breakpoint``. Raises ``ConfigError`` for one that cannot be."""
        made = self.breakpoints.fresh().put(Breakpoint.of({"kind": kind, "target": target, **options}))
        same = [one for one in self.breakpoints if (one.kind, one.target) != (made.kind, made.target)]
        self.set_breakpoints([one.to_dict() for one in same] + [made.to_dict() | {"id": 0}])
        return next(one for one in self.breakpoints if (one.kind, one.target) == (made.kind, made.target))

    def set_breakpoints(self, wanted: list[dict[str, Any]]) -> list[Breakpoint]:
        """These and no others."""
        if isinstance(self.engine, Nowhere):
            self.breakpoints.replace([Breakpoint.of(one) for one in wanted])
        else:
            self.order("breakpoints", {"all": wanted})
        return list(self.breakpoints)

    def close(self) -> None:
        """Leave the turn alone."""
        self.engine.close()


def _wait_for(turn: Runs, engine: Here, paused: bool) -> None:
    """Until the turn is in the store and at its gate. Raises what kept it from getting there."""
    import threading

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
