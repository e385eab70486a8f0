"""Who makes the turns of a debug session: begins, resumes and forks them. For this agent's turns an ``Agent`` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fsm_agent.agent import Agent
from fsm_agent.debug.core.subject import OURS, Subject
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.pause_point import Gate
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.read import Turns

Agents = Callable[[str | None], Agent]
"""Makes the agent that runs a turn; told the ``"<provider>:<model>"`` of one that was begun in this home."""


class Runs(Protocol):
    """A turn that can be run: a ``Turn``, or a ``TableTurn``."""

    gate: Gate

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
    def subject(self) -> Subject: ...

    @property
    def can_run(self) -> bool: ...

    def start(self, text: str) -> Runs: ...

    def resume(self, turn_id: str) -> Runs: ...

    def fork(self, turn_id: str, at: int, edit: Mapping[str, Any] | None) -> Runs: ...

    def close(self) -> None: ...


class AgentTurnFactory:
    """Each running turn gets an agent of its own, because an interrupt is the agent's."""

    subject = OURS

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
