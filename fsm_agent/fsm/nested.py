"""A state that runs other tables: it asks for a turn of each, waits for all, and reports how they ended.
(Why: decision 101.)"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

from fsm_agent.errors import ConfigError
from fsm_agent.fsm import values
from fsm_agent.fsm.base_turn import BaseTurn
from fsm_agent.fsm.pause_point import TurnKind
from fsm_agent.fsm.table import Table


@dataclass(frozen=True)
class TurnEnded:
    """How an inner turn ended: its exit reason, and what it knew, as it is stored. Who answers by hand may
    leave ``turn`` out: it is as it began then."""

    exit: str
    turn: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunTurn:
    """Run a turn of another table to its end, or continue it; ``begins`` as it is stored. Its id says which
    one it is: ``3.0@t-1`` is the first branch that ``t-1`` asked for after three moves."""

    turn_id: str
    table: str
    begins: dict[str, Any]
    reply: ClassVar[type] = TurnEnded


class TurnsOfTable(Protocol):
    """What a ``Workflow`` says about its turns."""

    kind: TurnKind
    turn_type: Any


class Nested:
    """The state of a table that runs other tables (``Table.inner``).

    ``flows``: a ``Workflow`` for each of them, in order; their turns are stored in the home of the outer one.
    ``begin`` makes the inner turns of the outer one: one for each table, in order, or of the only table as
    many as the limit allows. ``join`` puts into the outer turn what it wants of them when all have ended
    (``inner.exit``, and what else they know). The event is the exit; see ``Table.joined``. Both are pure, as
    states are: after a crash they are called again."""

    def __init__(
        self,
        *flows: TurnsOfTable,
        begin: Callable[[Any], Sequence[BaseTurn]],
        join: Callable[[Any, list[Any]], None] = lambda turn, ended: None,
    ) -> None:
        self.flows, self.begin, self.join = flows, begin, join
        self.__wrapped__ = begin  # its source is what an editor shows
        self.table: Table | None = None

    def of(self, table: Table, state: str) -> Self:
        """The same as a state of ``table``. Raises ``ConfigError`` for one that runs other tables."""
        wanted = table.inner[state].tables
        if tuple(flow.kind.table for flow in self.flows) != wanted:
            given = ", ".join(flow.kind.table.name for flow in self.flows) or "none"
            raise ConfigError(
                f"{state} of {table.name} runs other tables", given, ", ".join(one.name for one in wanted)
            )
        bound = type(self)(*self.flows, begin=self.begin, join=self.join)
        bound.table = table
        return bound

    def __call__(self, turn: BaseTurn) -> Generator[list[RunTurn], list[TurnEnded], str]:
        assert self.table is not None
        begun = list(self.begin(turn))
        flows = self._flows(turn, begun)
        asked: list[RunTurn] = []
        for place, (inner, flow) in enumerate(zip(begun, flows, strict=True)):
            inner.turn_id = f"{turn.seq}.{place}@{turn.turn_id}"
            asked.append(RunTurn(inner.turn_id, flow.kind.table.name, values.to_json(inner)))
        replies = (yield asked) if asked else []
        ended = [
            values.from_json(type(inner), {**one.begins, **reply.turn, "exit": reply.exit})
            for inner, one, reply in zip(begun, asked, replies, strict=True)
        ]
        self.join(turn, ended)
        return self.table.joined(turn.state, [reply.exit for reply in replies])

    def _flows(self, turn: BaseTurn, begun: Sequence[BaseTurn]) -> Sequence[TurnsOfTable]:
        """Whose turn each is. Raises ``ConfigError`` for others than the table says."""
        assert self.table is not None
        most = self.table.inner[turn.state].most
        flows = self.flows * len(begun) if most else self.flows
        wanted = [flow.turn_type.__name__ for flow in flows]
        if (given := [type(one).__name__ for one in begun]) != wanted:
            raise ConfigError(f"{turn.state} began other turns", ", ".join(given), ", ".join(wanted))
        if most and len(begun) > turn.limit(most):
            raise ConfigError(
                f"{turn.state} began too many turns", len(begun), f"{turn.limit(most)} ({most})"
            )
        return flows
