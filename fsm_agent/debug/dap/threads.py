"""Turns as threads of an editor: the position of each, why it is paused, what has been reported, and which
position is shown. The stack of a thread contains the last move, in the table, the state it led to, and the
earlier moves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, assert_never

from fsm_agent.approvals.question import Question, visible
from fsm_agent.debug.core.commands import DebugEvent, Status
from fsm_agent.debug.core.debugger import Debugger, LocalEngine
from fsm_agent.debug.dap.breakpoints import EditorBreakpoints, place, state_sources, table_map_of
from fsm_agent.debug.dap.protocol import Client
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.pause_point import TurnKind
from fsm_agent.support.redaction import Exact

# ----------------------------------------------------------------------------------------------------
# Pending requests, described for the debug console, and the answers to them.
#
# Every answer names the number of its question, so an answer typed for one question cannot apply to the next
# one, which may have arrived meanwhile.


WIDTH = 100
"""Columns of a question; the editor's console wraps longer rows."""
Held = Mapping[str, Any]


def brief(held: Held) -> str:
    """Describe a pending request and its possible answers in one line."""
    number = held["id"]
    if held["kind"] == "approval":
        longer = f", :approve {number} session" if held["question"]["remembered"] else ""
        allow = f":approve {number}{longer} or " if held["allowable"] else ""
        return f"{held['question']['name']} needs approval: type {allow}:deny {number}"
    name = held["question"]["name"] if "question" in held else held["name"]
    return f"{held['kind']} {name} is held back: type :answer {number} ANSWER or :let {number}"


def question_text(held: Held) -> str:
    """Return the full question for a person, with every row of a call exactly as it would run."""
    return Exact("\n".join([*rows(held), f"  {brief(held)}"]))


def rows(held: Held) -> list[str]:
    """Return the rows of the question if a call is pending, else an empty list."""
    if "question" not in held:
        return []
    asked = Question.read(held["question"]).rows(WIDTH, longer=f":approve {held['id']} session")
    return [Exact(row) for row in asked]


def variables(held: Sequence[Held]) -> list[dict[str, Any]]:
    """Return the pending requests as values for the tree."""
    return [
        {"answer": Exact(brief(one)), "question": rows(one)} if "question" in one else dict(one)
        for one in held
    ]


def answers(held: Iterable[Held]) -> list[str]:
    """Return the beginnings of commands that answer the pending requests."""
    by_kind = {"approval": ("approve", "deny")}
    return [f":{name} {one['id']}" for one in held for name in by_kind.get(one["kind"], ("answer", "let"))]


def read_answer(held: Sequence[Held], words: str, *kinds: str) -> tuple[int, str]:
    """Parse an answer as (number of the pending request, remaining words). Raises ``ConfigError`` if no
    number, or none of a request of these kinds, is given."""
    number, _, rest = words.partition(" ")
    waiting = [one["id"] for one in held if one["kind"] in kinds]
    if not waiting:
        raise ConfigError("nothing waits for this", " or ".join(kinds), "see the scope Request")
    if number not in map(str, waiting):
        allowed = ", ".join(map(str, waiting))
        raise ConfigError("an answer begins with the number of what it answers", words, allowed)
    return int(number), rest.strip()


StopReason = Literal["step", "breakpoint", "exception", "pause", "entry", "function breakpoint", "restart"]
NAME = 60
"""Maximum characters of a thread's name."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a turn is paused, as reported to the editor. ``of``: the filter, for an exception; ``hits``: the
    editor's breakpoints."""

    reason: StopReason
    description: str
    text: str = ""
    hits: tuple[int, ...] = ()
    of: str = ""
    in_state: bool = False


@dataclass(slots=True)
class TurnThread:
    """One turn. ``stop`` is the last stop reported, ``None`` while the editor sees the turn as running;
    ``over``: the end of the thread has been reported. ``asked``: the pending requests reported so far, by
    number, and whether each may be allowed."""

    id: int
    debugger: Debugger
    name: str
    stop: Stop | None = None
    over: bool = False
    asked: frozenset[tuple[int, bool]] = frozenset()
    in_doubt: str = ""
    unlisten: Callable[[], None] = lambda: None

    @property
    def at(self) -> int:
        """Return the inspected position."""
        return self.debugger.cursor.at

    @property
    def looking_back(self) -> bool:
        """Return whether the inspected position differs from the engine's."""
        return not self.debugger.cursor.following

    @property
    def inside(self) -> bool:
        """Return whether to show the state, which has begun its work, instead of the move to it."""
        if self.stop is not None and self.stop.in_state:
            return not self.looking_back
        return (
            not self.looking_back
            and self.debugger.status.phase != "ended"
            and bool(self.debugger.visit(self.at))
        )

    def stand(self) -> None:
        """Check that the turn is paused. Raises ``ConfigError`` while it runs."""
        if self.stop is None:
            raise ConfigError("the turn is running", self.name, "pause it first")


