"""Live backtest: where a recording ends, a model continues the turn as a fork, under a budget in money.

Forks run in a copy of the store, which is removed afterward. No tool takes effect twice: calls get their
recorded results, a named pure tool may run, and any other call ends the fork before it runs."""

# A fork is an ordinary fork of an ordinary agent. One extension isolates it: it sees each tool call before it
# runs and answers requests that would begin other turns or write elsewhere. An unsafe result is used once, a
# pure one as often as requested.

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fsm_agent.agent import Agent
from fsm_agent.backtest.playback import Change, RecordedTurn
from fsm_agent.backtest.verdict import Verdict
from fsm_agent.composition.turn_wiring import TURN
from fsm_agent.conversation.arguments import signature
from fsm_agent.conversation.effects import (
    FINAL,
    BeginReview,
    Done,
    NameSession,
    RunTool,
    SyncMemory,
    ToolOutcome,
    ToolSpec,
)
from fsm_agent.errors import ConfigError, FsmAgentError
from fsm_agent.extension import Extension
from fsm_agent.features.limits import UnknownPrice
from fsm_agent.providers.config_file import CONFIG
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.importing import copy_store
from fsm_agent.sessions.store.journal.conversation_journal import REPLY
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.reports import Spending
from fsm_agent.sessions.store.rewind import AGENT_SETTINGS
from fsm_agent.settings import Limits, LimitScope
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import one_line
from fsm_agent.tools import Tool, tool

