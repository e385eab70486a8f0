"""The debug session of a home: open, start, fork, compare, and store its turns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from fsm_agent.agent import Agent
from fsm_agent.composition.turn_wiring import KIND
from fsm_agent.debug.core.analysis import Comparison, compare
from fsm_agent.debug.core.breakpoints import Breakpoint
from fsm_agent.debug.core.debugger import Debugger, Runs
from fsm_agent.debug.core.record import Record
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.pause_point import TurnKind
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.export import export_turn
from fsm_agent.sessions.store.fence import Owners
from fsm_agent.sessions.store.importing import import_lines
from fsm_agent.sessions.store.journal.read import ModelUse, TurnInfo, Turns
from fsm_agent.sessions.store.kept_values import KeptValues
from fsm_agent.sessions.store.pending import PendingItems
from fsm_agent.sessions.store.rows import loads
from fsm_agent.support.threads import LOOP
from fsm_agent.workflow import Workflow

# ----------------------------------------------------------------------------------------------------
# Factories for the turns of a debug session: they begin, resume, and fork turns. For this agent's turns, an
# ``Agent`` does it.


Agents = Callable[[str | None], Agent]
"""Creates the agent for a turn; receives the turn's ``"<provider>:<model>"`` if it was begun in this home."""


class TurnFactory(Protocol):
    """Creates turns. All methods raise ``ConfigError`` if a turn cannot be made."""

    @property
    def kind(self) -> TurnKind:
        """Return the common kind of its turns."""
        ...

    @property
    def can_run(self) -> bool:
        """Return whether turns can be run, or only inspected."""
        ...

    def start(self, text: str) -> Runs:
        """Begin a turn with a user's message; raises ``ConfigError``."""
        ...

    def resume(self, turn_id: str) -> Runs:
        """Continue an unfinished turn; raises ``ConfigError``."""
        ...

    def fork(self, turn_id: str, at: int, edit: Mapping[str, Any] | None) -> Runs:
        """Fork a turn at a position; raises ``ConfigError``."""
        ...

    def close(self) -> None: ...


class AgentTurnFactory:
    """Factory for agent turns. Each running turn gets its own agent, because an interrupt is per agent."""

    kind = KIND

    def __init__(self, store: Store, agents: Agents | None) -> None:
        self._turns, self._agents = Turns(store.database), agents
        self._made: list[Agent] = []

    @property
    def can_run(self) -> bool:
        return self._agents is not None

    def start(self, text: str) -> Runs:
        return self._agent(None).start(text)

    def resume(self, turn_id: str) -> Runs:
        return self._agent(turn_id).resume(turn_id)

    def fork(self, turn_id: str, at: int, edit: Mapping[str, Any] | None) -> Runs:
        return self._agent(turn_id).fork(turn_id, at, dict(edit or {}))

    def close(self) -> None:
        for agent in self._made:
            agent.close()
        self._made.clear()

    def _agent(self, turn_id: str | None) -> Agent:
        if self._agents is None:
            raise ConfigError("this debugger only looks: it was given no agent to run turns with")
        hint = None
        if turn_id is not None and not self._turns.info(turn_id).imported:
            runtime = self._turns.snapshot(turn_id).get("runtime") or {}
            hint = f"{runtime['provider']}:{runtime['model']}" if runtime.get("provider") else None
        agent = self._agents(hint)
        if agent not in self._made:
            self._made.append(agent)
        return agent


class WorkflowTurnFactory:
    """Factory for the turns of a custom table."""

    can_run = True

    def __init__(self, workflow: Workflow[Any]) -> None:
        self._workflow, self.kind = workflow, workflow.kind

    def start(self, text: str) -> Runs:
        try:
            turn = self._workflow.begin(text)
        except Exception as error:  # user code may raise anything
            raise ConfigError(
                f"no turn could be made of this ({type(error).__name__}: {error})", text
            ) from error
        return self._workflow.start(turn)

    def resume(self, turn_id: str) -> Runs:
        return self._workflow.resume(turn_id)

    def fork(self, turn_id: str, at: int, edit: Mapping[str, Any] | None) -> Runs:
        return self._workflow.fork(turn_id, at, edit)

    def close(self) -> None:
        """Do nothing: the user owns the workflow's resources."""


# ----------------------------------------------------------------------------------------------------
# A turn whose process died: where it was, what was in flight, and what *Resume* will do about it.


