"""Anthropic's Messages API: rows of content blocks, alternating between the user and the assistant.

A run is an assistant row with everything up to the next one. On this wire, results and the user's messages
are one row, results first, so that a call is answered in the very next row."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fsm_agent.conversation.effects import ToolSpec
from fsm_agent.conversation.history import CALL_REMOVED, valid_rows
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.parts import Part, body_of, data_of, kind_of
from fsm_agent.conversation.vendors import HOSTED, content_again, without_thoughts
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
from fsm_agent.conversation.wire.openai import wire_text
from fsm_agent.conversation.wire.options import (
    all_tools,
    answer_fields,
    family_of,
    forces,
    option_fields,
    output_cap,
    thinking_params,
)
from fsm_agent.settings import CacheTtl
from fsm_agent.support.texts import clean

NO_TEXT = "(no text)"
_ID, _NAME = re.compile(r"[a-zA-Z0-9_-]+\Z"), re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 128
_THOUGHT = (
    b'{"role":"assistant","content":[{"type":"thinking"',
    b'{"role":"assistant","content":[{"type":"redacted_thinking"',
)
_RESULT = b'{"role":"user","content":[{"type":"tool_result"'

Block = dict[str, Any]


class AnthropicFormat:
    """The ``Format`` of the Messages API."""

    def opens_run(self, run: Sequence[Message], message: Message) -> bool:
        return not run or (message.role == "assistant" and run[-1].role != "assistant")

    def rows(self, run: Sequence[Message], seen_ids: set[str], view: View) -> list[WireRow]:
        run = [_with_plain_ids(message) for message in run]
        replies = [message for message in run if message.role != "user"]
        rows = _exchange(replies, seen_ids, view) if replies else []
        words = [block for message in run if message.role == "user" for block in _blocks(message, view)]
        if len(replies) < len(run) and not words and len(rows) != 2:
            words = [_text(NO_TEXT)]
        if words and len(rows) == 2:
            rows[1] = _row("user", [*rows[1]["content"], *words])
        elif words:
            rows.append(_row("user", words))
        return rows

    def ids(self, rows: Sequence[WireRow]) -> set[str]:
        return {block["id"] for row in rows for block in row["content"] if block["type"] == "tool_use"}

    def system_row(self, prompt: str, ephemeral: str, view: View) -> WireRow | None:
        return None

    def mark(self, row: WireRow, ttl: CacheTtl) -> WireRow | None:
        """Mark the last block, which is never a thought (CACHE-07)."""
        *before, last = row["content"]
        return {**row, "content": [*before, {**last, "cache_control": cache_mark(ttl)}]}

    def tools(self, tools: Sequence[ToolSpec], repairs: frozenset[str]) -> bytes:
        return dump([_tool(tool, repairs) for tool in tools])

    def body(self, ask: Ask, messages: Pieces) -> bytes:
        runtime, family = ask.runtime, family_of(ask.runtime.model)
        cap = output_cap(family, ask)
        thinking = thinking_params(family, ask.effort, cap)
        if forces(ask) or (family.thinking == "budget" and not _may_think(messages)):
            thinking = {}
        head: dict[str, Any] = {"model": runtime.model, "stream": runtime.streaming}
        if ask.temperature is not None and family.temperature and not thinking:
            head["temperature"] = min(1.0, ask.temperature)
        head |= option_fields(ask)
        if prompt := system_text(ask.system, ask.ephemeral):
            marked = runtime.cache_marks
            head["system"] = system_blocks(ask.system, ask.ephemeral, ask.ttl) if marked else prompt
        config = thinking.pop("output_config", {}) | answer_fields(ask).get("output_config", {})
        tail = {**thinking, **({"output_config": config} if config else {}), "max_tokens": cap}
        return join_json(head, [("tools", all_tools(ask)), ("messages", messages)], tail)


def _row(role: str, blocks: list[Block]) -> WireRow:
    return {"role": role, "content": blocks}


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _exchange(replies: list[Message], seen_ids: set[str], view: View) -> list[WireRow]:
    """Return the assistant's row, and a second row with the results if calls were answered."""
    reply, *results = valid_rows(replies, seen_ids, lambda message: _shape(message, view))
    calls = reply.get("tool_calls", [])
    content = reply["content"]
    blocks = [_text(content)] if isinstance(content, str) else list(content or ())
    led = _inner_thoughts(replies, calls, view)
    for call in calls:
        function = call["function"]
        blocks += led.get(call["id"], [])
        name = _NAME.sub("_", function["name"])[:_LONGEST_NAME]
        blocks.append(
            {"type": "tool_use", "id": call["id"], "name": name, "input": json.loads(function["arguments"])}
        )
    if blocks[-1]["type"] in ("thinking", "redacted_thinking"):
        blocks.append(_text(CALL_REMOVED))
    rows = [_row("assistant", blocks)]
    if results:
        rows.append(_row("user", [_result(row) for row in results]))
    return rows


