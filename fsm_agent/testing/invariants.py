"""What holds after every move of every turn, as a list of functions that a project can add its own to.

>>> from fsm_agent.testing import INVARIANTS, Look
>>> look = Look(table, turn)                     # before the first move
>>> look.moved(step.event, table.row(step.row))  # after each: raises InvariantBroken, which names the move

An invariant takes a ``Moved`` and returns what is wrong in words, or ``None``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.conversation.effects import ApiMode, Runtime
from fsm_agent.conversation.history_rules import violations
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.wire import Ask, Format, View, WireCopy
from fsm_agent.conversation.wire.modes import FORMATS
from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.turn_protocol import TurnLike
from fsm_agent.testing.wirerows import chat_rows


class InvariantBroken(AssertionError):
    """A move after which something does not hold that always has to."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a turn is: its state, number of moves and counters."""

    state: str
    seq: int
    counts: Mapping[str, int]

    @classmethod
    def of(cls, table: Table, turn: TurnLike) -> Place:
        """Note where a turn is."""
        return cls(
            turn.state, turn.seq, {counter.name: turn.count(counter.name) for counter in table.counters}
        )

    def count(self, counter: str) -> int:
        return self.counts[counter]


@dataclass(frozen=True, slots=True)
class Moved:
    """One move: the event that was reported, the row that was taken, and the turn before and after it."""

    table: Table
    turn: TurnLike
    event: str
    row: Row
    before: Place
    after: Place

    def limit(self, name: str) -> int:
        return self.turn.limit(name)

    def count(self, counter: str) -> int:
        """A counter as it was when the row was chosen."""
        return self.before.count(counter)


Invariant = Callable[[Moved], str | None]


def only_declared_events(moved: Moved) -> str | None:
    """A state reports only events that the table has for it."""
    declared = moved.table.events(moved.before.state)
    if moved.event in declared:
        return None
    return f"{moved.before.state} reported {moved.event!r}; it declares {', '.join(declared) or 'nothing'}"


def the_row_leads_from_here_to_there(moved: Moved) -> str | None:
    """The row that was taken begins and ends where the turn did."""
    row, came = moved.row, (moved.before.state, moved.event, moved.after.state)
    return (
        None
        if came == (row.source, row.event, row.dest)
        else f"the turn went {came}, the row is {row.id} to {row.dest}"
    )


def the_end_has_no_exits(moved: Moved) -> str | None:
    """Nothing leaves the final state."""
    return f"the turn left {moved.table.final}" if moved.before.state == moved.table.final else None


def seq_grows_by_one(moved: Moved) -> str | None:
    """Every move has the next number."""
    before, after = moved.before.seq, moved.after.seq
    return None if after == before + 1 else f"seq went from {before} to {after}"


def the_guard_held(moved: Moved) -> str | None:
    """With the counters before the move, and the limits that the state leaves behind."""
    return None if moved.row.guard.holds(moved) else f"its guard does not hold: {moved.row.guard.label}"


def counters_change_as_the_row_says(moved: Moved) -> str | None:
    """Counters change as the row says, and no others do."""
    expected = {name: 0 if name in moved.row.resets else count for name, count in moved.before.counts.items()}
    for name in moved.row.spends:
        expected[name] += 1
    wrong = [
        f"{name} is {count}, not {expected[name]}"
        for name, count in moved.after.counts.items()
        if count != expected[name]
    ]
    return "; ".join(wrong) or None


def counters_stay_within_limits(moved: Moved) -> str | None:
    """Under the largest limit that any guard compares a counter with."""
    largest: dict[str, int] = {}
    for row in moved.table.rows:
        for atom in row.guard.atoms():
            if atom.counter in moved.row.spends:
                largest[atom.counter] = max(largest.get(atom.counter, 0), moved.limit(atom.limit))
    over = [
        f"{name} is {moved.after.count(name)}, its limit {most}"
        for name, most in largest.items()
        if moved.after.count(name) > most
    ]
    return "; ".join(over) or None


def history_is_valid_on_every_wire(moved: Moved, wires: Mapping[ApiMode, Format] = FORMATS) -> str | None:
    """For a turn with a ``history`` of messages: it could be sent now, to each kind of provider."""
    history: Sequence[Any] | None = getattr(moved.turn, "history", None)
    if not history or not all(isinstance(row, Message) for row in history):
        return None
    for mode, form in wires.items():
        runtime = Runtime("any", "any", api_mode=mode)
        pieces = WireCopy().messages("", list(history), (), View.of(runtime, frozenset()))
        body = json.loads(form.body(Ask(runtime), pieces))
        if broken := violations(chat_rows(body)):
            return f"the history cannot be sent as {mode}: {broken[0]}"
    return None


INVARIANTS: tuple[Invariant, ...] = (
    only_declared_events,
    the_row_leads_from_here_to_there,
    the_end_has_no_exits,
    seq_grows_by_one,
    the_guard_held,
    counters_change_as_the_row_says,
    counters_stay_within_limits,
    history_is_valid_on_every_wire,
)
"""Of every turn. Add your own: ``Look(table, turn, (*INVARIANTS, mine))``."""


class Look:
    """Looks at a turn before and after each move."""

    def __init__(self, table: Table, turn: TurnLike, invariants: Iterable[Invariant] = INVARIANTS) -> None:
        self.table, self.turn, self.invariants = table, turn, tuple(invariants)
        self._before = Place.of(table, turn)

    def moved(self, event: str, row: Row) -> Moved:
        """Check the move that was just made. Raises ``InvariantBroken`` with everything that does not
        hold."""
        moved = Moved(self.table, self.turn, event, row, self._before, Place.of(self.table, self.turn))
        broken = [
            f"{invariant.__name__.replace('_', ' ')}: {wrong}"
            for invariant in self.invariants
            if (wrong := invariant(moved)) is not None
        ]
        if broken:
            lines = "\n  ".join(broken)
            raise InvariantBroken(f"{self.table.name}, move {moved.after.seq}, row {row.id}:\n  {lines}")
        self._before = moved.after
        return moved
