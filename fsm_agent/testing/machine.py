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
Needs ``hypothesis`` (the extra ``testing``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from fsm_agent.errors import UndeclaredEvent
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.turn_protocol import TurnLike
from fsm_agent.testing.counting import CountingTurn
from fsm_agent.testing.invariants import INVARIANTS, Invariant, InvariantBroken, Look, Place

__all__ = ["UNDECLARED", "TurnMachine"]

UNDECLARED = "no event of any table"


class TurnMachine(RuleBasedStateMachine):
    """Subclass it with ``table=`` and ``limits=``; ``without=`` leaves out events that should not be
    reported.

    ``turn`` is the turn in motion, ``taken`` the rows it took so far. ``checks`` are the invariants, to be
    extended."""

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

    # To be overridden

    def begin(self) -> TurnLike:
        """A new turn in the initial state."""
        return CountingTurn(self.table, self.limits, f"turn-{self.turns}")

    def possible(self, event: str) -> bool:
        """Could the state report ``event`` now? The table says that it may; facts may say no."""
        return True

    def move(self, event: str) -> Row:
        """Let the turn's state report ``event``; the row that was taken."""
        return self.machine.advance(self.turn, event).row

    def ended(self) -> None:
        """A turn has come to its end, after the invariants were checked."""

    # The rules

    @precondition(lambda self: self.turn.state == self.table.final)
    @rule()
    def new_turn(self) -> None:
        """The turn has ended; the next one begins."""
        self._start()

    @precondition(lambda self: self.turn.state != self.table.final)
    @rule()
    def undeclared_event(self) -> None:
        """The machine is told of an event that no state has: it refuses it, and the turn stands where it
        stood."""
        before = Place.of(self.table, self.turn)
        try:
            self.machine.advance(self.turn, UNDECLARED)
        except UndeclaredEvent:
            after = Place.of(self.table, self.turn)
            assert after == before, f"{before} became {after} by an event that nobody has"
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
    """The rule's name in the printed program: the event, unless the class already means something else by
    it."""
    name = event if event.isidentifier() else "".join(char if char.isalnum() else "_" for char in event)
    return f"report_{name}" if hasattr(cls, name) or not name.isidentifier() else name
