"""The Responses port through the real SDK and a real HTTP server: every reply has its documented meaning."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from fsm_agent.messages import ModelReply, ToolCall, Usage
from fsm_agent.providers.openai_responses import OpenAIResponses
from fsm_agent.providers.responses_reply import OTHER_WIRE, ResponsesReply, whole_response
from fsm_agent.requests import Failure, ModelRequest
from fsm_agent.testing import (
    Reply,
    ScriptedServer,
    bad_json,
    blank,
    call,
    content_filter,
    cut,
    cut_tool_call,
    drop,
    empty_sse,
    json_reply,
    length,
    malformed_chunk,
    no_finish,
    overflow,
    reasoning,
    refusal,
    silence,
    slow,
    status,
    text,
    tools,
)
from fsm_agent.testing.responses_wire import ResponsesDialect

KEY = "sk-test-0123456789abcdef"
ISSUER = "openai-responses:here"


class Seen:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.tools: list[str] = []
        self.beats = 0

    def alive(self) -> None:
        self.beats += 1

    def text(self, delta: str) -> None:
        self.texts.append(delta)

    def reasoning(self, delta: str) -> None:
        self.thoughts.append(delta)

    def tool(self, name: str) -> None:
        self.tools.append(name)


def request(stream: bool = True) -> ModelRequest:
    return ModelRequest(json.dumps({"model": "m", "input": [], "stream": stream}).encode(), stream=stream)


def ask(*script: Reply, stream: bool = True, **options: Any) -> tuple[ModelReply | Failure, Seen, ScriptedServer]:
    """Serve the script to one call for each entry; returns what the last one brought."""

    async def play(server: ScriptedServer) -> tuple[ModelReply | Failure, Seen]:
        port = OpenAIResponses(server.url, KEY, issuer=ISSUER, **options)
        try:
            for _ in script:
                seen = Seen()
                got = await port.call(request(stream), seen)
            return got, seen
        finally:
            await port.aclose()

    with ScriptedServer(script) as server:
        got, seen = asyncio.run(play(server))
    assert (server.errors, server.overrun, server.completions) == ([], [], len(script))
    assert all(received.path == "/v1/responses" for received in server.requests)
    return got, seen, server


def reply_of(*script: Reply, stream: bool = True) -> ModelReply:
    got, _, _ = ask(*script, stream=stream)
    assert isinstance(got, ModelReply)
    return got


def failure_of(*script: Reply, stream: bool = True, **options: Any) -> Failure:
    got, _, _ = ask(*script, stream=stream, **options)
    assert isinstance(got, Failure)
    return got


# Scripted replies


@pytest.mark.parametrize("stream", [True, False])
def test_text(stream: bool) -> None:
    got, seen, server = ask(text("Hello, world", usage=Usage(7, 3, 2, 1, 2)), stream=stream)
    assert got == ModelReply("Hello, world", finish="stop", usage=Usage(7, 3, 2, 1, 2), model="scripted")
    assert "".join(seen.texts) == "Hello, world"
    assert (len(seen.texts) > 1) == stream
    assert seen.beats >= 1
    assert server.served_usage == Usage(7, 3, 2, 1, 2)


@pytest.mark.parametrize("stream", [True, False])
def test_tool_calls(stream: bool) -> None:
    script = tools(call("echo", {"text": "hi"}, id="a"), call("put", {"n": 1}, id=7), call("echo", "{}", id=""), text="So:")
    got, seen, _ = ask(script, stream=stream)
    assert isinstance(got, ModelReply)
    assert (got.text, got.finish) == ("So:", "tool_calls")
    assert got.tool_calls[:2] == (ToolCall("a", "echo", '{"text": "hi"}'), ToolCall("7", "put", '{"n": 1}'))
    assert got.tool_calls[2].id.startswith("call_")
    assert seen.tools == ["echo", "put", "echo"]
    assert got == reply_of(script, stream=stream), "the same reply gets the same ids"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (blank(), {"text": "", "finish": "stop", "cut": False}),
        (reasoning("because"), {"reasoning": "because", "text": "", "finish": "stop"}),
        (length("half"), {"text": "half", "finish": "length", "cut": False}),
        (cut_tool_call(), {"tool_calls": (ToolCall("call_1_0", "echo", '{"text": "abc'),), "finish": "length"}),
        (bad_json(), {"tool_calls": (ToolCall("call_1_0", "echo", '{"text": }'),), "finish": "tool_calls"}),
        (tools(call("", "")), {"tool_calls": (ToolCall("call_1_0", "", ""),)}),
        (content_filter(), {"text": "", "finish": "content_filter"}),
        (refusal("No."), {"refusal": "No.", "text": "", "finish": "stop"}),
        (text("hi", usage=None), {"text": "hi", "usage": None}),
        (Reply(text="part", finish="incomplete"), {"text": "part", "finish": "incomplete"}),
    ],
    ids=lambda value: None if isinstance(value, dict) else f"{value.shape}-{value.finish}-{value.text}",
)
def test_replies_that_arrive_whole(script: Reply, expected: dict[str, Any], stream: bool) -> None:
    got = reply_of(script, stream=stream)
    assert {name: getattr(got, name) for name in expected} == expected


@pytest.mark.parametrize("stream", [True, False])
def test_encrypted_reasoning_is_kept_verbatim_with_its_issuer(stream: bool) -> None:
    got, seen, _ = ask(tools(call("echo", {}), reasoning="step by step"), stream=stream)
    assert isinstance(got, ModelReply)
    summary = [{"type": "summary_text", "text": "step by step"}]
    sealed = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "sealed-1"}
    assert got.blocks == ({**sealed, "issuer": ISSUER},)
    assert "".join(seen.thoughts) == got.reasoning == "step by step"
    assert (len(seen.thoughts) > 1) == stream


def test_one_object_although_a_stream_was_asked_for() -> None:
    got, seen, _ = ask(json_reply(tools(call("echo", {}), text="whole")))
    assert isinstance(got, ModelReply)
    assert (got.text, got.finish, got.cut) == ("whole", "tool_calls", False)
    assert (seen.texts, seen.tools) == (["whole"], ["echo"])


def test_a_stream_cut_after_text_is_a_cut_reply() -> None:
    got, seen, server = ask(cut("part one"))
    assert got == ModelReply("part one", finish=None, cut=True, model="scripted")
    assert "".join(seen.texts) == "part one"
    assert server.served_usage.total == 0


@pytest.mark.parametrize("script", [cut(), cut("", call("echo", {})), cut("text", call("echo", {})), drop()])
def test_a_break_with_nothing_to_keep_or_a_call_in_flight_is_a_failure(script: Reply) -> None:
    failure = failure_of(script)
    assert (failure.kind, failure.exception, failure.status) == ("transport", "RemoteProtocolError", None)


@pytest.mark.parametrize("script", [empty_sse(), no_finish()])
def test_a_stream_that_says_nothing_is_a_failure(script: Reply) -> None:
    failure = failure_of(script)
    assert failure.kind == "transport"
    assert failure.message.startswith("empty stream")


def test_a_stream_without_its_end_keeps_what_came() -> None:
    got = reply_of(no_finish("some", call("echo", {"a": 1})))
    assert (got.text, got.finish, got.cut) == ("some", None, True)
    assert got.tool_calls == (ToolCall("call_1_0", "echo", '{"a": 1}'),)


def test_a_malformed_chunk() -> None:
    failure = failure_of(malformed_chunk(chunk='{"type": "resp'))
    assert (failure.kind, failure.code, failure.exception) == ("transport", "malformed_chunk", "JSONDecodeError")
    assert reply_of(malformed_chunk("kept", chunk="{")) == ModelReply("kept", finish=None, cut=True, model="scripted")


ERRORS = [
    {"type": "error", "code": "server_error", "message": "upstream died", "param": None, "sequence_number": 3},
    {"type": "error", "error": {"type": "server", "code": "server_error", "message": "upstream died"}},
    {"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error", "message": "upstream died"}}},
]


@pytest.mark.parametrize("event", ERRORS)
def test_an_error_inside_a_stream(event: dict[str, Any]) -> None:
    failure = failure_of(malformed_chunk(chunk=json.dumps(event)))
    assert (failure.kind, failure.code, failure.message) == ("shape", "server_error", "upstream died")
    assert reply_of(malformed_chunk("kept", chunk=json.dumps(event))).cut


def test_a_break_after_the_end_changes_nothing() -> None:
    got = reply_of(Reply(text="done", calls=(call("echo", {}),), finish="stop", end="cut"))
    assert (got.text, got.finish, got.cut, len(got.tool_calls)) == ("done", "tool_calls", False, 1)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("body", "words", "code"),
    [
        (None, "no JSON object", ""),
        (json.dumps("text"), "no JSON object", ""),
        ({"status": "completed", "output": []}, "no output", ""),
        ({"status": "completed", "output": None}, "no output", ""),
        ({"status": "cancelled", "output": [{"type": "message"}]}, "was cancelled", ""),
        ({"status": "failed", "output": []}, "no output", ""),
        (
            {"status": "failed", "error": {"message": "quota gone", "code": "insufficient_quota"}},
            "quota gone",
            "insufficient_quota",
        ),
        ({"error": "plain words"}, "plain words", ""),
        ({"choices": [{"message": {"content": "hi"}}]}, "api_mode", ""),
        ("<html><title>Login</title></html>", "Login", ""),
        ("", "not JSON", ""),
    ],
)
def test_a_200_without_a_reply_in_it(body: Any, words: str, code: str, stream: bool) -> None:
    failure = failure_of(json_reply(body), stream=stream)
    assert (failure.kind, failure.status, failure.code) == ("shape", None, code)
    assert words in failure.message


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("script", "code", "name", "words"),
    [
        (status(401, {"error": f"bad key {KEY}"}), 401, "AuthenticationError", "bad key ***"),
        (status(404, ""), 404, "NotFoundError", "HTTP 404 Not Found"),
        (status(502, "<html><title>Bad gateway</title>" + "x" * 9000), 502, "InternalServerError", "Bad gateway"),
        (overflow(limit=4096, used=5000), 400, "BadRequestError", "maximum context length is 4096 tokens"),
    ],
)
def test_an_http_error(script: Reply, code: int, name: str, words: str, stream: bool) -> None:
    failure = failure_of(script, stream=stream)
    assert (failure.kind, failure.status, failure.exception, failure.sent) == ("http", code, name, True)
    assert words in failure.message
    assert KEY not in failure.message + failure.detail


def test_the_limit_on_a_whole_call() -> None:
    failure = failure_of(silence(), total=0.1)
    assert (failure.kind, failure.exception) == ("transport", "TimeoutError")
    got, _, server = ask(silence(after="so far"), total=0.3)
    assert got == ModelReply("so far", finish=None, cut=True, model="scripted")
    assert server.closed_early == 1


def test_a_stream_that_stays_open_after_its_end_is_whole() -> None:
    got, _, server = ask(Reply(text="done", end="hold"), linger=0.05)
    assert got == ModelReply("done", finish="stop", model="scripted")
    assert server.closed_early == 1


@pytest.mark.parametrize("script", [silence("connect"), silence("words"), slow("a slow answer", 5)])
def test_cancelling_closes_the_connection(script: Reply) -> None:
    async def play(server: ScriptedServer) -> None:
        port = OpenAIResponses(server.url, KEY)
        task = asyncio.ensure_future(port.call(request(), Seen()))
        await until(lambda: server.completions == 1)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: server.closed_early == 1)
        await port.aclose()

    with ScriptedServer([script]) as server:
        asyncio.run(play(server))


async def until(true: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.005)


def test_the_bytes_of_the_body_go_out_as_they_are() -> None:
    body = '{"stream":true,  "input":[{"role":"user","content":"Grüße 🙂"}]}'.encode()

    async def play(server: ScriptedServer) -> None:
        port = OpenAIResponses(server.url, KEY)
        await port.call(ModelRequest(body), Seen())
        await port.aclose()

    with ScriptedServer([text("hi")]) as server:
        asyncio.run(play(server))
    assert server.requests[0].raw == body
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


# Replies that no script makes


def message(words: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": words, "annotations": []}]
    return {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": content, **more}


def function(name: str = "echo", arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": name, "arguments": arguments, "status": "completed", **more}


THOUGHT = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "sealed"}
SEARCH = {"type": "web_search_call", "id": "ws", "status": "in_progress"}


def whole(output: Sequence[Mapping[str, Any]], **more: Any) -> tuple[ModelReply | Failure, Seen]:
    seen = Seen()
    return whole_response({"status": "completed", "output": list(output), **more}, seen, ISSUER), seen


@pytest.mark.parametrize(
    ("output", "text_", "finish", "shown"),
    [
        ([message("Looking.", phase="commentary"), message("It is 4.")], "It is 4.", "stop", "Looking.\n\nIt is 4."),
        ([message("Looking.", phase="commentary")], "Looking.", "incomplete", "Looking."),
        ([message("Looking.", phase="commentary"), function()], "Looking.", "tool_calls", "Looking."),
        ([message("One."), message("Two.", phase="final_answer")], "One.\n\nTwo.", "stop", "One.\n\nTwo."),
        ([message("Hm", status="in_progress")], "Hm", "incomplete", "Hm"),
        ([SEARCH, message("Found.")], "Found.", "stop", "Found."),
        ([SEARCH], "", "stop", ""),
        ([message('to=functions.echo {"text": "x"}')], "", "incomplete", 'to=functions.echo {"text": "x"}'),
        ([message("Set to=functions.")], "Set to=functions.", "stop", "Set to=functions."),
        (
            [message("to=functions.echo", phase="final_answer"), function()],
            "to=functions.echo",
            "tool_calls",
            "to=functions.echo",
        ),
        ([THOUGHT], "", "stop", ""),
        ([function(status="in_progress")], "", "incomplete", ""),
    ],
)
def test_what_makes_an_answer(output: list[dict[str, Any]], text_: str, finish: str, shown: str) -> None:
    got, seen = whole(output)
    assert isinstance(got, ModelReply)
    assert (got.text, got.finish, "".join(seen.texts)) == (text_, finish, shown)
    assert not got.cut


@pytest.mark.parametrize("state", ["queued", "in_progress"])
def test_a_response_that_has_not_ended_is_incomplete(state: str) -> None:
    got, _ = whole([message("so far")], status=state)
    assert isinstance(got, ModelReply)
    assert (got.text, got.finish) == ("so far", "incomplete")


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("steered", "incomplete"), (None, "incomplete")],
)
def test_why_a_response_is_incomplete(reason: str | None, finish: str) -> None:
    got, _ = whole([message("half", status="incomplete")], status="incomplete", incomplete_details={"reason": reason})
    assert isinstance(got, ModelReply)
    assert got.finish == finish


def test_an_incomplete_response_may_be_empty() -> None:
    got, _ = whole([], status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    assert got == ModelReply(finish="length")


def test_calls_that_are_not_finished_are_not_made() -> None:
    got, _ = whole([function(call_id="a"), function(call_id="b", status="incomplete")], status="incomplete")
    assert isinstance(got, ModelReply)
    assert [call.id for call in got.tool_calls] == ["a"]


def test_ids_are_made_where_they_are_missing_or_used_twice() -> None:
    got, _ = whole([function(call_id=""), function(call_id="c"), function(call_id="c"), function(arguments={"a": 1}, call_id="")])
    assert isinstance(got, ModelReply)
    assert len({call.id for call in got.tool_calls}) == 4
    assert got.tool_calls[3].arguments == '{"a": 1}'


def test_the_phase_of_a_text_is_kept() -> None:
    got, _ = whole([THOUGHT, message("Looking.", phase="commentary"), function()])
    assert isinstance(got, ModelReply)
    assert [block["type"] for block in got.blocks] == ["reasoning", "message"]
    assert got.blocks[1] == {"type": "message", "phase": "commentary", "issuer": ISSUER}


def test_reasoning_that_cannot_be_sent_back_is_shown_only() -> None:
    got, seen = whole([{"type": "reasoning", "summary": [{"type": "summary_text", "text": t} for t in "ab"]}, message("x")])
    assert isinstance(got, ModelReply)
    assert (got.reasoning, got.blocks, "".join(seen.thoughts)) == ("a\n\nb", (), "a\n\nb")


def stream(*events: Mapping[str, Any]) -> tuple[ModelReply | Failure, Seen]:
    seen = Seen()
    growing = ResponsesReply(seen, ISSUER)
    for event in events:
        growing.feed(event)
    return growing.end(), seen


def done(item: Mapping[str, Any], index: int = 0) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def completed(*output: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"status": "completed", "output": list(output), **more}}


def test_items_count_where_the_end_repeats_none() -> None:
    got, seen = stream(done(THOUGHT), done(message("hi"), 1), completed())
    assert isinstance(got, ModelReply)
    assert (got.text, len(got.blocks), seen.texts) == ("hi", 1, ["hi"])


def test_items_of_the_end_count_where_none_were_streamed() -> None:
    got, _ = stream({"type": "response.output_text.delta", "item_id": "m", "delta": "hi"}, completed(message("hi")))
    assert isinstance(got, ModelReply)
    assert (got.text, got.finish) == ("hi", "stop")
    assert "".join(stream(completed(message("hi"), function()))[1].texts) == "hi"


def test_a_stream_that_ends_with_nothing_has_no_shape() -> None:
    got, _ = stream(completed())
    assert isinstance(got, Failure)
    assert (got.kind, got.message) == ("shape", "the response has no output")


def test_the_usage_of_a_failed_response_is_kept() -> None:
    ended = {"status": "failed", "error": None, "usage": {"input_tokens": 3, "output_tokens": 0}}
    got, _ = stream({"type": "response.failed", "response": ended})
    assert isinstance(got, Failure)
    assert got.usage == Usage(3, 0)


def test_narration_that_broke_off_is_no_part_of_an_answer() -> None:
    announced = {"type": "response.output_item.added", "output_index": 0, "item": message("", phase="commentary", content=[])}
    got, _ = stream(announced, {"type": "response.output_text.delta", "output_index": 0, "delta": "Looking"})
    assert isinstance(got, ModelReply)
    assert (got.text, got.finish, got.cut) == ("Looking", "incomplete", False)


def test_chat_completions_where_responses_were_expected() -> None:
    got, _ = stream({"object": "chat.completion.chunk", "choices": [{"delta": {"content": "hi"}}]})
    assert isinstance(got, Failure)
    assert got.message == OTHER_WIRE


@pytest.mark.parametrize("event", [None, [], "ping", {}, {"type": 3}, {"type": "keepalive"}, {"type": "response.completed"}])
def test_what_is_no_event_does_no_harm(event: Any) -> None:
    got, _ = stream(event, done(message("hi")), completed())
    assert isinstance(got, ModelReply)


def test_the_scripted_wire_is_the_one_of_the_sdk() -> None:
    dialect, of_stream = ResponsesDialect(), TypeAdapter[Any](ResponseStreamEvent)
    for script in (text("hi"), tools(call("echo", {"a": 1}), reasoning="hm", text="so"), refusal("no"), length("half"), blank()):
        Response.model_validate({**dialect.whole(script, 1)}, strict=False)
        for number, event in enumerate(dialect.events(script, 1)):
            of_stream.validate_python({**event.data, "sequence_number": number})
