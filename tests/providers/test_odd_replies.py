"""Readers of the three wires, fed with replies in which any field may be anything. (Whole turns:
``tests/scenarios/test_odd_turns.py``.)"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import ModelReply, ToolCall, Usage
from fsm_agent.providers.anthropic_messages import MessagesReply, whole_message
from fsm_agent.providers.chat_reply import ChatReply, whole_reply
from fsm_agent.providers.openai_port import ResponsesReply, whole_response
from fsm_agent.providers.reply_values import MOST_TOKENS
from fsm_agent.support.texts import portable
from fsm_agent.testing import Reply, status
from tests.helpers.odd_replies import (
    RECORDED,
    WIRES,
    Recorded,
    each_odd_order,
    each_odd_value,
    each_place,
    nested,
    put,
    tags,
)
from tests.helpers.ports import WIRES as PORTS
from tests.helpers.ports import Seen, Wire
from tests.helpers.sample import sampled

READERS: dict[str, tuple[Any, Any]] = {
    "chat_completions": (ChatReply, whole_reply),
    "anthropic_messages": (MessagesReply, whole_message),
    "codex_responses": (ResponsesReply, whole_response),
}


def read(recorded: Recorded) -> ModelReply | Failure:
    """What a reader makes of a response."""
    growing, whole = READERS[recorded.wire]
    got: ModelReply | Failure
    if recorded.is_stream:
        reply = growing(Seen())
        for event in recorded.events:
            reply.feed(event)
        got = reply.end()
    else:
        got = whole(recorded.events[0] if recorded.events else None, Seen())
    return got


def wrong(got: Any) -> bool:
    """Is it something that no state expects?"""
    if isinstance(got, Failure):
        return got.kind == "local" or not all(
            isinstance(one, str) for one in (got.message, got.code, got.detail)
        )
    reply = got.cleaned()
    texts = [reply.text, reply.reasoning, reply.refusal or "", reply.model or ""]
    for call in reply.tool_calls:
        texts += (call.id, call.name, call.arguments, call.item_id)
    usage = reply.usage or Usage()
    counts = (usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning)
    return not (
        all(isinstance(one, str) and portable(one) for one in texts)
        and all(call.id for call in reply.tool_calls)
        and all(portable(kept) for kept in (*reply.blocks, *(call.extra for call in reply.tool_calls)))
        and all(type(count) is int and 0 <= count <= MOST_TOKENS for count in counts)
    )


def failing(recorded: Iterable[Recorded]) -> list[str]:
    """Those that a reader cannot read, or makes something impossible of; the first few."""
    found = []
    for one in recorded:
        try:
            if not wrong(read(one)):
                continue
            found.append(f"{one}: {read(one)!r:.300}")
        except Exception as error:
            found.append(f"{one}: {error!r}")
        if len(found) == 5:
            break
    return found


def test_recordings_are_read_as_they_were_meant() -> None:
    replies = [read(one) for one in RECORDED if one.name in ("stream", "whole")]
    whole = [one for one in replies if isinstance(one, ModelReply) and one.tool_calls]
    assert len(whole) == 6
    assert all(one.text.startswith("Hello") and one.reasoning and one.blocks and one.usage for one in whole)
    assert {call.name for one in whole for call in one.tool_calls} == {"echo"}


def test_every_field_is_tried() -> None:
    places = list(each_place())
    assert len(places) == len({(id(one), path) for one, path in places}) > 1_400
    for wire in WIRES:
        assert {"unknown_kind", "error"} - set(tags(wire)) == {"unknown_kind"}


def test_a_field_of_another_type_is_a_field_that_says_nothing() -> None:
    odd = (put(one, path, value) for one, path in each_place() for value in (5, [5]))
    assert failing(odd) == []


def test_a_stream_may_come_in_any_order() -> None:
    assert failing(each_odd_order()) == []


def of(wire: str) -> Recorded:
    """The longest recorded stream of a wire."""
    return next(one for one in RECORDED if (one.wire, one.name) == (wire, "stream"))


CHAT, MESSAGES, RESPONSES = map(of, WIRES)
DETAILS = ("choices", 0, "delta", "reasoning_details")


@pytest.mark.parametrize(
    "odd",
    [
        put(CHAT, (0, "choices"), 5), put(CHAT, (9, "choices", 0, "delta", "tool_calls"), 0.5),
        put(CHAT, (2, *DETAILS), True), put(MESSAGES, (2, "index"), []),
        put(RESPONSES, (2, "output_index"), {}), put(RESPONSES, (6, "item", "id"), ["x"]),
    ],
)  # fmt: skip
def test_a_list_that_is_none_and_a_place_that_is_none_are_passed_over(odd: Recorded) -> None:
    got = read(odd)
    assert isinstance(got, ModelReply)
    assert got.text == "Hello there"


@pytest.mark.parametrize("wire", PORTS, ids=[wire.name for wire in PORTS])
def test_a_number_of_five_thousand_digits_is_a_chunk_that_cannot_be_read(wire: Wire) -> None:
    chunk = f'{{"type": "ping", "choices": [], "n": {"9" * 5_000}}}'
    failure = wire.failure_of(Reply(finish=None, end="eof", raw=(chunk,)))
    assert (failure.kind, failure.code) == ("transport", "malformed_chunk")


def test_of_what_goes_back_verbatim_only_what_is_json_is_kept() -> None:
    deep, kept = nested(150), {"type": "t", "a": [1, 2.5, None, "x"]}
    odd = [{"a": float("inf")}, {"a": float("nan")}, {"a": "\ud800"}, {"\ud800": 1}, {"a": deep}]
    calls = tuple(ToolCall(f"c{at}", "echo", "{}", extra=extra) for at, extra in enumerate((*odd, kept)))
    reply = ModelReply(blocks=(*odd, kept), tool_calls=calls).cleaned()
    assert reply.blocks == (kept,)
    assert [call.extra for call in reply.tool_calls] == [*[None] * len(odd), kept]


def test_halves_of_a_character_become_one_in_everything_that_is_kept() -> None:
    halves = ("\ud83d", "\ude00")
    details = [{"type": "reasoning.text", "text": half, "index": 0} for half in halves]
    chat = ChatReply(Seen())
    for half, detail in zip(halves, details, strict=True):
        delta = {"content": half, "reasoning_content": half, "reasoning_details": [detail]}
        delta["tool_calls"] = [{"index": 0, "id": "a\ud800", "function": {"name": "f\ud800"}}]
        chat.feed({"choices": [{"delta": delta}]})
    reply = chat.end()
    assert isinstance(reply, ModelReply)
    reply = reply.cleaned()
    assert (reply.text, reply.reasoning, reply.blocks[0]["text"]) == ("\U0001f600",) * 3
    assert [(call.id, call.name) for call in reply.tool_calls] == [("a\ufffd", "f\ufffd")]


def test_ids_that_become_the_same_are_told_apart() -> None:
    calls = [
        {"index": at, "id": half, "function": {"name": "echo", "arguments": "{}"}}
        for at, half in enumerate(("\ud800", "\udc00"))
    ]
    reply = whole_reply({"choices": [{"message": {"tool_calls": calls}}]}, Seen())
    assert isinstance(reply, ModelReply)
    assert len({call.id for call in reply.cleaned().tool_calls}) == 2


def test_a_detail_whose_text_comes_later_is_whole() -> None:
    begun = {"type": "reasoning.text", "index": 0, "text": None, "signature": None}
    reply = ChatReply(Seen())
    for piece in ({}, {"text": "one "}, {"text": "two"}, {"text": 5}, {"signature": "s"}):
        reply.feed({"choices": [{"delta": {"reasoning_details": [begun | piece]}}]})
    reply.feed({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]})
    got = reply.end()
    assert isinstance(got, ModelReply)
    assert got.blocks == ({**begun, "text": "one two", "signature": "s"},)


@pytest.mark.parametrize(
    ("field", "value"),
    [("encrypted_content", 5), *(("summary", odd) for odd in (None, {"text": "x"}, [5])), ("content", "x")],
)
def test_a_thought_that_its_maker_would_refuse_does_not_go_back(field: str, value: Any) -> None:
    thought = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "zzz"}
    said = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}
    for item, kept in ((thought, 1), ({**thought, field: value}, 0)):
        reply = whole_response({"output": [item, said]}, Seen())
        assert isinstance(reply, ModelReply)
        assert len(reply.blocks) == kept
    redacted = {"type": "redacted_thinking", "data": value}
    hidden = whole_message({"content": [redacted, {"type": "text", "text": "hi"}]}, Seen())
    assert isinstance(hidden, ModelReply)
    assert len(hidden.blocks) == (value == "x")


def test_an_id_that_is_no_text_is_made() -> None:
    block = {"type": "tool_use", "id": {"a": 1}, "name": ["echo"], "input": {}}
    reply = whole_message({"content": [block], "model": 5}, Seen())
    assert isinstance(reply, ModelReply)
    (made,) = reply.tool_calls
    assert made.id.startswith("call_")
    assert (made.name, reply.model) == ("", None)


@pytest.mark.parametrize("wire", PORTS, ids=[wire.name for wire in PORTS])
def test_an_error_is_told_in_words_that_can_be_written(wire: Wire) -> None:
    error = {"error": {"message": "half \ud800 of it", "type": "x\ud800", "code": "c\udfff"}}
    failure = wire.failure_of(status(400, error))
    assert failure.message == "half \ufffd of it"
    assert all(portable(one) for one in (failure.message, failure.code, failure.detail))


@pytest.mark.slow
def test_every_field_may_hold_anything() -> None:
    places = sampled(each_place(), "odd fields")
    assert failing(odd for place in places for odd in each_odd_value(*place)) == []
