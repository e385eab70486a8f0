"""A Hypothesis state machine made from a table: its rules are the events of the state that the turn is in.

>>> from fsm_agent.testing.machine import TurnMachine
>>> class Parcel(TurnMachine, table=PARCEL, limits={"tries": 3, "rings": 2}):
...     pass
>>> TestParcel = Parcel.TestCase

Hypothesis then reports events in any order that the table allows, starts new turns when one has ended, checks
the invariants after every move, and prints a failure as a short program that reproduces it (``state =
Parcel(); state.packed(); …``).

By default a move is made by ``Machine.advance`` on a ``CountingTurn``. Override ``begin`` to bring a turn of
your own, and ``move`` to let your states report the event: arrange the outside world, then step your runner.
Needs ``hypothesis`` (the extra ``testing``).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from hypothesis.strategies import DataObject, SearchStrategy

from fsm_agent.agent import Agent
from fsm_agent.composition.turn_wiring import TURN
from fsm_agent.conversation.effects import Persist
from fsm_agent.conversation.result import TurnResult
from fsm_agent.errors import UndeclaredEvent
from fsm_agent.fsm.journal import Exchange, Step
from fsm_agent.fsm.machine import Machine, TurnLike
from fsm_agent.fsm.runner import CRASHED, Perform
from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.verify.cover import Script
from fsm_agent.providers.scripted import FakeClock, ScriptedModel
from fsm_agent.providers.scripted.replies import repeat
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.testing.invariants import (
    END_CHECKS,
    INVARIANTS,
    VISIT_CHECKS,
    Ended,
    Invariant,
    InvariantBroken,
    Look,
    Place,
    Visit,
)
from fsm_agent.testing.scripts import CountingTurn
from fsm_agent.testing.strategies import answers_by_kind, answers_for, histories, small_settings, windows
from fsm_agent.tools import Tool, as_tool

__all__ = [
    "UNDECLARED",
    "AgentMachine",
    "TurnMachine",
]


UNDECLARED = "no event of any table"


class TurnMachine(RuleBasedStateMachine):
    """The base class of a table's state machine. Subclass it with ``table=`` and ``limits=``; ``without=``
    excludes events.

    ``turn`` is the current turn, ``taken`` the rows it has taken so far. ``checks`` are the invariants, which
    a subclass may extend."""

    table: ClassVar[Table]
    limits: ClassVar[Mapping[str, int]]
    machine: ClassVar[Machine]
    checks: ClassVar[tuple[Invariant, ...]] = INVARIANTS

    def __init_subclass__(
        cls,
        *,
        table: Table | None = None,
        limits: Mapping[str, int] | None = None,
        without: Collection[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        if limits is not None:
            cls.limits = dict(limits)
        if table is None:
            return
        if unknown := sorted(set(without) - {row.event for row in table.rows}):
            raise ValueError(f"{table.name} has no event {', '.join(unknown)}")
        cls.table, cls.machine, cls.limits = table, Machine(table), dict(limits or {})
        for event in dict.fromkeys(row.event for row in table.rows if row.event not in without):
            name = _method(cls, event)
            setattr(cls, name, _rule(event, name))

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self._start()

    # For subclasses to override

    def begin(self) -> TurnLike:
        """Return a new turn in the initial state."""
        return CountingTurn(self.table, self.limits, f"turn-{self.turns}")

    def possible(self, event: str) -> bool:
        """Return whether the state can report ``event`` now. The table allows it; facts may forbid it."""
        return True

    def move(self, event: str) -> Row:
        """Let the turn's state report ``event``; return the row taken."""
        return self.machine.advance(self.turn, event).row

    def ended(self) -> None:
        """Handle the end of a turn, after the invariants were checked."""

    # The rules

    @precondition(lambda self: self.turn.state == self.table.final)
    @rule()
    def new_turn(self) -> None:
        """Start the next turn after one has ended."""
        self._start()

    @precondition(lambda self: self.turn.state != self.table.final)
    @rule()
    def undeclared_event(self) -> None:
        """The machine refuses an unknown event, and the turn keeps its position."""
        before = Place.of(self.table, self.turn)
        try:
            self.machine.advance(self.turn, UNDECLARED)
        except UndeclaredEvent:
            after = Place.of(self.table, self.turn)
            assert after == before, f"{before} became {after} by an undeclared event"
        else:
            raise InvariantBroken(f"{self.table.name}: {before.state} took an event that it does not have")

    def _start(self) -> None:
        self.turns += 1
        self.turn = self.begin()
        self.taken: list[Row] = []
        self.look = Look(self.table, self.turn, self.checks)

    def _report(self, event: str) -> None:
        row = self.move(event)
        self.look.moved(event, row)
        self.taken.append(row)
        if self.turn.state == self.table.final:
            self.ended()