Resumed = Literal["in doubt", "again", "once more", "asked"]
"""What happens to a request that was in flight: never repeated and reported as in doubt; repeated, because
repeating it is harmless; sent once more, from the budget for lost requests; or a person is asked again."""
WORDS: dict[Resumed, str] = {
    "in doubt": "It may have taken effect. Resume does not run it again; the model gets an unknown outcome.",
    "again": "Resume runs it again: repeating it does no harm.",
    "once more": "Resume sends it once more while the budget “lost_requests” has something left.",
    "asked": "Resume asks a person again.",
}


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A request that had no reply when the process died; ``begun`` in seconds since the epoch."""

    kind: str
    name: str
    effect: str
    begun: float
    request: Any
    resumed: Resumed
    words: str


@dataclass(frozen=True, slots=True)
class Crash:
    """``state``: where the turn is, after ``seq`` moves. ``moved``: the last sign of life, in seconds since
    the epoch."""

    state: str
    seq: int
    moved: float
    under_way: tuple[UnderWay, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def crash_of(record: Record, owners: Owners) -> Crash | None:
    """Return how a dead process left a turn; ``None`` for a turn that ended, that a process runs, or that was
    released properly and no longer holds its session."""
    info = record.info
    if info.ended is not None or info.owner is None or owners.alive(info.owner) is not None:
        return None
    with record.reading() as c:
        holder = c.execute("SELECT holder FROM sessions WHERE id = ?", (info.session,)).fetchone()
        if holder is None or holder[0] != info.id:
            return None
        rows = c.execute(
            "SELECT kind, name, class, at, request, request_crc FROM effects WHERE turn = ? AND seq = ?"
            " AND status = 'in_flight' ORDER BY ordinal, place",
            (info.id, info.seq),
        ).fetchall()
    return Crash(info.state, info.seq, info.moved, tuple(_under_way(*row) for row in rows))


def _under_way(kind: str, name: str, effect: str, begun: float, request: str, crc: int | None) -> UnderWay:
    resumed: Resumed = "again"
    if kind == "CallModel":
        resumed = "once more"
    elif kind == "AskApproval":
        resumed = "asked"
    elif effect == "unsafe":
        resumed = "in doubt"
    return UnderWay(kind, name, effect, begun, loads(request, crc), resumed, WORDS[resumed])


NOTHING = ModelUse()
BREAKPOINTS = "breakpoints"
MOST_KEPT = 50
"""Maximum number of turns whose breakpoints are kept."""
log = logging.getLogger(__name__)


def _still_there(debugger: Debugger, kept: Iterable[Mapping[str, Any]]) -> Iterator[Breakpoint]:
    fresh = debugger.breakpoints.fresh()
    for value in kept:
        try:
            yield fresh.put(Breakpoint.of(value))
        except ConfigError as error:
            log.warning("a breakpoint of turn %s is left out: %s", debugger.id, error)


class DebugSession:
    """Open debuggers by turn. ``agents`` creates an agent when a turn is started, resumed, or forked; without
    it, turns can only be inspected. ``pending``: what suspended turns wait for."""

    def __init__(self, store: Store, agents: Agents | None = None, maker: TurnFactory | None = None) -> None:
        self.store = store
        self._maker: TurnFactory = maker or AgentTurnFactory(store, agents)
        self._open: dict[str, Debugger] = {}
        self._lock = threading.RLock()
        self._turns = Turns(store.database)
        self._values = KeptValues(store, "debugger")
        self.pending = PendingItems(lambda: store.database, store.now)

    @classmethod
    def of_workflow(cls, workflow: Workflow[Any]) -> DebugSession:
        """Create the debug session for turns of a custom table."""
        return cls(workflow.store, maker=WorkflowTurnFactory(workflow))

    @property
    def kind(self) -> TurnKind:
        """Return the kind of its turns."""
        return self._maker.kind

    @property
    def can_run(self) -> bool:
        """Return whether turns can be begun here, or only inspected."""
        return self._maker.can_run

    def recent(self, limit: int = 50) -> list[TurnInfo]:
        """Return the newest turns, newest first."""
        return self._turns.recent(limit, table=self.kind.table.name)

    def tree(self, limit: int = 50) -> list[dict[str, Any]]:
        """Return the newest turns as JSON values, newest first; below each its forks and the turns that its
        tools or states began, oldest first. ``depth`` is the nesting level, ``agent`` the turn's agent,
        ``model``, ``tokens``, and ``cost`` (US dollars, ``None`` if a price is unknown) its usage."""
        within = (info for name in self.kind.inner for info in self._turns.recent(limit, table=name))
        found = [*self.recent(limit), *(info for info in within if info.parent is not None)]
        below: dict[str | None, list[TurnInfo]] = {}
        known, took = {info.id for info in found}, self._turns.usage()
        for info in found:
            below.setdefault(info.parent if info.parent in known else None, []).append(info)

        def nodes(infos: Iterable[TurnInfo], depth: int) -> Iterator[dict[str, Any]]:
            for info in infos:
                agent = self._turns.agent(info.id)
                yield asdict(info) | {"agent": agent, "depth": depth} | asdict(took.get(info.id, NOTHING))
                yield from nodes(reversed(below.get(info.id, [])), depth + 1)

        return list(nodes(below.get(None, []), 0))

    def newest(self) -> str | None:
        """Return the newest turn, with which a page opens."""
        found = self.recent(1)
        return found[0].id if found else None

    def find(self, name: str) -> str:
        """Return the turn with this id or unique prefix. Raises ``ConfigError`` for none or several."""
        with self.store.database.reading() as c:
            rows = c.execute(
                "SELECT id FROM turns WHERE substr(id, 1, ?) = ? ORDER BY began DESC LIMIT 6",
                (len(name), name),
            ).fetchall()
        ids = [row[0] for row in rows]
        if name in ids:
            return name
        if len(ids) != 1 or not name:
            newest = ", ".join(info.id for info in self.recent(5)) or "none yet"
            raise ConfigError(
                "no such turn" if not ids else "several turns begin so",
                name,
                ", ".join(ids) or f"the newest: {newest}",
            )
        return str(ids[0])

    def open(self, turn_id: str) -> Debugger:
        """Return the debugger of a turn; attach a new one if the turn was idle and a process now runs it."""
        with self._lock:
            known = self._open.get(turn_id)
            if known is not None and known.status.phase == "idle" and self._alive(known.record.info):
                known = None
            if known is None:
                before = self._open.get(turn_id)
                known = self._open[turn_id] = Debugger.attach(self.store, turn_id, self.kind)
                wanted = self._load_breakpoints(known) if before is None else list(before.breakpoints)
                if wanted:
                    known.set_breakpoints(wanted)
            return known

    def set_breakpoints(self, debugger: Debugger, wanted: Iterable[Breakpoint]) -> list[Breakpoint]:
        """Replace a turn's breakpoints, also for debuggers that open the turn later."""
        made = debugger.set_breakpoints(wanted)
        known = {
            turn: kept for turn, kept in self._values.get(BREAKPOINTS, {}).items() if turn != debugger.id
        }
        if made:
            known[debugger.id] = [one.to_dict() for one in made]
        newest = dict(list(known.items())[-MOST_KEPT:])
        LOOP.run(self._values.put(BREAKPOINTS, newest))
        return made

    def _load_breakpoints(self, debugger: Debugger) -> list[Breakpoint]:
        """Return the breakpoints that an earlier debugger set in a turn, without those that its table no
        longer has."""
        return [*_still_there(debugger, self._values.get(BREAKPOINTS, {}).get(debugger.id, ()))]

    def crash(self, turn_id: str) -> Crash | None:
        """Return what was in flight in a turn whose process died; ``None`` for any other turn."""
        return crash_of(self.open(turn_id).record, self.store.owners)

    def start(self, text: str) -> Debugger:
        """Begin a turn, paused before its first request."""
        return self._run(self._maker.start(text))

    def resume(self, turn_id: str) -> Debugger:
        """Resume an unfinished turn that no process runs, paused at its pause point."""
        return self._run(self._maker.resume(turn_id), like=turn_id)

    def fork(self, turn_id: str, at: int, edit: Mapping[str, Any] | None = None) -> Debugger:
        """Fork a turn at a position, paused before its first request; for ``edit``, see
        ``fsm_agent.sessions.store.edits``."""
        return self._run(self._maker.fork(turn_id, at, edit), like=turn_id)

    def compare(self, left: str, right: str) -> Comparison:
        """Compare two turns, given by their ids."""
        return compare(Record(self.store, left), Record(self.store, right))

    def test(self, turn_id: str) -> str:
        """Return a pytest file that replays the turn. Raises ``ConfigError`` for turns of a custom table."""
        if not self.kind.talks:
            raise ConfigError(
                "tests are made of this agent's turns only",
                turn_id,
                "fsm_agent.testing.row_scripts for yours",
            )
        from fsm_agent.backtest.replay import make_test

        return make_test(self.store, turn_id)

    def export(self, turn_id: str) -> str:
        """Return the turn with its session as JSON Lines, with anything that looks like a key redacted."""
        return "".join(f"{line}\n" for line in export_turn(self.store.database, turn_id))

    def import_(self, text: str) -> str:
        """Import the text of ``export`` and return the id of the turn here."""
        imported = import_lines(self.store, text.splitlines(), "what was given")
        if imported.of == "turn":
            return imported.id
        turns = self._turns.recent(1, imported.id)
        if not turns:
            raise ConfigError("the session that was imported has no turns", imported.id)
        return turns[0].id

    def close(self) -> None:
        """Detach from all turns, and close the agents created for them."""
        with self._lock:
            for debugger in self._open.values():
                debugger.close()
            self._open.clear()
            self._maker.close()

    def _alive(self, info: TurnInfo) -> bool:
        """Return whether a process runs the turn."""
        if info.ended is not None or self.store.pause_points.running(info.id) is not None:
            return info.ended is None
        return info.owner != self.store.owners.me and self.store.owners.alive(info.owner) is not None

    def _run(self, turn: Runs, like: str | None = None) -> Debugger:
        """Open a debugger for ``turn``. ``like``: a turn whose breakpoints it inherits."""
        with self._lock:
            debugger = Debugger.of(self.store, turn)
            before = self._open.get(like) if like is not None else None
            self._open[debugger.id] = debugger
            if before is not None and len(before.breakpoints):
                self.set_breakpoints(debugger, before.breakpoints)
            return debugger
