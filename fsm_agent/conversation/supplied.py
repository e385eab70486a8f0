"""A history that a caller supplies, in the forms in which vendors and other programs keep theirs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsm_agent.conversation.effects import Runtime
from fsm_agent.conversation.families import ReasoningFamily, issuer_of, runtime_family
from fsm_agent.conversation.messages import TEXT, Message, ToolCall
from fsm_agent.conversation.parts import parts_of
from fsm_agent.errors import ConfigError
from fsm_agent.support.later import uncollected

PROMPTS, SPEAKERS = ("system", "developer"), ("user", "assistant", "tool")
THINKING = ("thinking", "redacted_thinking")
LISTS = ("reasoning_details", "codex_reasoning_items", "codex_message_items")
PLAIN = frozenset(("role", "content", "tool_calls", "tool_call_id", "name"))
"""What most rows consist of. With a text, and calls that have nothing of a vendor's own, such a row can be
read only one way, whoever made it."""


@dataclass(frozen=True, slots=True)
class SuppliedHistory:
    """``prompt``: what the rows of the system at its beginning say; ``messages``: all others."""

    prompt: str
    messages: tuple[Message, ...]

    def with_prompt(self, system_message: str | None) -> str | None:
        """Return what the caller says to the system: here, and in the history."""
        texts = dict.fromkeys(text for text in (system_message, self.prompt) if text)
        return "\n\n".join(texts) or system_message


def supplied_history(
    rows: Iterable[Mapping[str, Any] | Message], runtime: Runtime, known: Sequence[Message] = ()
) -> SuppliedHistory:
    """Read a caller's history; neither the list nor its rows are ever changed. What only its maker can read
    (signatures, encrypted items, reasoning) is kept. Where a row does not say who made it, it was the model
    that the agent runs on, ``runtime``, if that is what its family makes; else nobody knows. ``known``: the
    rows of the session. As long as the history begins as they do, it has these very messages, so that they
    are neither stored nor written for the wire again.

    Raises ``ConfigError`` for a row that is no message, and for one of the system behind others."""
    family, issuer = runtime_family(runtime), issuer_of(runtime)
    messages, at = [], 0
    with uncollected():
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
        what = "a system row stands behind other rows of conversation_history"
        raise ConfigError(what, late[:60], "system rows at its beginning")
    prompt = "\n\n".join(one.text.strip() for one in messages[:first] if one.text.strip())
    return SuppliedHistory(prompt, tuple(_with_call_ids(messages[first:])))


def _read(row: Any, old: Message | None, family: ReasoningFamily, issuer: str) -> Message:
    """The message that a row is: ``old`` where that would be read of it again."""
    if old is None or not isinstance(old.content, TEXT) or old.blocks or any(map(_extra, old.tool_calls)):
        return _message(row, family, issuer)  # numbers may be equal and written otherwise
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
    said = "".join(str(one.get("text") or "") for one in inner)
    made = {
        "text": isinstance(text, str),
        "chunks": bool(chunks),
        "details": any(str(block.get("type", "")).startswith("reasoning.") for block in blocks),
        "extras": any(block.get("type") == "extra_content" for block in blocks)
        or any(call.extra for call in message.tool_calls),
        "signed": any(block.get("type") in THINKING for block in blocks),
        "items": any(block.get("type") in ("reasoning", "message") for block in blocks),
    }
    made["unsigned"] = made["signed"]
    return replace(
        message,
        content=[part for part in parts if part not in thoughts] or None if thoughts else content,
        reasoning=(text if isinstance(text, str) else None) or message.reasoning or said or None,
        blocks=tuple(blocks),
        issuer=message.issuer or (issuer if made.get(family.replay) else None),
    )


def _blocks(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The parts that stand in fields of their own, as blocks."""
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
    """Results that name the item of a call are made to name the call."""
    calls: dict[str | None, str] = {}
    for message in messages:
        for call in message.tool_calls:
            if call.item_id:
                calls[call.item_id] = call.id
        if message.role == "tool" and message.tool_call_id in calls:
            message = replace(message, tool_call_id=calls[message.tool_call_id])
        yield message
