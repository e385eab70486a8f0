"""The model ports through the real SDKs and a real HTTP server: a reply means the same on every wire."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply, ToolCall, Usage
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
from tests.helpers.deaf_proxy import BEHIND, deaf_proxy
from tests.helpers.leaping import LeapingLoop
from tests.helpers.ports import KEY, WIRES, Seen, Wire
from tests.helpers.waiting import until_so

pytestmark = pytest.mark.parametrize("wire", WIRES, ids=[wire.name for wire in WIRES])
both = pytest.mark.parametrize("stream", [True, False])


def plain(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls without what only one of the wires has."""
    return tuple(replace(call, item_id="") for call in calls)


@pytest.mark.behaviour("FSM-12", "USE-01")
@both
def test_text(wire: Wire, stream: bool) -> None:
    got, seen, server = wire.ask(text("Hello, world", usage=Usage(7, 3, 2, 1, 2)), stream=stream)
    assert got == ModelReply("Hello, world", finish="stop", usage=Usage(7, 3, 2, 1, 2), model="scripted")
    assert "".join(seen.texts) == "Hello, world"
    assert (len(seen.texts) > 1) == stream
    assert seen.beats >= 1
    assert server.served_usage == Usage(7, 3, 2, 1, 2)


@pytest.mark.behaviour("FMT-11")
@both
def test_tool_calls(wire: Wire, stream: bool) -> None:
    one = call("echo", {"text": "hi"}, id="a")
    calls = (one, call("put", {"n": 1}, id=7), call("echo", "{}", id=""), one)
    script = tools(*calls, text="So:")
    got, seen, _ = wire.ask(script, stream=stream)
    assert isinstance(got, ModelReply)
    assert (got.text, got.finish) == ("So:", "tool_calls")
    first, second = ToolCall("a", "echo", '{"text": "hi"}'), ToolCall("7", "put", '{"n": 1}')
    assert plain(got.tool_calls)[:2] == (first, second)
    assert got.tool_calls[2].id.startswith("call_")
    assert len({made.id for made in got.tool_calls}) == 4, "an id that is used twice becomes two"
    assert seen.tools == ["echo", "put", "echo", "echo"]
    assert got == wire.reply_of(script, stream=stream), "the same reply gets the same ids"


@both
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (blank(), {"text": "", "finish": "stop", "cut": False}),
        (reasoning("because"), {"reasoning": "because", "text": "", "finish": "stop"}),
        (length("half"), {"text": "half", "finish": "length", "cut": False}),
        (cut_tool_call(),
         {"tool_calls": (ToolCall("call_1_0", "echo", '{"text": "abc'),), "finish": "length"}),
        (bad_json(), {"tool_calls": (ToolCall("call_1_0", "echo", '{"text": }'),), "finish": "tool_calls"}),
        (content_filter(), {"text": "", "finish": "content_filter"}),
        (text("hi", usage=None), {"text": "hi", "usage": None}),
    ],
    ids=lambda value: None if isinstance(value, dict) else f"{value.shape}-{value.finish}-{value.text}",
)  # fmt: skip
def test_replies_that_arrive_whole(wire: Wire, script: Reply, expected: dict[str, Any], stream: bool) -> None:
    got = wire.reply_of(script, stream=stream)
    got = replace(got, tool_calls=plain(got.tool_calls))
    assert {name: getattr(got, name) for name in expected} == expected


@both
def test_a_call_without_a_name_and_a_refusal(wire: Wire, stream: bool) -> None:
    nameless = wire.reply_of(tools(call("", "")), stream=stream)
    assert plain(nameless.tool_calls) == (ToolCall("call_1_0", "", wire.no_arguments),)
    refused = wire.reply_of(refusal("No."), stream=stream)
    assert (refused.refusal, refused.text, refused.finish) == ("No.", "", wire.refused)


@pytest.mark.behaviour("CALL-08")
def test_reasoning_reaches_the_sink_as_it_comes(wire: Wire) -> None:
    _, seen, _ = wire.ask(reasoning("step by step"))
    assert "".join(seen.thoughts) == "step by step"
    assert len(seen.thoughts) > 1
    assert seen.texts == []


def test_one_object_although_a_stream_was_asked_for(wire: Wire) -> None:
    got, seen, _ = wire.ask(json_reply(tools(call("echo", {}), text="whole")))
    assert isinstance(got, ModelReply)
    assert (got.text, got.finish, got.cut) == ("whole", "tool_calls", False)
    assert (seen.texts, seen.tools) == (["whole"], ["echo"])


