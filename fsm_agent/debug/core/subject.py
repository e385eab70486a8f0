"""What is debugged: a kind of turn, by its table and its states. This agent's own, or one of the user's."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fsm_agent.composition.turn_wiring import MACHINE, STATES
from fsm_agent.fsm.pause_point import Gate
from fsm_agent.fsm.runner import State
from fsm_agent.fsm.table import Table


@dataclass(frozen=True)
class Subject:
    """``over``: the state at which *step over* stops; without one it stops when the state that it began in is left, however
    often that state is repeated. ``talks``: its turns have a transcript, requests to a model, and tools."""

    table: Table
    states: Mapping[str, State] = field(hash=False)
    over: str | None = None
    talks: bool = False

    @property
    def holds(self) -> tuple[str, ...]:
        """Kinds of requests that may be held back before they are performed."""
        return ("model", "tool") if self.talks else ("request",)

    @cached_property
    def counters(self) -> tuple[str, ...]:
        """Names, sorted."""
        return tuple(sorted(counter.name for counter in self.table.counters))


OURS = Subject(MACHINE.table, STATES, over="CallLLM", talks=True)
"""The turn of this agent."""

SUBJECTS: weakref.WeakKeyDictionary[Gate, Subject] = weakref.WeakKeyDictionary()
"""Of the gates of other turns than ours."""


def subject_of(gate: Gate) -> Subject:
    """What kind of turn stands at a gate."""
    return SUBJECTS.get(gate, OURS)
