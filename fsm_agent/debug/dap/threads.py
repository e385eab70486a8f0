"""Turns as threads of an editor: where each stands, what the editor was told of it, and where a person looks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.core.engines import LocalEngine
from fsm_agent.debug.core.events import Event
from fsm_agent.debug.dap.breakpoints import Points
from fsm_agent.errors import ConfigError

Reason = Literal["step", "breakpoint", "exception", "pause", "entry", "function breakpoint", "restart"]
NAME = 60
"""Characters of a thread's name."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a turn stands still, as the editor is told. ``of``: the filter, for an exception; ``hits``: the editor's
    breakpoints."""

    reason: Reason
    description: str
    text: str = ""
    hits: tuple[int, ...] = ()
    of: str = ""
    in_state: bool = False


@dataclass(slots=True)
class Lane:
    """One turn. ``stop`` is what the editor was told last, ``None`` while it runs for it; ``over``: it was told that the thread
    has ended. ``asked``: numbers of what waits for a person and was told."""

    id: int
    debugger: Debugger
    name: str
    stop: Stop | None = None
    over: bool = False
    asked: frozenset[int] = frozenset()
    in_doubt: str = ""
    unlisten: Callable[[], None] = lambda: None

    @property
    def at(self) -> int:
        return self.debugger.cursor.at

    @property
    def looking_back(self) -> bool:
        """Does the person look at something else than where the engine is?"""
        return not self.debugger.cursor.following

    @property
    def inside(self) -> bool:
        """Has the state that is looked at done something already? Else its move is what is looked at."""
        if self.stop is not None and self.stop.in_state:
            return not self.looking_back
        return not self.looking_back and self.debugger.status.phase != "ended" and bool(self.debugger.visit(self.at))

    def stand(self) -> None:
        """Raises ``ConfigError`` while the turn runs."""
        if self.stop is None:
            raise ConfigError("the turn is running", self.name, "pause it first")


Hear = Callable[[Lane, Event], None]
"""Called on the thread where it happened; must not block."""


@dataclass(slots=True)
class Lanes:
    """Those of one session. ``hear`` is told of everything that happens in them."""

    hear: Hear
    _all: dict[int, Lane] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __iter__(self) -> Iterator[Lane]:
        return iter([lane for lane in self._all.values() if not lane.over])

    def open(self, debugger: Debugger) -> Lane:
        """A new thread."""
        lane = Lane(next(self._numbers), debugger, _name(debugger))
        self._all[lane.id] = lane
        lane.unlisten = debugger.listen(lambda event: self.hear(lane, event))
        return lane

    def of_turn(self, turn_id: str) -> Lane | None:
        return next((lane for lane in self if lane.debugger.id == turn_id), None)

    def get(self, number: Any) -> Lane:
        """A thread by its number. Raises ``ConfigError``."""
        lane = self._all.get(number) if isinstance(number, int) else None
        if lane is None or lane.over:
            raise ConfigError("no such thread", number, ", ".join(str(one.id) for one in self) or "none")
        return lane


def stop_of(lane: Lane, points: Points) -> Stop:
    """Why the engine of a turn stands still."""
    status = lane.debugger.status
    match status.phase:
        case "ended":
            info = lane.debugger.record.info
            return Stop("pause", f"The turn has ended: {info.exit}", f"{info.outcome}: {info.exit}")
        case "idle":
            return Stop("pause", "No process runs this turn; :resume goes on with it", "unfinished")
        case "waiting":
            return _waiting(status.held)
    if lane.in_doubt:
        call, lane.in_doubt = lane.in_doubt, ""
        return Stop("exception", "Nobody can say whether the tool took effect", call, of="unknown")
    if status.reason != "breakpoint":
        reason: Reason = "entry" if status.reason == "entry" else "step" if status.reason == "step" else "pause"
        return Stop(reason, status.text or f"Before the first request of {status.state}")
    hit = points.of(status.breakpoints)
    numbers = tuple(point.id for point in hit)
    kinds = {point.kind for point in hit}
    if "source" in kinds or not kinds:
        in_state = any(point.in_state is not None for point in hit) and not any(point.spot is not None for point in hit)
        return Stop("breakpoint", status.text, hits=numbers, in_state=in_state)
    if "function" in kinds:
        return Stop("function breakpoint", status.text, hits=numbers)
    names = [point.name for point in hit]
    exit_reason = next((step.exit for step in lane.debugger.record.steps(status.seq, status.seq)), None)
    return Stop("exception", status.text, exit_reason or status.state, numbers, names[0])


def _waiting(held: tuple[Mapping[str, Any], ...]) -> Stop:
    first = held[0]
    if first["kind"] == "approval":
        return Stop("exception", f"{first['name']} needs approval: type :approve or :deny", first["name"], of="approval")
    return Stop("pause", f"{first['kind']} {first['name']} is held back: type :answer or :let", first["name"])


def in_doubt(debugger: Debugger, event: Event) -> str:
    """The tool whose effect nobody knows, when this event is its reply; empty otherwise."""
    if event.kind != "exchanged" or "RunTool" not in event.data.get("kinds", ()) or not isinstance(debugger.engine, LocalEngine):
        return ""
    return unknown([one for one in debugger.engine.controller.visit() if one["ordinal"] == event.data["ordinal"]])


def unknown(visit: Sequence[Mapping[str, Any]]) -> str:
    """The tools of a visit of whose effect nobody knows."""
    calls = [one for one in visit if one["kind"] == "RunTool"]
    return ", ".join(one["name"] for one in calls if (one["reply"] or {}).get("status") == "unknown")


def _name(debugger: Debugger) -> str:
    info = debugger.record.info
    asked = " ".join(info.asked.split())
    asked = asked if len(asked) <= NAME else f"{asked[: NAME - 1]}…"
    forked = f" · fork at {info.forked_at}" if info.forked_at is not None else ""
    return f"{asked}{forked} · {info.id}"
