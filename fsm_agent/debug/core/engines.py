"""The engine of a turn as a debugger sees it, wherever it runs: here, in another process, or nowhere."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fsm_agent.agent import Agent
from fsm_agent.composition.turn_wiring import KIND
from fsm_agent.debug.core.breakpoints import Breakpoints
from fsm_agent.debug.core.commands import (
    Command,
    DebugEvent,
    HoldRequests,
    Listener,
    ReplaceBreakpoints,
    Running,
    Status,
)
from fsm_agent.debug.core.control import Controller
from fsm_agent.debug.core.record import Record
from fsm_agent.errors import ConfigError, OwnershipLost, TurnSuspended
from fsm_agent.fsm.pause_point import PausePoint, TurnKind
from fsm_agent.runtime.events import Stream
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.support.threads import LOOP
from fsm_agent.workflow import Workflow

# ----------------------------------------------------------------------------------------------------
# Who makes the turns of a debug session: begins, resumes and forks them. For this agent's turns an
# ``Agent`` does.


Agents = Callable[[str | None], Agent]
"""Makes the agent that runs a turn; told the ``"<provider>:<model>"`` of one that was begun in this home."""


class Runs(Protocol):
    """A turn that can be run: of an ``Agent``, or of a ``Workflow``."""

    gate: PausePoint

    @property
    def id(self) -> str:
        """Return the id of the turn."""
        ...

    @property
    def result(self) -> object | None:
        """``None`` until it has ended."""
        ...

    async def arun(self) -> object:
        """Run the turn to its end."""
        ...


class TurnFactory(Protocol):
    """All raise ``ConfigError`` for what cannot be made."""

    @property
    def kind(self) -> TurnKind:
        """Return what all its turns have in common."""
        ...

    @property
    def can_run(self) -> bool:
        """Say whether turns can be made, or only looked at."""
        ...

    def start(self, text: str) -> Runs:
        """Make a turn of a person's words; raises ``ConfigError``."""
        ...

    def resume(self, turn_id: str) -> Runs:
        """Continue an unfinished turn; raises ``ConfigError``."""
        ...

    def fork(self, turn_id: str, at: int, edit: Mapping[str, Any] | None) -> Runs:
        """Begin a turn at a position of another one; raises ``ConfigError``."""
        ...

    def close(self) -> None: ...


class AgentTurnFactory:
    """Each running turn gets an agent of its own, because an interrupt is the agent's."""

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
    """Begins, resumes and forks the turns of a table of the user's own."""

    can_run = True

    def __init__(self, workflow: Workflow[Any]) -> None:
        self._workflow, self.kind = workflow, workflow.kind

    def start(self, text: str) -> Runs:
        try:
            turn = self._workflow.begin(text)
        except Exception as error:  # it is the user's, and may raise anything
            raise ConfigError(
                f"no turn could be made of this ({type(error).__name__}: {error})", text
            ) from error
        return self._workflow.start(turn)

    def resume(self, turn_id: str) -> Runs:
        return self._workflow.resume(turn_id)

    def fork(self, turn_id: str, at: int, edit: Mapping[str, Any] | None) -> Runs:
        return self._workflow.fork(turn_id, at, edit)

    def close(self) -> None:
        """What the workflow works with is the user's."""


LEAVES = 1.0
"""Seconds that a released turn has to stop."""
log = logging.getLogger(__name__)


class Engine(Protocol):
    """Commands may come from any thread and return immediately; listeners receive their effects."""

    @property
    def breakpoints(self) -> Breakpoints:
        """Return the breakpoints; changes take effect at once."""
        ...

    def order(self, command: Command) -> None:
        """Carry out a command. Raises ``ConfigError`` for one that cannot be carried out."""
        ...

    def status(self) -> Status:
        """Return where the turn is, and what it does."""
        ...

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell ``listener`` what happens; call what is returned to stop that."""
        ...

    def close(self) -> None:
        """Release the turn; if a process runs it, it continues without the debugger."""
        ...


class LocalEngine:
    """A turn of this process. ``turn`` is given when nothing else runs it: the engine then runs it from the
    first command."""

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
        """A turn that only the debugger runs stays where it is, and can be resumed."""
        if (
            self._running is not None
            and not self._running.done()
            and self.status().phase in ("paused", "waiting")
        ):
            running, self._running = self._running, None
            running.cancel()
            self._left.wait(LEAVES)  # or who resumes the turn at once would find it running
            self.controller.go_away()
            self.controller.closed(ended=False)  # no debugger is attached to receive it
            return
        self.controller.go_away()


class RecordedEngine:
    """A turn that ended, or that no process runs: one can only look at it."""

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
        """Nothing to leave."""
