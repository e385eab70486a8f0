"""Runs a table: ``transitions`` chooses the row, ``Machine.advance`` applies it to the turn.

The choice is pure. ``transitions`` moves a throw-away ``_Choice`` that only reads the turn, so an error in
the evaluation of guards leaves the turn unchanged. No model is bound to the machine, no callback is
registered and no event is queued: one machine serves any number of turns and threads.
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
# What the engine knows about a turn: its position, its number of moves, and its counters. Nothing about
# models or tools.
#
# Any class with these members is a turn; it need not inherit from ``TurnLike``. Only the engine writes
# ``state`` and ``seq`` and spends or resets counters, always together and always from a row of the table. If
# a state changes any of them, the change is undone (``fsm_agent.fsm.runner``).


class TurnLike(Protocol):
    """A turn as seen by the machine, the journal and the debugger.

    ``state`` is a name of the table, ``seq`` the number of moves made. ``dump`` returns the position and
    counters as plain JSON values. ``count`` and ``limit`` raise ``KeyError`` for an unknown name."""

    state: str
    seq: int

    def count(self, counter: str) -> int:
        """Return how much of ``counter`` is spent; 0 at the start and after a reset."""
        ...

    def limit(self, name: str) -> int:
        """Return the limit of that name; constant while the turn runs, except for ``Counter.exhaustible``."""
        ...

    def spend(self, counter: str) -> None:
        """Add one to ``counter``. The guard of the row has already checked its budget."""
        ...

    def reset(self, counter: str) -> None:
        """Set ``counter`` to 0."""
        ...

    def dump(self) -> dict[str, object]:
        """Return what people see of the turn, as JSON values."""
        ...


class RunnableTurn(TurnLike, Protocol):
    """The additional members that the runner needs. ``limits`` maps names to limits, ``last_transition`` is
    the row that led to ``state``."""

    turn_id: str
    limits: dict[str, int]
    last_transition: Row | None

    def counters(self) -> dict[str, int]:
        """Return a copy of all counters by name."""
        ...

    def put_back(self, counters: Mapping[str, int], limits: Mapping[str, int]) -> None:
        """Restore these counters and limits, whatever they are now."""
        ...

    def arrive(self, row: Row) -> None:
        """Record the row just taken; the new state first does what this row spent."""

    def crash(self, error: BaseException) -> None:
        """Record a bug of ours, for the explanation at the end."""


logging.getLogger("transitions.core").setLevel(logging.INFO)
"""``transitions`` logs each of its steps at ``DEBUG``; the journal records moves and reasons in better
words."""


@dataclass(frozen=True, slots=True)
class Move:
    """One transition that was made.

    ``guards`` are the budgets evaluated, as (label, value) in order, each once; ``row.guard.label`` says why
    the row was taken. ``changes`` are (counter, before, after) of every counter whose value changed, resets
    before spends."""

    row: Row
    guards: tuple[tuple[str, bool], ...]
    changes: tuple[tuple[str, int, int], ...]


class Machine:
    """The table, ready to move turns.

    ``verified=True`` proves the table first (raises ``TableError``; the verdict is cached by the table's
    digest). ``verified=False`` skips the proof; then every ``advance`` checks that no second row is open.
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
        of the line is open and, on an unverified table, ``TableError`` when two are. In each case the turn is
        unchanged."""
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
        """Return the row that ``advance`` would take and the guards that decide it; only reads the turn.
        Raises as ``advance`` does."""
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
    """The model that ``transitions`` moves: the turn's state, the guards evaluated so far, the row taken."""

    __slots__ = ("current", "guards", "row", "turn")

    def __init__(self, turn: TurnLike) -> None:
        self.turn = turn
        self.current = turn.state
        self.guards: dict[str, bool] = {}
        self.row: Row | None = None


class _RecordedCondition(transitions.core.Condition):
    """One conjunct of a row's guard. Its budgets are recorded in their positive wording, so that a budget
    that the next row tests again (or negated) is recorded once."""

    def __init__(self, func: Guard, target: bool = True) -> None:
        super().__init__(func.label, target)
        self.guard = func
        atoms: tuple[Guard, ...] = tuple(func.atoms()) or (func,)
        self.parts = tuple((part.label, part) for part in atoms)

    def check(self, event_data: transitions.EventData) -> bool:
        choice = event_data.model
        assert isinstance(choice, _Choice)
        for label, part in self.parts:
            if label not in choice.guards:
                choice.guards[label] = bool(part.holds(choice.turn))
            if part is self.guard:
                return choice.guards[label]
        return bool(self.guard.holds(choice.turn))


class _RowTransition(transitions.Transition):
    """A transition with its row."""

    condition_cls = _RecordedCondition

    def __init__(self, source: str, dest: str, *args: Any, row: Row, **options: Any) -> None:
        super().__init__(source, dest, *args, **options)
        self.row = row

    def execute(self, event_data: transitions.EventData) -> bool:
        """Check the conditions and note the row, and nothing else: a choice has no state to leave or
        enter."""
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
    """Build the ``transitions`` machine of a table: without a model or automatic triggers, and with errors
    raised, not ignored."""
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
            f"{table.name}: the turn is in {state!r}, which is not a state of the table; states:"
            f" {', '.join(table.states)}"
        )
    declared = ", ".join(table.events(state)) or "none, the turn has ended"
    return f"{table.name}: {state} reported {event!r}, for which it has no line; declared events: {declared}"
