"""The two wires of OpenAI. Chat completions: rows in the internal form, made valid and stripped of
bookkeeping. The Responses API: a list of items, one for each message, call, result, and thought."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fsm_agent.conversation.effects import ToolSpec
from fsm_agent.conversation.history import as_parts, call_ids, opens_group, valid_rows
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.parts import Part, body_of, kind_of
from fsm_agent.conversation.vendors import ITEMS
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
    hosted_tools_of,
    levels_of,
    nearest,
    option_fields,
)
from fsm_agent.settings import CacheTtl
from fsm_agent.support.texts import clean


class ChatFormat:
    """The ``Format`` of chat completions."""

    def opens_run(self, run: Sequence[Message], message: Message) -> bool:
        return opens_group(run, message)

    def rows(self, run: Sequence[Message], seen_ids: set[str], view: View) -> list[WireRow]:
        def extra(message: Message, call: ToolCall) -> dict[str, Any]:
            own = call.extra and "extras" in _issued_id(view) and view.accepts(message.issuer)
            return {"extra_content": call.extra} if own else {}

        if view.family.id_length:
            run = [_with_ids(message, view.family.id_length) for message in run]
        wire_rows = valid_rows(run, seen_ids, lambda message: _chat_row(message, view), extra)
        if wire_rows and wire_rows[0]["role"] == "assistant":
            wire_rows[0] |= _reasoning_fields(
                [message for message in run if message.role == "assistant"], wire_rows[0], view
            )
        return wire_rows

    def ids(self, rows: Sequence[WireRow]) -> set[str]:
        return call_ids(rows)

    def system_row(self, prompt: str, ephemeral: str, view: View) -> WireRow | None:
        marked = view.marks
        content = system_blocks(prompt, ephemeral, view.ttl) if marked else system_text(prompt, ephemeral)
        return {"role": view.prompt_role, "content": content}

    def mark(self, row: WireRow, ttl: CacheTtl) -> WireRow | None:
        """Mark the last part of a list, or convert a string to one marked text part."""
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


def _chat_row(message: Message, view: View) -> WireRow:
    content: Any = content_of(message, view)
    if isinstance(content, str):
        content = wire_text(content, view)
    elif content is not None:
        content = [_chat_part(part, view) for part in content]
    return {"role": message.role, "content": content or (None if message.role == "assistant" else "")}


def wire_text(text: str, view: View) -> str:
    """Return text as it is sent: valid, trimmed, and in plain ASCII if the provider cannot read more."""
    text = clean(text).strip()
    return text.encode("ascii", "replace").decode() if "ascii" in view.repairs else text


def _chat_part(part: Mapping[str, Any], view: View) -> dict[str, Any]:
    kind = part["type"]
    if kind == "text":
        return {"type": "text", "text": wire_text(part["text"], view)}
    return {"type": kind, kind: dict(body_of(part))}


def _with_ids(message: Message, length: int) -> Message:
    """Replace call ids that do not have this length; the same id always gets the same replacement."""

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


def _reasoning_fields(messages: Sequence[Message], row: WireRow, view: View) -> dict[str, Any]:
    """Return the reasoning fields that are sent back to their issuer with the row of these messages."""
    own = [block for message in messages for block in view.own_blocks(message)]
    thoughts = [clean(m.reasoning) for m in messages if m.reasoning and view.accepts(m.issuer)]
    match _issued_id(view):
        case "text" if thoughts or view.family.required:
            return {view.family.field: "\n\n".join(thoughts) or " "}
        case "chunks" if thoughts:
            chunks = [{"type": "thinking", "thinking": [{"type": "text", "text": one}]} for one in thoughts]
            return {"content": [*chunks, *as_parts(row.get("content"))]}
        case "details":
            # ignores blocks of other wires in the same history
            details = [block for block in own if str(block.get("type", "")).startswith("reasoning.")]
            return {"reasoning_details": details} if details else {}
    return _signature_fields(own, row, view)


def _signature_fields(own: Sequence[Mapping[str, Any]], row: WireRow, view: View) -> dict[str, Any]:
    """Return the signature of the whole row, and a substitute for the first call, without which the request
    is refused."""
    found: dict[str, Any] = {}
    signed = [block for block in own if block.get("type") == "extra_content" and "tool_call_id" not in block]
    if signed and _issued_id(view) == "extras":
        found["extra_content"] = signed[-1]["extra_content"]
    if view.family.stand_in and (calls := row.get("tool_calls")):
        stand_in = {"extra_content": {"google": {"thought_signature": view.family.stand_in}}}
        found["tool_calls"] = [stand_in | calls[0], *calls[1:]]
    return found


# ----------------------------------------------------------------------------------------------------
# The Responses API.


NO_TEXT = "(no text)"
LONGEST_ID = 60
"""Maximum characters of a call id; with an appended number it stays below OpenAI's limit of 64."""
LEAST_OUTPUT = 16
"""Tokens; OpenAI refuses a lower ``max_output_tokens``."""
_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 64


