"""A table without states, played by hand: at every state a person says which of its events it reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.fsm.base_turn import BaseTurn
from fsm_agent.fsm.nested import Nested
from fsm_agent.fsm.runner import State
from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.verify.reach import all_limit_names
from fsm_agent.workflow import Workflow

USUAL_LIMIT = 2
"""Of a budget that nobody named: enough for "some left", "one left" and "none left"."""


@dataclass(frozen=True, slots=True)
class ReportEvent:
    """Which event does ``state`` report? Only a person can say."""

    state: str
    events: tuple[str, ...]


@dataclass
class ManualTurn(BaseTurn):
    """Its place, its counters, and the events on its way."""

    name: str = ""
    path: list[str] = field(default_factory=list)

    def arrive(self, row: Row) -> None:
        super().arrive(row)
        self.path.append(row.event)


def played(
    table: Table, limits: Mapping[str, int], home: str | os.PathLike[str] | None = None
) -> Workflow[ManualTurn]:
    """Turns of ``table`` that are played by hand, under these limits; so are those of the tables that it
    runs, as many as may be."""
    chosen = {name: limits.get(name, USUAL_LIMIT) for name in all_limit_names(table) if "." not in name}
    events = {
        state: tuple(dict.fromkeys(event for source, event in table.by_event if source == state))
        for state in table.states
    }
    states: dict[str, State] = {state: _asks(state, events[state]) for state in table.states}
    for state, inner in table.inner.items():
        flows = [played(one, _limits_of(one, limits), home) for one in inner.tables]
        states[state] = Nested(*flows, begin=_begins(flows * chosen.get(inner.most, 1)))
    return Workflow(
        table,
        states,
        ManualTurn,
        _nobody,
        begin=lambda text: ManualTurn(text, limits=dict(chosen)),
        home=home,
    )


def _begins(flows: Sequence[Workflow[ManualTurn]]) -> Callable[[ManualTurn], list[ManualTurn]]:
    return lambda turn: [flow.begin(turn.name) for flow in flows]


def _limits_of(table: Table, limits: Mapping[str, int]) -> dict[str, int]:
    """Those of an inner table, and of what it runs."""
    own = {name.removeprefix(f"{table.name}."): most for name, most in limits.items()}
    return {name: most for name, most in own.items() if name in all_limit_names(table)}


def _asks(state: str, events: tuple[str, ...]) -> State:
    def ask(turn: ManualTurn) -> Generator[ReportEvent, str, str | None]:
        return (yield ReportEvent(state, events)) if events else None

    return ask


async def _nobody(request: Any) -> Any:
    raise ConfigError(f"nobody is there to say what {request.state} reports", None, "a debugger")
