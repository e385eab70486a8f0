"""The chat-completions port through the real SDK and a real HTTP server: every reply has its documented meaning."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from fsm_agent.messages import ModelReply, ToolCall, Usage
from fsm_agent.providers.openai_chat import OpenAIChat
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
        port = OpenAIChat(server.url, KEY, **options)
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
        (tools(call("", "")), {"tool_calls": (ToolCall("call_1_0", "", ""),)}),
        (content_filter(), {"text": "", "finish": "content_filter"}),
        (refusal("No."), {"refusal": "No.", "text": "", "finish": "stop"}),
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


def test_an_object_without_a_finish_reason_is_whole() -> None:
    got = reply_of(json_reply({"choices": [{"message": {"content": [{"type": "text", "text": "a"}, "b"]}}]}))
    assert (got.text, got.finish, got.cut, got.usage) == ("a\nb", "stop", False, None)


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
    error = json.dumps({"error": {"code": 502, "type": "provider_down", "message": "upstream died"}})
    failure = failure_of(malformed_chunk(chunk=error))
    assert (failure.kind, failure.code, failure.message) == ("shape", "provider_down", "upstream died")
    assert reply_of(malformed_chunk("kept", chunk=error)).cut


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
        ({"choices": []}, "no choices", ""),
        ({"choices": [{"message": None}]}, "no choices", ""),
        ({"error": {"message": "quota gone", "code": "insufficient_quota"}}, "quota gone", "insufficient_quota"),
        ({"error": "plain words", "choices": None}, "plain words", ""),
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
        (status(529, {"type": "error", "error": {"type": "overloaded_error"}}), 529, "InternalServerError", "529"),
        (overflow(limit=4096, used=5000), 400, "BadRequestError", "maximum context length is 4096 tokens"),
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
        port = OpenAIChat(url)
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
        port = OpenAIChat(server.url, KEY)
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
        port = OpenAIChat(server.url, KEY)
        await port.call(ModelRequest(body), Seen())
        await port.aclose()

    with ScriptedServer([text("hi")]) as server:
        asyncio.run(play(server))
    received = server.requests[0]
    assert received.raw == body
    assert received.headers["content-type"] == "application/json"
    assert received.headers["authorization"] == f"Bearer {KEY}"


def test_keys_change_connections_stay_and_can_be_rebuilt() -> None:
    async def play(server: ScriptedServer) -> None:
        port = OpenAIChat(server.url)
        await port.call(request(), Seen())
        port.use_key("sk-second-key")
        await port.call(request(), Seen())
        await port.rebuild()
        await port.call(request(), Seen())
        await port.aclose()
        await port.aclose()

    with ScriptedServer([text("a"), text("b"), text("c")]) as server:
        asyncio.run(play(server))
    sent = [received.headers["authorization"] for received in server.requests]
    assert sent == ["Bearer none", "Bearer sk-second-key", "Bearer sk-second-key"]


def test_a_port_serves_one_event_loop_after_another() -> None:
    async def play(port: OpenAIChat) -> str:
        got = await port.call(request(), Seen())
        await port.aclose()
        assert isinstance(got, ModelReply)
        return got.text

    with ScriptedServer([text("a"), text("b")]) as server:
        port = OpenAIChat(server.url, KEY)
        assert [asyncio.run(play(port)) for _ in range(2)] == ["a", "b"]


def test_an_account_of_the_environment_is_not_told_to_other_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "from-the-environment")
    _, _, server = ask(text("hi"))
    assert os.environ["OPENAI_ORG_ID"]
    assert "from-the-environment" not in " ".join(server.requests[0].headers.values())


def test_a_key_that_no_header_can_carry() -> None:
    async def play(server: ScriptedServer, key: str) -> ModelReply | Failure:
        port = OpenAIChat(server.url, key)
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
        port = OpenAIChat(server.url, KEY)
        await port.call(request(), Seen())
        await port.call(request(), Seen())
        await port.aclose()
        return port.limits

    limited = status(429, headers={"X-RateLimit-Remaining-Requests": "0"})
    with ScriptedServer([limited, text("hi")]) as server:
        assert asyncio.run(play(server)) == {"x-ratelimit-remaining-requests": "0"}
