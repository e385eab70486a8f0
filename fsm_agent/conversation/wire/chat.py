"""Chat completions: the rows are the internal form, made valid and stripped of bookkeeping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fsm_agent.conversation.effects import ToolSpec
from fsm_agent.conversation.history_rules import call_ids, opens_group, valid_rows
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.parts import body_of
from fsm_agent.conversation.wire.form import (
    Ask,
    Pieces,
    View,
    WireRow,
    cache_mark,
    dump,
    joined,
    without_patterns,
)
from fsm_agent.conversation.wire.parts import content_of
from fsm_agent.settings.model import CacheTtl
from fsm_agent.support.texts import clean


class ChatFormat:
    """The ``Format`` of chat completions."""

    def opens_run(self, run: Sequence[Message], message: Message) -> bool:
        return opens_group(run, message)

    def rows(self, run: Sequence[Message], seen_ids: set[str], view: View) -> list[WireRow]:
        return valid_rows(run, seen_ids, lambda message: _shape(message, view))

    def ids(self, rows: Sequence[WireRow]) -> set[str]:
        return call_ids(rows)

    def system_row(self, prompt: str, view: View) -> WireRow | None:
        row = {"role": "system", "content": clean(prompt).strip()}
        return self.marked(row, view.ttl) if view.marks else row

    def marked(self, row: WireRow, ttl: CacheTtl) -> WireRow | None:
        """Strings become one text part; a list carries the mark on its last part."""
        content = row.get("content")
        if not content or row["role"] == "tool":
            return None
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        return {**row, "content": [*parts[:-1], {**parts[-1], "cache_control": cache_mark(ttl)}]}

    def tools(self, tools: Sequence[ToolSpec], repairs: frozenset[str]) -> bytes:
        return dump(
            [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": without_patterns(tool.parameters)
                        if "grammar" in repairs
                        else tool.parameters,
                    },
                }
                for tool in tools
            ]
        )

    def body(self, ask: Ask, messages: Pieces) -> bytes:
        runtime = ask.runtime
        head: dict[str, Any] = {"model": runtime.model, "stream": runtime.streaming}
        if runtime.streaming:
            head["stream_options"] = {"include_usage": True}
        if ask.temperature is not None:
            head["temperature"] = ask.temperature
        if ask.effort is not None and runtime.effort_key:
            flat = runtime.effort_key == "reasoning_effort"
            head[runtime.effort_key] = ask.effort if flat else {"effort": ask.effort}
        tail: dict[str, Any] = {} if ask.output_cap is None else {runtime.output_key: ask.output_cap}
        return joined(head, [("tools", ask.tools), ("messages", messages)], tail)


def _shape(message: Message, view: View) -> WireRow:
    content: Any = content_of(message, view)
    if isinstance(content, str):
        content = wire_text(content, view)
    elif content is not None:
        content = [_part(part, view) for part in content]
    row: WireRow = {"role": message.role, "content": content or (None if message.role == "assistant" else "")}
    if message.role == "assistant" and "thinking_signature" not in view.repairs:
        row.update(_replayed_reasoning(message, view.reasoning))
    return row


def wire_text(text: str, view: View) -> str:
    """Text as it goes out: valid, trimmed, and plain ASCII where a provider could not read more."""
    text = clean(text).strip()
    return text.encode("ascii", "replace").decode() if "ascii" in view.repairs else text


def _part(part: Mapping[str, Any], view: View) -> dict[str, Any]:
    kind = part["type"]
    if kind == "text":
        return {"type": "text", "text": wire_text(part["text"], view)}
    return {"type": kind, kind: dict(body_of(part))}


def _replayed_reasoning(message: Message, how: str) -> dict[str, Any]:
    if how == "reasoning_content":
        return {"reasoning_content": clean(message.reasoning or " ")}
    if how == "details" and (details := [dict(block) for block in message.blocks if _is_detail(block)]):
        return {"reasoning_details": details}
    return {}


def _is_detail(block: Mapping[str, Any]) -> bool:
    """Blocks of other wires, kept in the same history, are none."""
    return str(block.get("type", "")).startswith("reasoning.")
