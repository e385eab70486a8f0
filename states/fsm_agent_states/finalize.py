"""Finalize: the one way out. Decide the text, close the transcript, store, tell, release."""

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
from fsm_agent.conversation.exit_reason import ExitReason as E
from fsm_agent.conversation.exit_reason import Outcome
from fsm_agent.conversation.history_rules import unanswered
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.parts import said
from fsm_agent.support.texts import one_line
from fsm_agent_states.logic import facts
from fsm_agent_states.logic.checks import check_answer
from fsm_agent_states.logic.explain import explain
from fsm_agent_states.logic.said import say
from fsm_agent_states.logic.unchanged import footer
from fsm_agent_states.logic.visit import Asks, check_signals
from fsm_agent_states.turn import TurnState

NO_RESULT = "no result: a bug of the agent ended the turn first; it is not known whether the call took effect"
FRAGMENT = 24
"""Characters up to which a text without a sentence end counts as a fragment that needs explaining."""


def finalize(turn: TurnState) -> Asks[None]:
    """Has no event: its end is the turn's end. Each step is guarded, so that none can lose the answer."""
    ending, closed = turn.ending, _close_calls(turn)
    turn.recovery.drop_scaffold()
    signals = yield from check_signals(turn, CheckSignals(take_steer=True))
    ending.pending_steer.extend(signals.steer)
    spoken = yield from _let_out(turn)
    ending.final_response = _final_text(turn, spoken)
    if ending.final_response and _outcome(turn) is not Outcome.INTERRUPTED and (note := footer(turn)):
        if turn.setup.output is None:
            ending.final_response += note
        else:  # whoever reads an answer of a type reads nothing else in it
            yield from say(one_line(note))
    _settle_error(turn)
    if _outgrew_itself(turn) or _message_refused(turn):
        turn.withdraw()
        yield ReplaceHistory(tuple(turn.history))
    row = _closing_row(turn, spoken)
    turn.append(row)
    done: Done = yield Persist((*closed, row))
    ending.cleanup_errors.extend(done.problems)
    yield Tell("stream_delta", (None,))
    if turn.exit is E.HANDED_OVER:
        pass  # the agent that goes on has the last word
    elif _outcome(turn) is Outcome.COMPLETED:
        yield from _transform(turn)
        yield from _remember(turn, spoken)
    elif _outcome(turn) is not Outcome.INTERRUPTED:
        yield from _keep_request(turn)
    yield Tell("event", ("turn:end", {"turn_id": turn.turn_id, "exit": turn.exit and turn.exit.value}))
    spent = 0 < turn.count("fallbacks") >= turn.limits.get("fallbacks", 0)
    exhausted = spent and _outcome(turn) is Outcome.FAILED
    done = yield CloseTurn(exhausted, turn.recovery.silences, turn.recovery.lessons)
    ending.cleanup_errors.extend(done.problems)


def _close_calls(turn: TurnState) -> list[Message]:
    """Results for calls that a bug of ours left without one: a call that is left out is work that the model
    does not know of."""
    rows = [
        Message("tool", NO_RESULT, tool_call_id=call.id, name=call.name) for call in unanswered(turn.rows)
    ]
    turn.append(*rows)
    return rows


def _outcome(turn: TurnState) -> Outcome:
    return (turn.exit or E.LOCAL_PROCESSING_ERROR).outcome


def _settle_error(turn: TurnState) -> None:
    outcome = _outcome(turn)
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


def _remember(turn: TurnState, spoken: str) -> Asks[None]:
    """Only what was said to the end: an interrupted or failed turn is not remembered (INT-13)."""
    asked = next((said(row.content) for row in turn.rows if row.role == "user"), "")
    if turn.setup.has_memory and asked.strip():
        yield SyncMemory(asked, spoken)
    if turn.setup.review_due:
        yield Tell("event", ("memory:review", {"session_id": turn.session_id, "turn_id": turn.turn_id}))
        if turn.settings.memory.review == "child":
            yield BeginReview()
    if turn.setup.unnamed:
        yield NameSession()


