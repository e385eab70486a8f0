"""Scripted replies in the form of each wire, and requests of any wire converted back to rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fsm_agent.conversation.messages import Usage
from fsm_agent.providers.scripted.replies import Reply, WireEvent, pieces, served_usage

# ----------------------------------------------------------------------------------------------------
# Scripted replies in the form of Anthropic's Messages API: stream events, or one object. Pure functions.


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
        """Yield the events of a stream; without a finish reason, its last block stays open. Usage is reported
        at the start, as far as it is known there, and counted at the end."""
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
            used = {} if usage is None else {"usage": usage_to_wire(usage)}
            yield _event({"type": "message_delta", "delta": _stop(reply), **used}, counted=usage is not None)
            yield _event({"type": "message_stop"})

    def whole(self, reply: Reply, number: int) -> dict[str, Any]:
        content = [_fill_block(block, deltas) for block, deltas in _blocks(reply, number)]
        body = {**_head(reply, number), "content": content, **_stop(reply)}
        if (usage := served_usage(reply)) is not None:
            body["usage"] = usage_to_wire(usage)
        return body

    def error(self, reply: Reply) -> Any:
        """Convert an error of the usual shape to this wire, with its code in the details. Leave others
        unchanged."""
        error = reply.body.get("error") if isinstance(reply.body, Mapping) else None
        if not isinstance(error, Mapping) or reply.body.get("type") == "error":
            return reply.body
        kind = (
            error.get("type")
            if error.get("type") in _ERRORS.values()
            else _ERRORS.get(reply.status, "api_error")
        )
        details: dict[str, Any] = {"type": kind, "message": error.get("message", "")}
        if reply.overflowed is not None:
            limit, used = reply.overflowed
            details = {
                "type": "invalid_request_error",
                "message": f"prompt is too long: {used} tokens > {limit} maximum",
            }
        elif error.get("code"):
            details["details"] = {"error_code": str(error["code"])}
        return {"type": "error", "error": details, "request_id": "req_scripted"}


def usage_to_wire(usage: Usage) -> dict[str, Any]:
    """Return the usage in the form of this wire, whose input tokens exclude cached ones."""
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
    """Yield the start of each content block with its deltas."""
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


def _fill_block(block: dict[str, Any], deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a block with its deltas applied. Arguments that are invalid JSON stay text: a server has no
    better way."""
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
    """Return the end of a message. A refusal is always reported as one, whatever finish the script gives."""
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


# ----------------------------------------------------------------------------------------------------
# Scripted replies in the form of the Responses API: stream events, or one object. Pure functions.


_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""The incomplete reason of each finish; ``incomplete`` itself has no reason."""

Item = dict[str, Any]
Deltas = list[dict[str, Any]]


class ResponsesDialect:
    """The ``Dialect`` of the Responses API."""

    done = ""

    def events(self, reply: Reply, number: int) -> Iterator[WireEvent]:
        """Yield the events of a stream; without a finish reason, its last item stays open."""
        items = list(_items(reply, number))
        yield _responses_event("response.created", response=_response(reply, number, "in_progress", []))
        for index, (item, deltas) in enumerate(items):
            yield _responses_event(
                "response.output_item.added", output_index=index, item=_announced_item(item)
            )
            for delta in deltas:
                yield WireEvent(
                    {**delta, "output_index": index, "item_id": item["id"]}, delta["type"], delta=True
                )
            if reply.finish is not None or index < len(items) - 1:
                yield _responses_event("response.output_item.done", output_index=index, item=item)
        if reply.finish is not None:
            whole = self.whole(reply, number)
            kind = f"response.{whole['status']}"
            yield WireEvent({"type": kind, "response": whole}, kind, counted="usage" in whole)

    def whole(self, reply: Reply, number: int) -> dict[str, Any]:
        """Return the whole object, even for a reply without a finish: this form cannot express that."""
        finish = reply.finish or "stop"
        incomplete = finish in _REASONS or finish == "incomplete"
        items = [item for item, _ in _items(reply, number)]
        body = _response(reply, number, "incomplete" if incomplete else "completed", items)
        if incomplete:
            body["incomplete_details"] = {"reason": _REASONS.get(finish)}
        if (usage := served_usage(reply)) is not None:
            body["usage"] = responses_usage_to_wire(usage)
        return body

    def error(self, reply: Reply) -> Any:
        return reply.body


def responses_usage_to_wire(usage: Usage) -> dict[str, Any]:
    """Return the usage in the form of this wire, whose input tokens include cached ones."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.total,
    }


