"""CallLLM: one attempt, then the triage of the reply. The cost of every reply is recorded before it is
judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fsm_agent.conversation.effects import (
    AnswerChecked,
    CallModel,
    Cancelled,
    CheckMessage,
    Compacted,
    Failure,
    ModelRequest,
    NoteCompaction,
    RequestChanged,
    ShowRequest,
)
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.conversation.token_meter import plausible
from fsm_agent.conversation.vendors import issuer_of
from fsm_agent.conversation.wire.options import change_body
from fsm_agent_states.logic import facts
from fsm_agent_states.logic.facts import doubt_window
from fsm_agent_states.logic.visit import Asks, check_answer, refused, say, tell_blocked
from fsm_agent_states.replies import REPLIES, Received, ReplyKind, triage, with_output_tool
from fsm_agent_states.turn import TurnState

Event = Literal[ReplyKind, "invalid_output", "blocked", "error", "lost", "cancelled"]


def call_llm(turn: TurnState) -> Asks[Event]:
    """Report the kind of the reply, ``error``, ``lost``, or ``cancelled``; ``invalid_output`` or ``blocked``
    when it may not become the answer."""
    request, draft, issuer = turn.call.take_request(), turn.draft, issuer_of(turn.setup.runtime)
    attempt: CallModel | ModelReply | Failure = yield from _show_hooks(turn, request)
    reply: ModelReply | Failure | Cancelled
    if not isinstance(attempt, CallModel):
        reply = attempt
    elif turn.draft.admitted or not turn.setup.checks.beside:
        reply = yield attempt
    else:
        reply, checked = yield [attempt, CheckMessage(turn.rows[0].text, beside=True)]
        draft.admitted = not refused(turn, checked)
    turn.accounting.charge(reply, turn.setup.runtime)
    if turn.ending.blocked and not isinstance(reply, Cancelled):
        turn.recovery.explain("guardrail", turn.ending.blocked["reason"])
        return "blocked"
    match reply:
        case Cancelled():
            turn.call.cancel(reply, issuer)
            draft.partial = draft.begun + reply.text
            draft.last_reasoning = reply.reasoning or draft.last_reasoning
            return "cancelled"
        case Failure():
            turn.recovery.fail(reply)
            return "lost" if reply.kind == "lost" else "error"
    yield from _read(turn, reply, request)
    reply = with_output_tool(reply, turn.setup.checks.output_tool)
    received = Received.of(reply)
    turn.call.receive(reply, received.visible, received.thoughts, issuer)
    turn.recovery.succeed()
    if reply.sent:
        turn.recovery.prove(turn.setup.runtime)
    draft.last_reasoning = received.thoughts or draft.last_reasoning
    kind = triage(turn, received)
    if isinstance(kind, Failure):
        turn.recovery.fail(kind)
        return "error"
    if REPLIES[kind].answers and turn.setup.checks.answer:
        checked = yield from check_answer(turn, draft.begun + received.visible, typed=kind != "summary")
        if checked.blocked:
            return "blocked"
        if checked.problem:
            draft.rejected, draft.objection = draft.begun + received.visible, checked.problem
            draft.fragments, draft.held = [], ""
            return "invalid_output"
        _let_out(turn, checked)
    if kind == "summary":
        yield from say("the summary came: the task may be unfinished, another message continues it")
    draft.keep(REPLIES[kind].keeps, turn.call.visible)
    return kind


def _show_hooks(turn: TurnState, request: ModelRequest) -> Asks[CallModel | ModelReply | Failure]:
    """Return the attempt as changed by the user's hooks, or the reply that a hook supplies instead."""
    if turn.setup.checks.requests:
        shown: RequestChanged = yield ShowRequest(request, turn.count("retries") + 1)
        if shown.blocked:
            turn.ending.refuse(", ".join(shown.by), shown.blocked, "request")
            return Failure("local", shown.blocked, sent=False)
        if shown.answer is not None:
            return ModelReply(shown.answer, changed_by=shown.by, sent=False)
        request = replace(request, body=change_body(request.body, shown.options, shown.rows))
    return CallModel(
        request,
        stale_after=turn.stale_after(request),
        total=turn.settings.timeout.total,
        paragraph=turn.draft.needs_break,
        attempt=turn.count("retries") + 1,
        most=turn.limit("retries") + 1,
    )


def _read(turn: TurnState, reply: ModelReply, request: ModelRequest) -> Asks[None]:
    """Use the provider's count of prompt tokens instead of the estimate from here on, and judge by it whether
    the last compaction helped."""
    turn.draft.needs_break = False
    turn.accounting.mute(False)
    if reply.usage is None or not reply.usage.prompt:
        return
    turn.accounting.read(reply.usage.prompt, request)
    if plausible(reply.usage.prompt, request.chars):
        doubt_window(turn, reply.usage.prompt)
    if turn.setup.runtime.window is not None and facts.compacted_before(turn):
        noted: Compacted = yield NoteCompaction("read", over=facts.over_threshold(turn, reply.usage.prompt))
        yield from tell_blocked(turn.compaction.compaction_blocked, noted)
        turn.compaction.judge(noted)


def _let_out(turn: TurnState, checked: AnswerChecked) -> None:
    """Accept the text as a possible answer, perhaps with a guardrail's changes."""
    if checked.text is not None:
        turn.draft.fragments = []
        turn.call.reword(checked.text)
    turn.draft.passed = turn.draft.begun + turn.call.visible