Kind = Literal["alike", "otherwise", "stopped", "budget", "refused"]
KINDS: Mapping[Kind, str] = {
    "alike": "the same moves to the end",
    "otherwise": "other moves",
    "stopped": "stopped before a call of a tool",
    "budget": "ended or not begun, because the budget is spent",
    "refused": "cannot be forked",
}
BRIDGE = frozenset({"tool_search", "tool_call", FINAL})
"""Tools that the engine adds to a turn."""
SHOWN = 300
"""Maximum characters of an answer in a report."""
NOT_RUN = "not run: this is a fork of a recorded turn, and the record has no result for this call"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fork begins: the turn after ``at`` moves. ``state``: the first one to run again; for CallLLM
    the fork begins one move earlier, in BuildMessages. ``replies``: requests of that visit are answered from
    the record, including the model's, because the recording ends after them. ``model``: the recorded one, at
    ``address``. ``most``: maximum model requests of the fork."""

    turn: str
    at: int
    state: str
    replies: bool
    model: str
    most: int
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """One side from the fork on: its exit, its answer, the tools it called, its model requests."""

    exit: str
    answer: str
    tools: tuple[str, ...]
    requests: int


@dataclass(frozen=True, slots=True)
class Fork:
    """The outcome of a fork. ``why``: the reason in words. ``first``: the first differing move, 0 for none.
    ``usd``: its cost."""

    place: Place
    model: str
    kind: Kind
    why: str = ""
    first: int = 0
    recorded: Ending | None = None
    now: Ending | None = None
    usd: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return asdict(self)


def places(
    store: Store, verdicts: Sequence[Verdict], change: Change, where: str | None = None
) -> list[Place]:
    """Return where forks begin: at the end of each recording, or with ``where`` at chosen moves of every turn
    that can be played: a number of moves, the name of a state for its first visit, or ``STATE:N`` for visit
    N. A changed turn whose recording ends earlier is forked there. Raises ``ConfigError``."""
    chosen = None if where is None else _chooser(where)
    found = []
    for verdict in verdicts:
        ends = verdict.at - 1 if verdict.kind in ("differs", "missing") else None
        if verdict.kind == "refused" or (chosen is None and ends is None):
            continue
        recorded = RecordedTurn.read(store, verdict.turn)
        wanted = ends if chosen is None else chosen(recorded)
        if wanted is None:
            continue
        before = chosen is not None and (ends is None or wanted <= ends)
        at = wanted if before or ends is None else ends
        found.append(_place(recorded, at, change, replies=not before))
    return found


def _chooser(where: str) -> Callable[[RecordedTurn], int | None]:
    """Return a function from a turn to the number of moves before ``where``; ``None`` without it."""
    if where.isdecimal():
        number = int(where)
        return lambda recorded: number if number < len(recorded.moves) else None
    state, colon, visit = where.partition(":")
    known = [name for name in TURN.states if name not in (TURN.initial, TURN.final)]
    if state not in known or (colon and not (visit.isdecimal() and int(visit))):
        allowed = f"a number of moves, a state ({', '.join(known)}), or STATE:N for visit N"
        raise ConfigError("--at names no place in a turn", where, allowed)

    def after(recorded: RecordedTurn) -> int | None:
        visits = [number for number, step in enumerate(recorded.moves, 1) if step.dest == state]
        nth = int(visit or 1) - 1
        return visits[nth] if nth < len(visits) else None

    return after


def _place(recorded: RecordedTurn, at: int, change: Change, *, replies: bool) -> Place:
    runtime = recorded.opened.runtime
    state = recorded.moves[at - 1].dest if at else TURN.initial
    if state == "CallLLM" and not replies:  # BuildMessages checks the limits of each request
        at -= 1
    most = recorded.limits(change.settings)["attempts"]
    name = f"{runtime.provider}:{runtime.model}"
    return Place(recorded.info.id, at, state, replies, name, most, runtime.base_url)


@contextmanager
def scratch(store: Store, home: Path | None = None) -> Iterator[Store]:
    """Copy a store and its config file to a temporary folder, or to ``home``, which is kept. Raises
    ``ConfigError`` for a folder that is not empty."""
    with tempfile.TemporaryDirectory(prefix="fsm-agent-") as folder:
        there = Path(folder) if home is None else home
        if home is not None and home.exists() and (not home.is_dir() or any(home.iterdir())):
            raise ConfigError("forks are kept in an empty folder", str(home), "a new folder")
        there.mkdir(parents=True, exist_ok=True)
        copy = Store(there)
        try:
            copy_store(store, copy.database, at_rest=False)
            if (store.home / CONFIG).exists():
                shutil.copyfile(store.home / CONFIG, there / CONFIG)
            yield copy
        finally:
            copy.database.close()


@dataclass(slots=True)
class Live:
    """Continues recorded turns in ``store``, a copy. ``options``: the model's options for a place (``model``,
    ``base_url``). ``tools``: pure tools that may run. ``usd``: the budget of all forks.

    Raises ``ConfigError`` for a tool that is not pure, and for a change of the table."""

    store: Store
    change: Change
    options: Callable[[Place], Mapping[str, Any]]
    usd: float
    tools: Sequence[Tool] = ()
    _purse: Purse = field(init=False)

    def __post_init__(self) -> None:
        self._purse = Purse(self.usd)
        refuse_unsafe(self.tools)
        if self.change.machine is not None:
            raise ConfigError("--live continues turns with the table of this version", None, "no --table")

    @property
    def spent(self) -> float:
        """The cost of the forks so far, in US dollars."""
        return self._purse.spent

    async def run(
        self, places: Sequence[Place], heard: Callable[[Fork], None] = lambda fork: None
    ) -> list[Fork]:
        """Run the forks one after the other; report each to ``heard``. Raises ``UnknownPrice`` for a model
        without a price."""
        found = []
        for place in places:
            found.append(await self._fork(place))
            heard(found[-1])
        return found

    async def _fork(self, place: Place) -> Fork:
        options = self.options(place)
        blank = Fork(place, str(options["model"]), "budget", "not begun")
        recorded = RecordedTurn.read(self.store, place.turn)
        before = self._ending(place.turn, place.at)
        try:
            async with self._purse.one_turn() as limits:
                return await self._run(blank, recorded, before, options, limits)
        except BudgetSpent:
            return replace(blank, recorded=before)

    async def _run(
        self,
        blank: Fork,
        recorded: RecordedTurn,
        before: Ending,
        options: Mapping[str, Any],
        limits: Limits | None,
    ) -> Fork:
        place, opened = blank.place, self.change.apply(recorded.opened)
        runs = {one.spec.name: one for one in self.tools}
        record = Record(_results(recorded, place.at - self._reruns(place)), frozenset(runs))
        agent = Agent(
            **options,
            tools=[_stub_tool(spec, runs) for spec in opened.tools if spec.name not in BRIDGE],
            toolsets=[],
            system_prompt=opened.system_prompt or None,
            settings=dict(self.change.settings),
            home=self.store.home,
            store=self.store,
            callbacks={"approval": lambda request: True},  # a forbidden call ends the fork anyway
            extensions=[record],
            limits=limits,
            telemetry=False,
            source="backtest",
        )
        record.stop = agent.interrupt
        async with agent:
            try:
                turn = agent.fork(place.turn, place.at, self._edit(recorded, place, opened.system_prompt))
                try:
                    result = await turn.arun()
                finally:
                    usd = await self._purse.deduct(self.store, turn.id, turn.id.rpartition("-")[0], "turn")
            except UnknownPrice:  # it concerns every fork, not only this one
                raise
            except FsmAgentError as error:
                return replace(blank, kind="refused", why=str(error), recorded=before)
        now = self._ending(turn.id, place.at)
        found = replace(blank, recorded=before, now=now, usd=usd, why="")
        if record.stopped is not None:
            return replace(found, kind="stopped", why=record.stopped)
        if result.turn_exit_reason == "cost_limit":
            return replace(found, kind="budget", why="ended by the budget")
        first = self._first_other(recorded, turn.id, place.at)
        return replace(found, kind="otherwise" if first else "alike", first=first)

    def _edit(self, recorded: RecordedTurn, place: Place, prompt: str) -> dict[str, Any]:
        """Return the changes of the fork in the form that ``Agent.fork`` accepts."""
        edit: dict[str, Any] = {"recorded_replies": True} if place.replies else {}
        if self._reruns(place):
            edit = {"rerun_tools": True}
        if self.change.prompt is not None:
            edit["system_prompt"] = prompt
        own = {name: value for name, value in self.change.settings.items() if name not in AGENT_SETTINGS}
        if own:
            edit["settings"] = own
            was, now = recorded.limits(), recorded.limits(self.change.settings)
            kept = Turns(self.store.database).snapshot(place.turn, place.at).get("limits") or {}
            changed = {name: now[name] for name in kept if name in now and now[name] != was.get(name)}
            if changed:
                edit["fields"] = {"limits": {**kept, **changed}}
        return edit

    def _reruns(self, place: Place) -> bool:
        """Return whether the calls of the visit are judged again: a call of a removed tool is unknown,
        although the journal has its result."""
        return place.state == "ExecuteTools" and None in self.change.tools.values()

    def _ending(self, turn: str, at: int) -> Ending:
        read = Turns(self.store.database)
        result, visits = read.result(turn) or {}, read.visits(turn)
        asked = [one for seq, visit in visits.items() if seq >= at for one in visit]
        return Ending(
            str(read.info(turn).exit),
            mask(one_line(str(result.get("final_response") or ""), SHOWN)),
            tuple(one.name for one in asked if one.kind == "RunTool"),
            sum(one.kind == "CallModel" and not one.origin for one in asked),
        )

    def _first_other(self, recorded: RecordedTurn, fork: str, at: int) -> int:
        """Return the number of the fork's first move that differs from the recorded one; 0 if none does."""
        before = [step.row for step in recorded.moves]
        after = [step.row for step in Turns(self.store.database).steps(fork)]
        pairs = enumerate(zip(before, after, strict=False), 1)
        first = next((number for number, (was, now) in pairs if number > at and was != now), 0)
        return first or (0 if len(before) == len(after) else min(len(before), len(after)) + 1)


