"""Finalize: the only exit. Decide the text, close the transcript, store, notify, release."""

from __future__ import annotations

from typing import assert_never

from fsm_agent.conversation.effects import (
    BeginReview,
    CheckSignals,
    CloseTurn,
    Done,
    DumpRequest,
    NameSession,
    Persist,
    ReplaceHistory,
    Saved,
    SyncMemory,
    Tell,
    Transform,
    Transformed,
)
from fsm_agent.conversation.messages import Message, unanswered_calls
from fsm_agent.conversation.parts import text_only
from fsm_agent.conversation.result import ExitReason as E
from fsm_agent.conversation.result import Outcome
from fsm_agent.support.texts import one_line
from fsm_agent_states.logic.ending import closing_row, explain, final_text, outcome_of, spoken_text, withdraws
from fsm_agent_states.logic.running import footer
from fsm_agent_states.logic.visit import Asks, at, check_answer, check_signals, say
from fsm_agent_states.turn import TurnState

NO_RESULT = "no result: a bug of the agent ended the turn first; it is not known whether the call took effect"


def finalize(turn: TurnState) -> Asks[None]:
    """Report no event: this visit ends the turn. Each step is guarded, so that none can lose the answer."""
    ending, closed = turn.ending, _close_calls(turn)
    turn.recovery.drop_scaffold()
    signals = yield from check_signals(turn, CheckSignals(take_steer=True))
    ending.pending_steer.extend(signals.steer)
    text = yield from _let_out(turn)
    ending.final_response = final_text(turn, text)
    if ending.final_response and outcome_of(turn) is not Outcome.INTERRUPTED and (note := footer(turn)):
        if turn.setup.output is None:
            ending.final_response += note
        else:  # a typed answer contains nothing else
            yield from say(one_line(note))
    _settle_error(turn)
    if withdraws(turn):
        turn.withdraw()
        yield ReplaceHistory(tuple(turn.history))
    row = closing_row(turn, text)
    turn.append(row)
    done: Done = yield Persist((*closed, row))
    ending.cleanup_errors.extend(done.problems)
    yield Tell("stream_delta", (None,))
    if outcome_of(turn) is Outcome.COMPLETED and turn.exit is not E.HANDED_OVER:
        yield from _transform(turn)
        yield from _remember(turn, text)
    yield from _keep_request(turn)
    yield from at("Finalize", turn)
    yield Tell("event", ("turn:end", {"turn_id": turn.turn_id, "exit": turn.exit and turn.exit.value}))
    spent = 0 < turn.count("fallbacks") >= turn.limits.get("fallbacks", 0)
    exhausted = spent and outcome_of(turn) is Outcome.FAILED
    done = yield CloseTurn(exhausted, turn.recovery.silences, turn.recovery.lessons)
    ending.cleanup_errors.extend(done.problems)


def _close_calls(turn: TurnState) -> list[Message]:
    """Add results for calls that a bug of ours left without one. If such a call were left out, the model
    would not know of work that was done."""
    rows = [
        Message("tool", NO_RESULT, tool_call_id=call.id, name=call.name)
        for call in unanswered_calls(turn.rows)
    ]
    turn.append(*rows)
    return rows


def _settle_error(turn: TurnState) -> None:
    outcome = outcome_of(turn)
    match outcome:
        case Outcome.COMPLETED:
            turn.recovery.succeed()
        case Outcome.FAILED | Outcome.PARTIAL:
            turn.recovery.settle(explain(turn))
        case Outcome.INTERRUPTED:
            pass  # nothing went wrong
        case _:
            assert_never(outcome)


def _transform(turn: TurnState) -> Asks[None]:
    changed: Transformed = yield Transform(turn.ending.final_response or "")
    if changed.text is not None:
        turn.ending.final_response, turn.ending.response_transformed = changed.text, True


def _remember(turn: TurnState, text: str) -> Asks[None]:
    """Update the external memory after a completed turn, and start the review and the naming that are due. An
    interrupted or failed turn is not remembered (INT-13)."""
    asked = next((text_only(row.content) for row in turn.rows if row.role == "user"), "")
    if turn.setup.has_memory and asked.strip():
        yield SyncMemory(asked, text)
    if turn.setup.review_due:
        yield Tell("event", ("memory:review", {"session_id": turn.session_id, "turn_id": turn.turn_id}))
        if turn.settings.memory.review == "child":
            yield BeginReview()
    if turn.setup.unnamed:
        yield NameSession()


def _keep_request(turn: TurnState) -> Asks[None]:
    """Save the request of a failed turn, and say where."""
    request = turn.call.request
    if outcome_of(turn) is Outcome.FAILED and request is not None and turn.settings.dump_failed_requests:
        saved: Saved = yield DumpRequest(request)
        where = f"saved to {saved.path}" if saved.path else f"not saved: {saved.error}"
        yield from say(f"the request that failed was {where}")


def _let_out(turn: TurnState) -> Asks[str]:
    """Return the spoken text if the guardrails pass it; they have already seen an answer when it arrived."""
    text = spoken_text(turn)
    if not turn.setup.checks.answer or not text.strip() or text == turn.draft.passed:
        return text
    checked = yield from check_answer(turn, text, typed=False)
    return "" if checked.blocked or checked.problem else text if checked.text is None else checked.text
