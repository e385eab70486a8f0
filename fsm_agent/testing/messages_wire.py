"""Scripted replies in the wire form of Anthropic's Messages API: events of a stream, or one object. Pure
functions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fsm_agent.conversation.messages import Usage
from fsm_agent.providers.scripted.dialects import WireEvent
from fsm_agent.providers.scripted.replies import Reply
from fsm_agent.providers.scripted.wire import pieces, served_usage

_STOP = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
    "incomplete": "pause_turn",
}
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class MessagesDialect:
    """The ``Dialect`` of the Messages API."""

    done = ""

    def events(self, reply: Reply, number: int) -> Iterator[WireEvent]:
        """A stream that does not tell how it ended leaves its last block open. Usage is told at the start, as
        far as it is known there, and counted at the end."""
        blocks = [*_blocks(reply, number)]
        usage = served_usage(reply)
        start = {**_head(reply, number), "content": [], "stop_reason": None, "stop_sequence": None}
        if usage is not None:
            start["usage"] = {**usage_to_wire(usage), "output_tokens": 1}
        yield _event({"type": "message_start", "message": start})
        yield _event({"type": "ping"})
        for index, (block, deltas) in enumerate(blocks):
            yield _event({"type": "content_block_start", "index": index, "content_block": block})
            for delta in deltas:
                yield _event({"type": "content_block_delta", "index": index, "delta": delta}, delta=True)
            if reply.finish is not None or index < len(blocks) - 1:
                yield _event({"type": "content_block_stop", "index": index})
        if reply.finish is not None:
            told = {} if usage is None else {"usage": usage_to_wire(usage)}
            yield _event({"type": "message_delta", "delta": _stop(reply), **told}, counted=usage is not None)
            yield _event({"type": "message_stop"})

    def whole(self, reply: Reply, number: int) -> dict[str, Any]:
        content = [_filled(block, deltas) for block, deltas in _blocks(reply, number)]
        body = {**_head(reply, number), "content": content, **_stop(reply)}
        if (usage := served_usage(reply)) is not None:
            body["usage"] = usage_to_wire(usage)
        return body

    def error(self, reply: Reply) -> Any:
        """An error in the usual shape becomes one of this wire; its code goes into the details. Others stay
        as they are."""
        error = reply.body.get("error") if isinstance(reply.body, Mapping) else None
        if not isinstance(error, Mapping) or reply.body.get("type") == "error":
            return reply.body
        kind = (
            error.get("type")
            if error.get("type") in _ERRORS.values()
            else _ERRORS.get(reply.status, "api_error")
        )
        told: dict[str, Any] = {"type": kind, "message": error.get("message", "")}
        if reply.overflowed is not None:
            limit, used = reply.overflowed
            told = {
                "type": "invalid_request_error",
                "message": f"prompt is too long: {used} tokens > {limit} maximum",
            }
        elif error.get("code"):
            told["details"] = {"error_code": str(error["code"])}
        return {"type": "error", "error": told, "request_id": "req_scripted"}


def usage_to_wire(usage: Usage) -> dict[str, Any]:
    """Canonical buckets as this wire writes them: its input tokens exclude the cached ones."""
    wire: dict[str, Any] = {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }
    if usage.reasoning:
        wire["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return wire


def _blocks(reply: Reply, number: int) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each content block as it begins, and its deltas."""
    if reply.reasoning:
        thoughts = [{"type": "thinking_delta", "thinking": part} for part in pieces(reply.reasoning)]
        signed = {"type": "signature_delta", "signature": f"signature-{number}"}
        yield {"type": "thinking", "thinking": "", "signature": ""}, [*thoughts, signed]
    if reply.text:
        yield (
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": part} for part in pieces(reply.text)],
        )
    for index, entry in enumerate(reply.calls):
        call_id = f"call_{number}_{index}" if entry.id is None else str(entry.id)
        arguments = [
            {"type": "input_json_delta", "partial_json": part} for part in ["", *pieces(entry.arguments)]
        ]
        yield {"type": "tool_use", "id": call_id, "name": entry.name, "input": {}}, arguments


def _filled(block: dict[str, Any], deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """A block with its deltas put in. Arguments that are no JSON stay text: a server would have no better
    way."""
    filled = dict(block)
    for delta in deltas:
        for key in ("text", "thinking", "signature"):
            if key in delta:
                filled[key] += delta[key]
    if block["type"] == "tool_use":
        written = "".join(delta["partial_json"] for delta in deltas)
        try:
            filled["input"] = json.loads(written or "{}")
        except ValueError:
            filled["input"] = written
    return filled


def _head(reply: Reply, number: int) -> dict[str, Any]:
    return {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": reply.model}


def _stop(reply: Reply) -> dict[str, Any]:
    """How a message ended. A refusal is one whatever the script calls it."""
    refused = reply.refusal is not None or reply.finish == "content_filter"
    stop: dict[str, Any] = {
        "stop_reason": None if reply.finish is None else _STOP.get(reply.finish, reply.finish)
    }
    if refused:
        details = {"type": "refusal", "category": None, "explanation": reply.refusal}
        stop = {"stop_reason": "refusal", "stop_details": details}
    return {**stop, "stop_sequence": None}


def _event(data: dict[str, Any], delta: bool = False, counted: bool = False) -> WireEvent:
    return WireEvent(data, str(data["type"]), delta, counted)
