"""Runs a table: ``transitions`` chooses the row, ``Machine.advance`` applies it to the turn.

The choice is pure. ``transitions`` moves a throw-away ``_Choice`` that only reads the turn, so whatever goes
wrong while guards are evaluated leaves the turn as it was. No model is ever bound to the machine, no callback
is registered and no event is queued: one machine serves any number of turns and threads.
"""

# `transitions` only chooses. A choice has no state to leave, so a row's `execute` checks its conditions and
# reports its name; the machine sets the turn's state.

# What the engine knows about a turn. The engine uses `state`, `seq`, `count`, `limit`, `spend`, `reset`,
# `dump`, and, for the runner, `arrive` and `crash`. There is no `load`: a dataclass is stored field by field,
# and `dump` is only for display.

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import transitions

from fsm_agent.errors import StuckTurn, TableError, UndeclaredEvent
from fsm_agent.fsm.proof import prove
from fsm_agent.fsm.table import Guard, Row, Table
from fsm_agent.runtime.events import EVERYWHERE, RowTaken

# ----------------------------------------------------------------------------------------------------
# What the engine knows of a turn: where it is, how often it moved, and its counters. Nothing about models
# or tools.
#
# Any class with these members is a turn; it need not inherit from ``TurnLike``. The engine is the only one
# that writes ``state`` and ``seq`` and that spends or resets counters, always together and always from a
# row of the table; what a state changes of it is put back (``fsm_agent.fsm.runner``).


class TurnLike(Protocol):
    """A turn as the machine, the journal and the debugger see it.

    ``state`` is a name of the table, ``seq`` the number of moves made. ``dump`` gives plain JSON values:
    where the turn is and what it counted. ``count`` and ``limit`` raise ``KeyError`` for a name that the turn
    does not have."""

    state: str
    seq: int

    def count(self, counter: str) -> int:
        """How much of ``counter`` is spent; 0 at the start and after a reset."""
        ...

    def limit(self, name: str) -> int:
        """The limit of that name; constant while the turn runs, see ``Counter.exhaustible``."""
        ...

    def spend(self, counter: str) -> None:
        """Add one to ``counter``. The guard of the row has already said that its budget is left."""
        ...

    def reset(self, counter: str) -> None:
        """Set ``counter`` to 0."""
        ...

    def dump(self) -> dict[str, object]:
        """Return what people are shown of the turn, as JSON values."""
        ...


class RunnableTurn(TurnLike, Protocol):
    """What the runner needs besides what the machine needs. ``limits`` are the maxima by name,
    ``last_transition`` is the row that led to ``state``."""

    turn_id: str
    limits: dict[str, int]
    last_transition: Row | None

    def counters(self) -> dict[str, int]:
        """Return all counters by their names; a copy."""
        ...

    def put_back(self, counters: Mapping[str, int], limits: Mapping[str, int]) -> None:
        """Have these counters and limits again, whatever they are now."""
        ...

    def arrive(self, row: Row) -> None:
        """The row that was just taken: what it spent is what the new state does first."""

    def crash(self, error: BaseException) -> None:
        """A bug of ours, kept for the explanation at the end."""


logging.getLogger("transitions.core").setLevel(logging.INFO)
"""It tells each of its steps at ``DEBUG``; what moved and why is in the journal, in better words."""


@dataclass(frozen=True, slots=True)
class Move:
    """One transition that was made.

    ``guards`` are the budgets that were looked at, (label, value) in the order of evaluation, each once; why
    the row was taken reads in ``row.guard.label``. ``changes`` are (counter, before, after) of every counter
    whose value changed, resets before spends."""

    row: Row
    guards: tuple[tuple[str, bool], ...]
    changes: tuple[tuple[str, int, int], ...]