def _items(reply: Reply, number: int) -> Iterator[tuple[Item, Deltas]]:
    """Yield each final item with the deltas that lead to it. A blank reply is an empty message."""
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        thought = {
            "type": "reasoning",
            "id": f"rs_{number}",
            "summary": summary,
            "encrypted_content": f"sealed-{number}",
        }
        yield thought, _deltas("response.reasoning_summary_text.delta", reply.reasoning, summary_index=0)
    if reply.refusal is not None:
        refused: Item = {"type": "refusal", "refusal": reply.refusal}
        yield (
            _message(reply, number, refused),
            _deltas("response.refusal.delta", reply.refusal, content_index=0),
        )
    elif reply.text or not (reply.calls or reply.reasoning):
        part: Item = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        yield (
            _message(reply, number, part),
            _deltas("response.output_text.delta", reply.text, content_index=0, logprobs=[]),
        )
    for index, entry in enumerate(reply.calls):
        call_id = f"call_{number}_{index}" if entry.id is None else str(entry.id)
        call = {"type": "function_call", "id": f"fc_{number}_{index}", "call_id": call_id, "name": entry.name}
        status = "incomplete" if reply.finish == "length" else "completed"
        deltas = _deltas("response.function_call_arguments.delta", entry.arguments)
        yield {**call, "arguments": entry.arguments, "status": status}, deltas


def _message(reply: Reply, number: int, part: dict[str, Any]) -> Item:
    status = "incomplete" if reply.finish in ("length", "incomplete") else "completed"
    return {
        "type": "message",
        "id": f"msg_{number}",
        "role": "assistant",
        "status": status,
        "content": [part],
    }


def _deltas(kind: str, content: str, **more: Any) -> Deltas:
    return [{"type": kind, "delta": part, **more} for part in pieces(content)]


def _announced_item(item: Item) -> Item:
    """Return an item as first announced."""
    begun: Item = {key: value for key, value in item.items() if key != "encrypted_content"}
    filled = {"reasoning": "summary", "message": "content"}.get(item["type"])
    begun[filled or "arguments"] = [] if filled else ""
    return {**begun, "status": "in_progress"}


def _response(reply: Reply, number: int, status: str, output: list[Item]) -> dict[str, Any]:
    head = {"id": f"resp_{number}", "object": "response", "created_at": 0, "model": reply.model}
    settings = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {**head, **settings, "status": status, "error": None, "incomplete_details": None, "output": output}


def _responses_event(kind: str, **fields: Any) -> WireEvent:
    return WireEvent({"type": kind, **fields}, kind)


# ----------------------------------------------------------------------------------------------------
# Converting a request of any wire to rows of chat completions, so that one checker judges them all.
#
# Written from the vendors' documentation, not from the code under test.


Row = dict[str, Any]


def chat_rows(body: Mapping[str, Any]) -> list[Row]:
    """Return the conversation of a request of any wire, without reasoning."""
    if "input" in body:
        return _from_responses(body)
    if (
        "max_tokens" in body
        and "messages" in body
        and not any(row["role"] == "system" for row in body["messages"])
    ):
        return _from_anthropic(body)
    rows: list[Row] = body["messages"]
    return rows


def rows_key(body: Mapping[str, Any]) -> str:
    """Return the name of the list that grows."""
    return "input" if "input" in body else "messages"


def _from_responses(body: Mapping[str, Any]) -> list[Row]:
    rows: list[Row] = [{"role": "system", "content": body["instructions"]}] if "instructions" in body else []
    for item in body["input"]:
        if item["type"] == "message":
            rows.append({"role": item["role"], "content": item["content"]})
        elif item["type"] == "function_call":
            if rows[-1]["role"] != "assistant":
                rows.append({"role": "assistant", "content": None})
            call = {"name": item["name"], "arguments": item["arguments"]}
            rows[-1].setdefault("tool_calls", []).append(
                {"id": item["call_id"], "type": "function", "function": call}
            )
        elif item["type"] == "function_call_output":
            rows.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
    return rows


def _from_anthropic(body: Mapping[str, Any]) -> list[Row]:
    rows: list[Row] = [{"role": "system", "content": _text(body["system"])}] if "system" in body else []
    for message in body["messages"]:
        blocks = message["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        for block in blocks:
            if block["type"] == "tool_result":
                rows.append(
                    {
                        "role": "tool",
                        "tool_call_id": block["tool_use_id"],
                        "content": _text(block.get("content", "")),
                    }
                )
        shown = [block for block in blocks if block["type"] in ("text", "image", "document")]
        calls = [block for block in blocks if block["type"] == "tool_use"]
        if shown or calls:
            row: Row = {"role": message["role"], "content": _text(shown) or None}
            if calls:
                row["tool_calls"] = [_call(block) for block in calls]
            rows.append(row)
    return rows


def _call(block: Mapping[str, Any]) -> Row:
    return {
        "id": block["id"],
        "type": "function",
        "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
    }


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text", f"({block['type']})")) for block in content)