def _shape(message: Message, view: View) -> WireRow:
    """Return one message in the form that ``valid_rows`` joins; parts are already content blocks."""
    if message.role == "tool":
        blocks = _blocks(message, view)
        if all(block["type"] == "text" for block in blocks):
            return {"role": "tool", "content": "\n".join(block["text"] for block in blocks)}
        return {"role": "tool", "content": blocks}
    if (again := _hosted_content(message, view)) is not None:
        return {"role": "assistant", "content": again or None}
    leading = [
        block
        for kept in _replayable_thoughts(message, view)
        if "before" not in kept and (block := _thinking_block(kept)) is not None
    ]
    texts = [block for block in _blocks(message, view) if block["type"] == "text"]
    return {"role": "assistant", "content": leading + texts or None}


def _result(row: WireRow) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": row["tool_call_id"]}
    return {**block, "content": row["content"]} if row["content"] else block


def _hosted_content(message: Message, view: View) -> list[Block] | None:
    """Return the content of a reply with hosted tools, as it was received."""
    if view.family.replay != "signed":
        return None
    blocks: Sequence[Mapping[str, Any]] = [*view.own_blocks(message)]
    if "thinking_signature" in view.repairs:
        blocks = without_thoughts(blocks)
    return content_again(blocks, wire_text(message.text if message.sent is None else message.sent, view))


# Reasoning


def _replayable_thoughts(message: Message, view: View) -> Iterator[Mapping[str, Any]]:
    """Yield the thoughts of a message that this provider made and accepts back. Native Anthropic accepts
    those that it signed, and others as text; wires that use reasoning without signatures accept only unsigned
    ones."""
    native = view.family.replay == "signed"
    if "thinking_signature" in view.repairs or not (native or view.family.replay == "unsigned"):
        return
    for block in view.own_blocks(message):
        if block.get("type") == HOSTED:
            continue
        signed = block.get("type") == "redacted_thinking" or bool(block.get("signature"))
        if native or not signed:
            yield {**block, "type": "unsigned"} if native and not signed else block


def _thinking_block(kept: Mapping[str, Any]) -> Block | None:
    match kept.get("type"):
        case "thinking" | "redacted_thinking":
            private = ("type", "before") if kept.get("signature") else ("type", "before", "signature")
            return {"type": kept["type"], **{key: one for key, one in kept.items() if key not in private}}
        case "unsigned" if text := clean(str(kept.get("thinking", ""))).strip():
            return _text(text)
    return None


def _inner_thoughts(rows: list[Message], calls: list[dict[str, Any]], view: View) -> dict[str, list[Block]]:
    """Return the thoughts between calls, by the wire id of the call after them."""
    awaited = {message.tool_call_id for message in rows if message.role == "tool"}
    ids = [call.id for message in rows for call in message.tool_calls if call.id in awaited]
    wire_ids = dict(zip(dict.fromkeys(ids), (call["id"] for call in calls), strict=True))
    led: dict[str, list[Block]] = {}
    for message in rows:
        for kept in _replayable_thoughts(message, view):
            wire_id = wire_ids.get(_plain_id(str(kept.get("before", ""))))
            if wire_id is not None and (block := _thinking_block(kept)) is not None:
                led.setdefault(wire_id, []).append(block)
    return led


def _may_think(messages: Pieces) -> bool:
    """Return whether the model may start thinking. A model with a thinking budget refuses to do so inside a
    tool loop unless the last reply begins with a thought. Strings inside a row are escaped, so its beginning
    is unambiguous."""
    rows = [piece for piece in messages if len(piece) > 1]
    if len(rows) < 2 or not rows[-1].startswith(_RESULT):
        return True
    return rows[-2].startswith(_THOUGHT)


# Content


def _blocks(message: Message, view: View) -> list[Block]:
    """Return the texts, images and documents of a message; blank texts are never sent."""
    content = content_of(message, view)
    parts: Sequence[Part] = [_text(content)] if isinstance(content, str) else content or ()
    blocks = [
        _text(wire_text(part["text"], view)) if part["type"] == "text" else _source_block(part)
        for part in parts
    ]
    return [block for block in blocks if block["type"] != "text" or block["text"]]


def _source_block(part: Part) -> Block:
    body, (media_type, data) = body_of(part), data_of(part)
    address = clean(str(body.get("url") or body.get("file_url") or ""))
    source = (
        {"type": "base64", "media_type": media_type, "data": data}
        if data
        else {"type": "url", "url": address}
    )
    if kind_of(part) == "image":
        return {"type": "image", "source": source}
    title = {"title": str(body["filename"])} if body.get("filename") else {}
    return {"type": "document", "source": source, **title}


def _tool(tool: ToolSpec, repairs: frozenset[str]) -> dict[str, Any]:
    schema = tool_schema(tool, repairs)
    described = {"description": tool.description} if tool.description.strip() else {}
    return {"name": tool.name, **described, "input_schema": {"type": "object", **schema}}


# Ids


def _with_plain_ids(message: Message) -> Message:
    """Replace ids that this wire does not allow; the same id always gets the same replacement."""
    calls, answered = message.tool_calls, message.tool_call_id
    if answered is not None and answered != _plain_id(answered):
        return replace(message, tool_call_id=_plain_id(answered))
    if any(call.id != _plain_id(call.id) for call in calls):
        return replace(
            message,
            tool_calls=tuple(replace(call, id=_plain_id(call.id)) for call in calls),
        )
    return message


def _plain_id(call_id: str) -> str:
    if not call_id or _ID.match(call_id):
        return call_id
    mark = hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{_NAME.sub('_', call_id)}_{mark}"
