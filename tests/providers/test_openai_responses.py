"""What only the Responses API has; what it shares with the others is in ``test_ports``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import ModelReply, Usage
from fsm_agent.providers.openai_port import OTHER_WIRE, ResponsesReply, whole_response
from fsm_agent.testing import Reply, blank, call, length, malformed_chunk, refusal, text, tools
from fsm_agent.testing.wires import ResponsesDialect
from tests.helpers.ports import RESPONSES, Seen

ask, reply_of, failure_of = RESPONSES.ask, RESPONSES.reply_of, RESPONSES.failure_of


@pytest.mark.parametrize("stream", [True, False])
def test_an_incomplete_reply_that_arrives_whole(stream: bool) -> None:
    got = reply_of(Reply(text="part", finish="incomplete"), stream=stream)
    assert (got.text, got.finish) == ("part", "incomplete")


# Scripted replies


@pytest.mark.parametrize("stream", [True, False])
def test_encrypted_reasoning_is_kept_verbatim(stream: bool) -> None:
    got, seen, _ = ask(tools(call("echo", {}), reasoning="step by step"), stream=stream)
    assert isinstance(got, ModelReply)
    summary = [{"type": "summary_text", "text": "step by step"}]
    sealed = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "sealed-1"}
    assert got.blocks == (sealed,)
    assert "".join(seen.thoughts) == got.reasoning == "step by step"
    assert (len(seen.thoughts) > 1) == stream


TOLD = {"code": "server_error", "message": "upstream died"}
ERRORS = [
    {"type": "error", **TOLD, "param": None, "sequence_number": 3},
    {"type": "error", "error": {"type": "server", **TOLD}},
    {"type": "response.failed", "response": {"status": "failed", "error": TOLD}},
]


@pytest.mark.parametrize("event", ERRORS)
def test_an_error_inside_a_stream(event: dict[str, Any]) -> None:
    failure = failure_of(malformed_chunk(chunk=json.dumps(event)))
    assert (failure.kind, failure.code, failure.message) == ("shape", "server_error", "upstream died")
    assert reply_of(malformed_chunk("kept", chunk=json.dumps(event))).cut


# Replies that no script makes


def message(words: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": words, "annotations": []}]
    said = {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": content}
    return said | more


def function(name: str = "echo", arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    made = {
        "type": "function_call", "call_id": "c", "name": name, "arguments": arguments, "status": "completed",
    }  # fmt: skip
    return made | more


THOUGHT = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "sealed"}
SEARCH = {"type": "web_search_call", "id": "ws", "status": "in_progress"}


def whole(output: Sequence[Mapping[str, Any]], **more: Any) -> tuple[ModelReply, Seen]:
    seen = Seen()
    got = whole_response({"status": "completed", "output": list(output), **more}, seen)
    assert isinstance(got, ModelReply)
    return got, seen


@pytest.mark.parametrize(
    ("output", "text_", "finish", "shown"),
    [
        ([message("Looking.", phase="commentary"), message("It is 4.")], "It is 4.", "stop",
         "Looking.\n\nIt is 4."),
        ([message("Looking.", phase="commentary")], "Looking.", "incomplete", "Looking."),
        ([message("Looking.", phase="commentary"), function()], "Looking.", "tool_calls", "Looking."),
        ([message("One."), message("Two.", phase="final_answer")], "One.\n\nTwo.", "stop", "One.\n\nTwo."),
        ([message("Hm", status="in_progress")], "Hm", "incomplete", "Hm"),
        ([SEARCH, message("Found.")], "Found.", "stop", "Found."),
        ([SEARCH], "", "stop", ""),
        ([message('to=functions.echo {"text": "x"}')], "", "incomplete", 'to=functions.echo {"text": "x"}'),
        ([message("Set to=functions.")], "Set to=functions.", "stop", "Set to=functions."),
        ([message("to=functions.echo", phase="final_answer"), function()], "to=functions.echo", "tool_calls",
         "to=functions.echo"),
        ([THOUGHT], "", "stop", ""),
        ([function(status="in_progress")], "", "incomplete", ""),
    ],
)  # fmt: skip
def test_what_makes_an_answer(output: list[dict[str, Any]], text_: str, finish: str, shown: str) -> None:
    got, seen = whole(output)
    assert (got.text, got.finish, "".join(seen.texts)) == (text_, finish, shown)
    assert not got.cut


@pytest.mark.behaviour("FMT-09")
@pytest.mark.parametrize("state", ["queued", "in_progress"])
def test_a_response_that_has_not_ended_is_incomplete(state: str) -> None:
    got, _ = whole([message("so far")], status=state)
    assert (got.text, got.finish) == ("so far", "incomplete")


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("max_output_tokens", "length"), ("content_filter", "content_filter"), ("steered", "incomplete"),
        (None, "incomplete"),
    ],
)  # fmt: skip
def test_why_a_response_is_incomplete(reason: str | None, finish: str) -> None:
    details = {"status": "incomplete", "incomplete_details": {"reason": reason}}
    got, _ = whole([message("half", status="incomplete")], **details)
    assert (got.finish, whole([], **details)[0]) == (finish, ModelReply(finish=got.finish)), "it may be empty"
    unfinished = function(call_id="b", status="incomplete")
    got, _ = whole([function(call_id="a"), unfinished], status="incomplete")
    assert [call.id for call in got.tool_calls] == ["a"], "calls that are not finished are not made"


@pytest.mark.behaviour("FMT-11")
def test_ids_are_made_where_they_are_missing_or_used_twice() -> None:
    calls = [function(call_id=given) for given in ("", "c", "c")]
    got, _ = whole([*calls, function(arguments={"a": 1}, call_id="")])
    assert len({call.id for call in got.tool_calls}) == 4
    assert got.tool_calls[3].arguments == '{"a": 1}'


def test_the_phase_of_a_text_is_kept_and_reasoning_that_cannot_be_sent_back_is_shown_only() -> None:
    got, _ = whole([THOUGHT, message("Looking.", phase="commentary"), function()])
    assert [block["type"] for block in got.blocks] == ["reasoning", "message"]
    assert got.blocks[1] == {"type": "message", "phase": "commentary"}
    summary = [{"type": "summary_text", "text": t} for t in "ab"]
    got, seen = whole([{"type": "reasoning", "summary": summary}, message("x")])
    assert (got.reasoning, got.blocks, "".join(seen.thoughts)) == ("a\n\nb", (), "a\n\nb")


def stream(*events: Mapping[str, Any]) -> tuple[ModelReply | Failure, Seen]:
    seen = Seen()
    growing = ResponsesReply(seen)
    for event in events:
        growing.feed(event)
    return growing.end(), seen


def done(item: Mapping[str, Any], index: int = 0) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def completed(*output: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"status": "completed", "output": list(output), **more}}


def read(*events: Mapping[str, Any]) -> tuple[ModelReply, Seen]:
    got, seen = stream(*events)
    assert isinstance(got, ModelReply)
    return got, seen


def test_items_count_where_the_end_repeats_none_and_those_of_the_end_where_none_were_streamed() -> None:
    got, seen = read(done(THOUGHT), done(message("hi"), 1), completed())
    assert (got.text, len(got.blocks), seen.texts) == ("hi", 1, ["hi"])
    delta = {"type": "response.output_text.delta", "item_id": "m", "delta": "hi"}
    got, _ = read(delta, completed(message("hi")))
    assert (got.text, got.finish) == ("hi", "stop")
    assert "".join(read(completed(message("hi"), function()))[1].texts) == "hi"


def test_a_stream_that_gives_no_reply_says_why_and_keeps_its_usage() -> None:
    ended = {"status": "failed", "error": None, "usage": {"input_tokens": 3, "output_tokens": 0}}
    nothing, failed, other = (
        stream(event)[0]
        for event in (
            completed(),
            {"type": "response.failed", "response": ended},
            {"object": "chat.completion.chunk", "choices": [{"delta": {"content": "hi"}}]},
        )
    )
    assert isinstance(nothing, Failure)
    assert isinstance(failed, Failure)
    assert isinstance(other, Failure)
    assert (nothing.kind, nothing.message) == ("shape", "the response has no output")
    assert (failed.usage, other.message) == (Usage(3, 0), OTHER_WIRE)


def test_narration_that_broke_off_is_no_part_of_an_answer() -> None:
    item = message("", phase="commentary", content=[])
    announced = {"type": "response.output_item.added", "output_index": 0, "item": item}
    got, _ = read(announced, {"type": "response.output_text.delta", "output_index": 0, "delta": "Looking"})
    assert (got.text, got.finish, got.cut) == ("Looking", "incomplete", False)


@pytest.mark.parametrize(
    "event", [None, [], "ping", {}, {"type": 3}, {"type": "keepalive"}, {"type": "response.completed"}]
)
def test_what_is_no_event_does_no_harm(event: Any) -> None:
    assert read(event, done(message("hi")), completed())[0].text == "hi"


def test_the_scripted_wire_is_the_one_of_the_sdk() -> None:
    dialect, of_stream = ResponsesDialect(), TypeAdapter[Any](ResponseStreamEvent)
    called = tools(call("echo", {"a": 1}), reasoning="hm", text="so")
    for script in (text("hi"), called, refusal("no"), length("half"), blank()):
        Response.model_validate({**dialect.whole(script, 1)}, strict=False)
        for number, event in enumerate(dialect.events(script, 1)):
            of_stream.validate_python({**event.data, "sequence_number": number})
