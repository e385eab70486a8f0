"""What is said to the model while recovering. Wire only: none of it enters the history or the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from fsm_agent.conversation.hosted import hosted_in
from fsm_agent.conversation.messages import Message
from fsm_agent.support.texts import shorten
from fsm_agent_states.turn import TurnState

PROCESS_RESULTS = (
    "The tool results above are complete. Go on with the task now: use them, and answer or call the next"
    " tool."
)
FROM_THOUGHTS = (
    "These were your thoughts so far. Do not think again from the start: give your answer, or call a tool,"
    " now."
)
GO_ON = (
    "Your reply was cut off. Continue exactly where it ends, without repeating anything and without a"
    " preamble."
)
SMALLER = (
    "The connection broke inside your tool call, so it was not run. Make the call again in smaller pieces:"
    " keep the arguments of one call well under 8,000 tokens."
)
ANSWER_NOW = "Your reply was incomplete. Give the answer now, as text, or make the tool call."
ACT_NOW = (
    "Do it now: call the tool instead of announcing it. If nothing is left to do, give the final answer."
)
VERIFY = (
    "Files were changed and nothing was checked since. Verify the change with a tool, then give the final"
    " answer."
)
LAST_WORD = (
    "All {limit} iterations of this task are used up and no tool can be called any more. Say in text what was"
    " done, what was found, and what is still open."
)
REVISE = "This is not the answer that was asked for: {problem}\n\nGive the whole answer again, mended."
PLACEHOLDER = "(no answer yet)"


def scaffold_for(turn: TurnState) -> tuple[Message, ...]:
    """The rows that the recovery just ordered puts behind the history."""
    spent, row = turn.spent, turn.last_transition
    if "nudges" in spent:
        return Message("assistant", PLACEHOLDER), Message("user", PROCESS_RESULTS)
    if "prefills" in spent:
        return _said(shorten(turn.call.thoughts, 20_000)), Message("user", FROM_THOUGHTS)
    if "revisions" in spent:
        mend = Message("user", REVISE.format(problem=turn.draft.objection))
        return (_said(turn.draft.rejected), mend) if turn.draft.rejected.strip() else (mend,)
    if "continuations" in spent and row is not None:
        return _continuation(turn, row.event)
    return ()


def last_word(turn: TurnState) -> Message:
    """The request of the toolless call."""
    return Message("user", LAST_WORD.format(limit=turn.settings.max_iterations))


CONTINUATIONS: Mapping[str, tuple[Callable[[TurnState], str], str]] = {
    "cut_text": (lambda turn: turn.draft.begun, GO_ON),
    "dropped_call": (lambda turn: turn.draft.begun or turn.call.visible, SMALLER),
    "incomplete": (lambda turn: turn.draft.begun + turn.draft.partial, ANSWER_NOW),
    "announced": (lambda turn: turn.draft.held, ACT_NOW),
    "unverified": (lambda turn: turn.draft.held, VERIFY),
}
"""By the event that is continued: what the model has said, and what it is told to do."""
NOTHING_SAID = "open_scratchpad"
SAME_AGAIN = "cut_call"
"""The same request again, with a larger output cap."""


def _continuation(turn: TurnState, event: str) -> tuple[Message, ...]:
    if event in (NOTHING_SAID, SAME_AGAIN):
        return () if event == NOTHING_SAID else turn.recovery.scaffold
    said_in, prompt = CONTINUATIONS[event]
    said, call = said_in(turn), turn.call
    ran = hosted_in(call.reply.blocks) if call.reply and event == "incomplete" else ()
    if not said.strip() and not ran:
        return (Message("user", prompt),)
    row = replace(_said(said if said.strip() else PLACEHOLDER), blocks=ran).made_by(call.issuer)
    return row, Message("user", prompt)


def _said(text: str) -> Message:
    return Message("assistant", text)
