"""CallLLM: one attempt, then the triage of what came back. Every reply is accounted before it is judged."""

from __future__ import annotations

from fsm_agent.messages import ModelReply
from fsm_agent.requests import CallModel, Cancelled, Failure
from states.protocol import Yields
from states.triage import triage
from states.turn import TurnState


def call_llm(turn: TurnState) -> Yields:
    """Reports what kind of reply came, ``error``, or ``cancelled``."""
    request = turn.request
    assert request is not None, "BuildMessages is the only door to CallLLM"
    turn.prepaid = False
    reply: ModelReply | Failure | Cancelled = yield CallModel(
        request,
        stale_after=turn.stale_after(request),
        total=turn.settings.timeout.total,
        paragraph=turn.needs_break,
    )
    if isinstance(reply, ModelReply) or reply.sent:
        turn.sent += 1
    turn.account(reply.usage)
    match reply:
        case Cancelled():
            turn.partial = "".join(turn.fragments) + reply.text
            turn.last_reasoning = reply.reasoning or turn.last_reasoning
            return "cancelled"
        case Failure():
            turn.failure = reply
            return "error"
    _note_reading(turn, reply, len(request.body))
    turn.reply, turn.failure_class, turn.error = reply, "", ""
    event = triage(turn, reply)
    _gather(turn, event)
    return event


def _note_reading(turn: TurnState, reply: ModelReply, body_bytes: int) -> None:
    """A real count of prompt tokens replaces the estimate from here on."""
    turn.needs_break, turn.meter_muted = False, False
    if reply.usage is not None and reply.usage.prompt:
        turn.last_prompt_tokens, turn.last_body_bytes = reply.usage.prompt, body_bytes


def _gather(turn: TurnState, event: str) -> None:
    """Keep the text that later replies continue, and what the turn answers with."""
    if event == "cut_text":
        turn.fragments.append(turn.visible)
    elif event in ("text", "summary"):
        turn.answer = "".join(turn.fragments) + turn.visible
    elif event in ("announced", "unverified"):
        turn.held = "".join(turn.fragments) + turn.visible
        turn.answer = turn.held