class Record(Extension):
    """Answers tool calls from the record of the turn; ``runs``: names of tools that may run. ``stopped``: the
    call that ended the fork."""

    name = "record"
    requests = (RunTool, BeginReview, NameSession, SyncMemory)
    when_it_fails = "end"

    def __init__(self, results: Mapping[str, deque[tuple[bool, ToolOutcome]]], runs: frozenset[str]) -> None:
        self._results, self._runs = results, runs
        self.stopped: str | None = None
        self.stop: Callable[[], None] = lambda: None

    async def around(self, request: Any, turn: Any, call_next: Any) -> Any:
        """Return the recorded result, else run the tool if it may run, else stop the fork."""
        if not isinstance(request, RunTool):
            return Done()
        left = self._results.get(signature(request.name, request.arguments))
        if left:
            pure, outcome = left[0]
            if not pure:
                left.popleft()
            return replace(outcome, call_id=request.call_id)
        if request.name in self._runs:
            return await call_next(request)
        self.stopped = (
            self.stopped or f"{request.name} ({request.effect}) with arguments that were not recorded"
        )
        self.stop()
        return ToolOutcome(request.call_id, "not_started", NOT_RUN)


def _results(recorded: RecordedTurn, at: int) -> dict[str, deque[tuple[bool, ToolOutcome]]]:
    """Return the recorded results of tools by their calls, each with whether it may be used again: those of
    pure tools from the whole turn, the others from the fork on. The journal answers the calls of the fork's
    own visit."""
    found: dict[str, deque[tuple[bool, ToolOutcome]]] = defaultdict(deque)
    for seq, visit in recorded.visits.items():
        for one in visit:
            if one.kind != RunTool.__name__ or one.reply is None:
                continue
            pure, reply = one.request.get("effect", "unsafe") == "pure", REPLY.decode(one.reply)
            if isinstance(reply, ToolOutcome) and (pure or seq > at):
                found[signature(one.name, one.request["arguments"])].append((pure, reply))
    return found


