"""``TurnKind``: what all turns of one table have in common, for whoever looks at them or stops them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fsm_agent.fsm.runner import State
from fsm_agent.fsm.table import Table


@dataclass(frozen=True)
class TurnKind:
    """``over``: the state at which *step over* stops; without one it stops when the state that it began in is
    left, however often that state is repeated. ``talks``: its turns have a transcript, requests to a model,
    and tools. ``inner``: the kinds of the turns that its states run, and theirs, by the names of their
    tables."""

    table: Table
    states: Mapping[str, State] = field(hash=False)
    over: str | None = None
    talks: bool = False
    inner: Mapping[str, TurnKind] = field(default_factory=dict, hash=False)

    @property
    def holds(self) -> tuple[str, ...]:
        """Kinds of requests that may be held back before they are performed."""
        return ("model", "tool") if self.talks else ("request",)

    @property
    def counters(self) -> tuple[str, ...]:
        """Names, sorted."""
        return tuple(sorted(counter.name for counter in self.table.counters))