Hear = Callable[[TurnThread, DebugEvent], None]
"""Called on the thread of the event; must not block."""


@dataclass(slots=True)
class TurnThreads:
    """The threads of one session. ``hear`` receives all of their events."""

    hear: Hear
    _all: dict[int, TurnThread] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __iter__(self) -> Iterator[TurnThread]:
        return iter([thread for thread in self._all.values() if not thread.over])

    def open(self, debugger: Debugger) -> TurnThread:
        """Add a thread."""
        thread = TurnThread(next(self._numbers), debugger, _name(debugger))
        self._all[thread.id] = thread
        thread.unlisten = debugger.listen(lambda event: self.hear(thread, event))
        return thread

    def of_turn(self, turn_id: str) -> TurnThread | None:
        """Return the thread of a turn, if it has one."""
        return next((thread for thread in self if thread.debugger.id == turn_id), None)

    def get(self, number: Any) -> TurnThread:
        """Return a thread by its number. Raises ``ConfigError``."""
        thread = self._all.get(number) if isinstance(number, int) else None
        if thread is None or thread.over:
            raise ConfigError("no such thread", number, ", ".join(str(one.id) for one in self) or "none")
        return thread


def stop_of(thread: TurnThread, breakpoints: EditorBreakpoints) -> Stop:
    """Return why the engine of a turn is paused."""
    status = thread.debugger.status
    match status.phase:
        case "ended":
            info = thread.debugger.record.info
            return Stop("pause", f"The turn has ended: {info.exit}", f"{info.outcome}: {info.exit}")
        case "idle":
            return Stop("pause", "No process runs this turn; :resume continues it", "unfinished")
        case "waiting":
            return _waiting(status.held)
        case "paused" | "running":
            return _pause_stop(thread, status, breakpoints)
        case _:
            assert_never(status.phase)


def _pause_stop(thread: TurnThread, status: Status, breakpoints: EditorBreakpoints) -> Stop:
    if thread.in_doubt:
        call, thread.in_doubt = thread.in_doubt, ""
        return Stop("exception", "It is unknown whether the tool took effect", call, of="unknown")
    match status.reason:
        case "breakpoint":
            return _breakpoint_stop(thread, status, breakpoints)
        case "entry" | "step" | "pause":
            return Stop(status.reason, status.text or f"Before the first request of {status.state}")
        case "":  # the turn has continued meanwhile
            return Stop("pause", status.text or f"Before the first request of {status.state}")
        case _:
            assert_never(status.reason)


def _breakpoint_stop(thread: TurnThread, status: Status, breakpoints: EditorBreakpoints) -> Stop:
    hit = breakpoints.of(status.breakpoints)
    numbers = tuple(point.id for point in hit)
    kinds = {point.kind for point in hit}
    if "source" in kinds or not kinds:
        in_state = any(point.in_state is not None for point in hit) and not any(
            point.spot is not None for point in hit
        )
        return Stop("breakpoint", status.text, hits=numbers, in_state=in_state)
    if "function" in kinds:
        return Stop("function breakpoint", status.text, hits=numbers)
    names = [point.name for point in hit]
    exit_reason = next((step.exit for step in thread.debugger.record.steps(status.seq, status.seq)), None)
    return Stop("exception", status.text, exit_reason or status.state, numbers, names[0])


def _waiting(held: tuple[Mapping[str, Any], ...]) -> Stop:
    first = held[0]
    if first["kind"] == "approval":
        return Stop("exception", brief(first), first["question"]["name"], of="approval")
    return Stop("pause", brief(first), first["name"])


def in_doubt(debugger: Debugger, event: DebugEvent) -> str:
    """Return the tool whose effect is unknown if this event is its reply; empty otherwise."""
    if (
        event.kind != "exchanged"
        or "RunTool" not in event.data.get("kinds", ())
        or not isinstance(debugger.engine, LocalEngine)
    ):
        return ""
    return unknown(
        [one for one in debugger.engine.controller.visit() if one["ordinal"] == event.data["ordinal"]]
    )


