"""What vendors do to the chunks of the chat-completions wire, and what becomes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import ModelReply, Usage
from fsm_agent.providers.chat_reply import ChatReply
from fsm_agent.testing import json_reply, malformed_chunk
from tests.helpers.ports import CHAT, Seen


def grown(*chunks: Any) -> tuple[ModelReply, Seen]:
    seen = Seen()
    growing = ChatReply(seen)
    for chunk in chunks:
        growing.feed(chunk)
    got = growing.end()
    assert isinstance(got, ModelReply)
    return got, seen


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def part(
    index: int | None = None, id: Any = None, name: str | None = None, arguments: Any = None
) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.behaviour("CALL-07")
@pytest.mark.parametrize(
    ("deltas", "calls"),
    [
        ([part(0, "a", "echo", '{"x"'), part(0, None, None, ": 1}")], [("a", "echo", '{"x": 1}')]),
        ([part(0, "a", "echo", "{"), part(0, "a", "echo", "}")], [("a", "echo", "{}")]),
        ([part(0, "a", "echo", "{}"), part(0, "b", "put", "{}")], [("a", "echo", "{}"), ("b", "put", "{}")]),
        ([part(None, "a", "echo", "{}"), part(None, "b", "put", "{}")],
         [("a", "echo", "{}"), ("b", "put", "{}")]),
        ([part(None, "a", "echo", "{"), part(None, None, None, "}")], [("a", "echo", "{}")]),
        ([part(0, "a", "one", "{"), part(1, "b", "two", "{}"), part(0, None, None, "}")],
         [("a", "one", "{}"), ("b", "two", "{}")]),
        ([part(0, 12, "echo", "{}")], [("12", "echo", "{}")]),
        ([part(0, "a", "echo", {"x": 1})], [("a", "echo", '{"x": 1}')]),
        ([part(0, "a", "echo", None)], [("a", "echo", "")]),
    ],
)  # fmt: skip
def test_tool_calls_however_they_are_sliced(
    deltas: list[dict[str, Any]], calls: list[tuple[str, str, str]]
) -> None:
    got, seen = grown(*(delta(**fields) for fields in deltas), delta("tool_calls"))
    assert [(entry.id, entry.name, entry.arguments) for entry in got.tool_calls] == calls
    assert seen.tools == [name for _, name, _ in calls]


FINISHES = (
    ("stop", "stop", False), ("STOP", "stop", False), ("end_turn", "stop", False),
    ("function_call", "stop", False), ("max_tokens", "length", False), ("length", "length", False),
    ("content_filter", "content_filter", False), ("SAFETY", "content_filter", False),
    ("something_new", "stop", False), ("network_error", None, True),
    ("insufficient_system_resource", None, True),
)  # fmt: skip


def test_finish_reasons() -> None:
    for reason, finish, is_cut in FINISHES:
        got, _ = grown(delta(content="x"), delta(reason))
        assert (got.finish, got.cut) == (finish, is_cut), reason


@pytest.mark.behaviour("BUILD-09d")
def test_reasoning_details_are_joined_and_kept_verbatim() -> None:
    first = {"type": "reasoning.text", "index": 0, "text": "Let me ", "format": "f", "signature": None}
    second = {"type": "reasoning.text", "index": 0, "text": "think", "signature": "s1"}
    third = {"type": "reasoning.encrypted", "index": 1, "data": "abc"}
    got, seen = grown(
        delta(reasoning="Let me ", reasoning_details=[first]), delta(reasoning_details=[second]),
        delta(reasoning_details=[third]), delta("stop", content="Answer"),
    )  # fmt: skip
    assert got.reasoning == "Let me think"
    assert seen.thoughts == ["Let me ", "think"]
    assert got.blocks == ({**first, "text": "Let me think", "signature": "s1"}, third)


def test_content_in_parts() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    got, _ = grown(delta(content=[thinking]), delta("stop", content=[{"type": "text", "text": "yes"}]))
    assert (got.reasoning, got.text) == ("hm", "yes")


@pytest.mark.behaviour("BUILD-13")
def test_a_signature_beside_a_call_is_kept_with_it() -> None:
    extra = {"google": {"s": 1}}
    signed = {"index": 0, "id": "a", "function": {"name": "echo", "arguments": "{}"}, "extra_content": extra}
    got, _ = grown(delta("tool_calls", tool_calls=[signed]))
    assert [call.extra for call in got.tool_calls] == [{"google": {"s": 1}}]


def test_pings_are_no_sign_of_life() -> None:
    got, seen = grown(None, {}, "ping", delta("stop", content="x"))
    assert (got.text, seen.beats) == ("x", 1)


@pytest.mark.behaviour("USE-01")
@pytest.mark.parametrize(
    ("wire", "usage"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 4}, Usage(10, 4)),
        ({"prompt_tokens": 100, "completion_tokens": 50,
          "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
          "completion_tokens_details": {"reasoning_tokens": 20}}, Usage(10, 50, 60, 30, 20)),
        ({"prompt_tokens": 10, "completion_tokens": 1, "prompt_cache_hit_tokens": 4}, Usage(6, 1, 4)),
        ({"prompt_tokens": 10, "completion_tokens": 1, "cached_tokens": 4}, Usage(6, 1, 4)),
        ({"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}},
         Usage(0, 1, 3)),
        ({"prompt_tokens": None, "completion_tokens": 2, "prompt_tokens_details": None}, Usage(0, 2)),
        ({}, None), (None, None),
    ],
)  # fmt: skip
def test_usage_in_canonical_buckets(wire: Any, usage: Usage | None) -> None:
    got, _ = grown(delta("stop", content="x"), {"choices": [], "usage": wire})
    assert got.usage == usage


def test_a_failure_keeps_the_usage_that_was_reported() -> None:
    growing = ChatReply(Seen())
    growing.feed({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 0}})
    failure = growing.end()
    assert isinstance(failure, Failure)
    assert failure.usage == Usage(3, 0)


reply_of, failure_of = CHAT.reply_of, CHAT.failure_of


def test_an_object_without_a_finish_reason_is_whole() -> None:
    got = reply_of(json_reply({"choices": [{"message": {"content": [{"type": "text", "text": "a"}, "b"]}}]}))
    assert (got.text, got.finish, got.cut, got.usage) == ("a\nb", "stop", False, None)


def test_an_error_inside_a_stream() -> None:
    error = json.dumps({"error": {"code": 502, "type": "provider_down", "message": "upstream died"}})
    failure = failure_of(malformed_chunk(chunk=error))
    assert (failure.kind, failure.code, failure.message) == ("shape", "provider_down", "upstream died")
    assert reply_of(malformed_chunk("kept", chunk=error)).cut
