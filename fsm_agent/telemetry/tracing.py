"""What observes the turns of one agent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from fsm_agent.telemetry.spans import Perform, Spans, TracedTurn
from fsm_agent.telemetry.turn_spans import TurnSpans, compacting


class Tracing(Spans):
    """The spans of an agent's turns."""

    def turn(self, turn: TracedTurn, handed: Callable[[], str]) -> TurnSpans:
        """Return what observes this turn; see there."""
        return TurnSpans(self, turn, handed)

    def compacting(self, turn: TracedTurn, perform: Perform) -> AbstractContextManager[Perform]:
        """Around a compaction outside of a turn: a span, and what performs its requests in it."""
        return compacting(self, turn, perform)
