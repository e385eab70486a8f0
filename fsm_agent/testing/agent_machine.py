"""A Hypothesis state machine over the real states of an agent's turn: its rules are what the world does.

>>> from fsm_agent.testing.agent_machine import AgentMachine
>>> class Mine(AgentMachine, tools=[lookup]):
...     pass
>>> TestMine = Mine.TestCase

Models answer, a person interrupts and steers, the engine has a bug, a state reports what it may not: each with
data that Hypothesis generates. After every move the invariants are checked, and what the visit asked for; after
every turn, that nothing was lost or told twice. Needs ``hypothesis`` (``pip install 'fsm-agent[testing]'``)."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from hypothesis.strategies import DataObject, SearchStrategy

from fsm_agent.agent import Agent
from fsm_agent.composition.turn_table import TURN
from fsm_agent.conversation.result import TurnResult
from fsm_agent.fsm.journal import Exchange, Step
from fsm_agent.fsm.pause_point import Perform
from fsm_agent.fsm.runner import CRASHED
from fsm_agent.providers.scripted.clock import FakeClock
from fsm_agent.providers.scripted.model import ScriptedModel
from fsm_agent.providers.scripted.replies import repeat
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.testing.invariants import INVARIANTS, Invariant, Look
from fsm_agent.testing.strategies import histories, small_settings, told_apart, windows
from fsm_agent.testing.visits import END_CHECKS, VISIT_CHECKS, Ended, Visit
from fsm_agent.tools import Tool, as_tool

__all__ = ["AgentMachine"]

HAPPENS = (*["nothing"] * 60, "interrupt", "steer", "bug", "undeclared")
"""What comes between two visits."""
STORED = {"index": False, "durability": "normal"}
UNDECLARED = "shrug"
"""An event that no state has."""


class AgentMachine(RuleBasedStateMachine):
    """Subclass it with ``tools=`` and, if you like, ``settings=``, a strategy for the settings of an agent.

    An example is one agent with its fallbacks and keys, and as many turns of one session as there is time for.
    ``turn`` is the turn in motion, ``taken`` the rows it took so far, ``visits`` what they did. Override
    ``visited`` and ``ended`` to check more; ``checks`` are the invariants of every move."""

    tools: ClassVar[Sequence[Tool]]
    settings: ClassVar[SearchStrategy[Mapping[str, Any]]]
    answers: ClassVar[Mapping[str, SearchStrategy[Any]]]
    checks: ClassVar[tuple[Invariant, ...]] = INVARIANTS

    def __init_subclass__(
        cls,
        *,
        tools: Sequence[Any] = (),
        settings: SearchStrategy[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        if tools or not hasattr(cls, "tools"):
            cls.tools = [as_tool(tool) for tool in tools]
            cls.answers = told_apart(cls.tools)
        cls.settings = settings or getattr(cls, "settings", None) or small_settings()

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._home = tempfile.TemporaryDirectory()
        self._ports: list[ScriptedModel] = []
        self._bug, self._answer = False, "once"
        self.turn: Any = None

    def teardown(self) -> None:
        """Close what the example opened."""
        self._runner.run(self.agent.aclose())
        self._runner.close()
        self._home.cleanup()

    # To be overridden

    def visited(self, visit: Visit) -> None:
        """A visit has ended with a move, after it was checked."""

    def ended(self, result: TurnResult) -> None:
        """A turn has come to its end, after it was checked."""

    # The rules

    @initialize(data=st.data())
    def an_agent(self, data: DataObject) -> None:
        """Settings, a chain of models, keys, and a budget that is shared with others."""
        settings = data.draw(self.settings, label="settings")
        chain = [self._entry(data) for _ in range(data.draw(st.integers(1, 3), label="models"))]
        budget = data.draw(st.sampled_from([None, None, 3, 12]), label="shared budget")
        first, *rest = chain
        self.agent = Agent(
            first.pop("model"),
            **first,
            fallbacks=rest,
            tools=self.tools,
            toolsets=[],
            settings={**settings, "dump_failed_requests": False, "store": STORED},
            home=self._home.name,
            workdir=self._home.name,
            clock=(clock := FakeClock()),
            budget=None if budget is None else IterationBudget(budget),
            callbacks={"approval": self._asked},
        )
        self.clock = clock

    @precondition(lambda self: self.turn is None)
    @rule(data=st.data())
    def begin(self, data: DataObject) -> None:
        """A message; what models say until the turn has ended is of a few kinds, so that budgets run out."""
        kinds = st.lists(st.sampled_from(sorted(self.answers)), min_size=1, max_size=4)
        self.kinds = data.draw(kinds, label="kinds of replies")
        history = data.draw(st.none() | histories(), label="history")
        self.turn = self.agent.start("go", conversation_history=history)
        self.turn.gate.watcher = self
        self.taken, self.visits = [], []
        self._sent = sum(len(port.sent) for port in self._ports)
        self._served = sum(port.served_usage.total for port in self._ports)
        self._look = Look(TURN, self.turn.gate.turn, self.checks)

    @precondition(lambda self: self.turn is not None)
    @rule(data=st.data(), happens=st.sampled_from(HAPPENS))
    def visit(self, data: DataObject, happens: str) -> None:
        """The state that the turn is in does its work, in a world that answers anything."""
        self._data, state = data, self.turn.state
        self._bug = bug = happens == "bug" and state != TURN.final
        if state == "ExecuteTools":
            self._answer = data.draw(st.sampled_from(["once", "deny"]), label="what a person says")
        if happens == "interrupt":
            self.agent.interrupt("stop it")
        if happens == "steer":
            self.agent.steer("look at the other one")
        if strange := happens == "undeclared" and state != TURN.final:
            self.turn._runner.states = {**(usual := self.turn._runner.states), state: _shrugs}
        visit = Visit(state, self.taken[-1] if self.taken else None)
        while isinstance(happened := self._runner.run(self.turn.step_into()), Exchange):
            visit.exchanges.append(happened)
        if strange:
            self.turn._runner.states = usual
        self._over(visit, happened, expected=strange or (bug and not self._bug))

    def _over(self, visit: Visit, step: Step | None, expected: bool) -> None:
        turn = self.turn.gate.turn
        if step is not None:
            visit.row = row = TURN.row(step.row)
            assert (row.event == CRASHED) == expected, f"{row.id}: {turn.recovery.error}"
            visit.said = turn.call.visible if visit.state == "CallLLM" else ""
            self._look.moved(step.event, row)
            self.taken.append(row)
        self.visits.append(visit)
        for check in VISIT_CHECKS:
            check(visit, turn)
        self.visited(visit)
        if step is None:
            result, self.turn = self.turn.result, None
            sent = sum(len(port.sent) for port in self._ports) - self._sent
            served = sum(port.served_usage.total for port in self._ports) - self._served
            for end_check in END_CHECKS:
                end_check(Ended(turn, result, self.visits, self.agent, sent, served))
            self.ended(result)
            self.clock.advance(7_200)

    # The world

    def _entry(self, data: DataObject) -> dict[str, Any]:
        self._ports.append(port := ScriptedModel(repeat(self._said)))
        keys = data.draw(st.integers(1, 3), label="keys")
        return {
            "model": port,
            "context_window": data.draw(windows(), label="window"),
            "api_key": [f"key-{number}" for number in range(keys)],
        }

    def _said(self, body: Mapping[str, Any]) -> Any:
        kind = self._data.draw(st.sampled_from(self.kinds), label="kind")
        return self._data.draw(self.answers[kind], label="reply")

    def _asked(self, *question: Any) -> str:
        return self._answer

    # Who stands at the gate

    async def passing(self) -> None:
        """Lets the turn pass."""

    async def performing(self, request: Any, perform: Perform) -> Any:
        """Raises a bug where one is wanted."""
        if self._bug:
            self._bug = False
            raise RuntimeError("a bug, as the machine wants it")
        return await perform(request)

    def happened(self, what: Exchange | Step) -> None:
        """Nothing to do."""

    def closed(self, ended: bool) -> None:
        """Nothing to do."""


def _shrugs(turn: Any) -> Generator[Any, Any, str]:
    yield from ()
    return UNDECLARED
