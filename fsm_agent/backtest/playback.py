"""The playback of a recorded turn: every request is answered from the journal, so that no model, tool,
person, file or clock is asked.

States are pure and the journal has every reply. So a turn can be run with other settings, another prompt,
other tool schemas, another table or other states, and each move compared with the recorded one.
"""

# The record of a visit answers the requests of that visit: until the first differing move, the visits of a
# playback are those of the recorded turn. Within a visit, replies are found by the kind and order of
# requests, and those about a tool call by its id, because a changed state may ask for more, for less, or in
# another order. The first request without a reply ends the playback, unless it only reports: then it is
# answered as if nothing had happened. After the first differing move nothing is played, because a reply
# recorded for one visit proves nothing about another.

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from fsm_agent.composition.turn_wiring import MACHINE, STATES, TurnState, limits_of, restore_turn
from fsm_agent.conversation.effects import (
    BeginReview,
    CallModel,
    CheckSignals,
    CloseTurn,
    Compacted,
    Done,
    DumpRequest,
    NameSession,
    Opened,
    OpenTurn,
    Persist,
    Replaced,
    ReplaceHistory,
    Saved,
    Signals,
    SyncMemory,
    Tell,
    ToolSpec,
)
from fsm_agent.conversation.messages import Message
from fsm_agent.diagram.table_json import describe, table_from
from fsm_agent.errors import ConfigError, JournalError
from fsm_agent.fsm.codec import dumps
from fsm_agent.fsm.journal import UNKNOWN, Exchange, Step
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.runner import Runner
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.conversation_journal import REPLY, REQUEST
from fsm_agent.sessions.store.journal.read import AGENT_TURN, Effect, TurnInfo, Turns
from fsm_agent.sessions.store.rewind import Position, position_of
from fsm_agent.settings import Settings, merge

QUIET: Mapping[type, Any] = {
    Persist: Done(),
    Tell: Done(),
    CloseTurn: Done(),
    BeginReview: Done(),
    NameSession: Done(),
    SyncMemory: Done(),
    DumpRequest: Saved(),
    CheckSignals: Signals(),
}
"""Requests that report or look, with their reply if nothing happens. A turn may make more of them than
recorded."""
_BY_CALL = "call_id"


class Unrecorded(JournalError):
    """The turn made a request for which its journal has no reply."""


@dataclass(frozen=True, slots=True)
class Change:
    """Differences from the recording. ``settings``: nested, as in a config file. ``prompt``: the system
    prompt, with ``{recorded}`` for the recorded one. ``tools``: by name, the changed fields of a tool's
    schema (``description``, ``parameters``), or ``None`` to remove the tool. ``machine``: that of another
    table."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    tools: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    machine: Machine | None = None

    def apply(self, opened: Opened) -> Opened:
        """Return what the turn is opened with after the change."""
        prompt = opened.system_prompt
        if self.prompt is not None:
            prompt = self.prompt.replace("{recorded}", prompt)
        tools = tuple(self._tools(opened.tools)) if self.tools else opened.tools
        return replace(opened, system_prompt=prompt, tools=tools)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        table = None if self.machine is None else describe(self.machine.table)
        return {"settings": self.settings, "prompt": self.prompt, "tools": self.tools, "table": table}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Change:
        """Parse the JSON values of ``to_dict``. Raises ``TableError`` for a table that is not proved."""
        table = value["table"]
        machine = None if table is None else Machine(table_from(table, "the changed table"))
        return cls(value["settings"], value["prompt"], value["tools"], machine)

    def _tools(self, tools: Iterable[ToolSpec]) -> Iterable[ToolSpec]:
        for tool in tools:
            other = self.tools.get(tool.name, {})
            if other is not None:
                yield replace(tool, **other) if other else tool


UNCHANGED = Change()


@dataclass(slots=True)
class Asked:
    """One request of a playback, and its visit, by the number of moves before it. ``request`` is ``None`` if
    another process made it and sent its ``text``: the request as JSON, a model request as on the wire."""

    seq: int
    state: str
    kind: str
    request: Any = None
    written: str = ""

    @property
    def text(self) -> str:
        """The request as JSON."""
        if not self.written:
            called = isinstance(self.request, CallModel)
            self.written = (
                self.request.request.body.decode() if called else dumps(REQUEST.encode(self.request))
            )
        return self.written

    def same(self, other: Asked) -> bool:
        """Return whether both requests are equal."""
        if self.kind != other.kind:
            return False
        one, two = self.request, other.request
        if isinstance(one, CallModel) and isinstance(two, CallModel):
            return bool(one.request.body == two.request.body)
        return (one is not None and bool(one == two)) or self.text == other.text


@dataclass(slots=True)
class Played:
    """A playback. ``steps``: the moves, up to the first that differs from the recorded one. ``asked``: every
    request. ``missing``: the request without a reply that ended the playback."""

    steps: list[Step] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    missing: Asked | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values, with requests as text."""
        asked = [(one.seq, one.state, one.kind, one.text) for one in self.asked]
        steps = [asdict(step) for step in self.steps]
        return {"steps": steps, "asked": asked, "missing": self.missing is not None}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Played:
        """Parse the JSON values of ``to_dict``."""
        asked = [Asked(seq, state, kind, written=text) for seq, state, kind, text in value["asked"]]
        steps = [Step(**step) for step in value["steps"]]
        return cls(steps, asked, asked[-1] if value["missing"] else None)