def unknown(visit: Sequence[Mapping[str, Any]]) -> str:
    """Return the tools of a visit whose effects are unknown."""
    calls = [one for one in visit if one["kind"] == "RunTool"]
    return ", ".join(one["name"] for one in calls if (one["reply"] or {}).get("status") == "unknown")


def _name(debugger: Debugger) -> str:
    info = debugger.record.info
    asked = visible(" ".join(info.asked.split())[: NAME + 1], lines=False)
    asked = asked if len(asked) <= NAME else f"{asked[: NAME - 1]}…"
    forked = f" · fork at {info.forked_at}" if info.forked_at is not None else ""
    return f"{asked}{forked} · {info.id}"


Frame = tuple[Literal["move", "state"], int]
"""Kind of a frame: the move to a position, or the state at it."""
_POSITIONS = 20
"""Bits of a frame's number that hold its position."""


class StackFrames:
    """Source locations of the frames of every turn, by the table of the turn."""

    def __init__(self, kinds: Iterable[TurnKind]) -> None:
        self._sources = {
            kind.table.name: (kind.table, table_map_of(kind.table), state_sources(kind.states))
            for kind in kinds
        }

    def stack(self, thread: TurnThread, client: Client, start: int = 0, levels: int = 0) -> dict[str, Any]:
        """Return the body of ``stackTrace``; ``levels`` 0 means all."""
        at = thread.at
        total = at + 2 if at else 1
        last = total if not levels else min(total, start + levels)
        inside = thread.inside
        frames_at = [_frame_at(at, number, inside) for number in range(start, last)]
        positions = [position for _, position in frames_at]
        steps = {step.seq: step for step in self._steps(thread, positions)}
        frames = [self._frame(thread, frame, steps, client, frame[1] < at) for frame in frames_at]
        return {"stackFrames": frames, "totalFrames": total}

    def _steps(self, thread: TurnThread, positions: list[int]) -> list[Step]:
        newest = max(positions, default=0)
        return thread.debugger.record.steps(max(1, min(positions)), newest) if newest else []

    def _frame(
        self, thread: TurnThread, frame: Frame, steps: Mapping[int, Step], client: Client, past: bool
    ) -> dict[str, Any]:
        kind, at = frame
        table, map, states = self._sources[thread.debugger.table.name]
        body: dict[str, Any] = {"id": frame_id(thread.id, frame), "line": 0, "column": 0}
        if kind == "state":
            state = steps[at].dest if at else thread.debugger.record.path()[0]
            body["name"] = state
            if (where := states.get(state)) is not None:
                body |= {
                    "source": client.source(where.path),
                    "line": client.line(where.line),
                    "column": client.column(1),
                }
            return body
        step = steps[at]
        rung = next((row.rung for row in table.rows if row.id == step.row), "")
        body["name"] = f"{at}: {step.source} –{step.event}→ {step.dest}" + (
            f" · {rung}" if rung and rung[0] not in "→⇥" else ""
        )
        if step.exit:
            body["name"] += f" · {step.exit}"
        if (spot := map.rows.get(step.row)) is not None:
            body |= {"source": client.source(map.path)} | place(spot, client)
        return body | ({"presentationHint": "subtle"} if past else {})

    def where(self, thread: TurnThread, row: str, client: Client) -> dict[str, Any]:
        """Return source, line, and column of a row, for output; empty for a row of another table."""
        _, map, _ = self._sources[thread.debugger.table.name]
        spot = map.rows.get(row)
        if spot is None:
            return {}
        return {
            "source": client.source(map.path),
            "line": client.line(spot.line),
            "column": client.column(spot.column),
        }


def _frame_at(at: int, number: int, inside: bool) -> Frame:
    if number <= (1 if at else 0):
        return ("state", at) if at == 0 or (number == 0) == inside else ("move", at)
    position = at + 1 - number
    return ("move", position) if position else ("state", 0)


def frame_id(thread: int, frame: Frame) -> int:
    """Encode a turn, a position, and one of its two frames as a number."""
    kind, at = frame
    return (thread << (_POSITIONS + 1)) | (at << 1) | (kind == "state")


def frame_of(number: Any) -> tuple[int, int]:
    """Decode a frame's number as (thread, position). Raises ``ConfigError``."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 1 << (_POSITIONS + 1):
        raise ConfigError("no such frame", number, "one of the stack trace")
    return number >> (_POSITIONS + 1), (number >> 1) & ((1 << _POSITIONS) - 1)
