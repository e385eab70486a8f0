"""The wire copy of a conversation: a pure function of history, scaffolding and the provider's view, computed once a row.

``WireCopy`` remembers the bytes of every finished run of the history and adds only what is new, so that a request costs
time proportional to what was appended, and request N is a byte prefix of request N+1 as long as nothing is recovered from.
Everything that varies from request to request is written behind the messages for the same reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.invariants import BRIDGE, WireRow, awaited, call_ids, opens_group, sendable, valid_rows
from fsm_agent.messages import Message
from fsm_agent.requests import Runtime, ToolSpec
from fsm_agent.texts import clean

IMAGE_PLACEHOLDER = "(an image was here; this model reads text only)"
CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class View:
    """What the shape of a row depends on besides the row itself. ``repairs``: wire modes switched on by recoveries."""

    reasoning: str = "none"
    vision: bool = True
    repairs: frozenset[str] = frozenset()

    @classmethod
    def of(cls, runtime: Runtime, repairs: frozenset[str]) -> View:
        return cls(runtime.reasoning_replay, runtime.vision and "vision" not in repairs, repairs)


class WireCopy:
    """The chat-completions form of one growing history. Safe to use again after the history was replaced."""

    def __init__(self) -> None:
        self._reset(View())

    def _reset(self, view: View) -> None:
        self._view = view
        self._closed = bytearray()
        self._group: list[Message] = []
        self._ids: set[str] = set()
        self._read = 0
        self._last: Message | None = None

    def messages(self, system: str, history: Sequence[Message], scaffold: Sequence[Message], view: View) -> bytes:
        """The bytes of the message list, brackets included."""
        self._catch_up(history, view)
        parts = [_dump({"role": "system", "content": clean(system).strip()})] if system.strip() else []
        parts += [bytes(self._closed)] if self._closed else []
        parts += self._tail(scaffold)
        return b"[" + b",".join(parts) + b"]"

    def _catch_up(self, history: Sequence[Message], view: View) -> None:
        same = self._read <= len(history) and (not self._read or history[self._read - 1] is self._last)
        if view != self._view or not same:
            self._reset(view)
        for index in range(self._read, len(history)):
            self._add(history[index])
        if history:
            self._read, self._last = len(history), history[-1]

    def _add(self, message: Message) -> None:
        if not sendable(message) or (message.role == "tool" and not awaited(self._group, message)):
            return
        self._group = self._group or self._bridge(message)
        if opens_group(self._group, message):
            self._close()
            self._group = [message]
        else:
            self._group.append(message)

    def _bridge(self, first: Message) -> list[Message]:
        """A conversation begins with the user; one that was cut so that it does not is given a beginning."""
        return [Message("user", BRIDGE)] if first.role == "assistant" and not self._closed else []

    def _close(self) -> None:
        rows = self._rows(self._group, self._ids)
        self._ids |= call_ids(rows)
        for row in rows:
            self._closed += (b"," if self._closed else b"") + _dump(row)

    def _tail(self, scaffold: Sequence[Message]) -> list[bytes]:
        """What can still change: the last run of the history, and scaffolding (which carries no calls)."""
        groups = [list(self._group) or (self._bridge(scaffold[0]) if scaffold else [])]
        for message in scaffold:
            if opens_group(groups[-1], message):
                groups.append([message])
            else:
                groups[-1].append(message)
        return [_dump(row) for group in groups for row in self._rows(group, self._ids)]

    def _rows(self, group: Sequence[Message], ids: set[str]) -> list[WireRow]:
        return valid_rows(group, ids, self._shape)

    def _shape(self, message: Message) -> WireRow:
        content: Any = message.content if message.sent is None else message.sent
        if isinstance(content, str):
            content = self._text(content)
        elif content is not None:
            content = [self._part(part) for part in content]
            if message.role != "user" and ("flat_tool_content" in self._view.repairs or not self._view.vision):
                content = "\n".join(str(part.get("text", "")) for part in content)
        row: WireRow = {"role": message.role, "content": content or (None if message.role == "assistant" else "")}
        if message.role == "assistant" and "thinking_signature" not in self._view.repairs:
            row.update(_replayed_reasoning(message, self._view.reasoning))
        return row

    def _text(self, text: str) -> str:
        text = clean(text).strip()
        return text.encode("ascii", "replace").decode() if "ascii" in self._view.repairs else text

    def _part(self, part: Mapping[str, Any]) -> dict[str, Any]:
        if part.get("type") == "text":
            return {"type": "text", "text": self._text(str(part.get("text", "")))}
        return dict(part) if self._view.vision else {"type": "text", "text": IMAGE_PLACEHOLDER}


def _replayed_reasoning(message: Message, how: str) -> dict[str, Any]:
    if how == "reasoning_content":
        return {"reasoning_content": clean(message.reasoning or " ")}
    if how == "details" and message.blocks:
        return {"reasoning_details": [dict(block) for block in message.blocks]}
    return {}


# The body


def tools_json(tools: Sequence[ToolSpec], repairs: frozenset[str]) -> bytes:
    """The list of tools as the wire wants it; ``grammar`` leaves out what some servers cannot turn into a grammar."""
    return _dump(
        [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": _without_patterns(tool.parameters) if "grammar" in repairs else tool.parameters,
                },
            }
            for tool in tools
        ]
    )


def chat_body(
    runtime: Runtime,
    messages: bytes,
    *,
    tools: bytes | None,
    stream: bool,
    output_cap: int | None,
    temperature: float | None,
) -> bytes:
    """The exact body of one chat-completions request. What varies comes behind the messages (prefix caches)."""
    head: dict[str, Any] = {"model": runtime.model, "stream": stream}
    if stream:
        head["stream_options"] = {"include_usage": True}
    if temperature is not None:
        head["temperature"] = temperature
    parts = [_dump(head)[:-1]]
    if tools is not None:
        parts.append(b'"tools":' + tools)
    parts.append(b'"messages":' + messages)
    if output_cap is not None:
        parts.append(_dump({runtime.output_key: output_cap})[1:-1])
    return b",".join(parts) + b"}"


def tokens_of(body_bytes: int) -> int:
    """A rough size in tokens: four characters each."""
    return body_bytes // CHARS_PER_TOKEN


def _without_patterns(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {
            key: _without_patterns(value)
            for key, value in schema.items()
            if key not in ("pattern", "format") or not isinstance(value, str)
        }
    return [_without_patterns(item) for item in schema] if isinstance(schema, list) else schema


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