class Machine:
    """The table, ready to move turns.

    ``verified=True`` proves the table first (raises ``TableError``; the verdict is remembered for the table's
    digest). ``verified=False`` takes it as it is; then every ``advance`` checks that no second row is open.
    """

    def __init__(self, table: Table, *, verified: bool = True) -> None:
        if verified:
            prove(table)
        self.table = table
        self.verified = verified
        self.chooser = _chooser(table)

    def advance(self, turn: TurnLike, event: str | None) -> Move:
        """Take the row that is open for ``event``: reset and spend its counters, enter its state, count the
        move.

        Raises ``UndeclaredEvent`` when the turn's state has no line for ``event``, ``StuckTurn`` when no row
        of the line is open and, on an unverified table, ``TableError`` when two are. The turn is unchanged
        then."""
        row, guards = self.choose(turn, event)
        before = {counter: turn.count(counter) for counter in (*row.resets, *row.spends)}
        after = dict(before)
        for counter in row.resets:
            if after[counter]:
                turn.reset(counter)
                after[counter] = 0
        for counter in row.spends:
            turn.spend(counter)
            after[counter] += 1
        turn.state = row.dest
        turn.seq += 1
        if EVERYWHERE.hears(RowTaken):
            EVERYWHERE.publish(RowTaken(self.table, row))
        changes = [(name, was, after[name]) for name, was in before.items() if was != after[name]]
        return Move(row, guards, tuple(changes))

    def choose(self, turn: TurnLike, event: str | None) -> tuple[Row, tuple[tuple[str, bool], ...]]:
        """The row that ``advance`` would take and the guards that say so; the turn is only read. Raises as
        ``advance``."""
        if not isinstance(event, str) or (turn.state, event) not in self.table.by_event:
            raise UndeclaredEvent(_undeclared_words(self.table, turn.state, event))
        choice = _Choice(turn)
        self.chooser.events[event].trigger(choice)
        guards = tuple(choice.guards.items())
        if choice.row is None:
            values = ", ".join(f"{label}: {value}" for label, value in guards)
            raise StuckTurn(f"{self.table.name}: no row of {turn.state}.{event} is open ({values})")
        if not self.verified:
            self._refuse_overlap(turn, choice.row)
        return choice.row, guards

    def _refuse_overlap(self, turn: TurnLike, taken: Row) -> None:
        rows = self.table.by_event[taken.source, taken.event]
        second = [row.id for row in rows if row is not taken and row.guard.holds(turn)]
        if second:
            raise TableError(
                f"{self.table.name}: rows {taken.id} and {second[0]} are both open; let {second[0]} need what"
                f" {taken.id} refuses"
            )


class _Choice:
    """The model that ``transitions`` moves: where the turn is, the guards seen so far, the row taken."""

    __slots__ = ("current", "guards", "row", "turn")

    def __init__(self, turn: TurnLike) -> None:
        self.turn = turn
        self.current = turn.state
        self.guards: dict[str, bool] = {}
        self.row: Row | None = None


class _RecordedCondition(transitions.core.Condition):
    """One conjunct of a row's guard. Its budgets are recorded in their positive wording, so that the same
    budget tested again (or negated) by the next row is not told twice."""

    def __init__(self, func: Guard, target: bool = True) -> None:
        super().__init__(func.label, target)
        self.guard = func
        told: tuple[Guard, ...] = tuple(func.atoms()) or (func,)
        self.told = tuple((part.label, part) for part in told)

    def check(self, event_data: transitions.EventData) -> bool:
        choice = event_data.model
        assert isinstance(choice, _Choice)
        for label, part in self.told:
            if label not in choice.guards:
                choice.guards[label] = bool(part.holds(choice.turn))
            if part is self.guard:
                return choice.guards[label]
        return bool(self.guard.holds(choice.turn))


class _RowTransition(transitions.Transition):
    """A transition that knows its row."""

    condition_cls = _RecordedCondition

    def __init__(self, source: str, dest: str, *args: Any, row: Row, **options: Any) -> None:
        super().__init__(source, dest, *args, **options)
        self.row = row

    def execute(self, event_data: transitions.EventData) -> bool:
        """Choosing is all: a choice has no state to leave or enter, and no callback is registered."""
        for condition in self.conditions:
            if not condition.check(event_data):
                return False
        choice = event_data.model
        assert isinstance(choice, _Choice)
        choice.row = self.row
        return True


class _RowMachine(transitions.Machine):
    transition_cls = _RowTransition


def _chooser(table: Table) -> transitions.Machine:
    """The ``transitions`` machine of a table: no model, no automatic triggers, errors raised and not
    ignored."""
    machine = _RowMachine(
        model=None,
        states=list(table.states),
        initial=table.initial,
        auto_transitions=False,
        ignore_invalid_triggers=False,
        model_attribute="current",
        name=table.name,
    )
    for row in table.rows:
        conditions: list[Any] = list(row.conjuncts)
        machine.add_transition(row.event, row.source, row.dest, conditions=conditions, row=row)
    return machine


def _undeclared_words(table: Table, state: str, event: object) -> str:
    if state not in table.states:
        return (
            f"{table.name}: the turn is in {state!r}, which is no state of the table; states:"
            f" {', '.join(table.states)}"
        )
    declared = ", ".join(table.events(state)) or "none, the turn has ended"
    return f"{table.name}: {state} reported {event!r}, for which it has no line; declared events: {declared}"
