"""A table without states, played by hand: at every state a person says which of its events it reports."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.fsm.journal import MemoryJournal
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.runner import RunnableTurn, Runner, State
from fsm_agent.fsm.table import Row, Table

USUAL_LIMIT = 2
"""Of a budget that nobody named: enough for "some left", "one left" and "none left"."""


@dataclass(frozen=True, slots=True)
class Report:
    """Which event does ``state`` report? Only a person can say."""

    state: str
    events: tuple[str, ...]


@dataclass
class PlayedTurn:
    """Its place, its counters, nothing else."""

    turn_id: str
    state: str
    limits: dict[str, int]
    counts: dict[str, int]
    seq: int = 0
    path: list[str] = field(default_factory=list)
    came: Row | None = None

    def count(self, counter: str) -> int:
        return self.counts[counter]

    def limit(self, name: str) -> int:
        return self.limits[name]

    def spend(self, counter: str) -> None:
        self.counts[counter] += 1

    def reset(self, counter: str) -> None:
        self.counts[counter] = 0

    def arrive(self, row: Row) -> None:
        self.came = row
        self.path.append(row.event)

    def crash(self, error: BaseException) -> None:
        raise error

    def dump(self) -> dict[str, object]:
        return {"path": list(self.path)}


def played(table: Table, limits: Mapping[str, int]) -> Callable[[str | RunnableTurn], Runner]:
    """What makes the runner of a turn of ``table`` that is played by hand, under these limits."""
    machine = Machine(table)
    events = {state: tuple(dict.fromkeys(event for source, event in table.by_event if source == state)) for state in table.states}
    states: dict[str, State] = {state: _asks(state, events[state]) for state in table.states}
    names = {atom.limit for row in table.rows for atom in row.guard.atoms()}
    flags = {counter.name for counter in table.counters if counter.flag}
    chosen = {name: 1 if name in flags else limits.get(name, USUAL_LIMIT) for name in sorted(names | flags)}

    def make(begin: str | RunnableTurn) -> Runner:
        turn = begin
        if isinstance(turn, str):
            counts = {counter.name: 0 for counter in table.counters}
            turn = PlayedTurn(f"{table.name}-{uuid.uuid4().hex[:8]}", table.initial, dict(chosen), counts)
        return Runner(turn, machine, states, _nobody, MemoryJournal())

    return make


def _asks(state: str, events: tuple[str, ...]) -> State:
    def ask(turn: PlayedTurn) -> Generator[Report, str, str | None]:
        return (yield Report(state, events)) if events else None

    return ask


async def _nobody(request: Any) -> Any:
    raise ConfigError(f"nobody is there to say what {request.state} reports", None, "a debugger")