def _rule(event: str, name: str) -> Any:
    def report(self: TurnMachine) -> None:
        self._report(event)

    report.__name__ = report.__qualname__ = name
    report.__doc__ = f"The state reports {event}."

    def here(self: TurnMachine) -> bool:
        return (self.turn.state, event) in self.table.by_event and self.possible(event)

    return precondition(here)(rule()(report))


def _method(cls: type, event: str) -> str:
    """Return the rule's name in the printed program: the event, unless the class already uses that name."""
    name = event if event.isidentifier() else "".join(char if char.isalnum() else "_" for char in event)
    return f"report_{name}" if hasattr(cls, name) or not name.isidentifier() else name


# ----------------------------------------------------------------------------------------------------
# A Hypothesis state machine over the real states of an agent's turn: its rules are what the world does.
#
# >>> from fsm_agent.testing.machine import AgentMachine
# >>> class Mine(AgentMachine, tools=[lookup]): ...
# >>> TestMine = Mine.TestCase
#
# Models answer, a person interrupts and steers, the engine has a bug, a state reports an undeclared event:
# each with data that Hypothesis generates. After every move the invariants and the requests of the visit are
# checked; after every turn, that nothing was lost or reported twice. Needs ``hypothesis`` (the extra
# ``testing``).


HAPPENS = (*["nothing"] * 60, "interrupt", "steer", "bug", "undeclared")
"""What may happen between two visits, weighted."""
STORED = {"index": False, "durability": "normal"}
LONG = st.builds(
    lambda pairs, words: [
        {"role": role, "content": f"{role} {number} " + "word " * words}
        for number in range(pairs)
        for role in ("user", "assistant")
    ],
    st.integers(3, 12),
    st.sampled_from([20, 200, 1_000]),
)
"""A history long enough for compaction."""


@dataclass(frozen=True)
class World:
    """Options of an agent: ``settings``, ``windows`` of the models in its chain, the number of ``keys`` of
    each, and a ``budget`` that its turns share. Turns begin like one of ``scripts``, as far as answers decide
    that."""

    settings: Mapping[str, Any]
    windows: Sequence[int | None] = (None,)
    keys: int = 1
    budget: int | None = None
    scripts: Sequence[Script] = ()

    @cached_property
    def starts(self) -> Sequence[Sequence[str]]:
        """Return the kinds of the first answers, per script; an empty sequence fixes nothing."""
        return list(dict.fromkeys(tuple(answers_for(script.events)) for script in self.scripts)) or [()]


WORLDS = st.builds(
    World,
    small_settings(),
    st.lists(windows(), min_size=1, max_size=3),
    st.integers(1, 3),
    st.sampled_from([None, None, None, 12]),
)


