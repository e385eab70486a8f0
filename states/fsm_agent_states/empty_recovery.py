"""EmptyRecovery: a reply without visible text and without a call. Says what kind of blank it is; the ladder is the table's."""

from __future__ import annotations

from fsm_agent.conversation.effects import CheckSignals, Signals
from fsm_agent_states.protocol import Yields
from fsm_agent_states.turn import TurnState


def empty_recovery(turn: TurnState) -> Yields:
    """Reports ``streamed``, ``prior``, or what the blank came after. Looks at rows of this turn only."""
    signals: Signals = yield CheckSignals()
    if signals.interrupted:
        turn.interrupt_message = signals.message
        return "cancelled"
    turn.failure_class = "empty_reply"
    if turn.fragments and "".join(turn.fragments).strip():
        return "streamed"
    if turn.prior_content:
        return "prior"
    if turn.after_tools:
        return "thought_after_tools" if turn.thoughts else "after_tools"
    return "thought" if turn.thoughts else "nothing"
