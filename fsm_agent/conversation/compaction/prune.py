"""Phase 1: what old tool rounds leave behind when their details no longer matter. Never raises, never asks a
model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.parts import Part, carrier_of, named, text_of_file

LONG_RESULT = 200
"""Characters above which an old result becomes a line (COMP-13, COMP-14)."""
LONG_ARGUMENT, KEPT_ARGUMENT = 500, 200
"""Characters above which a string argument of an old call is shortened, and what is kept of it (COMP-15)."""
KEY_ARGUMENTS = ("path", "file", "command", "url", "query", "content", "name", "pattern")
_EXIT_CODE = re.compile(r"(?i)exit(?:ed with)?(?: code| status)?[: ]+(-?\d+)")
_COUNT = re.compile(r"(?i)\b(\d[\d,]{0,14}) (match(?:es)?|results?|files?|entries|rows?)\b")


def pruned(history: Sequence[Message], tail: int) -> list[Message]:
    """The history with everything but its last ``tail`` rows pruned. Rows that need no change are the same
    objects."""
    edge = max(0, len(history) - tail)
    calls = {call.id: call for row in history for call in row.tool_calls}
    newest_parts = max(
        (i for i, row in enumerate(history) if row.role == "user" and _has_parts(row)), default=-1
    )
    seen: set[str] = set()
    rows: list[Message] = []
    for index in range(len(history) - 1, -1, -1):
        row = history[index]
        if row.role == "tool":
            row = _tool_row(row, calls, old=index < edge, again=row.text in seen)
            if len(history[index].text) >= LONG_RESULT:
                seen.add(history[index].text)
        elif row.tool_calls and index < edge:
            row = _shorter_calls(row)
        if _has_parts(row) and index < (edge if row.role == "tool" else min(edge, newest_parts)):
            row = partless(row)
        rows.append(row)
    rows.reverse()
    return rows


def _tool_row(row: Message, calls: Mapping[str, ToolCall], *, old: bool, again: bool) -> Message:
    shown = row.text if row.sent is None else row.sent
    if again and len(shown) >= LONG_RESULT:
        return replace(row, sent=f"[{row.name or 'tool'}: the same result is shown again further below]")
    if old and len(shown) > LONG_RESULT:
        return replace(row, sent=outcome_line(row, calls.get(row.tool_call_id or "")))
    return row


def outcome_line(row: Message, call: ToolCall | None) -> str:
    """One line for a result: the tool, what it was called with, and what came of it."""
    text = row.text
    facts = [f"{text.count(chr(10)) + 1:,} lines", f"{len(text):,} characters"]
    if code := _EXIT_CODE.search(text):
        facts.insert(0, f"exit code {code.group(1)}")
    elif count := _COUNT.search(text):
        facts.insert(0, count.group(0))
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")[:80]
    named = (call.name if call else row.name) or "tool"
    return f"[{named}({_key_argument(call)}): {', '.join(facts)}; begins: {first!r}]"


def _key_argument(call: ToolCall | None) -> str:
    arguments = _arguments(call) if call else None
    if not arguments:
        return ""
    key = next((key for key in KEY_ARGUMENTS if key in arguments), next(iter(arguments)))
    return f"{key}={str(arguments[key])[:80]!r}"


def _shorter_calls(row: Message) -> Message:
    calls = tuple(shorter_call(call) for call in row.tool_calls)
    return row if calls == row.tool_calls else replace(row, tool_calls=calls)


def shorter_call(call: ToolCall) -> ToolCall:
    """The call with each long string of its arguments shortened, for all others the same object."""
    arguments = _arguments(call) if len(call.arguments) > LONG_ARGUMENT else None
    if arguments is None:
        return call
    return replace(call, arguments=json.dumps(_shorter(arguments), ensure_ascii=False))


def _shorter(value: Any) -> Any:
    match value:
        case str() if len(value) > LONG_ARGUMENT:
            return f"{value[:KEPT_ARGUMENT]}… [{len(value):,} characters]"
        case dict():
            return {key: _shorter(item) for key, item in value.items()}
        case list():
            return [_shorter(item) for item in value]
    return value


def _arguments(call: ToolCall) -> dict[str, Any] | None:
    try:
        value = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _has_parts(row: Message) -> bool:
    return not isinstance(row.content, str | None) and any(carrier_of(part) for part in row.content)


def without_parts(history: Sequence[Message]) -> list[Message]:
    """The history without any image, audio or file but those of the newest user row that has one: what is
    left when nothing else can go."""
    newest = max((i for i, row in enumerate(history) if row.role == "user" and _has_parts(row)), default=-1)
    return [
        partless(row) if index != newest and _has_parts(row) else row for index, row in enumerate(history)
    ]


def partless(row: Message, *, texts: bool = False) -> Message:
    """The row with a line in place of each image, audio and file that names it; with ``texts`` a file whose
    text is known becomes that text."""

    def gone(part: Part) -> str:
        known = text_of_file(part) if texts else ""
        return known or f"[{named(part)}: was here, left out to make the conversation shorter]"

    return row.reworded(gone) if _has_parts(row) else row