class ResponsesFormat:
    """The ``Format`` of the Responses API. The provider stores nothing, so reasoning is sent encrypted."""

    def opens_run(self, run: Sequence[Message], message: Message) -> bool:
        return opens_group(run, message)

    def rows(self, run: Sequence[Message], seen_ids: set[str], view: View) -> list[WireRow]:
        run = [_with_short_ids(message) for message in run]
        wire_rows = valid_rows(run, seen_ids, lambda message: _response_row(message, view))
        thoughts = [
            dict(item) for message in run if message.role == "assistant" for item in _thoughts(message, view)
        ]
        return [*thoughts, *(item for row in wire_rows for item in _items(row))]

    def ids(self, rows: Sequence[WireRow]) -> set[str]:
        return {row["call_id"] for row in rows if row["type"] == "function_call"}

    def system_row(self, prompt: str, ephemeral: str, view: View) -> WireRow | None:
        return None

    def mark(self, row: WireRow, ttl: CacheTtl) -> WireRow | None:
        return None

    def tools(self, tools: Sequence[ToolSpec], repairs: frozenset[str]) -> bytes:
        return dump(
            [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool_schema(tool, repairs),
                    "strict": False,
                }
                for tool in tools
            ]
        )

    def body(self, ask: Ask, messages: Pieces) -> bytes:
        """Return the body. A requested effort also requests a summary of the reasoning, its only visible
        form. Without an effort no summary is requested: OpenAI gives summaries only to verified
        organizations."""
        runtime = ask.runtime
        head: dict[str, Any] = {"model": runtime.model, "stream": runtime.streaming, "store": False}
        levels = levels_of(runtime.model)
        included = [name for tool, _ in hosted_tools_of(ask) for name in tool.include]
        if include := [*(["reasoning.encrypted_content"] if levels else ()), *included]:
            head["include"] = include
        if levels and ask.effort is not None:
            head["reasoning"] = {"effort": nearest(ask.effort, levels), "summary": "auto"}
        if ask.temperature is not None:
            head["temperature"] = ask.temperature
        head |= answer_fields(ask) | option_fields(ask)
        prompt = system_text(ask.system, ask.ephemeral)
        named = [
            ("instructions", dump(prompt) if prompt else None),
            ("tools", all_tools(ask)),
            ("input", messages),
        ]
        tail = {} if ask.output_cap is None else {"max_output_tokens": max(LEAST_OUTPUT, ask.output_cap)}
        return join_json(head, named, tail)


def _with_short_ids(message: Message) -> Message:
    """Shorten ids of other providers that are too long for OpenAI; call and result get the same new id."""
    calls = message.tool_calls
    if all(len(call.id) <= LONGEST_ID for call in calls) and len(message.tool_call_id or "") <= LONGEST_ID:
        return message
    shortened = tuple(replace(call, id=_short(call.id)) for call in calls)
    return replace(
        message, tool_calls=shortened, tool_call_id=message.tool_call_id and _short(message.tool_call_id)
    )


def _short(call_id: str) -> str:
    return (
        call_id
        if len(call_id) <= LONGEST_ID
        else "call_" + hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:24]
    )


def _response_row(message: Message, view: View) -> WireRow:
    """Return an intermediate row: ``content`` is text or parts of this wire, ``phase`` as received."""
    content: Any = content_of(message, view)
    if isinstance(content, str):
        content = wire_text(content, view)
    elif content is not None:
        content = [part for given in content for part in _response_part(given, view)]
    row: WireRow = {"role": message.role, "content": content or (None if message.role == "assistant" else "")}
    if message.role == "assistant" and (phase := _phase(message, view)):
        row["phase"] = phase
    return row


def _response_part(part: Part, view: View) -> Iterator[dict[str, Any]]:
    """Yield one part of this wire; nothing for an empty text."""
    body = body_of(part)
    if part["type"] == "text":
        if text := wire_text(part["text"], view):
            yield {"type": "input_text", "text": text}
    elif kind_of(part) == "image":
        where = {"file_id": body["file_id"]} if "file_id" in body else {"image_url": body["url"]}
        yield {"type": "input_image", **where, "detail": body.get("detail") or "auto"}
    elif "file_data" in body:
        yield {
            "type": "input_file",
            "filename": body.get("filename") or "file",
            "file_data": body["file_data"],
        }
    else:  # a name beside an address or an id is refused
        yield {"type": "input_file", **{key: body[key] for key in ("file_url", "file_id") if key in body}}


def _items(row: WireRow) -> Iterator[WireRow]:
    """Yield the items of one row."""
    content = row.get("content")
    if row["role"] == "tool":
        output = _content_items(content) if isinstance(content, list) else content or ""
        yield {"type": "function_call_output", "call_id": row["tool_call_id"], "output": output}
        return
    if content or row["role"] == "user":
        phase = {"phase": row["phase"]} if "phase" in row else {}
        yield {"type": "message", "role": row["role"], "content": _content_items(content) or NO_TEXT, **phase}
    for call in row.get("tool_calls", ()):
        function = call["function"]
        name = _NAME.sub("_", function["name"])[:_LONGEST_NAME]
        yield {
            "type": "function_call",
            "call_id": call["id"],
            "name": name,
            "arguments": function["arguments"],
        }


def _content_items(content: Any) -> Any:
    """Convert text parts that ``valid_rows`` joined, which may be in the internal form."""
    if not isinstance(content, list):
        return content
    return [{**part, "type": "input_text"} if part.get("type") == "text" else part for part in content]


def _thoughts(message: Message, view: View) -> Iterator[Mapping[str, Any]]:
    """Yield encrypted reasoning made by this provider, verbatim but without its id, under which nothing is
    stored; and the actions of its hosted tools, verbatim."""
    for block in view.own_blocks(message):
        if block.get("type") in ITEMS:
            yield block
        elif "encrypted_replay" in view.repairs:
            continue
        elif block.get("type") == "reasoning" and block.get("encrypted_content"):
            yield {key: one for key, one in block.items() if key not in ("id", "status") and one is not None}


def _phase(message: Message, view: View) -> str:
    own = (block for block in view.own_blocks(message) if block.get("type") == "message")
    return next((str(block.get("phase") or "") for block in own), "")
