"""Scripted replies in the wire form of the Responses API: events of a stream, or one object. Pure
functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fsm_agent.conversation.messages import Usage
from fsm_agent.providers.scripted.dialects import WireEvent
from fsm_agent.providers.scripted.replies import Reply
from fsm_agent.providers.scripted.wire import pieces, served_usage

_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a reply with this finish is incomplete; ``incomplete`` itself has no reason."""

Item = dict[str, Any]
Deltas = list[dict[str, Any]]


class ResponsesDialect:
    """The ``Dialect`` of the Responses API."""

    done = ""

    def events(self, reply: Reply, number: int) -> Iterator[WireEvent]:
        """A stream that does not tell how it ended leaves its last item open."""
        items = list(_items(reply, number))
        yield _event("response.created", response=_response(reply, number, "in_progress", []))
        for index, (item, deltas) in enumerate(items):
            yield _event("response.output_item.added", output_index=index, item=_begun(item))
            for delta in deltas:
                yield WireEvent(
                    {**delta, "output_index": index, "item_id": item["id"]}, delta["type"], delta=True
                )
            if reply.finish is not None or index < len(items) - 1:
                yield _event("response.output_item.done", output_index=index, item=item)
        if reply.finish is not None:
            whole = self.whole(reply, number)
            kind = f"response.{whole['status']}"
            yield WireEvent({"type": kind, "response": whole}, kind, counted="usage" in whole)

    def whole(self, reply: Reply, number: int) -> dict[str, Any]:
        """A reply without a finish is the whole object all the same: there is no other way to write it."""
        finish = reply.finish or "stop"
        incomplete = finish in _REASONS or finish == "incomplete"
        items = [item for item, _ in _items(reply, number)]
        body = _response(reply, number, "incomplete" if incomplete else "completed", items)
        if incomplete:
            body["incomplete_details"] = {"reason": _REASONS.get(finish)}
        if (usage := served_usage(reply)) is not None:
            body["usage"] = usage_to_wire(usage)
        return body

    def error(self, reply: Reply) -> Any:
        return reply.body


def usage_to_wire(usage: Usage) -> dict[str, Any]:
    """Canonical buckets as this wire writes them: its input tokens include the cached ones."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.total,
    }


def _items(reply: Reply, number: int) -> Iterator[tuple[Item, Deltas]]:
    """Each item as it ends up, and the deltas that lead there. A blank reply is a message with nothing in
    it."""
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
        said: Item = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        yield (
            _message(reply, number, said),
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


def _begun(item: Item) -> Item:
    """An item as it is announced."""
    begun: Item = {key: value for key, value in item.items() if key != "encrypted_content"}
    filled = {"reasoning": "summary", "message": "content"}.get(item["type"])
    begun[filled or "arguments"] = [] if filled else ""
    return {**begun, "status": "in_progress"}


def _response(reply: Reply, number: int, status: str, output: list[Item]) -> dict[str, Any]:
    head = {"id": f"resp_{number}", "object": "response", "created_at": 0, "model": reply.model}
    settings = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {**head, **settings, "status": status, "error": None, "incomplete_details": None, "output": output}


def _event(kind: str, **fields: Any) -> WireEvent:
    return WireEvent({"type": kind, **fields}, kind)
