"""What observes the turns of one agent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from fsm_agent.fsm.pipeline import Layer
from fsm_agent.telemetry.spans import Spans, TracedTurn
from fsm_agent.telemetry.turn_spans import TurnSpans, compacting


class Tracing(Spans):
    """The spans of an agent's turns."""

    def turn(self, turn: TracedTurn, handed: Callable[[], str]) -> TurnSpans:
        """Return what observes this turn; see there."""
        return TurnSpans(self, turn, handed)

    def compacting(self, turn: TracedTurn) -> AbstractContextManager[Layer]:
        """Around a compaction outside of a turn: a span, and the layer around its requests."""
        return compacting(self, turn)
