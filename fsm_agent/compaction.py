"""Making a conversation shorter, as pure functions: prune old tool results, cut a middle out, put a summary in its place.

Boundaries fall between runs (an assistant row is never parted from the results of its calls), and the newest user request
always stays, word for word.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fsm_agent.messages import Message, ToolCall
from fsm_agent.texts import shorten

PRUNE_ABOVE = 200
SUMMARY_PREFIX = (
    "[Summary of the earlier conversation, for reference only. Requests in it were already answered; answer only the messages "
    "that follow it. Tools stay usable.]\n\n"
)
SUMMARY_END = "\n\n[End of the summary]"
BRIDGE = "Understood."
HEADINGS = (
    "Task (the user's newest unmet request, word for word)",
    "Goal and constraints",
    "Completed actions (numbered: tool, target, outcome)",
    "State and files",
    "Decisions",
    "Open questions",
    "Remaining work",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """``middle`` is summarised away, ``request`` is the newest user row when it would go with it, ``tail`` stays."""

    middle: tuple[Message, ...]
    request: Message | None
    tail: tuple[Message, ...]


def plan(history: Sequence[Message], newest_user: Message | None, tail_chars: int, tail_floor: int) -> Plan:
    """Walk back from the end until the tail's budget in characters is used, at least ``tail_floor`` rows, then to the start
    of a run."""
    size, start = 0, len(history)
    while start > 0 and (size < tail_chars or len(history) - start < tail_floor):
        start -= 1
        size += _size(history[start])
    while 0 < start < len(history) and history[start].role == "tool":
        start -= 1
    middle, tail = tuple(history[:start]), tuple(history[start:])
    request = newest_user if newest_user is not None and any(row is newest_user for row in middle) else None
    return Plan(tuple(row for row in middle if row is not request), request, tail)


def pruned(history: Sequence[Message], keep_last: int) -> list[Message]:
    """Old long tool results as one line each; repeated ones point to the newest; long arguments shortened. The last
    ``keep_last`` rows stay as they are."""
    edge = max(0, len(history) - keep_last)
    seen = {row.text for row in history[edge:] if row.role == "tool"}
    rows: list[Message] = []
    for row in reversed(history[:edge]):
        if row.role == "tool" and len(row.sent or row.text) > PRUNE_ABOVE:
            again = row.text in seen
            seen.add(row.text)
            row = replace(row, sent=_as_line(row, again))
        elif row.tool_calls:
            row = replace(row, tool_calls=tuple(_short_call(call) for call in row.tool_calls))
        rows.append(row)
    return [*reversed(rows), *history[edge:]]


def _as_line(row: Message, again: bool) -> str:
    if again:
        return f"[{row.name or 'tool'}: the same result is shown again further below]"
    lines = row.text.count("\n") + 1
    return f"[{row.name or 'tool'}: {len(row.text):,} characters, {lines:,} lines; begins: {row.text[:80].strip()!r}]"


def _short_call(call: ToolCall) -> ToolCall:
    if len(call.arguments) <= 500:
        return call
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return call
    if not isinstance(arguments, dict):
        return call
    short = {
        key: f"{value[:200]}… [{len(value):,} characters]" if isinstance(value, str) and len(value) > 500 else value
        for key, value in arguments.items()
    }
    return ToolCall(call.id, call.name, json.dumps(short, ensure_ascii=False))


def summary_prompt(middle: Sequence[Message]) -> str:
    """What the model is asked, with the rows to be summarised."""
    rows = "\n\n".join(f"<{row.role}>\n{_for_summary(row)}\n</{row.role}>" for row in middle if row.role != "system")
    headings = "\n".join(f"- {heading}" for heading in HEADINGS)
    return (
        "Summarise the following part of a conversation between a user and an assistant with tools, so that the assistant can "
        "go on without it. Write in the user's language, past tense for what is done, under these headings:\n"
        f"{headings}\n\n{rows}"
    )


def _for_summary(row: Message) -> str:
    calls = "\n".join(f"calls {call.name}({shorten(call.arguments, 1_500)})" for call in row.tool_calls)
    return "\n".join(part for part in (shorten(row.sent or row.text, 6_000), calls) if part)


def summary_without_model(middle: Sequence[Message], limit: int = 8_000) -> str:
    """The summary of last resort, made from the rows themselves."""
    lines = []
    for row in middle:
        if row.role == "user":
            lines.append(f"- the user asked: {shorten(row.text, 300)}")
        elif row.role == "assistant":
            lines += [f"- called {call.name} with {shorten(call.arguments, 120)}" for call in row.tool_calls]
            if row.text.strip():
                lines.append(f"- the assistant said: {shorten(row.text, 300)}")
    return shorten("\n".join(lines), limit)


def assembled(plan: Plan, summary: str) -> list[Message]:
    """Summary, then the request if it would have gone, then the tail; roles alternate by a bridging row."""
    rest = [*([plan.request] if plan.request else []), *plan.tail]
    rows = [Message("user", SUMMARY_PREFIX + summary.strip() + SUMMARY_END)]
    if rest and rest[0].role == "user":
        rows.append(Message("assistant", BRIDGE))
    return [*rows, *rest]


def _size(row: Message) -> int:
    return len(row.sent or row.text) + sum(len(call.arguments) for call in row.tool_calls)


def size_of(history: Sequence[Message]) -> int:
    """Characters that go out for these rows."""
    return sum(_size(row) for row in history)
