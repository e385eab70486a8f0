"""What kind of reply is this? Says so without looking at any budget, and changes nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fsm_agent.conversation.arguments import parse
from fsm_agent.conversation.effects import Failure, ToolSpec
from fsm_agent.conversation.messages import ModelReply, ToolCall
from fsm_agent.support.texts import split_reasoning
from fsm_agent_states.logic import facts
from fsm_agent_states.turn import TurnState

ReplyKind = Literal[
    "tools", "text", "blank", "cut_text", "dropped_call", "cut_call", "incomplete", "open_scratchpad",
    "announced", "unverified", "all_thinking", "summary", "no_summary",
]  # fmt: skip
"""CallLLM's events for a reply that is none of its failures."""

_ANNOUNCES = re.compile(
    r"(?i)\b(i'?ll|i will|let me|i am going to|i'm going to|next,? i)\b.{0,80}"
    r"\b(look|check|read|run|search|open|inspect|start|list|find|review|examine|analy[sz]e|create|write|update|fix)\b"
)
SCRATCHPADS = ("scratchpad", "reasoning_scratchpad")


@dataclass(frozen=True, slots=True)
class Said:
    """The text of a reply: what is shown, what was thought, and a tag in it that was not closed."""

    visible: str
    thoughts: str
    open_tag: str | None


def spoken_in(reply: ModelReply) -> Said:
    """Return what is said and what is thought in a reply; thoughts may stand in tags in its text."""
    visible, inline, open_tag = split_reasoning(reply.text)
    return Said(visible, reply.reasoning or inline, open_tag)


def with_output_tool(reply: ModelReply, tool: str) -> ModelReply:
    """The reply as text, if it is a whole call of the tool that takes the answer, and of nothing else."""
    if not tool or reply.cut or reply.finish in (None, "length") or len(reply.tool_calls) != 1:
        return reply
    [call] = reply.tool_calls
    if call.name != tool or parse(call.arguments).kind == "cut":
        return reply
    return replace(reply, text=call.arguments, tool_calls=(), finish="stop")


def triage(turn: TurnState, reply: ModelReply, said: Said) -> ReplyKind | Failure:
    """The kind of this reply, or the failure that it is in truth. ``said``: what is spoken in it."""
    if facts.toolless(turn):
        return "summary" if said.visible.strip() else "no_summary"
    if _refused(reply, said.visible):
        words = reply.refusal or said.thoughts or "no reason given"
        return Failure("http", f"the model declined: {words}", code="content_filter", usage=reply.usage)
    if reply.tool_calls:
        return _tool_kind(reply, turn.setup.tools)
    if reply.finish == "incomplete":
        return "incomplete"
    if reply.finish == "length" or reply.cut or reply.finish is None:
        return _cut_kind(reply, said)
    if said.visible.strip():
        return _text_kind(turn, said.visible)
    return "open_scratchpad" if said.open_tag in SCRATCHPADS else "blank"


def _refused(reply: ModelReply, visible: str) -> bool:
    """A refusal next to real text or calls is a normal reply."""
    return (
        (reply.finish == "content_filter" or bool(reply.refusal))
        and not visible.strip()
        and not reply.tool_calls
    )


def _tool_kind(reply: ModelReply, tools: Sequence[ToolSpec]) -> ReplyKind:
    if reply.finish == "length":
        return "cut_call"
    if reply.cut or reply.finish is None:
        return "tools" if all(_whole(call, tools) for call in reply.tool_calls) else "dropped_call"
    return "cut_call" if any(parse(call.arguments).kind == "cut" for call in reply.tool_calls) else "tools"


def _whole(call: ToolCall, tools: Sequence[ToolSpec]) -> bool:
    """May a call be trusted although the stream ended without saying so? Only with arguments, or where none
    are needed (decision 22)."""
    parsed = parse(call.arguments)
    if parsed.kind != "ok" or parsed.repaired:
        return False
    required = next((tool.parameters.get("required") for tool in tools if tool.name == call.name), None)
    return bool(parsed.value) or (bool(call.arguments.strip()) and not required)


def _cut_kind(reply: ModelReply, said: Said) -> ReplyKind | Failure:
    if said.visible.strip():
        return "cut_text"
    if reply.finish == "length":
        return "all_thinking" if said.thoughts or reply.blocks else "blank"
    return Failure(
        "transport", "the stream ended before the reply did", exception="StreamEnded", usage=reply.usage
    )


def _text_kind(turn: TurnState, visible: str) -> ReplyKind:
    """An answer, or one that is told to act first (RESP-14) or to check first. What is of the type that was
    asked for announces nothing, whatever it speaks of."""
    policy, responses = turn.settings.continuation, turn.setup.runtime.api_mode == "codex_responses"
    acks = responses if policy.acks_enabled is None else policy.acks_enabled
    acks = acks and turn.setup.output is None
    if acks and facts.only_asked(turn) and len(visible) <= 1200 and _ANNOUNCES.search(visible):
        return "announced"
    return "unverified" if policy.verify_enabled and facts.unverified(turn) else "text"