def _keep_request(turn: TurnState) -> Asks[None]:
    """Save the request of a turn that failed, and say where."""
    request = turn.call.request
    if _outcome(turn) is Outcome.FAILED and request is not None and turn.settings.dump_failed_requests:
        saved: Saved = yield DumpRequest(request)
        where = f"saved to {saved.path}" if saved.path else f"not saved: {saved.error}"
        yield from say(f"the request that failed was {where}")


def _outgrew_itself(turn: TurnState) -> bool:
    """A bad request on a very large session would grow with every try, if each left its message behind
    (ERR-26, decision 21)."""
    failure = turn.recovery.failure
    refused = turn.exit is E.NON_RETRYABLE_ERROR and failure is not None and failure.status == 400
    large = len(turn.history) > 80 or turn.call.estimate > 50_000
    return refused and large and facts.only_asked(turn)


def _message_refused(turn: TurnState) -> bool:
    blocked = turn.ending.blocked
    return blocked is not None and blocked["what"] == "message"


def _let_out(turn: TurnState) -> Asks[str]:
    """What was said, if the guardrails let it out; an answer was shown to them when it came."""
    spoken = _spoken(turn)
    if not turn.setup.checks.answer or not spoken.strip() or spoken == turn.draft.passed:
        return spoken
    checked = yield from check_answer(turn, spoken, typed=False)
    return "" if checked.blocked or checked.problem else spoken if checked.text is None else checked.text


def _spoken(turn: TurnState) -> str:
    """What the model itself said that may stand as the answer."""
    draft = turn.draft
    if turn.ending.blocked is not None:
        return ""
    if draft.answer is not None:
        return draft.answer
    match turn.exit:
        case E.PRIOR_CONTENT_USED:
            return draft.prior_content
        case (
            E.INTERRUPTED_IN_CALL
            | E.INTERRUPTED_BEFORE_CALL
            | E.INTERRUPTED_IN_BACKOFF
            | E.INTERRUPTED_IN_TOOLS
        ):
            return (
                (draft.partial or draft.begun or draft.held) if turn.settings.interrupt.keep_partial else ""
            )
        case E.RESPONSES_INCOMPLETE:
            return draft.begun + draft.partial
    return draft.begun or draft.held


def _final_text(turn: TurnState, spoken: str) -> str | None:
    reason = turn.exit
    if reason is E.HANDED_OVER:
        return f"(handed over to {turn.tooling.handed_to})"
    if reason in (E.TEXT_RESPONSE, E.PRIOR_CONTENT_USED, E.MAX_ITERATIONS_SUMMARY):
        return spoken
    explanation = explain(turn) if turn.settings.explain_abnormal_end else ""
    if not spoken.strip():
        return explanation or None
    if (
        explanation
        and reason is not E.LENGTH_EXHAUSTED
        and len(spoken) <= FRAGMENT
        and spoken.rstrip()[-1] not in ".!?…"
    ):
        return f"{spoken}\n\n({explanation})"
    return spoken


def _closing_row(turn: TurnState, spoken: str) -> Message:
    """What the model said is stored as its own; a note of ours is stored for people and never sent."""
    interrupted, reply = _outcome(turn) is Outcome.INTERRUPTED, turn.call.reply
    if spoken.strip():
        finish = "interrupted" if interrupted else reply.finish if reply else None
        return Message(
            "assistant",
            spoken,
            reasoning=turn.call.thoughts or None,
            finish_reason=finish,
            interrupted=interrupted,
            blocks=reply.blocks if reply and turn.draft.answer is not None else (),
        ).made_by(turn.call.issuer)
    note = turn.ending.final_response or ("(interrupted)" if interrupted else "(no answer)")
    return Message("assistant", note, finish_reason="note", interrupted=interrupted, wire=False)