def test_a_stream_cut_after_text_is_a_cut_reply(wire: Wire) -> None:
    got, seen, server = wire.ask(cut("part one"))
    assert got == ModelReply("part one", finish=None, cut=True, model="scripted")
    assert "".join(seen.texts) == "part one"
    assert server.served_usage.total == 0


@pytest.mark.parametrize("script", [cut(), cut("", call("echo", {})), cut("text", call("echo", {})), drop()])
def test_a_break_with_nothing_to_keep_or_a_call_in_flight_is_a_failure(wire: Wire, script: Reply) -> None:
    failure = wire.failure_of(script)
    assert (failure.kind, failure.exception, failure.status) == ("transport", "RemoteProtocolError", None)
    assert "\n" not in failure.message


@pytest.mark.parametrize("script", [empty_sse(), no_finish()])
def test_a_stream_that_says_nothing_is_a_failure(wire: Wire, script: Reply) -> None:
    failure = wire.failure_of(script)
    assert failure.kind == "transport"
    assert failure.message.startswith("empty stream")


def test_a_stream_without_its_end_keeps_what_came(wire: Wire) -> None:
    got = wire.reply_of(no_finish("some", call("echo", {"a": 1})))
    assert (got.text, got.finish, got.cut) == ("some", None, True)
    assert plain(got.tool_calls) == (ToolCall("call_1_0", "echo", '{"a": 1}'),)


def test_a_malformed_chunk(wire: Wire) -> None:
    chunk = {"chunk": wire.broken} if wire.broken else {}
    failure = wire.failure_of(malformed_chunk(**chunk))
    found = (failure.kind, failure.code, failure.exception)
    assert found == ("transport", "malformed_chunk", "JSONDecodeError")
    kept = wire.reply_of(malformed_chunk("kept", **chunk))
    assert kept == ModelReply("kept", finish=None, cut=True, model="scripted")


def test_a_break_after_the_end_changes_nothing(wire: Wire) -> None:
    got = wire.reply_of(Reply(text="done", calls=(call("echo", {}),), finish="stop", end="cut"))
    assert (got.text, got.finish, got.cut, len(got.tool_calls)) == ("done", "tool_calls", False, 1)


@pytest.mark.behaviour("CALL-19", "CALL-19b", "CALL-20")
@both
def test_a_200_without_a_reply_in_it(wire: Wire, stream: bool) -> None:
    everywhere = [
        (None, "not a JSON object", ""), (json.dumps("text"), "not a JSON object", ""),
        ("<html><title>Login</title></html>", "Login", ""), ("", "not JSON", ""),
    ]  # fmt: skip
    for body, words, code in (*everywhere, *wire.empty):
        failure = wire.failure_of(json_reply(body), stream=stream)
        assert (failure.kind, failure.status, failure.code) == ("shape", None, code), body
        assert words in failure.message


@pytest.mark.behaviour("ERR-27")
@both
@pytest.mark.parametrize(
    ("script", "code", "name", "words"),
    [
        (status(400), 400, "BadRequestError", "scripted status 400"),
        (status(401, {"error": f"bad key {KEY}"}), 401, "AuthenticationError", "bad key ***"),
        (status(404, ""), 404, "NotFoundError", "HTTP 404 Not Found"),
        (status(429), 429, "RateLimitError", "429"),
        (status(500), 500, "InternalServerError", "500"),
        (status(502, "<html><title>Bad gateway</title>" + "x" * 9000), 502, "InternalServerError",
         "Bad gateway"),
        (status(529, {"type": "error", "error": {"type": "overloaded_error"}}), 529, "", "529"),
        (overflow(limit=4096, used=5000), 400, "BadRequestError", ""),
    ],
    ids=[400, 401, 404, 429, 500, 502, 529, "overflow"],
)  # fmt: skip
def test_an_http_error(wire: Wire, script: Reply, code: int, name: str, words: str, stream: bool) -> None:
    failure = wire.failure_of(script, stream=stream)
    found = (failure.kind, failure.status, failure.exception, failure.sent)
    assert found == ("http", code, name or wire.overloaded, True)
    assert (words or wire.too_long) in failure.message
    assert len(failure.message) <= 500
    assert "\n" not in failure.message
    assert KEY not in failure.message + failure.detail