def _stub_tool(spec: ToolSpec, runs: Mapping[str, Tool]) -> Tool:
    """Return a tool with the recorded schema: one that may run, or one that is only shown to the model."""
    if spec.name in runs:
        own = runs[spec.name]
        return replace(own, spec=replace(own.spec, description=spec.description, parameters=spec.parameters))

    def answered_from_the_record() -> str:
        raise AssertionError(f"{spec.name} ran in a fork")

    return replace(tool(name=spec.name)(answered_from_the_record), spec=spec)


def refuse_unsafe(tools: Sequence[Tool]) -> None:
    """Raise ``ConfigError`` for a tool that must not run in a fork."""
    for one in tools:
        if one.spec.effect != "pure" or one.spec.approval != "never":
            given = f"{one.spec.name}: {one.spec.effect}, approval {one.spec.approval}"
            raise ConfigError("a fork runs pure tools only", given, "effect pure, approval never")


# ----------------------------------------------------------------------------------------------------
# A budget in money for many turns of one store, which run one after the other.

LEAST = 1e-9
"""US dollars; a smaller rest counts as spent."""
MOST = 1_000_000


class BudgetSpent(Exception):
    """The budget is too small for another turn."""


@dataclass(slots=True)
class Purse:
    """A shared budget of ``usd`` US dollars; ``None`` for no limit. ``spent``: the part used so far."""

    usd: float | None = None
    spent: float = 0.0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        if self.usd is not None and not 0 < self.usd <= MOST:
            raise ConfigError("a budget is out of range", self.usd, f"US dollars, more than 0 to {MOST:,}")

    @asynccontextmanager
    async def one_turn(self) -> AsyncIterator[Limits | None]:
        """Yield the limits of the next turn, which may use all that is left. With a budget, the turn after it
        waits until it has ended. Raises ``BudgetSpent``."""
        if self.usd is None:
            yield None
            return
        async with self._turn:
            if (left := self.usd - self.spent) < LEAST:
                raise BudgetSpent
            yield Limits(usd=left)

    async def deduct(self, store: Store, turn: str, session: str, scope: LimitScope) -> float:
        """Deduct and return the cost of the turn, or of its tree, including requests without reported
        tokens."""
        found = await Spending(store, turn, session, (scope,)).now()
        self.spent += found[scope].usd
        return found[scope].usd
