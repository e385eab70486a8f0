"""The kinds of replies of a model, each as one declaration: CallLLM's events that are not failures.

``REPLIES`` complements the table: the table says where a kind leads and how often, the declaration contains
the rest. From it follow the triage of CallLLM, what a turn keeps of the text, what the model reads before it
continues, the line for the user, the declared change of the transcript (``fsm_agent_states.logic.shapes``),
and the answers of the scripted model that plays every row of the table.

What the model reads while recovering is only sent: none of it enters the history or the store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from fsm_agent.conversation.arguments import parse
from fsm_agent.conversation.effects import Failure, ToolSpec
from fsm_agent.conversation.messages import Message, ModelReply, ToolCall
from fsm_agent.conversation.vendors import hosted_blocks
from fsm_agent.support.texts import shorten, split_reasoning
from fsm_agent_states.logic import facts
from fsm_agent_states.logic.parts import Keep
from fsm_agent_states.turn import TurnState

ReplyKind = Literal[
    "tools", "text", "blank", "cut_text", "dropped_call", "cut_call", "incomplete", "open_scratchpad",
    "announced", "unverified", "all_thinking", "summary", "no_summary",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Received:
    """A reply, with its text in parts: the visible text, the reasoning (which may be in tags within the
    text), and a tag that was not closed."""

    reply: ModelReply
    visible: str
    thoughts: str
    open_tag: str | None

    @classmethod
    def of(cls, reply: ModelReply) -> Self:
        """Split the text of a reply."""
        visible, inline, open_tag = split_reasoning(reply.text)
        return cls(reply, visible, reply.reasoning or inline, open_tag)

    @property
    def speaks(self) -> bool:
        """Whether there is text to show."""
        return bool(self.visible.strip())

    @property
    def broke_off(self) -> bool:
        """Whether the connection ended before the reply did."""
        return self.reply.cut or self.reply.finish is None


@dataclass(frozen=True, slots=True)
class ReplyRule:
    """One kind of reply.

    ``given``: facts that must hold of the turn. ``when``: whether a reply is of this kind then, if no kind
    before it fits. ``keeps``: what becomes of its text. For a kind that the table continues, ``says`` is what
    the model reads after its own text; empty: nothing, ``None``: the same request once more; ``tells`` is the
    line for the user. ``example``: a reply of this kind."""

    when: Callable[[TurnState, Received], bool]
    example: ModelReply
    given: tuple[Callable[[TurnState], bool], ...] = ()
    keeps: Keep = ""
    says: str | None = None
    tells: str = ""

    @property
    def answers(self) -> bool:
        """Whether the text may become the answer of the turn."""
        return self.keeps in ("answer", "held", "unchecked")


def _cuts_a_call(turn: TurnState, received: Received) -> bool:
    calls, finish = received.reply.tool_calls, received.reply.finish
    if finish == "length" or received.broke_off:
        return finish == "length" and bool(calls)
    return any(parse(call.arguments).kind == "cut" for call in calls)


def _drops_a_call(turn: TurnState, received: Received) -> bool:
    return received.broke_off and not all(
        _is_whole(call, turn.setup.tools) for call in received.reply.tool_calls
    )


# A call cut before its arguments is not run. A stream that ends without a reason may end inside a call. A
# call whose arguments parse is run. A call without any argument text is not, even if all its parameters have
# defaults.


def _is_whole(call: ToolCall, tools: Sequence[ToolSpec]) -> bool:
    """Return whether a call can be trusted although the stream ended without a finish reason: only with
    arguments, or if none are required."""
    parsed = parse(call.arguments)
    if parsed.kind != "ok" or parsed.repaired:
        return False
    required = next((tool.parameters.get("required") for tool in tools if tool.name == call.name), None)
    return bool(parsed.value) or (bool(call.arguments.strip()) and not required)


_ANNOUNCES = re.compile(
    r"(?i)\b(i'?ll|i will|let me|i am going to|i'm going to|next,? i)\b.{0,80}"
    r"\b(look|check|read|run|search|open|inspect|start|list|find|review|examine|analy[sz]e|create|write|update|fix)\b"
)


def _announces(turn: TurnState, received: Received) -> bool:
    """Return whether the reply only announces what it will do; never for a turn with a type of answer."""
    enabled = turn.settings.continuation.acks_enabled
    if enabled is None:
        enabled = turn.setup.runtime.api_mode == "codex_responses"
    if turn.setup.output is not None or not enabled:
        return False
    return len(received.visible) <= 1200 and bool(_ANNOUNCES.search(received.visible))


SCRATCHPADS = ("scratchpad", "reasoning_scratchpad")

# In this order: the first that fits names the kind. The budget comes first, because a request without tools
# has no other outcome; then calls, because text beside them is not an answer; then truncated replies.
REPLIES: Mapping[ReplyKind, ReplyRule] = {
    "summary": ReplyRule(
        lambda turn, got: got.speaks,
        given=(facts.toolless,),
        keeps="answer",
        example=ModelReply("what was done."),
    ),
    "no_summary": ReplyRule(lambda turn, got: True, given=(facts.toolless,), example=ModelReply()),
    "cut_call": ReplyRule(
        _cuts_a_call,
        tells="a tool call was cut off and not run: asked again",
        example=ModelReply(tool_calls=(ToolCall("call_cut", "echo", '{"text": "abc'),), finish="length"),
    ),
    "dropped_call": ReplyRule(
        _drops_a_call,
        says="The connection broke inside your tool call, so it was not run. Make the call again in smaller"
        " pieces: keep the arguments of one call well under 8,000 tokens.",
        tells="the reply broke off in a tool call: asked again",
        example=ModelReply(tool_calls=(ToolCall("call_cut", "put", '{"key": '),), cut=True),
    ),
    "tools": ReplyRule(
        lambda turn, got: bool(got.reply.tool_calls),
        example=ModelReply(tool_calls=(ToolCall("call_1", "echo", '{"text": "x"}'),), finish="tool_calls"),
    ),
    "incomplete": ReplyRule(
        lambda turn, got: got.reply.finish == "incomplete",
        keeps="partial",
        says="Your reply was incomplete. Give the answer now, as text, or make the tool call.",
        tells="the provider calls its reply incomplete: asked to continue",
        example=ModelReply("half of ", finish="incomplete"),
    ),
    "cut_text": ReplyRule(
        lambda turn, got: got.speaks and (got.broke_off or got.reply.finish == "length"),
        keeps="fragment",
        says="Your reply was cut off. Continue exactly where it ends, without repeating anything and without"
        " a preamble.",
        tells="the reply was cut off: continued",
        example=ModelReply("part one, ", finish="length"),
    ),
    "all_thinking": ReplyRule(
        lambda turn, got: got.reply.finish == "length" and bool(got.thoughts or got.reply.blocks),
        example=ModelReply("<think>hm", finish="length"),
    ),
    "announced": ReplyRule(
        _announces,
        given=(facts.only_asked,),
        keeps="held",
        says="Do it now: call the tool instead of announcing it. If nothing is left to do, give the final"
        " answer.",
        tells="the model only said what it will do: told to do it",
        example=ModelReply("I'll look at the files now."),
    ),
    "unverified": ReplyRule(
        lambda turn, got: got.speaks and turn.settings.continuation.verify_enabled,
        given=(facts.unverified,),
        keeps="unchecked",
        says="Files were changed and nothing was checked since. Verify the change with a tool, then give the"
        " final answer.",
        tells="files were changed and not checked: asked to check them",
        example=ModelReply("an answer."),
    ),
    "text": ReplyRule(lambda turn, got: got.speaks, keeps="answer", example=ModelReply("an answer.")),
    "open_scratchpad": ReplyRule(
        lambda turn, got: got.open_tag in SCRATCHPADS and got.reply.finish != "length",
        says="",
        tells="the model did not get beyond its notes: asked again",
        example=ModelReply("<scratchpad>never closed"),
    ),
    "blank": ReplyRule(lambda turn, got: True, example=ModelReply()),
}

CONTINUED: Mapping[str, ReplyRule] = {kind: rule for kind, rule in REPLIES.items() if rule.tells}
"""Kinds that the table continues, by event."""


def triage(turn: TurnState, received: Received) -> ReplyKind | Failure:
    """Return the kind of this reply, or the failure that it really is. Reads no budget and changes
    nothing."""
    if failure := _failure_in(turn, received):
        return failure
    for kind, rule in REPLIES.items():
        if all(fact(turn) for fact in rule.given) and rule.when(turn, received):
            return kind
    raise AssertionError("the last kind takes every reply")


def _failure_in(turn: TurnState, received: Received) -> Failure | None:
    """Return the failure in a reply, if any. A refusal beside text or calls is a normal reply, and so is what
    arrived before a connection broke."""
    reply = received.reply
    if facts.toolless(turn) or received.speaks or reply.tool_calls:
        return None
    if reply.finish == "content_filter" or reply.refusal:
        why = reply.refusal or received.thoughts or "no reason given"
        return Failure("http", f"the model declined: {why}", code="content_filter", usage=reply.usage)
    if received.broke_off and reply.finish not in ("length", "incomplete"):
        why = "the stream ended before the reply did"
        return Failure("transport", why, exception="StreamEnded", usage=reply.usage)
    return None


def with_output_tool(reply: ModelReply, tool: str) -> ModelReply:
    """Return the reply as text, if it is one complete call of the tool that takes the answer, and nothing
    else."""
    if not tool or reply.cut or reply.finish in (None, "length") or len(reply.tool_calls) != 1:
        return reply
    [call] = reply.tool_calls
    if call.name != tool or parse(call.arguments).kind == "cut":
        return reply
    return replace(reply, text=call.arguments, tool_calls=(), finish="stop")


# What the model reads next

PROCESS_RESULTS = (
    "The tool results above are complete. Continue the task now: use them, and answer or call the next tool."
)
FROM_THOUGHTS = (
    "These were your thoughts so far. Do not think again from the start: give your answer, or call a tool,"
    " now."
)
LAST_WORD = (
    "All {limit} iterations of this task are used up and no tool can be called any more. Say in text what was"
    " done, what was found, and what is still open."
)
REVISE = "This is not the answer that was asked for: {problem}\n\nGive the whole answer again, corrected."
PLACEHOLDER = "(no answer yet)"


def scaffold_for(turn: TurnState) -> tuple[Message, ...]:
    """Return the rows that the ordered recovery puts behind the history."""
    spent, row = turn.spent, turn.last_transition
    if "nudges" in spent:
        return Message("assistant", PLACEHOLDER), Message("user", PROCESS_RESULTS)
    if "thinking_prefills" in spent:
        return _assistant_row(shorten(turn.call.thoughts, 20_000)), Message("user", FROM_THOUGHTS)
    if "revisions" in spent:
        mend = Message("user", REVISE.format(problem=turn.draft.objection))
        return (_assistant_row(turn.draft.rejected), mend) if turn.draft.rejected.strip() else (mend,)
    if "continuations" in spent and row is not None:
        return _continuation(turn, CONTINUED[row.event])
    return ()


def last_word(turn: TurnState) -> Message:
    """Return the user row of the toolless call."""
    return Message("user", LAST_WORD.format(limit=turn.settings.max_iterations))


def _continuation(turn: TurnState, rule: ReplyRule) -> tuple[Message, ...]:
    if rule.says is None:
        return turn.recovery.scaffold
    if not rule.says:
        return ()
    begun, call, prompt = _answer_so_far(turn, rule.keeps), turn.call, Message("user", rule.says)
    ran = hosted_blocks(call.reply.blocks) if call.reply and rule.keeps == "partial" else ()
    if not begun.strip() and not ran:
        return (prompt,)
    row = replace(_assistant_row(begun if begun.strip() else PLACEHOLDER), blocks=ran).made_by(call.issuer)
    return row, prompt


def _answer_so_far(turn: TurnState, keeps: Keep) -> str:
    """Return the model's text so far of the answer that it is to continue."""
    draft = turn.draft
    match keeps:
        case "held" | "unchecked":
            return draft.held
        case "partial":
            return draft.begun + draft.partial
    return draft.begun or turn.call.visible


def _assistant_row(text: str) -> Message:
    return Message("assistant", text)
