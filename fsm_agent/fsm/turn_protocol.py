"""What the engine knows of a turn: where it is, how often it moved, and its counters. Nothing about models or
tools.

Any class with these members is a turn; it need not inherit from ``TurnLike``. The engine is the only one that
writes ``state`` and ``seq`` and that spends or resets counters, always together and always from a row of the
table; what a state changes of it is put back (``fsm_agent.fsm.standing``). (Why: decision 12.)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fsm_agent.fsm.table import Row


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
