"""Invariants of every conversation that is sent, whatever was stored.

A history consists of runs that can be made valid one by one: user rows, or an assistant row with the results
of its calls. ``opens_group`` finds where a run begins. Only the last run can still grow, so a growing history
is never walked twice. ``valid_rows`` turns one run into rows that satisfy the invariants INV-01..08
(alternation, pairing, unique ids, non-empty rows, valid text); ``violations`` is the independent check used
by the tests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsm_agent.conversation.effects import Runtime
from fsm_agent.conversation.messages import TEXT, Message, ToolCall
from fsm_agent.conversation.parts import parts_of
from fsm_agent.conversation.vendors import ReasoningFamily, issuer_of, runtime_family
from fsm_agent.errors import ConfigError
from fsm_agent.support import without_collection
from fsm_agent.support.texts import clean

CALL_REMOVED = "(tool call removed)"
BRIDGE = "(the conversation continues here)"
BLANK_NAME = "unnamed_tool"
CORRUPTED = "(the arguments of this call were corrupted and are shown as {})\n"

WireRow = dict[str, Any]


def sendable(message: Message) -> bool:
    """Return whether a row may be sent: excludes notes for people, system rows (the prompt is built
    separately), and blank assistant rows."""
    if not message.wire or message.role == "system":
        return False
    return message.role != "assistant" or bool(message.tool_calls) or bool(message.text.strip())


def opens_group(group: Sequence[Message], message: Message) -> bool:
    """Return whether ``message`` starts a new run after ``group``. A tool row never does."""
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
    """Return one run as valid wire rows. ``shape`` converts one message to the provider's form, ``extra``
    returns additional fields of a call; ``seen_ids`` are the call ids of earlier runs, and is not changed
    (add the result's ``call_ids`` to it)."""
    if not group:
        return []
    if group[0].role == "user":
        return [_join_rows([shape(message) for message in group])]
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
    row = _join_rows([shape(message) for message in speakers])
    row.pop("tool_calls", None)
    answered = [(one, call) for one in speakers for call in one.tool_calls if call.id in results]
    calls, answers, taken = [], [], set[str]()
    for number, (speaker, call) in enumerate(answered):
        if call.id not in results:
            continue  # same id as an earlier call, whose result it cannot share
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


def fallback_id(call: ToolCall, number: int) -> str:
    """Return an id for a call that came without one: the same call gets the same id in every run."""
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


def _join_rows(rows: list[WireRow]) -> WireRow:
    """Join rows of one role: texts with a blank line between them, lists of parts concatenated."""
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
    """Describe which of INV-01..08 the rows of one request break; empty if none."""
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
    text = json.dumps(row, ensure_ascii=False)
    if text != clean(text):
        found.append(f"INV-08: row {index} holds text that is not valid UTF-8")
    for call in row.get("tool_calls") or ():
        try:
            intact = isinstance(json.loads(call["function"]["arguments"]), dict)
        except ValueError:
            intact = False
        if not intact:
            found.append(f"INV-08: the arguments of {call['id']} are not a JSON object")
    return found


# Parse a history supplied by a caller, in the forms used by vendors and other programs.


PROMPTS, SPEAKERS = ("system", "developer"), ("user", "assistant", "tool")
THINKING = ("thinking", "redacted_thinking")
LISTS = ("reasoning_details", "codex_reasoning_items", "codex_message_items")
PLAIN = frozenset(("role", "content", "tool_calls", "tool_call_id", "name"))
"""Keys of most rows. If such a row has text, and calls without vendor fields, it can be read in only one way,
regardless of its vendor."""


@dataclass(frozen=True, slots=True)
class SuppliedHistory:
    """``prompt``: the text of the leading system rows; ``messages``: all other rows."""

    prompt: str
    messages: tuple[Message, ...]

    def with_prompt(self, system_message: str | None) -> str | None:
        """Return the caller's system prompt joined with that of the history."""
        texts = dict.fromkeys(text for text in (system_message, self.prompt) if text)
        return "\n\n".join(texts) or system_message


def read_history(
    rows: Iterable[Mapping[str, Any] | Message], runtime: Runtime, known: Sequence[Message] = ()
) -> SuppliedHistory:
    """Parse a caller's history; the list and its rows are never changed. Parts that only their issuer can
    read (signatures, encrypted items, reasoning) are kept. If a row does not name its issuer, it is the model
    that the agent runs on, ``runtime``, provided that its family produces such parts; else it is unknown.
    ``known``: the rows of the session. As long as the history begins with them, these very messages are used,
    so that they are neither stored nor written for the wire again.

    Raises ``ConfigError`` for a row that is not a message, and for a system row after other rows."""
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise ConfigError("conversation_history has the wrong type", rows, 'a list: [{"role": "user", …}]')
    family, issuer = runtime_family(runtime), issuer_of(runtime)
    messages, at = [], 0
    with without_collection():
        for row in rows:
            old = known[at] if at < len(known) else None
            message = row if isinstance(row, Message) else _read(row, old, family, issuer)
            messages.append(message)
            if message is old:
                at += 1
            elif message.role != "system":
                known = ()
    first = next((at for at, one in enumerate(messages) if one.role != "system"), len(messages))
    if any(one.role == "system" for one in messages[first:]):
        late = next(one.text for one in messages[first:] if one.role == "system")
        problem = "a system row follows other rows of conversation_history"
        raise ConfigError(problem, late[:60], "system rows at its beginning")
    prompt = "\n\n".join(one.text.strip() for one in messages[:first] if one.text.strip())
    return SuppliedHistory(prompt, tuple(_with_call_ids(messages[first:])))


def _read(row: Any, old: Message | None, family: ReasoningFamily, issuer: str) -> Message:
    """Return the message of a row: ``old`` if parsing would give the same message again."""
    if old is None or not isinstance(old.content, TEXT) or old.blocks or any(map(_extra, old.tool_calls)):
        return _message(row, family, issuer)  # equal numbers may be written differently
    as_stored = old.to_dict()
    if row == as_stored and (old.reasoning is None or old.issuer is not None):
        return old
    message = _message(row, family, issuer)
    return old if message.to_dict() == as_stored else message


def _extra(call: ToolCall) -> bool:
    return call.extra is not None


def _message(row: Any, family: ReasoningFamily, issuer: str) -> Message:
    plain = type(row) is dict and row.keys() <= PLAIN and isinstance(row.get("content"), TEXT)
    if plain and row.get("role") in SPEAKERS:
        message = Message.from_dict(row)
        if not any(map(_extra, message.tool_calls)):
            return message
    if isinstance(row, Mapping) and row.get("role") in PROMPTS:
        row = {**row, "role": "system"}
    if isinstance(row, Mapping):
        row = {**row, "content": parts_of(row.get("content"))}
    message = Message.from_dict(row)
    if message.role != "assistant":
        return message
    content: Any = message.content
    parts = content if isinstance(content, list) else []
    thoughts = [part for part in parts if isinstance(part, Mapping) and part.get("type") in THINKING]
    chunks = [part for part in thoughts if isinstance(part.get("thinking"), list)]
    blocks = [*message.blocks, *(part for part in thoughts if part not in chunks), *_blocks(row)]
    text = row.get(family.field or "reasoning_content")
    inner = [one for part in chunks for one in part["thinking"] if isinstance(one, Mapping)]
    texts = "".join(str(one.get("text") or "") for one in inner)
    fields = {
        "text": isinstance(text, str),
        "chunks": bool(chunks),
        "details": any(str(block.get("type", "")).startswith("reasoning.") for block in blocks),
        "extras": any(block.get("type") == "extra_content" for block in blocks)
        or any(call.extra for call in message.tool_calls),
        "signed": any(block.get("type") in THINKING for block in blocks),
        "items": any(block.get("type") in ("reasoning", "message") for block in blocks),
    }
    fields["unsigned"] = fields["signed"]
    return replace(
        message,
        content=[part for part in parts if part not in thoughts] or None if thoughts else content,
        reasoning=(text if isinstance(text, str) else None) or message.reasoning or texts or None,
        blocks=tuple(blocks),
        issuer=message.issuer or (issuer if fields.get(family.replay) else None),
    )


def _blocks(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the parts stored in separate fields, as blocks."""
    blocks: list[Mapping[str, Any]] = []
    for name in LISTS:
        given = row.get(name)
        if given is None:
            continue
        if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
            raise ConfigError(f"{name} of a message has the wrong type", given, "a list of objects")
        blocks += given
    extra = row.get("extra_content")
    return [*blocks, {"type": "extra_content", "extra_content": extra}] if extra else blocks


def _with_call_ids(messages: Iterable[Message]) -> Iterable[Message]:
    """Make results that name the item of a call name the call."""
    calls: dict[str | None, str] = {}
    for message in messages:
        for call in message.tool_calls:
            if call.item_id:
                calls[call.item_id] = call.id
        if message.role == "tool" and message.tool_call_id in calls:
            message = replace(message, tool_call_id=calls[message.tool_call_id])
        yield message
