"""CallLLM: one attempt, then the triage of what came back. Every reply is accounted before it is judged."""

from __future__ import annotations

from fsm_agent.conversation.effects import CallModel, Cancelled, Compacted, Failure, ModelRequest, NoteCompaction
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.conversation.token_meter import threshold
from fsm_agent_states.logic.triage import triage
from fsm_agent_states.protocol import Steps, Yields
from fsm_agent_states.turn import TurnState


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
            turn.partial, turn.thoughts = "".join(turn.fragments) + reply.text, reply.reasoning
            turn.last_reasoning = reply.reasoning or turn.last_reasoning
            return "cancelled"
        case Failure():
            turn.failure = reply
            return "error"
    yield from _read(turn, reply, request)
    turn.reply, turn.failure_class, turn.error = reply, "", ""
    event = triage(turn, reply)
    _gather(turn, event)
    return event


def _read(turn: TurnState, reply: ModelReply, request: ModelRequest) -> Steps:
    """A real count of prompt tokens replaces the estimate from here on, and says whether the last compaction helped."""
    turn.needs_break, turn.meter.muted = False, False
    if reply.usage is None or not reply.usage.prompt:
        return
    turn.last_prompt_tokens = reply.usage.prompt
    turn.meter.read(reply.usage.prompt, request.chars)
    window = turn.runtime.window
    if window is not None and turn.compacted_before:
        over = reply.usage.prompt >= threshold(window, turn.settings.compression)
        noted: Compacted = yield NoteCompaction("read", over=over)
        turn.compaction_blocked = noted.blocked


def _gather(turn: TurnState, event: str) -> None:
    """Keep the text that later replies continue, and what the turn answers with."""
    if event == "cut_text":
        turn.fragments.append(turn.visible)
    elif event in ("text", "summary"):
        turn.answer = "".join(turn.fragments) + turn.visible
    elif event in ("announced", "unverified"):
        turn.held, turn.fragments = "".join(turn.fragments) + turn.visible, []
        turn.unchecked = turn.held if event == "unverified" else turn.unchecked
    elif event == "incomplete" and turn.visible.strip():
        turn.partial, turn.needs_break = turn.visible, True
