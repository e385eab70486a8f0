"""Finalize: the one way out. Decide the text, close the transcript, store, tell, release."""

from __future__ import annotations

from dataclasses import replace

from fsm_agent.conversation.effects import (
    CheckSignals,
    CloseTurn,
    Done,
    DumpRequest,
    Persist,
    ReplaceHistory,
    Saved,
    Signals,
    SyncMemory,
    Tell,
    Transform,
    Transformed,
)
from fsm_agent.conversation.exit_reason import ExitReason as E
from fsm_agent.conversation.exit_reason import Outcome
from fsm_agent.conversation.messages import Message
from fsm_agent_states.logic.explain import explain
from fsm_agent_states.logic.unchanged import footer
from fsm_agent_states.protocol import Steps
from fsm_agent_states.turn import TurnState

TRACE = 20
"""Lines of the trace that are shown when a turn fails."""
FRAGMENT = 24
"""Characters up to which a text without a sentence end counts as a fragment that needs explaining."""


def finalize(turn: TurnState) -> Steps:
    """Has no event: its end is the turn's end. Each step is guarded, so that none can lose the answer."""
    signals: Signals = yield CheckSignals(take_steer=True)
    turn.pending_steer.extend(signals.steer)
    turn.interrupt_message = turn.interrupt_message or signals.message
    spoken = _spoken(turn)
    turn.final_response = _final_text(turn, spoken)
    if turn.final_response and _outcome(turn) is not Outcome.INTERRUPTED:
        turn.final_response += footer(turn)
    _settle_error(turn)
    if _outgrew_itself(turn):
        yield ReplaceHistory(_without_request(turn))
    row = _closing_row(turn, spoken)
    turn.append(row)
    turn.scaffold = ()
    done: Done = yield Persist((row,))
    turn.cleanup_errors.extend(done.problems)
    yield Tell("stream_delta", (None,))
    if _outcome(turn) is Outcome.COMPLETED:
        yield from _transform(turn)
        yield from _remember(turn, spoken)
    elif _outcome(turn) is not Outcome.INTERRUPTED:
        yield from _show_trace(turn)
    yield Tell("event", ("turn:end", {"turn_id": turn.turn_id, "exit": turn.exit and turn.exit.value}))
    spent = 0 < turn.fallbacks >= turn.limits.get("fallbacks", 0)
    done = yield CloseTurn(chain_exhausted=spent and _outcome(turn) is Outcome.FAILED)
    turn.cleanup_errors.extend(done.problems)


def _outcome(turn: TurnState) -> Outcome:
    return (turn.exit or E.LOCAL_PROCESSING_ERROR).outcome


def _settle_error(turn: TurnState) -> None:
    match _outcome(turn):
        case Outcome.COMPLETED:
            turn.error, turn.failure_class = "", ""
        case Outcome.FAILED | Outcome.PARTIAL:
            turn.error = turn.error or explain(turn)


def _transform(turn: TurnState) -> Steps:
    changed: Transformed = yield Transform(turn.final_response or "")
    if changed.text is not None:
        turn.final_response, turn.response_transformed = changed.text, True


def _remember(turn: TurnState, spoken: str) -> Steps:
    """Only what was said to the end: an interrupted or failed turn is not remembered (INT-13)."""
    asked = next((row.text for row in turn.rows if row.role == "user"), "")
    if turn.has_memory and asked.strip():
        yield SyncMemory(asked, spoken)
    if turn.review_due:
        yield Tell("event", ("memory:review", {"session_id": turn.session_id, "turn_id": turn.turn_id}))


def _show_trace(turn: TurnState) -> Steps:
    """What was kept back while there was hope, now that there is none."""
    if _outcome(turn) is Outcome.FAILED and turn.request is not None and turn.settings.dump_failed_requests:
        saved: Saved = yield DumpRequest(turn.request)
        turn.trace.append(f"the request was saved to {saved.path}" if saved.path else f"it could not be saved: {saved.error}")
    for line in turn.trace[-TRACE:]:
        yield Tell("status", (line,))


def _outgrew_itself(turn: TurnState) -> bool:
    """A bad request on a very large session would grow with every try, if each left its message behind (ERR-26)."""
    refused = turn.exit is E.NON_RETRYABLE_ERROR and turn.failure is not None and turn.failure.status == 400
    large = len(turn.history) > 80 or (turn.request is not None and turn.request.estimate > 50_000)
    return refused and large and len(turn.rows) == 1


def _without_request(turn: TurnState) -> tuple[Message, ...]:
    """The user's message stays for people to see, and is not sent again."""
    kept = replace(turn.rows[0], wire=False)
    turn.history = [kept if row is turn.rows[0] else row for row in turn.history]
    turn.rows[0] = kept
    return tuple(turn.history)


def _spoken(turn: TurnState) -> str:
    """What the model itself said that may stand as the answer."""
    if turn.answer is not None:
        return turn.answer
    match turn.exit:
        case E.PRIOR_CONTENT_USED:
            return turn.prior_content
        case E.INTERRUPTED_IN_CALL | E.INTERRUPTED_BEFORE_CALL | E.INTERRUPTED_IN_BACKOFF | E.INTERRUPTED_IN_TOOLS:
            return (turn.partial or "".join(turn.fragments) or turn.held) if turn.settings.interrupt.keep_partial else ""
        case E.RESPONSES_INCOMPLETE:
            return "".join(turn.fragments) + turn.partial
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
    interrupted = _outcome(turn) is Outcome.INTERRUPTED
    if spoken.strip():
        finish = "interrupted" if interrupted else turn.reply.finish if turn.reply else None
        return Message(
            "assistant",
            spoken,
            reasoning=turn.thoughts or None,
            finish_reason=finish,
            interrupted=interrupted,
            blocks=turn.reply.blocks if turn.reply and turn.answer is not None else (),
        )
    note = turn.final_response or ("(interrupted)" if interrupted else "(no answer)")
    return Message("assistant", note, finish_reason="note", interrupted=interrupted, wire=False)
