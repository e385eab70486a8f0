"""What holds of every conversation that goes out, whatever was stored.

``groups`` splits a history into runs that can be made valid one by one: a run of user rows, or an assistant
row with the results of its calls. Only the last run can still grow, so a growing history is never walked
twice. ``valid_rows`` turns one run into rows that satisfy the invariants INV-01..08 (alternation, pairing,
unique ids, non-empty rows, valid text); ``violations`` is the independent check used by the tests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.support.texts import clean

CALL_REMOVED = "(tool call removed)"
BRIDGE = "(the conversation continues here)"
BLANK_NAME = "unnamed_tool"
CORRUPTED = "(the arguments of this call were corrupted and are shown as {})\n"

WireRow = dict[str, Any]


def sendable(message: Message) -> bool:
    """Rows that are never sent: notes for people, system rows (the prompt is built apart), blank assistant
    rows."""
    if not message.wire or message.role == "system":
        return False
    return message.role != "assistant" or bool(message.tool_calls) or bool(message.text.strip())


def opens_group(group: Sequence[Message], message: Message) -> bool:
    """Does ``message`` start a run of its own after ``group``? A tool row never does."""
    if not group:
        return True
    if message.role == "user":
        return group[-1].role != "user"
    return message.role == "assistant" and group[-1].role in ("user", "tool")


def _nothing(message: Message, call: ToolCall) -> WireRow:
    return {}


def valid_rows(
    group: Sequence[Message],
    seen_ids: set[str],
    shape: Callable[[Message], WireRow],
    extra: Callable[[Message, ToolCall], WireRow] = _nothing,
) -> list[WireRow]:
    """One run as valid wire rows. ``shape`` makes the provider's form of one message, ``extra`` what a call
    has besides; ``seen_ids`` are the call ids of the runs before, and is not changed (``call_ids`` of the
    result are what to add)."""
    if not group:
        return []
    if group[0].role == "user":
        return [_joined([shape(message) for message in group])]
    return _assistant_rows(group, seen_ids, shape, extra)


def call_ids(rows: Iterable[WireRow]) -> set[str]:
    """Return the ids of all calls in these rows."""
    return {call["id"] for row in rows for call in row.get("tool_calls", ())}


def _assistant_rows(
    group: Sequence[Message],
    seen: set[str],
    shape: Callable[[Message], WireRow],
    extra: Callable[[Message, ToolCall], WireRow],
) -> list[WireRow]:
    results: dict[str, Message] = {}
    for message in group:
        if message.role == "tool" and message.tool_call_id is not None:
            results.setdefault(message.tool_call_id, message)
    speakers = [message for message in group if message.role == "assistant"]
    row = _joined([shape(message) for message in speakers])
    row.pop("tool_calls", None)
    answered = [(one, call) for one in speakers for call in one.tool_calls if call.id in results]
    calls, answers, taken = [], [], set[str]()
    for number, (speaker, call) in enumerate(answered):
        if call.id not in results:
            continue  # it has the id of a call before it, whose result it cannot share
        result = shape(results.pop(call.id))
        call_id = _unique(call.id or fallback_id(call, number), seen, taken)
        taken.add(call_id)
        arguments, intact = _arguments(call)
        calls.append(
            {
                "id": call_id,
                "type": "function",
                "function": {"name": call.name.strip() or BLANK_NAME, "arguments": arguments},
                **extra(speaker, call),
            }
        )
        if not intact and isinstance(result["content"], str):
            result["content"] = CORRUPTED + result["content"]
        answers.append({**result, "tool_call_id": call_id})
    if calls:
        row["tool_calls"] = calls
    elif not row.get("content"):
        row["content"] = CALL_REMOVED
    return [row, *answers]


def unanswered(rows: Sequence[Message]) -> list[ToolCall]:
    """Calls of the last assistant row that have no result yet."""
    answered = set()
    for row in reversed(rows):
        if row.role == "tool":
            answered.add(row.tool_call_id)
        elif row.role == "assistant":
            return [call for call in row.tool_calls if call.id not in answered]
        elif row.role == "user":
            return []
    return []


def fallback_id(call: ToolCall, number: int) -> str:
    """An id for a call that came without one: the same call gets the same id in every run."""
    return (
        "call_"
        + hashlib.sha256(f"{call.name}|{call.arguments}|{number}".encode("utf-8", "replace")).hexdigest()[:16]
    )


def _unique(call_id: str, seen: set[str], taken: set[str]) -> str:
    candidate, number = call_id, 2
    while candidate in seen or candidate in taken:
        candidate, number = f"{call_id}_{number}", number + 1
    return candidate


_READER = json.JSONDecoder()
_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _arguments(call: ToolCall) -> tuple[str, bool]:
    try:
        value = _READER.decode(call.arguments or "{}")
    except ValueError:
        return "{}", False
    if not isinstance(value, dict):
        return "{}", False
    return _SORTED.encode(value), True


def _joined(rows: list[WireRow]) -> WireRow:
    """Several rows of one role as one: texts joined by a blank line, lists of parts concatenated."""
    if len(rows) == 1:
        return rows[0]
    first = dict(rows[0])
    for row in rows[1:]:
        before, after = first.get("content"), row.get("content")
        if isinstance(before, list) or isinstance(after, list):
            first["content"] = [*as_parts(before), *as_parts(after)]
        else:
            first["content"] = "\n\n".join(text for text in (before, after) if text) or None
    return first


def as_parts(content: Any) -> list[Any]:
    """Return the content of a row as a list of its parts."""
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


# Checking


def violations(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which of INV-01..08 the rows of one request break, in words; empty when none."""
    found: list[str] = []
    body = [row for row in rows if row.get("role") not in ("system", "developer")]
    if body and body[0].get("role") != "user":
        found.append(f"INV-01: the first row after the system prompt is {body[0].get('role')!r}")
    pending: list[str] = []
    seen: set[str] = set()
    for index, row in enumerate(body):
        found += _row_violations(index, row)
        role, before = row.get("role"), body[index - 1].get("role") if index else None
        if role == "tool":
            if row.get("tool_call_id") not in pending:
                found.append(f"INV-03: row {index} answers no open call")
            else:
                pending.remove(str(row.get("tool_call_id")))
            continue
        if pending:
            found.append(f"INV-02: calls {pending} are not answered before row {index}")
        if role == before:
            found.append(f"INV-01: two {role} rows in a row at {index}")
        pending = [call["id"] for call in row.get("tool_calls") or ()]
        if repeated := seen & set(pending) or len(set(pending)) != len(pending):
            found.append(f"INV-04: call ids used twice: {repeated}")
        seen |= set(pending)
    if pending:
        found.append(f"INV-02: calls {pending} are never answered")
    return found


def _row_violations(index: int, row: Mapping[str, Any]) -> list[str]:
    found = []
    if row.get("role") not in ("user", "assistant", "tool"):
        found.append(f"INV-07: row {index} has role {row.get('role')!r}")
    if row.get("tool_calls") == []:
        found.append(f"INV-05: row {index} has an empty list of calls")
    if row.get("role") == "assistant" and not row.get("content") and not row.get("tool_calls"):
        found.append(f"INV-05: row {index} is an empty assistant row")
    if json.dumps(row, ensure_ascii=False) != clean(json.dumps(row, ensure_ascii=False)):
        found.append(f"INV-08: row {index} holds text that is not valid UTF-8")
    for call in row.get("tool_calls") or ():
        try:
            intact = isinstance(json.loads(call["function"]["arguments"]), dict)
        except ValueError:
            intact = False
        if not intact:
            found.append(f"INV-08: the arguments of {call['id']} are no JSON object")
    return found
