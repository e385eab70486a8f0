"""Finalize: the one way out. Decide the text, close the transcript, store, tell, release."""

from __future__ import annotations

from fsm_agent.messages import Message
from fsm_agent.outcome import ExitReason as E
from fsm_agent.outcome import Outcome
from fsm_agent.requests import CheckSignals, CloseTurn, Done, Persist, Signals, Tell
from states.explain import explain
from states.protocol import Steps
from states.turn import TurnState

FRAGMENT = 24
"""Characters up to which a text without a sentence end counts as a fragment that needs explaining."""


def finalize(turn: TurnState) -> Steps:
    """Has no event: its end is the turn's end. Each step is guarded, so that none can lose the answer."""
    signals: Signals = yield CheckSignals(take_steer=True)
    turn.pending_steer.extend(signals.steer)
    turn.interrupt_message = turn.interrupt_message or signals.message
    spoken = _spoken(turn)
    turn.final_response = _final_text(turn, spoken)
    if _unsuccessful(turn):
        turn.error = turn.error or explain(turn)
    elif turn.exit is not None and turn.exit.outcome is Outcome.COMPLETED:
        turn.error, turn.failure_class = "", ""
    row = _closing_row(turn, spoken)
    turn.append(row)
    turn.scaffold = ()
    done: Done = yield Persist((row,))
    turn.cleanup_errors.extend(done.problems)
    yield Tell("stream_delta", (None,))
    if _unsuccessful(turn):
        for line in turn.trace[-20:]:
            yield Tell("status", (line,))
    done = yield CloseTurn()
    turn.cleanup_errors.extend(done.problems)


def _unsuccessful(turn: TurnState) -> bool:
    return turn.exit is not None and turn.exit.outcome in (Outcome.FAILED, Outcome.PARTIAL)


def _spoken(turn: TurnState) -> str:
    """What the model itself said that may stand as the answer."""
    if turn.answer is not None:
        return turn.answer
    match turn.exit:
        case E.PRIOR_CONTENT_USED:
            return turn.prior_content
        case E.INTERRUPTED_IN_CALL | E.INTERRUPTED_BEFORE_CALL | E.INTERRUPTED_IN_BACKOFF | E.INTERRUPTED_IN_TOOLS:
            return (turn.partial or "".join(turn.fragments)) if turn.settings.interrupt.keep_partial else ""
    return "".join(turn.fragments) or turn.held


def _final_text(turn: TurnState, spoken: str) -> str | None:
    if turn.exit in (E.TEXT_RESPONSE, E.PRIOR_CONTENT_USED, E.MAX_ITERATIONS_SUMMARY):
        return spoken
    explanation = explain(turn) if turn.settings.explain_abnormal_end else ""
    if not spoken.strip():
        return explanation or None
    if explanation and turn.exit is not E.LENGTH_EXHAUSTED and len(spoken) <= FRAGMENT and spoken.rstrip()[-1] not in ".!?…":
        return f"{spoken}\n\n({explanation})"
    return spoken


def _closing_row(turn: TurnState, spoken: str) -> Message:
    """What the model said is stored as its own; a note of ours is stored for people and never sent."""
    interrupted = turn.exit is not None and turn.exit.outcome is Outcome.INTERRUPTED
    if spoken.strip():
        finish = "interrupted" if interrupted else turn.reply.finish if turn.reply else None
        return Message("assistant", spoken, reasoning=turn.thoughts or None, finish_reason=finish, interrupted=interrupted)
    note = turn.final_response or ("(interrupted)" if interrupted else "(no answer)")
    return Message("assistant", note, finish_reason="note", interrupted=interrupted, wire=False)
