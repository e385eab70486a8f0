"""EmptyRecovery: handle a reply without visible text and without a call. It reports the kind of blank reply;
the table has the ladder."""

from __future__ import annotations

from typing import Literal

from fsm_agent_states.logic import facts
from fsm_agent_states.logic.visit import Asks, check_signals, say
from fsm_agent_states.turn import TurnState

Event = Literal["streamed", "prior", "after_tools", "thought_after_tools", "thought", "nothing", "cancelled"]


def empty_recovery(turn: TurnState) -> Asks[Event]:
    """Report ``streamed``, ``prior``, or what the blank reply followed. Reads only rows of this turn."""
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
