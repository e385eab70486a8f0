"""ExecuteTools: check the calls of a reply, run them in safe order, give each its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fsm_agent.conversation.effects import CheckSignals, Persist, Tell
from fsm_agent.conversation.messages import Message
from fsm_agent_states.logic import facts
from fsm_agent_states.logic.running import (
    HOUSEKEEPING,
    PROGRAMMATIC,
    Checked,
    check_calls,
    limit_delegation,
    run_calls,
    store_results,
)
from fsm_agent_states.logic.visit import Asks, at, check_signals, say
from fsm_agent_states.turn import TurnState

Event = Literal[
    "done", "done_free", "answered", "unknown_tools", "bad_json", "handed_over", "halted", "cancelled"
]

SKIPPED = "not run: another call of the same reply could not be used"


def execute_tools(turn: TurnState) -> Asks[Event]:
    """Report ``done`` when every call has its result, or what was wrong with the calls."""
    reply = turn.call.reply
    assert reply is not None, "ExecuteTools is entered with a reply"
    taken = reply.tool_calls[: turn.settings.tool.max_calls]
    calls = check_calls(taken, turn.setup.tools, turn.settings.fuzzy_name_cutoff)
    if any(item.verdict == "bad_json" for item in calls):
        if not facts.answers_errors(turn):
            return "bad_json"
        yield from say("the arguments of a call are still no JSON: the model reads why")
        yield from _answer_all(turn, calls)
        return "answered"
    if all(item.verdict == "unknown" for item in calls):
        yield from _answer_all(turn, calls)
        return "unknown_tools"
    limit_delegation(calls, turn.settings.delegation.max_children)
    yield from _announce(turn, calls)
    yield from at("ExecuteTools.run", turn)
    interrupted = yield from run_calls(turn, calls)
    signals = yield from check_signals(turn, CheckSignals(take_steer=not interrupted))
    yield from store_results(turn, calls, signals.steer, signals.news)
    if interrupted or signals.interrupted:
        return "cancelled"
    yield from at("ExecuteTools.done", turn)
    if turn.tooling.guardrails.halted:
        return "halted"
    if turn.tooling.handed_to:
        return "handed_over"
    return "done_free" if all(item.call.name in PROGRAMMATIC for item in calls) else "done"


def _answer_all(turn: TurnState, calls: Sequence[Checked]) -> Asks[None]:
    """Tell the model what was wrong with its calls; run nothing."""
    for item in calls:
        if item.outcome is None:
            item.answer(SKIPPED)
    yield from _announce(turn, calls)
    yield from store_results(turn, calls, (), ())


def _announce(turn: TurnState, calls: Sequence[Checked]) -> Asks[None]:
    """Store the assistant row with ALL its calls before anything runs."""
    assert turn.call.reply is not None
    text = turn.draft.begun + turn.call.visible
    row = Message(
        "assistant",
        text or None,
        tool_calls=tuple(item.call for item in calls),
        reasoning=turn.call.thoughts or None,
        finish_reason="tool_calls",
        blocks=turn.call.reply.blocks,
    ).made_by(turn.call.issuer)
    turn.append(row)
    tidies = all(item.call.name in HOUSEKEEPING for item in calls)
    unchecked = (
        turn.setup.output is None and not turn.setup.checks.answer
    )  # words beside calls are not checked
    is_answer = tidies and unchecked and text.strip()
    turn.draft.call_tools(prior_content=text if is_answer else "")
    turn.recovery.drop_scaffold()
    yield Persist((row,))
    yield Tell("stream_delta", (None,))
    if text.strip():
        yield Tell("interim_assistant", (text,))
