"""EmptyRecovery: a reply without visible text and without a call. Says what kind of blank it is; the ladder
is the table's."""

from __future__ import annotations

from typing import Literal

from fsm_agent_states.logic import facts
from fsm_agent_states.logic.visit import Asks, check_signals, say
from fsm_agent_states.turn import TurnState

Event = Literal["streamed", "prior", "after_tools", "thought_after_tools", "thought", "nothing", "cancelled"]


def empty_recovery(turn: TurnState) -> Asks[Event]:
    """Reports ``streamed``, ``prior``, or what the blank came after. Looks at rows of this turn only."""
    if (yield from check_signals(turn)).interrupted:
        return "cancelled"
    turn.recovery.classify("empty_reply")
    if facts.text_begun(turn):
        yield from say("an empty reply: the text that was shown before is the answer")
        return "streamed"
    if facts.text_prior(turn):
        yield from say("an empty reply: the text beside the last tool calls is the answer")
        return "prior"
    if facts.after_tools(turn):
        return "thought_after_tools" if facts.thought(turn) else "after_tools"
    return "thought" if facts.thought(turn) else "nothing"
