"""The Messages port through the real SDK and a real HTTP server: every reply means what it means on the other wires."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fsm_agent.messages import ModelReply, ToolCall, Usage
from fsm_agent.providers.anthropic_messages import AnthropicMessages
from fsm_agent.providers.failures import failure_from
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
from tests.closed_types import adapter
from tests.harness import play

KEY = "sk-test-0123456789abcdef"


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
    return ModelRequest(json.dumps({"model": "m", "messages": [], "stream": stream}).encode(), stream=stream)


def ask(*script: Reply, stream: bool = True, **options: Any) -> tuple[ModelReply | Failure, Seen, ScriptedServer]:
    """Serve the script to one call for each entry; returns what the last one brought."""

    async def play(server: ScriptedServer) -> tuple[ModelReply | Failure, Seen]:
        port = AnthropicMessages(server.url, KEY, **options)
        try:
            for _ in script:
                seen = Seen()
                got = await port.call(request(stream), seen)
            return got, seen
        finally:
            await port.aclose()

    with ScriptedServer(script) as server:
        got, seen = asyncio.run(play(server))
    assert server.errors == []
    assert server.overrun == []
    assert server.completions == len(script)
    return got, seen, server


def reply_of(*script: Reply, stream: bool = True) -> ModelReply:
    got, _, _ = ask(*script, stream=stream)
    assert isinstance(got, ModelReply)
    return got


def failure_of(*script: Reply, stream: bool = True, **options: Any) -> Failure:
    got, _, _ = ask(*script, stream=stream, **options)
    assert isinstance(got, Failure)
    return got


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
    assert got.text == "So:"
    assert got.finish == "tool_calls"
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
        (tools(call("", "")), {"tool_calls": (ToolCall("call_1_0", "", "{}"),)}),
        (content_filter(), {"text": "", "finish": "content_filter"}),
        (refusal("No."), {"refusal": "No.", "text": "", "finish": "content_filter"}),
        (Reply(text="so far", finish="incomplete"), {"text": "so far", "finish": "incomplete"}),
        (Reply(text="full", finish="model_context_window_exceeded"), {"text": "full", "finish": "length"}),
        (Reply(text="said", finish="stop_sequence"), {"text": "said", "finish": "stop"}),
        (Reply(text="new", finish="a_reason_of_tomorrow"), {"text": "new", "finish": "stop"}),
        (text("hi", usage=None), {"text": "hi", "usage": None}),
    ],
    ids=lambda value: None if isinstance(value, dict) else f"{value.shape}-{value.finish}-{value.text}",
)
def test_replies_that_arrive_whole(script: Reply, expected: dict[str, Any], stream: bool) -> None:
    got = reply_of(script, stream=stream)
    assert {name: getattr(got, name) for name in expected} == expected


def test_reasoning_reaches_the_sink_as_it_comes() -> None:
    _, seen, _ = ask(reasoning("step by step"))
    assert "".join(seen.thoughts) == "step by step"
    assert len(seen.thoughts) > 1
    assert seen.texts == []


def test_one_object_although_a_stream_was_asked_for() -> None:
    got, seen, _ = ask(json_reply(tools(call("echo", {}), text="whole")))
    assert isinstance(got, ModelReply)
    assert (got.text, got.finish, got.cut) == ("whole", "tool_calls", False)
    assert seen.texts == ["whole"]
    assert seen.tools == ["echo"]


def test_an_object_without_a_stop_reason_is_whole() -> None:
    got = reply_of(json_reply({"content": [{"type": "text", "text": "a"}, None, {"type": "text", "text": "b"}]}))
    assert (got.text, got.finish, got.cut, got.usage) == ("ab", "stop", False, None)


def test_a_stream_cut_after_text_is_a_cut_reply() -> None:
    got, seen, server = ask(cut("part one"))
    assert got == ModelReply("part one", finish=None, cut=True, model="scripted")
    assert "".join(seen.texts) == "part one"
    assert server.served_usage.total == 0


@pytest.mark.parametrize("script", [cut(), cut("", call("echo", {})), cut("text", call("echo", {})), drop()])
def test_a_break_with_nothing_to_keep_or_a_call_in_flight_is_a_failure(script: Reply) -> None:
    failure = failure_of(script)
    assert (failure.kind, failure.exception, failure.status) == ("transport", "RemoteProtocolError", None)
    assert "\n" not in failure.message


@pytest.mark.parametrize("script", [empty_sse(), no_finish()])
def test_a_stream_that_says_nothing_is_a_failure(script: Reply) -> None:
    failure = failure_of(script)
    assert failure.kind == "transport"
    assert failure.message.startswith("empty stream")


def test_a_stream_without_finish_reason_keeps_what_came() -> None:
    got = reply_of(no_finish("some", call("echo", {"a": 1})))
    assert (got.text, got.finish, got.cut) == ("some", None, True)
    assert got.tool_calls == (ToolCall("call_1_0", "echo", '{"a": 1}'),)


def test_a_malformed_chunk() -> None:
    failure = failure_of(malformed_chunk())
    assert (failure.kind, failure.code, failure.exception) == ("transport", "malformed_chunk", "JSONDecodeError")
    assert reply_of(malformed_chunk("kept")) == ModelReply("kept", finish=None, cut=True, model="scripted")


def test_an_error_inside_a_stream() -> None:
    error = json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    failure = failure_of(malformed_chunk(chunk=error))
    assert (failure.kind, failure.status, failure.code) == ("http", 529, "overloaded_error")
    assert reply_of(malformed_chunk("kept", chunk=error)).cut
    unknown = json.dumps({"type": "error", "error": {"type": "provider_down", "message": f"upstream died of {KEY}"}})
    failure = failure_of(malformed_chunk(chunk=unknown))
    assert (failure.kind, failure.code, failure.message) == ("shape", "provider_down", "upstream died of ***")


def test_a_break_after_the_finish_reason_changes_nothing() -> None:
    whole = Reply(text="done", calls=(call("echo", {}),), finish="stop", end="cut")
    got = reply_of(whole)
    assert (got.text, got.finish, got.cut, len(got.tool_calls)) == ("done", "tool_calls", False, 1)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("body", "words", "code"),
    [
        (None, "no JSON object", ""),
        (json.dumps("text"), "no JSON object", ""),
        ({"choices": []}, "no content", ""),
        ({"content": None}, "no content", ""),
        ({"error": {"message": "quota gone", "code": "insufficient_quota"}}, "quota gone", "insufficient_quota"),
        ({"error": "plain words", "content": None}, "plain words", ""),
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
        (status(400), 400, "BadRequestError", "scripted status 400"),
        (status(401, {"error": f"bad key {KEY}"}), 401, "AuthenticationError", "bad key ***"),
        (status(404, ""), 404, "NotFoundError", "HTTP 404 Not Found"),
        (status(429), 429, "RateLimitError", "429"),
        (status(500), 500, "InternalServerError", "500"),
        (status(502, "<html><title>Bad gateway</title>" + "x" * 9000), 502, "InternalServerError", "Bad gateway"),
        (status(529, {"type": "error", "error": {"type": "overloaded_error"}}), 529, "OverloadedError", "529"),
        (overflow(limit=4096, used=5000), 400, "BadRequestError", "prompt is too long: 5000 tokens > 4096 maximum"),
    ],
)
def test_an_http_error(script: Reply, code: int, name: str, words: str, stream: bool) -> None:
    failure = failure_of(script, stream=stream)
    assert (failure.kind, failure.status, failure.exception, failure.sent) == ("http", code, name, True)
    assert words in failure.message
    assert len(failure.message) <= 500
    assert "\n" not in failure.message
    assert KEY not in failure.message + failure.detail


def test_a_wish_to_wait_is_kept() -> None:
    assert failure_of(status(429, headers={"Retry-After": "7"})).retry_after == 7
    assert failure_of(status(503, headers={"retry-after-ms": "250"})).retry_after == 0.25
    dated = status(429, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:10 GMT"})
    assert failure_of(dated, now=lambda: 1445412480.0).retry_after == 10


def test_the_sdk_never_retries() -> None:
    _, _, server = ask(status(500), status(429, headers={"retry-after": "0"}), drop())
    assert server.completions == 3


def test_nobody_listens() -> None:
    with ScriptedServer() as server:
        url = server.url

    async def play() -> ModelReply | Failure:
        port = AnthropicMessages(url)
        try:
            return await port.call(request(), Seen())
        finally:
            await port.aclose()

    failure = asyncio.run(play())
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.exception, failure.sent) == ("transport", "ConnectError", False)


def test_the_limit_on_a_whole_call() -> None:
    failure = failure_of(silence(), total=0.1)
    assert (failure.kind, failure.exception) == ("transport", "TimeoutError")
    got, _, server = ask(silence(after="so far"), total=0.3)
    assert got == ModelReply("so far", finish=None, cut=True, model="scripted")
    assert server.closed_early == 1


def test_a_stream_that_stays_open_after_its_finish_reason_is_whole() -> None:
    got, _, server = ask(Reply(text="done", end="hold"), linger=0.05)
    assert got == ModelReply("done", finish="stop", model="scripted")
    assert server.closed_early == 1


def test_the_limit_on_a_gap() -> None:
    failure = failure_of(silence("connect"), read=0.1)
    assert (failure.kind, failure.exception) == ("transport", "ReadTimeout")


@pytest.mark.parametrize("script", [silence("connect"), silence(), silence("words"), slow("a slow answer", 5)])
def test_cancelling_closes_the_connection(script: Reply) -> None:
    async def play(server: ScriptedServer) -> None:
        port = AnthropicMessages(server.url, KEY)
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
    body = '{"stream":true,  "messages":[{"role":"user","content":"Grüße 🙂"}]}'.encode()

    async def play(server: ScriptedServer) -> None:
        port = AnthropicMessages(server.url, KEY)
        await port.call(ModelRequest(body), Seen())
        await port.aclose()

    with ScriptedServer([text("hi")]) as server:
        asyncio.run(play(server))
    received = server.requests[0]
    assert received.raw == body
    assert received.headers["content-type"] == "application/json"
    assert received.path == "/v1/messages"
    assert received.headers["x-api-key"] == KEY
    assert "authorization" not in received.headers
    assert received.headers["anthropic-version"]


def test_keys_change_connections_stay_and_can_be_rebuilt() -> None:
    async def play(server: ScriptedServer) -> None:
        port = AnthropicMessages(server.url)
        await port.call(request(), Seen())
        port.use_key("sk-second-key")
        await port.call(request(), Seen())
        await port.rebuild()
        await port.call(request(), Seen())
        await port.aclose()
        await port.aclose()

    with ScriptedServer([text("a"), text("b"), text("c")]) as server:
        asyncio.run(play(server))
    sent = [received.headers["x-api-key"] for received in server.requests]
    assert sent == ["none", "sk-second-key", "sk-second-key"]


def test_a_port_serves_one_event_loop_after_another() -> None:
    async def play(port: AnthropicMessages) -> str:
        got = await port.call(request(), Seen())
        await port.aclose()
        assert isinstance(got, ModelReply)
        return got.text

    with ScriptedServer([text("a"), text("b")]) as server:
        port = AnthropicMessages(server.url, KEY)
        assert [asyncio.run(play(port)) for _ in range(2)] == ["a", "b"]


def test_an_account_of_the_environment_is_not_told_to_other_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, "from-the-environment")
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Team: from-the-environment")
    _, _, server = ask(text("hi"))
    assert os.environ["ANTHROPIC_CUSTOM_HEADERS"]
    assert "from-the-environment" not in " ".join(server.requests[0].headers.values())
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")
    _, _, server = ask(text("hi"))
    assert server.requests[0].headers["x-team"] == "from-the-environment", "the environment names this host itself"


def test_a_key_that_no_header_can_carry() -> None:
    async def play(server: ScriptedServer, key: str) -> ModelReply | Failure:
        port = AnthropicMessages(server.url, key)
        try:
            return await port.call(request(), Seen())
        finally:
            await port.aclose()

    with ScriptedServer() as server:
        for key, kind in (("sk-schlüßel", "encode"), ("sk-line\nbreak", "local")):
            failure = asyncio.run(play(server, key))
            assert isinstance(failure, Failure)
            assert (failure.kind, failure.sent) == (kind, False)
            assert key not in failure.message + failure.detail
    assert server.completions == 0


def test_rate_headers_are_kept_for_display() -> None:
    async def play(server: ScriptedServer) -> dict[str, str]:
        port = AnthropicMessages(server.url, KEY)
        await port.call(request(), Seen())
        await port.call(request(), Seen())
        await port.aclose()
        return port.limits

    limited = status(429, headers={"Anthropic-RateLimit-Requests-Remaining": "0"})
    with ScriptedServer([limited, text("hi")]) as server:
        assert asyncio.run(play(server)) == {"anthropic-ratelimit-requests-remaining": "0"}


def test_a_key_may_go_out_as_a_bearer() -> None:
    _, _, server = ask(text("hi"), auth="bearer")
    headers = server.requests[0].headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert "x-api-key" not in headers


def test_the_address_with_and_without_the_version() -> None:
    for address in (
        "https://gate.example.com/anthropic",
        "https://gate.example.com/anthropic/v1",
        "https://gate.example.com/anthropic/v1/",
    ):
        assert AnthropicMessages(address).base_url == "https://gate.example.com/anthropic"


@pytest.mark.parametrize("stream", [True, False])
def test_thoughts_are_kept_with_signature_and_issuer(stream: bool) -> None:
    script = tools(call("echo", {}), text="So:", reasoning="step by step")
    got, seen, _ = ask(script, stream=stream, issuer="here")
    assert isinstance(got, ModelReply)
    assert got.reasoning == "".join(seen.thoughts) == "step by step"
    thought = {"type": "thinking", "issuer": "here", "thinking": "step by step", "signature": "signature-1"}
    assert got.blocks == (thought,)


def lines(*events: dict[str, Any]) -> Reply:
    """A stream of these events, unnamed as some gateways send them."""
    return Reply(shape="empty", raw=tuple(map(json.dumps, events)))


def block(index: int, first: dict[str, Any], *deltas: dict[str, Any], closed: bool = True) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": first},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        *([{"type": "content_block_stop", "index": index}] if closed else []),
    ]


START: dict[str, Any] = {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 9, "output_tokens": 1}}}
STOP: dict[str, Any] = {
    "type": "message_delta",
    "delta": {"stop_reason": "tool_use"},
    "usage": {"input_tokens": 0, "output_tokens": 4},
}
END: dict[str, Any] = {"type": "message_stop"}
TEXT = block(0, {"type": "text", "text": "a"}, {"type": "text_delta", "text": "b"})


def test_a_stream_of_unnamed_events_is_read() -> None:
    got = reply_of(lines(START, {"type": "ping"}, *TEXT, STOP, END))
    assert (got.text, got.finish, got.usage, got.model) == ("ab", "stop", Usage(9, 4), "m")


def test_thoughts_between_calls_know_their_places() -> None:
    def use(name: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": name, "name": "echo", "input": {}}

    def thought(text: str) -> tuple[dict[str, Any], ...]:
        return (
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": text},
            {"type": "signature_delta", "signature": f"signed {text}"},
        )

    got = reply_of(
        lines(
            START,
            *block(0, *thought("one")),
            *block(1, {"type": "redacted_thinking", "data": "dark"}),
            *block(2, {"type": "text", "text": "So:"}),
            *block(3, use("a")),
            *block(4, *thought("two")),
            *block(5, use("b"), {"type": "input_json_delta", "partial_json": '{"x": 1}'}),
            *block(6, *thought("three")),
            STOP,
            END,
        )
    )
    assert got.tool_calls == (ToolCall("a", "echo", "{}"), ToolCall("b", "echo", '{"x": 1}'))
    kept = [(one["type"], one.get("thinking", one.get("data")), one.get("before")) for one in got.blocks]
    assert kept == [
        ("thinking", "one", None),
        ("redacted_thinking", "dark", None),
        ("thinking", "two", "b"),
        ("thinking", "three", ""),
    ]
    assert got.reasoning == "onetwothree"


def test_a_call_cut_before_its_arguments_is_not_one_without_any() -> None:
    use = {"type": "tool_use", "id": "a", "name": "echo", "input": {}}
    assert reply_of(lines(START, *block(0, use), STOP, END)).tool_calls[0].arguments == "{}"
    assert reply_of(lines(START, *block(0, use, closed=False))).tool_calls[0].arguments == ""


def test_calls_that_share_an_id_are_told_apart() -> None:
    use = {"type": "tool_use", "id": "a", "name": "echo", "input": {}}
    script = lines(START, *block(0, use), *block(1, use), *block(2, {**use, "id": ""}), STOP, END)
    one, two, three = (made.id for made in reply_of(script).tool_calls)
    assert one == "a"
    assert len({one, two, three}) == 3
    assert "" not in (two, three)


def test_an_input_that_comes_whole() -> None:
    use = {"type": "tool_use", "id": "a", "name": "echo", "input": {"text": "é"}}
    got = reply_of(lines(START, *block(0, use), STOP, END))
    assert got.tool_calls == (ToolCall("a", "echo", '{"text": "é"}'),)


@pytest.mark.parametrize(
    "events",
    [
        [START, *TEXT],
        [START, *TEXT[:-1], STOP, END],
        [START, *TEXT[1:], STOP, END],
        [*TEXT[:-1]],
    ],
    ids=["no stop reason", "a block never closed", "the beginning was lost", "nothing but a beginning"],
)
def test_a_reply_that_lost_something_is_cut(events: list[dict[str, Any]]) -> None:
    got = reply_of(lines(*events))
    assert got.text.endswith("b")
    assert (got.finish, got.cut) == (None, True)


def test_usage_of_the_beginning_counts_when_the_end_never_comes() -> None:
    assert reply_of(lines(START, *TEXT)).usage == Usage(9, 1)


def test_a_stream_whose_last_event_is_missing_is_whole() -> None:
    got = reply_of(lines(START, *TEXT, STOP))
    assert (got.text, got.finish, got.cut) == ("ab", "stop", False)


@pytest.mark.parametrize("junk", [b"[1]", b'"x"', b"7", b"null", b'{"type": "tomorrow"}', b'{"type": "content_block_delta"}'])
def test_events_of_another_shape_do_no_harm(junk: bytes) -> None:
    script = replace(lines(START, *TEXT, STOP, END), raw=(json.dumps(START), junk.decode(), *map(json.dumps, [*TEXT, STOP, END])))
    got, _, _ = ask(script)
    assert isinstance(got, ModelReply)
    assert got.text == "ab"


@pytest.mark.parametrize(
    "script",
    [
        text("Hello, world", usage=Usage(7, 3, 2, 1, 2)),
        tools(call("echo", {"text": "hi"}), call("put", "{}"), text="So:", reasoning="hm"),
        blank(),
        length("half"),
        refusal("No."),
    ],
    ids=["text", "tools", "blank", "length", "refusal"],
)
def test_what_the_scripted_server_says_is_what_the_official_sdk_expects(script: Reply) -> None:
    from anthropic import Anthropic

    ours = reply_of(script)
    with (
        ScriptedServer([script, script]) as server,
        Anthropic(
            api_key="k", base_url=server.url.removesuffix("/v1"), max_retries=0, _strict_response_validation=True
        ) as client,
    ):
        asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "q"}]}
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
    for message in (whole, streamed):
        content: list[Any] = [*message.content]
        assert "".join(one.text for one in content if one.type == "text") == ours.text
        assert [one.name for one in content if one.type == "tool_use"] == [made.name for made in ours.tool_calls]
        assert message.usage.cache_read_input_tokens == (ours.usage or Usage()).cache_read


def test_an_error_that_the_sdk_raises_with_status_200_has_the_status_of_its_type() -> None:
    from anthropic import APIStatusError
    from httpx2 import Request, Response

    response = Response(200, request=Request("POST", "http://here/v1/messages"))
    body = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
    failure = failure_from(APIStatusError("Error", response=response, body=body), 0.0)
    assert (failure.kind, failure.status, failure.code, failure.message) == ("http", 429, "rate_limit_error", "slow down")


def test_the_code_of_an_error_is_in_its_details() -> None:
    failure = failure_of(status(400, {"error": {"message": "too wide", "code": "image_dimensions_too_large"}}))
    assert (failure.code, failure.message) == ("image_dimensions_too_large", "too wide")
    assert failure_of(status(403)).code == "permission_error"


# Whole turns


CLAUDE: dict[str, Any] = {"model": "anthropic:claude-sonnet-4-5"}


@pytest.fixture(scope="module")
def official() -> Any:
    """The request types of the official SDK."""
    from anthropic.types import MessageCreateParams

    return adapter(MessageCreateParams)


def kinds(row: dict[str, Any]) -> list[str]:
    return [one["type"] for one in row["content"]]


def test_the_thoughts_of_a_tool_loop_go_back_in_it(official: Any) -> None:
    script = [
        tools(call("echo", {"text": "a"}), reasoning="first"),
        tools(call("echo", {"text": "b"}), call("echo", {"text": "c"}), reasoning="then", text="So:"),
        text("done", usage=Usage(3, 2, 40, 50, 1)),
    ]
    played = play(script, **CLAUDE, settings={"reasoning_effort": "low", "cache": {"ttl": "1h"}})
    assert (played.result.final_response, played.exit) == ("done", "text_response")
    for sent in played.server.bodies:
        official.validate_python(sent)
        assert sent["thinking"] == {"type": "enabled", "budget_tokens": 4_096}
    rows = played.server.bodies[2]["messages"]
    assert [kinds(row) for row in rows[1::2]] == [["thinking", "tool_use"], ["thinking", "text", "tool_use", "tool_use"]]
    assert rows[3]["content"][0] == {"type": "thinking", "thinking": "then", "signature": "signature-2"}
    assert rows[4]["content"][1]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert (played.result.cache_read_tokens, played.result.cache_write_tokens) == (40, 50)
    assert played.result.messages[1]["blocks"][0]["signature"] == "signature-1"


def test_a_rejected_signature_takes_the_thoughts_off_the_wire_only(official: Any) -> None:
    """Scenario 81."""
    words = "messages.1.content.0: Invalid `signature` in `thinking` block"
    script = [tools(call("echo", {}), reasoning="hm"), status(400, {"error": {"message": words}}), text("done")]
    played = play(script, **CLAUDE, settings={"reasoning_effort": "low"})
    assert (played.exit, played.server.completions) == ("text_response", 3)
    rejected, repaired = played.server.bodies[1:]
    assert kinds(rejected["messages"][1]) == ["thinking", "tool_use"]
    assert kinds(repaired["messages"][1]) == ["tool_use"]
    assert "thinking" not in repaired
    official.validate_python(repaired)
    assert played.result.messages[1]["blocks"][0]["signature"] == "signature-1"


def test_the_long_context_beta_is_not_needed_to_send_again() -> None:
    words = "The long context beta is not yet available for this subscription."
    played = play([status(400, {"error": {"message": words}}), text("done")], **CLAUDE)
    assert (played.exit, played.server.completions) == ("text_response", 2)
    assert not any("anthropic-beta" in request.headers for request in played.server.requests)


def test_a_cap_that_the_model_refuses_is_lowered_to_what_it_names(official: Any) -> None:
    words = "max_tokens: 128000 > 8192, which is the maximum allowed number of output tokens for claude-next"
    played = play([status(400, {"error": {"message": words}}), text("done")], model="anthropic:claude-next")
    assert played.exit == "text_response"
    assert [sent["max_tokens"] for sent in played.server.bodies] == [128_000, 8_192 - 64]


def test_an_overload_told_inside_the_stream_is_waited_out() -> None:
    error = json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    played = play([malformed_chunk(chunk=error), status(529), text("done")], **CLAUDE)
    assert played.exit == "text_response"
    assert len(played.waits) == 2


def test_a_system_message_is_no_row(official: Any) -> None:
    played = play([text("done")], **CLAUDE, history=[{"role": "assistant", "content": "before"}])
    (sent,) = played.server.bodies
    official.validate_python(sent)
    assert [row["role"] for row in sent["messages"]] == ["user", "assistant", "user"]
    assert sent["system"][0]["cache_control"] == {"type": "ephemeral"}


def test_each_request_of_a_turn_is_a_prefix_of_the_next() -> None:
    script = [*(tools(call("echo", {"text": str(n)}), reasoning="hm") for n in range(4)), text("done")]
    played = play(script, model="openai:gpt-x", api_mode="anthropic_messages")
    sent = [request.raw[: request.raw.rindex(b'],"max_tokens"')] for request in played.server.requests]
    assert len(sent) == 5
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(sent))