class AgentMachine(RuleBasedStateMachine):
    """The base of an agent's machine. Subclass it with ``tools=`` and, optionally, a strategy ``worlds=``.

    An example is one agent, with as many turns of one session as time allows. ``turn`` is the current turn,
    ``taken`` the rows it has taken so far, ``visits`` the visits so far. Override ``visited`` and ``ended``
    to check more; ``checks`` are the invariants of every move."""

    tools: ClassVar[Sequence[Tool]]
    worlds: ClassVar[SearchStrategy[World]]
    answers: ClassVar[Mapping[str, SearchStrategy[Any]]]
    checks: ClassVar[tuple[Invariant, ...]] = INVARIANTS

    def __init_subclass__(
        cls, *, tools: Sequence[Any] = (), worlds: SearchStrategy[World] = WORLDS, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        cls.tools, cls.worlds = [as_tool(tool) for tool in tools], worlds
        cls.answers = answers_by_kind(cls.tools)

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._home = tempfile.TemporaryDirectory()
        self._ports: list[ScriptedModel] = []
        self._bug, self._answer = False, "once"
        self.turn: Any = None
        self.turns = 0
        self.taken: list[Row] = []
        self.visits: list[Visit] = []

    def teardown(self) -> None:
        """Release what the example opened."""
        self._runner.run(self.agent.aclose())
        self._runner.close()
        self._home.cleanup()

    # For subclasses to override

    def visited(self, visit: Visit) -> None:
        """Handle the end of a visit, after it was checked."""

    def ended(self, result: TurnResult) -> None:
        """Handle the end of a turn, after it was checked."""

    # The rules

    @initialize(data=st.data())
    def an_agent(self, data: DataObject) -> None:
        """Make an agent for a generated world."""
        self.world = world = data.draw(self.worlds, label="world")
        self._start = data.draw(st.integers(0, 10**9), label="first script")
        first, *rest = [self._entry(window, world.keys) for window in world.windows]
        self.clock = FakeClock()
        self.agent = Agent(
            first.pop("model"),
            **first,
            fallbacks=rest,
            tools=self.tools,
            toolsets=[],
            settings={**world.settings, "dump_failed_requests": False, "store": STORED},
            home=self._home.name,
            workdir=self._home.name,
            clock=self.clock,
            budget=None if world.budget is None else IterationBudget(world.budget),
            callbacks={"approval": self._request_name},
        )

    @precondition(lambda self: self.turn is None)
    @rule(data=st.data())
    def begin(self, data: DataObject) -> None:
        """Begin a turn. Its models answer with a few kinds of replies, so that budgets run out."""
        kinds = st.lists(st.sampled_from(sorted(self.answers)), min_size=1, max_size=4)
        self.kinds = data.draw(kinds, label="kinds of replies")
        starts = self.world.starts
        self._first = list(starts[(self._start + self.turns) % len(starts)])
        self.turns += 1
        history = data.draw(st.none() | histories() | LONG, label="history")
        self.turn = self.agent.start("go", conversation_history=history)
        self.turn.gate.attach(self)
        self.taken, self.visits = [], []
        self._sent = sum(len(port.sent) for port in self._ports)
        self._served = sum(port.served_usage.total for port in self._ports)
        self._look = Look(TURN, self.turn.gate.turn, self.checks)

    @precondition(lambda self: self.turn is not None)
    @rule(data=st.data(), happens=st.sampled_from(HAPPENS))
    def visit(self, data: DataObject, happens: str) -> None:
        """Let the current state do its work, in a world that may answer anything."""
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
        struck = "RuntimeError: a bug" if bug and not self._bug else ""
        self._over(visit, happened, f"UndeclaredEvent: turn: {state} reported" if strange else struck)

    def _over(self, visit: Visit, step: Step | None, expected: str) -> None:
        turn = self.turn.gate.turn
        if step is not None:
            visit.row = row = TURN.row(step.row)
            assert (row.event == CRASHED) == bool(expected), f"{row.id}: {turn.recovery.error}"
            assert expected in turn.recovery.error, f"{row.id} does not say {expected}: {turn.recovery.error}"
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

    def _entry(self, window: int | None, keys: int) -> dict[str, Any]:
        self._ports.append(port := ScriptedModel(repeat(self._reply_for)))
        return {
            "model": port,
            "context_window": window,
            "api_key": [f"key-{number}" for number in range(keys)],
        }

    def _reply_for(self, body: Mapping[str, Any]) -> Any:
        kind = (
            self._first.pop(0) if self._first else self._data.draw(st.sampled_from(self.kinds), label="kind")
        )
        return self._data.draw(self.answers[kind], label="reply")

    def _request_name(self, *question: Any) -> str:
        return self._answer

    # Layers of the pause point

    async def passing(self) -> None:
        """Let the turn pass."""

    async def performing(self, request: Any, turn: Any, call_next: Perform) -> Any:
        """Raise a bug when one is due, except while storing, which is not done by states."""
        if self._bug and not isinstance(request, Persist):
            self._bug = False
            raise RuntimeError("a bug, as the machine wants it")
        return await call_next(request)


def _shrugs(turn: Any) -> Generator[Any, Any, str]:
    yield from ()
    return UNDECLARED