@dataclass(slots=True)
class RecordedTurn:
    """A finished turn from its journal. ``visits``: the requests of each visit, with the replies."""

    info: TurnInfo
    position: Position
    opened: Opened
    moves: list[Step]
    visits: dict[int, list[Effect]]

    @classmethod
    def read(cls, store: Store, turn_id: str) -> RecordedTurn:
        """Read a turn. Raises ``ConfigError`` for one that cannot be played: of another table, without an
        end, or forked inside another turn; ``StoreError`` for a damaged one."""
        turns = Turns(store.database)
        info = turns.info(turn_id)
        _refuse(info)
        position = position_of(store, turn_id, 0)
        opened = _reopen(position, turns.snapshot(turn_id, 1), turns.messages(turn_id, 1))
        return cls(info, position, opened, turns.steps(turn_id), turns.visits(turn_id))

    def limits(self, settings: Mapping[str, Any] | None = None) -> Mapping[str, int]:
        """Return the maximum of each counter, with the recorded settings or with other ones."""
        chosen = _settings(merge(self.position.settings, settings or {}))
        return limits_of(chosen, self.opened.runtime, len(self.opened.auxiliary))

    async def play(self, change: Change = UNCHANGED) -> Played:
        """Run the turn with ``change``, up to its end or the first differing move."""
        settings = _settings(merge(self.position.settings, change.settings))
        turn = restore_turn(replace(self.position, settings=settings))  # type: ignore[arg-type]  # taken as it is
        opened, machine = change.apply(self.opened), change.machine or MACHINE
        return await play_turn(turn, opened, _Visits(self.visits), machine=machine, moves=self.moves)


def _refuse(info: TurnInfo) -> None:
    info.moved_by(AGENT_TURN)
    if info.ended is None or info.exit == "abandoned":
        raise ConfigError("the turn has no end", info.exit or f"in {info.state}", "a turn that has ended")
    if info.forked_at:
        raise ConfigError(
            "the turn was forked from another one", f"at move {info.forked_at}", "the whole turn"
        )


