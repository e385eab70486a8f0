"""Chat completions: the rows are the internal form, made valid and stripped of bookkeeping."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fsm_agent.conversation.effects import ToolSpec
from fsm_agent.conversation.history import as_parts, call_ids, opens_group, valid_rows
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.parts import body_of
from fsm_agent.conversation.wire.form import (
    Ask,
    Pieces,
    View,
    WireRow,
    cache_mark,
    content_of,
    dump,
    join_json,
    system_blocks,
    system_text,
    tool_schema,
)
from fsm_agent.conversation.wire.options import (
    NORMALIZED,
    all_tools,
    answer_fields,
    levels_of,
    nearest,
    option_fields,
)
from fsm_agent.settings.model import CacheTtl
from fsm_agent.support.texts import clean


class ChatFormat:
    """The ``Format`` of chat completions."""

    def opens_run(self, run: Sequence[Message], message: Message) -> bool:
        return opens_group(run, message)

    def rows(self, run: Sequence[Message], seen_ids: set[str], view: View) -> list[WireRow]:
        def extra(message: Message, call: ToolCall) -> dict[str, Any]:
            own = call.extra and "extras" in _issued_id(view) and view.made(message.issuer)
            return {"extra_content": call.extra} if own else {}

        if view.family.id_length:
            run = [_with_ids(message, view.family.id_length) for message in run]
        made = valid_rows(run, seen_ids, lambda message: _shape(message, view), extra)
        if made and made[0]["role"] == "assistant":
            made[0] |= _reasoning_fields(
                [message for message in run if message.role == "assistant"], made[0], view
            )
        return made

    def ids(self, rows: Sequence[WireRow]) -> set[str]:
        return call_ids(rows)

    def system_row(self, prompt: str, ephemeral: str, view: View) -> WireRow | None:
        marked = view.marks
        content = system_blocks(prompt, ephemeral, view.ttl) if marked else system_text(prompt, ephemeral)
        return {"role": view.prompt_role, "content": content}

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
                        "parameters": tool_schema(tool, repairs),
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
        head |= answer_fields(ask) | option_fields(ask)
        if ask.effort is not None and runtime.effort_key:
            flat = runtime.effort_key == "reasoning_effort"
            effort = nearest(ask.effort, (levels_of(runtime.model) if flat else ()) or NORMALIZED)
            head[runtime.effort_key] = effort if flat else {"effort": effort}
        tail: dict[str, Any] = {} if ask.output_cap is None else {runtime.output_key: ask.output_cap}
        return join_json(head, [("tools", all_tools(ask)), ("messages", messages)], tail)


def _shape(message: Message, view: View) -> WireRow:
    content: Any = content_of(message, view)
    if isinstance(content, str):
        content = wire_text(content, view)
    elif content is not None:
        content = [_part(part, view) for part in content]
    return {"role": message.role, "content": content or (None if message.role == "assistant" else "")}


def wire_text(text: str, view: View) -> str:
    """Text as it goes out: valid, trimmed, and plain ASCII where a provider could not read more."""
    text = clean(text).strip()
    return text.encode("ascii", "replace").decode() if "ascii" in view.repairs else text


def _part(part: Mapping[str, Any], view: View) -> dict[str, Any]:
    kind = part["type"]
    if kind == "text":
        return {"type": "text", "text": wire_text(part["text"], view)}
    return {"type": kind, kind: dict(body_of(part))}


def _with_ids(message: Message, length: int) -> Message:
    """Calls and results with ids of this length; the same id always becomes the same."""

    def fitting(call_id: str) -> str:
        if not call_id or (len(call_id) == length and call_id.isascii() and call_id.isalnum()):
            return call_id
        return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:length]

    calls = tuple(replace(call, id=fitting(call.id)) for call in message.tool_calls)
    return replace(
        message, tool_calls=calls, tool_call_id=message.tool_call_id and fitting(message.tool_call_id)
    )


# Reasoning


def _issued_id(view: View) -> str:
    return "" if "thinking_signature" in view.repairs else view.family.replay


def _reasoning_fields(said: Sequence[Message], row: WireRow, view: View) -> dict[str, Any]:
    """What goes back to its issuer with the row that these messages became."""
    own = [block for message in said for block in view.own_blocks(message)]
    thoughts = [clean(m.reasoning) for m in said if m.reasoning and view.made(m.issuer)]
    match _issued_id(view):
        case "text" if thoughts or view.family.required:
            return {view.family.field: "\n\n".join(thoughts) or " "}
        case "chunks" if thoughts:
            chunks = [{"type": "thinking", "thinking": [{"type": "text", "text": one}]} for one in thoughts]
            return {"content": [*chunks, *as_parts(row.get("content"))]}
        case "details":
            # blocks of other wires, kept in the same history, are none
            details = [block for block in own if str(block.get("type", "")).startswith("reasoning.")]
            return {"reasoning_details": details} if details else {}
    return _signature_fields(own, row, view)


def _signature_fields(own: Sequence[Mapping[str, Any]], row: WireRow, view: View) -> dict[str, Any]:
    """The signature of the whole row; and one for the first call, without which the request is refused."""
    found: dict[str, Any] = {}
    signed = [block for block in own if block.get("type") == "extra_content" and "tool_call_id" not in block]
    if signed and _issued_id(view) == "extras":
        found["extra_content"] = signed[-1]["extra_content"]
    if view.family.stand_in and (calls := row.get("tool_calls")):
        stand_in = {"extra_content": {"google": {"thought_signature": view.family.stand_in}}}
        found["tool_calls"] = [stand_in | calls[0], *calls[1:]]
    return found