def test_a_wish_to_wait_is_kept(wire: Wire) -> None:
    assert wire.failure_of(status(429, headers={"Retry-After": "7"})).retry_after == 7
    assert wire.failure_of(status(503, headers={"retry-after-ms": "250"})).retry_after == 0.25
    dated = status(429, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:10 GMT"})
    assert wire.failure_of(dated, now=lambda: 1445412480.0).retry_after == 10


@pytest.mark.behaviour("CALL-04")
def test_the_sdk_never_retries(wire: Wire) -> None:
    asked_to = {"x-should-retry": "true", "retry-after-ms": "0"}
    codes = (408, 409, 429, 500, 503, 529)
    _, _, server = wire.ask(*(status(code, headers=asked_to) for code in codes), drop())
    assert server.completions == len(codes) + 1


def test_nobody_listens(wire: Wire) -> None:
    with ScriptedServer() as server:
        url = server.url
    failure = asyncio.run(wire.call(url))
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.exception, failure.sent) == ("transport", "ConnectError", False)


@pytest.mark.behaviour("CALL-02")
def test_the_limit_on_a_whole_call(wire: Wire) -> None:
    loop = LeapingLoop()
    failure = wire.failure_of(silence(hook=lambda: loop.leap(60)), total=60, loop=loop)
    assert (failure.kind, failure.exception, failure.sent) == ("transport", "TimeoutError", True)


def test_what_came_before_the_limit_on_a_whole_call_is_kept(wire: Wire) -> None:
    class Watching(Seen):
        def text(self, delta: str) -> None:
            super().text(delta)
            if "".join(self.texts) == "so far":
                loop.leap(60)

    loop = LeapingLoop()
    got, _, server = wire.ask(silence(after="so far"), total=60, loop=loop, sink=Watching())
    assert got == ModelReply("so far", finish=None, cut=True, model="scripted")
    assert server.closed_early == 1


