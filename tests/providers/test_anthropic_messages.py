"""What only the Messages API has, through the real SDK and a real HTTP server. Rest: ``test_ports``."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import pytest

from fsm_agent.conversation.messages import ModelReply, ToolCall, Usage
from fsm_agent.providers.anthropic_messages import AnthropicMessages
from fsm_agent.providers.failures import failure_from
from fsm_agent.testing import (
    Reply,
    ScriptedServer,
    blank,
    call,
    json_reply,
    length,
    malformed_chunk,
    refusal,
    status,
    text,
    tools,
)
from tests.helpers.closed_types import adapter
from tests.helpers.harness import play
from tests.helpers.ports import ANTHROPIC, KEY

ask, reply_of, failure_of = ANTHROPIC.ask, ANTHROPIC.reply_of, ANTHROPIC.failure_of


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (Reply(text="so far", finish="incomplete"), ("so far", "incomplete")),
        (Reply(text="full", finish="model_context_window_exceeded"), ("full", "length")),
        (Reply(text="said", finish="stop_sequence"), ("said", "stop")),
        (Reply(text="new", finish="a_reason_of_tomorrow"), ("new", "stop")),
    ],
    ids=lambda value: value.finish if isinstance(value, Reply) else None,
)
def test_why_a_message_ended(script: Reply, expected: tuple[str, str], stream: bool) -> None:
    got = reply_of(script, stream=stream)
    assert (got.text, got.finish) == expected


def test_the_headers_of_a_request_and_those_of_the_environment_for_the_host_that_it_names_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Team: from-the-environment")
    _, _, server = ask(text("hi"))
    assert os.environ["ANTHROPIC_CUSTOM_HEADERS"]
    headers = server.requests[0].headers
    assert "authorization" not in headers
    assert headers["anthropic-version"]
    assert "from-the-environment" not in " ".join(headers.values())
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")
    _, _, server = ask(text("hi"))
    assert server.requests[0].headers["x-team"] == "from-the-environment", "it names this host itself"


def test_an_object_without_a_stop_reason_is_whole() -> None:
    content = [{"type": "text", "text": "a"}, None, {"type": "text", "text": "b"}]
    got = reply_of(json_reply({"content": content}))
    assert (got.text, got.finish, got.cut, got.usage) == ("ab", "stop", False, None)


def test_an_error_inside_a_stream() -> None:
    error = json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    failure = failure_of(malformed_chunk(chunk=error))
    assert (failure.kind, failure.status, failure.code) == ("http", 529, "overloaded_error")
    assert reply_of(malformed_chunk("kept", chunk=error)).cut
    error = {"type": "provider_down", "message": f"upstream died of {KEY}"}
    unknown = json.dumps({"type": "error", "error": error})
    failure = failure_of(malformed_chunk(chunk=unknown))
    assert (failure.kind, failure.code, failure.message) == ("shape", "provider_down", "upstream died of ***")


def test_a_key_may_go_out_as_a_bearer() -> None:
    _, _, server = ask(text("hi"), auth="bearer")
    headers = server.requests[0].headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert "x-api-key" not in headers


def test_the_address_with_and_without_the_version() -> None:
    address = "https://gate.example.com/anthropic"
    for written in (address, f"{address}/v1", f"{address}/v1/"):
        assert AnthropicMessages(written).base_url == address


@pytest.mark.parametrize("stream", [True, False])
def test_thoughts_are_kept_with_signature(stream: bool) -> None:
    script = tools(call("echo", {}), text="So:", reasoning="step by step")
    got, seen, _ = ask(script, stream=stream)
    assert isinstance(got, ModelReply)
    assert got.reasoning == "".join(seen.thoughts) == "step by step"
    thought = {"type": "thinking", "thinking": "step by step", "signature": "signature-1"}
    assert got.blocks == (thought,)


def lines(*events: dict[str, Any]) -> Reply:
    """A stream of these events, unnamed as some gateways send them."""
    return Reply(shape="empty", raw=tuple(map(json.dumps, events)))


def block(
    index: int, first: dict[str, Any], *deltas: dict[str, Any], closed: bool = True
) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": first},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        *([{"type": "content_block_stop", "index": index}] if closed else []),
    ]


USED = {"input_tokens": 9, "output_tokens": 1}
START: dict[str, Any] = {"type": "message_start", "message": {"model": "m", "usage": USED}}
LEFT = {"input_tokens": 0, "output_tokens": 4}
STOP: dict[str, Any] = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": LEFT}
END: dict[str, Any] = {"type": "message_stop"}
TEXT = block(0, {"type": "text", "text": "a"}, {"type": "text_delta", "text": "b"})


def test_a_stream_of_unnamed_events_is_read_also_without_its_last_one() -> None:
    got = reply_of(lines(START, {"type": "ping"}, *TEXT, STOP, END))
    assert (got.text, got.finish, got.usage, got.model) == ("ab", "stop", Usage(9, 4), "m")
    got = reply_of(lines(START, *TEXT, STOP))
    assert (got.text, got.finish, got.cut) == ("ab", "stop", False)


def test_thoughts_between_calls_know_their_places() -> None:
    def use(name: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": name, "name": "echo", "input": {}}

    def thought(text: str) -> tuple[dict[str, Any], ...]:
        return (
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": text},
            {"type": "signature_delta", "signature": f"signed {text}"},
        )

    blocks = (
        thought("one"), ({"type": "redacted_thinking", "data": "dark"},), ({"type": "text", "text": "So:"},),
        (use("a"),), thought("two"), (use("b"), {"type": "input_json_delta", "partial_json": '{"x": 1}'}),
        thought("three"),
    )  # fmt: skip
    events = [event for index, parts in enumerate(blocks) for event in block(index, *parts)]
    got = reply_of(lines(START, *events, STOP, END))
    assert got.tool_calls == (ToolCall("a", "echo", "{}"), ToolCall("b", "echo", '{"x": 1}'))
    kept = [(one["type"], one.get("thinking", one.get("data")), one.get("before")) for one in got.blocks]
    assert kept == [
        ("thinking", "one", None), ("redacted_thinking", "dark", None), ("thinking", "two", "b"),
        ("thinking", "three", ""),
    ]  # fmt: skip
    assert got.reasoning == "onetwothree"


def test_a_call_cut_before_its_arguments_is_not_one_without_any() -> None:
    use = {"type": "tool_use", "id": "a", "name": "echo", "input": {}}
    assert reply_of(lines(START, *block(0, use), STOP, END)).tool_calls[0].arguments == "{}"
    assert reply_of(lines(START, *block(0, use, closed=False))).tool_calls[0].arguments == ""


def test_an_input_that_comes_whole() -> None:
    use = {"type": "tool_use", "id": "a", "name": "echo", "input": {"text": "é"}}
    got = reply_of(lines(START, *block(0, use), STOP, END))
    assert got.tool_calls == (ToolCall("a", "echo", '{"text": "é"}'),)


@pytest.mark.parametrize(
    "events",
    [[START, *TEXT], [START, *TEXT[:-1], STOP, END], [START, *TEXT[1:], STOP, END], [*TEXT[:-1]]],
    ids=["no stop reason", "a block never closed", "the beginning was lost", "nothing but a beginning"],
)
def test_a_reply_that_lost_something_is_cut(events: list[dict[str, Any]]) -> None:
    got = reply_of(lines(*events))
    assert got.text.endswith("b")
    assert (got.finish, got.cut) == (None, True)
    if events == [START, *TEXT]:
        assert got.usage == Usage(9, 1), "usage of the beginning counts when the end never comes"


@pytest.mark.parametrize(
    "junk", [b"[1]", b'"x"', b"7", b"null", b'{"type": "tomorrow"}', b'{"type": "content_block_delta"}']
)
def test_events_of_another_shape_do_no_harm(junk: bytes) -> None:
    raw = (json.dumps(START), junk.decode(), *map(json.dumps, [*TEXT, STOP, END]))
    script = replace(lines(START, *TEXT, STOP, END), raw=raw)
    got, _, _ = ask(script)
    assert isinstance(got, ModelReply)
    assert got.text == "ab"


@pytest.mark.parametrize(
    "script",
    [
        text("Hello, world", usage=Usage(7, 3, 2, 1, 2)),
        tools(call("echo", {"text": "hi"}), call("put", "{}"), text="So:", reasoning="hm"),
        blank(), length("half"), refusal("No."),
    ],
    ids=["text", "tools", "blank", "length", "refusal"],
)  # fmt: skip
def test_what_the_scripted_server_says_is_what_the_official_sdk_expects(script: Reply) -> None:
    from anthropic import Anthropic

    ours = reply_of(script)
    options: dict[str, Any] = {"max_retries": 0, "_strict_response_validation": True}
    with (
        ScriptedServer([script, script]) as server,
        Anthropic(api_key="k", base_url=server.url.removesuffix("/v1"), **options) as client,
    ):
        asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "q"}]}
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
    for message in (whole, streamed):
        content: list[Any] = [*message.content]
        assert "".join(one.text for one in content if one.type == "text") == ours.text
        names = [one.name for one in content if one.type == "tool_use"]
        assert names == [made.name for made in ours.tool_calls]
        assert message.usage.cache_read_input_tokens == (ours.usage or Usage()).cache_read


def test_an_error_that_the_sdk_raises_with_status_200_has_the_status_of_its_type() -> None:
    from anthropic import APIStatusError
    from httpx2 import Request, Response

    response = Response(200, request=Request("POST", "http://here/v1/messages"))
    body = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
    failure = failure_from(APIStatusError("Error", response=response, body=body), 0.0)
    found = (failure.kind, failure.status, failure.code, failure.message)
    assert found == ("http", 429, "rate_limit_error", "slow down")


def test_the_code_of_an_error_is_in_its_details() -> None:
    error = {"message": "too wide", "code": "image_dimensions_too_large"}
    failure = failure_of(status(400, {"error": error}))
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
    assert [kinds(row) for row in rows[1::2]] == [
        ["thinking", "tool_use"],
        ["thinking", "text", "tool_use", "tool_use"],
    ]
    assert rows[3]["content"][0] == {"type": "thinking", "thinking": "then", "signature": "signature-2"}
    assert rows[4]["content"][1]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert (played.result.cache_read_tokens, played.result.cache_write_tokens) == (40, 50)
    assert played.result.messages[1]["blocks"][0]["signature"] == "signature-1"


@pytest.mark.behaviour("ERR-08")
def test_a_rejected_signature_takes_the_thoughts_off_the_wire_only(official: Any) -> None:
    """Scenario 81."""
    words = "messages.1.content.0: Invalid `signature` in `thinking` block"
    refused = status(400, {"error": {"message": words}})
    script = [tools(call("echo", {}), reasoning="hm"), refused, text("done")]
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
