"""What kind of reply is this? From a reply to one event, without looking at any budget."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fsm_agent.conversation.arguments import parse
from fsm_agent.conversation.effects import Failure, ToolSpec
from fsm_agent.conversation.messages import ModelReply, ToolCall
from fsm_agent.support.texts import split_reasoning
from fsm_agent_states.turn import TurnState

_ANNOUNCES = re.compile(
    r"(?i)\b(i'?ll|i will|let me|i am going to|i'm going to|next,? i)\b.{0,80}"
    r"\b(look|check|read|run|search|open|inspect|start|list|find|review|examine|analy[sz]e|create|write|update|fix)\b"
)
SCRATCHPADS = ("scratchpad", "reasoning_scratchpad")


def triage(turn: TurnState, reply: ModelReply) -> str:
    """One of CallLLM's events. Sets what the next states read: ``visible``, ``thoughts`` and, for an error, ``failure``."""
    visible, inline, open_tag = split_reasoning(reply.text)
    turn.visible, turn.thoughts = visible, reply.reasoning or inline
    turn.last_reasoning = turn.thoughts or turn.last_reasoning
    if turn.toolless:
        return "summary" if visible.strip() else "no_summary"
    if reply.tool_calls and not _refused(reply, visible):
        return _tool_event(reply, turn.tools)
    if _refused(reply, visible):
        words = reply.refusal or turn.thoughts or "no reason given"
        turn.failure = Failure("http", f"the model declined: {words}", code="content_filter", usage=reply.usage)
        return "error"
    if reply.finish == "incomplete":
        return "incomplete"
    if reply.finish == "length" or reply.cut or reply.finish is None:
        return _cut_event(turn, reply, visible)
    if open_tag in SCRATCHPADS and not visible.strip():
        return "open_scratchpad"
    if not visible.strip():
        return "blank"
    return _text_event(turn, visible)


def _refused(reply: ModelReply, visible: str) -> bool:
    """A refusal next to real text or calls is a normal reply."""
    return (reply.finish == "content_filter" or bool(reply.refusal)) and not visible.strip() and not reply.tool_calls


def _tool_event(reply: ModelReply, tools: Sequence[ToolSpec]) -> str:
    if reply.finish == "length":
        return "cut_call"
    if reply.cut or reply.finish is None:
        return "tools" if all(_whole(call, tools) for call in reply.tool_calls) else "dropped_call"
    return "cut_call" if any(parse(call.arguments).kind == "cut" for call in reply.tool_calls) else "tools"


def _whole(call: ToolCall, tools: Sequence[ToolSpec]) -> bool:
    """May a call be trusted although the stream ended without saying so? Only with arguments, or where none are needed."""
    parsed = parse(call.arguments)
    if parsed.kind != "ok" or parsed.repaired:
        return False
    required = next((tool.parameters.get("required") for tool in tools if tool.name == call.name), None)
    return bool(parsed.value) or (bool(call.arguments.strip()) and not required)


def _cut_event(turn: TurnState, reply: ModelReply, visible: str) -> str:
    if visible.strip():
        return "cut_text"
    if (turn.thoughts or reply.blocks) and reply.finish == "length":
        return "all_thinking"
    if reply.finish == "length":
        return "blank"
    turn.failure = Failure("transport", "the stream ended before the reply did", exception="StreamEnded", usage=reply.usage)
    return "error"


def _text_event(turn: TurnState, visible: str) -> str:
    policy = turn.settings.continuation
    if policy.acks_enabled and len(turn.rows) == 1 and len(visible) <= 1200 and _ANNOUNCES.search(visible):
        return "announced"
    if policy.verify_enabled and turn.unverified:
        return "unverified"
    return "text"