def test_a_call_that_failed_before_its_request_left_says_so(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it failed: the provider has seen nothing."""
    loop = LeapingLoop()
    with deaf_proxy(lambda: loop.leap(60), monkeypatch), asyncio.Runner(loop_factory=lambda: loop) as runner:
        failure = runner.run(wire.call(BEHIND, KEY, total=60))
    assert isinstance(failure, Failure)
    assert (failure.exception, failure.sent) == ("TimeoutError", False)


async def test_a_call_that_is_cancelled_before_its_request_left_says_so(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, seen = asyncio.Event(), Seen()
    loop = asyncio.get_running_loop()
    with deaf_proxy(lambda: loop.call_soon_threadsafe(waiting.set), monkeypatch):
        port = wire.make(BEHIND, KEY)
        task = asyncio.ensure_future(port.call(wire.request(), seen))
        await waiting.wait()
        assert not seen.never_left
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen.never_left
        await port.aclose()


async def test_each_of_two_calls_at_once_knows_whether_its_own_request_left(wire: Wire) -> None:
    with ScriptedServer([silence("connect")]) as server:
        port, left, held_back = wire.make(server.url, KEY), Seen(), Seen()
        first = asyncio.ensure_future(port.call(wire.request(), left))
        await until_so(lambda: server.completions == 1)
        second = asyncio.ensure_future(port.call(wire.request(), held_back))
        await asyncio.sleep(0)  # it has begun, and its connection has not
        for task in (first, second):
            task.cancel()
        await asyncio.wait({first, second})
        assert (left.never_left, held_back.never_left) == (False, True)
        await port.aclose()
    assert server.completions == 1


def test_a_stream_that_stays_open_after_its_end_is_whole(wire: Wire) -> None:
    got, _, server = wire.ask(Reply(text="done", end="hold"), linger=0.05)
    assert got == ModelReply("done", finish="stop", model="scripted")
    assert server.closed_early == 1


def test_the_limit_on_a_gap(wire: Wire) -> None:
    failure = wire.failure_of(silence("connect"), read=0.1)
    assert (failure.kind, failure.exception) == ("transport", "ReadTimeout")


@pytest.mark.parametrize(
    "script", [silence("connect"), silence(), silence("words"), slow("a slow answer", 5)]
)
async def test_cancelling_closes_the_connection(wire: Wire, script: Reply) -> None:
    with ScriptedServer([script]) as server:
        port, seen = wire.make(server.url, KEY), Seen()
        task = asyncio.ensure_future(port.call(wire.request(), seen))
        await until_so(lambda: server.completions == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not seen.never_left
        await until_so(lambda: server.closed_early == 1)
        await port.aclose()


@pytest.mark.behaviour("FSM-12", "MODE-02")
@pytest.mark.parametrize("times", [1, 300_000])
async def test_the_bytes_of_the_body_go_out_as_they_are(wire: Wire, times: int) -> None:
    said = "Grüße 🙂" * times
    body = f'{{"stream":true,  "{wire.rows}":[{{"role":"user","content":"{said}"}}]}}'.encode()
    with ScriptedServer([text("hi")]) as server:
        port = wire.make(server.url, KEY)
        await port.call(ModelRequest(body), Seen())
        await port.aclose()
    received = server.requests[0]
    assert (received.raw, received.path) == (body, wire.path)
    assert received.headers["content-type"] == "application/json"
    assert received.headers[wire.auth] == f"{wire.bearer}{KEY}"


async def test_later_requests_have_the_head_of_the_first_and_bodies_of_their_own(wire: Wire) -> None:
    bodies = [f'{{"stream":true,"{wire.rows}":[],"user":"{"x" * size}"}}'.encode() for size in (1, 2000, 30)]
    with ScriptedServer([text("hi")] * len(bodies)) as server:
        port = wire.make(server.url, KEY)
        for body in bodies:
            await port.call(ModelRequest(body), Seen())
        assert len((await port.ready()).heads) == 1  # the SDK built it once
        await port.aclose()
    assert [received.raw for received in server.requests] == bodies
    heads = [dict(received.headers) for received in server.requests]
    assert [int(head.pop("content-length")) for head in heads] == [len(body) for body in bodies]
    assert heads[0] == heads[1] == heads[2]


@pytest.mark.behaviour("TR-02b")
async def test_keys_change_connections_stay_and_can_be_rebuilt(wire: Wire) -> None:
    with ScriptedServer([text("a"), text("b"), text("c")]) as server:
        port = wire.make(server.url)
        await port.call(wire.request(), Seen())
        port.use_key("sk-second-key")
        await port.call(wire.request(), Seen())
        client = await port.ready()
        await port.rebuild()
        assert client.is_closed()
        await port.call(wire.request(), Seen())
        await port.aclose()
        await port.aclose()
    sent = [received.headers[wire.auth] for received in server.requests]
    assert sent == [f"{wire.bearer}{key}" for key in ("none", "sk-second-key", "sk-second-key")]


def test_an_account_of_the_environment_is_not_told_to_other_servers(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in wire.account:
        monkeypatch.setenv(name, "from-the-environment")
    _, _, server = wire.ask(text("hi"))
    assert all(os.environ[name] == "from-the-environment" for name in wire.account)
    assert "from-the-environment" not in " ".join(server.requests[0].headers.values())


def test_a_key_that_no_header_can_carry(wire: Wire) -> None:
    with ScriptedServer() as server:
        for key, kind in (("sk-schlüßel", "encode"), ("sk-line\nbreak", "local")):
            failure = asyncio.run(wire.call(server.url, key))
            assert isinstance(failure, Failure)
            assert (failure.kind, failure.sent) == (kind, False)
            assert key not in failure.message + failure.detail
    assert server.completions == 0


def test_the_headers_of_a_limit_that_is_used_up_say_how_long_to_wait(wire: Wire) -> None:
    reset = wire.rate.replace("remaining", "reset")
    with ScriptedServer([status(429, headers={wire.rate.title(): "0", reset.title(): "1m30s"})]) as server:
        failure = asyncio.run(wire.call(server.url, KEY))
    assert isinstance(failure, Failure)
    assert failure.retry_after == 90


@pytest.mark.behaviour("CALL-23")
async def test_little_that_is_left_of_a_limit_is_said_once_until_there_is_more(wire: Wire) -> None:
    limit, seen = wire.rate.replace("remaining", "limit"), Seen()
    replies = [
        replace(text("ok"), headers={wire.rate.title(): str(left), limit.title(): "500"})
        for left in (90, 9, 8, 90, 7)
    ]
    with ScriptedServer(replies) as server:
        port = wire.make(server.url, KEY)
        for _ in replies:
            assert isinstance(await port.call(wire.request(), seen), ModelReply)
        await port.aclose()
    assert [line.partition(" left")[0].rpartition(": ")[2].split()[0] for line in seen.notices] == ["9", "7"]
    assert "of 500" in seen.notices[0]
