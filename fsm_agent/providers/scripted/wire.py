"""Scripted replies in the wire form of chat completions: chunks of a stream, or one object. Pure
functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fsm_agent.conversation.messages import Usage
from fsm_agent.providers.scripted.dialects import WireEvent
from fsm_agent.providers.scripted.replies import Call, Reply

PIECES = 3
"""Into how many deltas a text is split."""


class ChatDialect:
    """The ``Dialect`` of chat completions."""

    done = "[DONE]"

    def events(self, reply: Reply, number: int) -> Iterator[WireEvent]:
        for chunk in chunks(reply, number):
            yield WireEvent(
                chunk, delta=any(choice["delta"] for choice in chunk["choices"]), counted="usage" in chunk
            )

    def whole(self, reply: Reply, number: int) -> dict[str, Any]:
        return completion(reply, number)

    def error(self, reply: Reply) -> Any:
        return reply.body


def pieces(content: str, count: int = PIECES) -> list[str]:
    """The text in ``count`` parts of about equal length, none of them empty."""
    size = max(1, -(-len(content) // count))
    return [content[start : start + size] for start in range(0, len(content), size)]


def chunks(reply: Reply, number: int) -> Iterator[dict[str, Any]]:
    """The chunks of a message in the order of a real stream. ``number`` makes ids unique within a script."""
    yield _chunk(reply, number, {"role": "assistant", "content": ""})
    for part in pieces(reply.reasoning):
        yield _chunk(reply, number, {"reasoning_content": part})
    for part in pieces(reply.text):
        yield _chunk(reply, number, {"content": part})
    if reply.refusal is not None:
        yield _chunk(reply, number, {"refusal": reply.refusal})
    for index, entry in enumerate(reply.calls):
        function = {"name": entry.name, "arguments": ""}
        opening = {"index": index, **_id(entry, number, index), "type": "function", "function": function}
        yield _chunk(reply, number, {"tool_calls": [opening]})
        for part in pieces(entry.arguments):
            yield _chunk(reply, number, {"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    if reply.finish is not None:
        yield _chunk(reply, number, {}, reply.finish)
    if (served := served_usage(reply)) is not None:
        yield {**_head(reply, number, "chat.completion.chunk"), "choices": [], "usage": usage_to_wire(served)}


def completion(reply: Reply, number: int) -> dict[str, Any]:
    """The same message as one object."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.refusal is not None:
        message["refusal"] = reply.refusal
    if reply.calls:
        message["tool_calls"] = [
            {
                **_id(entry, number, n),
                "type": "function",
                "function": {"name": entry.name, "arguments": entry.arguments},
            }
            for n, entry in enumerate(reply.calls)
        ]
    body = _head(reply, number, "chat.completion")
    body["choices"] = [{"index": 0, "message": message, "finish_reason": reply.finish}]
    if (served := served_usage(reply)) is not None:
        body["usage"] = usage_to_wire(served)
    return body


def served_usage(reply: Reply) -> Usage | None:
    """What a reply reports when it is served to its end; a broken one never gets that far."""
    return reply.usage if reply.shape == "message" and reply.end == "done" else None


def usage_to_wire(usage: Usage) -> dict[str, Any]:
    """Canonical buckets as this wire writes them: its prompt tokens include the cached ones."""
    wire: dict[str, Any] = {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.total,
    }
    if usage.cache_read or usage.cache_write:
        wire["prompt_tokens_details"] = {
            "cached_tokens": usage.cache_read,
            "cache_write_tokens": usage.cache_write,
        }
    if usage.reasoning:
        wire["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return wire


def _head(reply: Reply, number: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 0, "model": reply.model}


def _chunk(reply: Reply, number: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {**_head(reply, number, "chat.completion.chunk"), "choices": [choice]}


def _id(entry: Call, number: int, index: int) -> dict[str, Any]:
    if entry.id == "":
        return {}
    return {"id": f"call_{number}_{index}" if entry.id is None else entry.id}
