"""Who makes the turns of a debug session: begins, resumes and forks them. For this agent's turns an ``Agent``
does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fsm_agent.agent import Agent
from fsm_agent.composition.turn_wiring import KIND
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.pause_point import PausePoint
from fsm_agent.fsm.turn_kind import TurnKind
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.workflow import Workflow

Agents = Callable[[str | None], Agent]
"""Makes the agent that runs a turn; told the ``"<provider>:<model>"`` of one that was begun in this home."""


class Runs(Protocol):
    """A turn that can be run: of an ``Agent``, or of a ``Workflow``."""

    gate: PausePoint

    @property
    def id(self) -> str: ...

    @property
    def result(self) -> object | None:
        """``None`` until it has ended."""
        ...

    async def arun(self) -> object: ...


class TurnFactory(Protocol):
    """All raise ``ConfigError`` for what cannot be made."""

    @property
    def kind(self) -> TurnKind: ...

    @property
    def can_run(self) -> bool: ...

    def start(self, text: str) -> Runs: ...

    def resume(self, turn_id: str) -> Runs: ...

    def fork(self, turn_id: str, at: int, edit: Mapping[str, Any] | None) -> Runs: ...

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
