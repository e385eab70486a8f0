"""What people, models and tools said, as the conventions write it, and without secrets: JSON texts for the
attributes of spans."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fsm_agent.conversation.effects import ModelRequest
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.support.redaction import mask, mask_json
from fsm_agent.telemetry import conventions as names

Part = Mapping[str, Any]
ASKED = ("messages", "input")
"""Where the wires have the conversation."""
TEXTS = ("text", "input_text", "output_text", "refusal")


def as_json(value: Any) -> str:
    """JSON text without secrets."""
    return json.dumps(mask_json(value), ensure_ascii=False, default=str)


def masked(words: str) -> str:
    """The words without secrets."""
    return mask(words)


def of_request(request: ModelRequest) -> dict[str, str]:
    """The attributes of what a model is asked, read from the body as it goes out, whichever wire it is of."""
    try:
        body = json.loads(request.body)
    except ValueError:
        return {}
    if not isinstance(body, Mapping):
        return {}
    rows: Any = next((body[name] for name in ASKED if name in body), [])
    rows = [{"role": "user", "content": rows}] if isinstance(rows, str) else rows
    told = {names.INPUT_MESSAGES: as_json([_message(row) for row in rows if isinstance(row, Mapping)])}
    if prompt := body.get("system") or body.get("instructions"):
        told[names.SYSTEM_INSTRUCTIONS] = as_json(list(_parts(prompt)))
    if tools := body.get("tools"):
        told[names.TOOL_DEFINITIONS] = as_json(tools)
    return told


def of_reply(reply: ModelReply) -> dict[str, str]:
    """The attributes of what a model answered."""
    parts: list[Part] = []
    if reply.reasoning:
        parts.append({"type": "reasoning", "content": reply.reasoning})
    if reply.text:
        parts.append(_text(reply.text))
    parts += [_call(one.id, one.name, one.arguments) for one in reply.tool_calls]
    answer = {"role": "assistant", "parts": parts, "finish_reason": reply.finish or ""}
    return {names.OUTPUT_MESSAGES: as_json([answer])}


def of_turn(attribute: str, role: str, words: str) -> dict[str, str]:
    """The attribute of what a user said, or was answered."""
    return {attribute: as_json([{"role": role, "parts": [_text(words)]}])}


def _message(row: Part) -> Part:
    kind = row.get("type")
    if kind == "function_call":
        return {"role": "assistant", "parts": [_call(row.get("call_id"), row.get("name"), row["arguments"])]}
    if kind == "function_call_output":
        return {"role": "tool", "parts": [_result(row.get("call_id"), row.get("output"))]}
    if kind == "reasoning":
        return {"role": "assistant", "parts": [{"type": "reasoning", "content": ""}]}
    if row.get("role") == "tool":
        return {"role": "tool", "parts": [_result(row.get("tool_call_id"), row.get("content"))]}
    parts = list(_parts(row.get("content")))
    for call in row.get("tool_calls") or ():
        function = call.get("function") or {}
        parts.append(_call(call.get("id"), function.get("name"), function.get("arguments")))
    return {"role": row.get("role", "user"), "parts": parts}


def _parts(content: Any) -> Iterator[Part]:
    if content is None:
        return
    for piece in content if isinstance(content, list) else [content]:
        if not isinstance(piece, Mapping):
            yield _text(str(piece))
        elif piece.get("type") in TEXTS:
            yield _text(str(piece.get("text") or piece.get("refusal") or ""))
        elif piece.get("type") == "tool_use":
            yield _call(piece.get("id"), piece.get("name"), piece.get("input"))
        elif piece.get("type") == "tool_result":
            yield _result(piece.get("tool_use_id"), piece.get("content"))
        elif piece.get("type") in ("thinking", "redacted_thinking"):
            yield {"type": "reasoning", "content": str(piece.get("thinking") or "")}
        else:  # an image, a document: its bytes are no use here
            yield {"type": str(piece.get("type"))}


def _text(words: str) -> Part:
    return {"type": "text", "content": words}


def _call(id: Any, name: Any, arguments: Any) -> Part:
    return {"type": "tool_call", "id": id, "name": name, "arguments": arguments}


def _result(id: Any, content: Any) -> Part:
    words = content if isinstance(content, str) else [part.get("content", "") for part in _parts(content)]
    return {"type": "tool_call_response", "id": id, "response": words}