def _reopen(position: Position, after: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Opened:
    """Restore the reply to ``OpenTurn`` from the turn's state after its first move."""
    known = replace(position, snapshot={**after, "rows": []}, row=None)
    known.settings = _settings(position.settings)  # type: ignore[assignment]  # taken as it is
    turn = restore_turn(known)
    stored = position.snapshot.get("supplied_history")
    before = len(position.transcript) if stored is None else len(stored)
    reports = messages[before : len(messages) - len(after["rows"])]
    return opening_of(turn, [row for _, row in position.transcript], [str(row["content"]) for row in reports])


def opening_of(turn: TurnState, rows: Iterable[Message] = (), news: Iterable[str] = ()) -> Opened:
    """Return the reply to ``OpenTurn`` that turns a new turn into ``turn``. ``rows``: the transcript before
    it; ``news``: reports of background tasks."""
    setup, compaction = turn.setup, turn.compaction
    return Opened(
        setup.runtime,
        setup.tools,
        tuple(rows),
        setup.system_prompt,
        setup.workdir,
        auxiliary=setup.auxiliary,
        compacted=Compacted(int(compaction.compacted_before), compaction.compaction_blocked),
        review_due=setup.review_due,
        unnamed=setup.unnamed,
        news=tuple(news),
        silences=turn.recovery.silences,
        engine=setup.has_engine,
        checks=setup.checks,
        output=setup.output,
    )


def _settings(values: Mapping[str, Any]) -> Settings:
    return _read_settings(dumps(values))


@lru_cache(64)
def _read_settings(text: str) -> Settings:
    """Parse settings. Cached: the turns of a home share a few, and validation takes 0.3 ms."""
    return Settings.of(json.loads(text))


Recorded = Callable[[Any, int], Any]
"""The recorded reply to a request of the visit after ``n`` moves, as JSON; ``None`` if unknown."""


async def play_turn(
    turn: TurnState,
    opened: Opened,
    recorded: Recorded,
    *,
    machine: Machine = MACHINE,
    moves: Sequence[Step] | None = None,
) -> Played:
    """Run a turn from its first state to its end, to the first move that differs from ``moves``, or to the
    first request without a reply."""
    found = Played()
    answers = _Answers(turn, opened, recorded, found)
    runner = Runner(turn, machine, STATES, answers.perform, answers)
    try:
        while (step := await runner.step()) is not None:
            found.steps.append(step)
            number = len(found.steps)
            if moves is not None and (number > len(moves) or step.row != moves[number - 1].row):
                break
    except Unrecorded:
        found.missing = found.asked[-1]
    return found


class _Answers:
    """Performs the requests of a playback, and serves as its journal, which stores nothing."""

    def __init__(self, turn: TurnState, opened: Opened, recorded: Recorded, found: Played) -> None:
        self._turn, self._opened, self._recorded, self._found = turn, opened, recorded, found

    async def perform(self, request: Any) -> Any:
        """Return the recorded reply. Raises ``Unrecorded``."""
        kind, turn = type(request), self._turn
        self._found.asked.append(Asked(turn.seq, turn.state, kind.__name__, request))
        if kind is OpenTurn:
            return self._opened
        if (reply := self._recorded(request, turn.seq)) is not None:
            return REPLY.decode(reply)
        if kind is ReplaceHistory:
            return Replaced(turn.session_id, turn.parent_session_id)
        if kind in QUIET:
            return QUIET[kind]
        raise Unrecorded(f"the journal has no reply to {kind.__name__} in move {turn.seq + 1}")

    async def asked(self, exchange: Exchange) -> Sequence[Any]:
        return [UNKNOWN] * len(exchange.requests)

    async def got(self, exchange: Exchange, place: int, request: Any, reply: Any, seconds: float) -> None:
        """Store nothing."""

    async def later(self, exchange: Exchange, place: int, later: Any) -> bool:
        return False

    async def moved(self, step: Step) -> None:
        """Store nothing."""


class _Visits:
    """The replies of a recorded turn, visit by visit."""

    def __init__(self, visits: Mapping[int, Sequence[Effect]]) -> None:
        self._visits, self._at = visits, -1
        self._left: dict[Any, deque[Effect]] = {}

    def __call__(self, request: Any, seq: int) -> Any:
        if seq != self._at:
            self._at, self._left = seq, defaultdict(deque)
            for effect in self._visits.get(seq, ()):
                if effect.reply is not None:
                    self._left[effect.kind, effect.request.get(_BY_CALL)].append(effect)
        left = self._left.get((type(request).__name__, getattr(request, _BY_CALL, None)))
        return left.popleft().reply if left else None
