"""The Responses wire: what its rows and its body are, and that the SDK's types accept them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from pydantic import TypeAdapter

from fsm_agent.conversation.effects import Runtime, ToolSpec
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.wire import Ask, View, WireCopy, format_of
from fsm_agent.conversation.wire.options import levels_of, nearest, reasons
from fsm_agent.conversation.wire.responses import NO_TEXT
from fsm_agent.settings.model import EFFORTS
from tests.helpers.wire_rules import HERE, HISTORIES

MODE = "codex_responses"
VIEW = View(MODE, issuer=HERE)
RESPONSES = format_of(MODE)

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def dumped(wire: WireCopy, history: Sequence[Message], view: View = VIEW) -> bytes:
    return b"".join(wire.messages("prompt", history, (), view))


def items(history: Sequence[Message], view: View = VIEW) -> list[dict[str, Any]]:
    decoded: list[dict[str, Any]] = json.loads(dumped(WireCopy(), history, view))
    return decoded


@pytest.mark.behaviour("MODE-02b")
@given(HISTORIES, st.booleans(), st.sampled_from([None, "low", "high"]), st.sampled_from([None, 1, 9000]))
def test_the_sdk_takes_every_body(history: list[Message], stream: bool, effort: Any, cap: int | None) -> None:
    """By the types of the official SDK. They want an id in reasoning items, which the API does not: nothing
    is stored."""
    body = json.loads(body_of(history, stream=stream, effort=effort, cap=cap))
    for item in body["input"]:
        if item["type"] == "reasoning":
            item["id"] = "rs"
    validate(body)


STREAMING = TypeAdapter[Any](ResponseCreateParamsStreaming)
WHOLE = TypeAdapter[Any](ResponseCreateParamsNonStreaming)


def validate(body: dict[str, Any]) -> None:
    adapter = STREAMING if body["stream"] else WHOLE
    taken = adapter.validate_python(body, extra="forbid")
    assert set(taken) == set(body)


def body_of(
    history: Sequence[Message] = (),
    *,
    model: str = "gpt-5",
    stream: bool = True,
    effort: Any = None,
    cap: int | None = None,
) -> bytes:
    schema = {"type": "object", "properties": {"text": {"type": "string", "pattern": "a+"}}}
    spec = ToolSpec("echo", "Give a text back.", schema)
    runtime = Runtime("openai-responses", model, api_mode=MODE, streaming=stream)
    made = RESPONSES.tools([spec], frozenset())
    ask = Ask(runtime, "You are kind.", tools=made, output_cap=cap, effort=effort)
    rows = [Message("user", "q"), *history]
    return RESPONSES.body(ask, WireCopy().messages("prompt", rows, (), VIEW))


def test_a_body() -> None:
    body = json.loads(body_of(cap=4, effort="low"))
    assert list(body)[-2:] == ["input", "max_output_tokens"], "what grows and what varies come last"
    assert (body["store"], body["stream"], body["instructions"]) == (False, True, "You are kind.")
    assert body["reasoning"] == {"effort": "low", "summary": "auto"}
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["tools"][0]["strict"] is False
    assert body["max_output_tokens"] == 16
    other = json.loads(body_of(model="gpt-4o", effort="low"))
    assert not {"include", "reasoning", "max_output_tokens"} & set(other)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("gpt-5-mini", True),
        ("openai/o3", True),
        ("gpt-6-astra", True),
        ("gpt-4o", False),
        ("gpt-5-chat-latest", False),
        ("o", False),
    ],
)
def test_models_that_reason(model: str, expected: bool) -> None:
    assert reasons(model) is expected


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("o3", "low low low medium high high high"),
        ("gpt-5", "minimal minimal low medium high high high"),
        ("gpt-5-pro", "high high high high high high high"),
        ("gpt-5.1", "none none low medium high high high"),
        ("gpt-5.1-codex-max", "low low low medium high xhigh xhigh"),
        ("gpt-5.2", "none none low medium high xhigh xhigh"),
        ("gemini-3-pro", "low low low medium high high high"),
    ],
)
def test_every_effort_becomes_the_nearest_that_the_model_takes(model: str, asked: str) -> None:
    assert " ".join(nearest(effort, levels_of(model)) for effort in EFFORTS) == asked


def test_the_grammar_repair_takes_patterns_out_of_tools() -> None:
    spec = ToolSpec("echo", "", {"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}})
    assert b"pattern" in RESPONSES.tools([spec], frozenset())
    assert b"pattern" not in RESPONSES.tools([spec], frozenset({"grammar"}))


SEALED = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "encrypted_content": "sealed",
    "status": None,
    "issuer": HERE,
}
ROUND = [
    Message("user", "q"),
    Message("assistant", "Looking.", tool_calls=(ToolCall("c", "echo", '{"b":1,"a":2}'),), blocks=(SEALED,)),
    Message("tool", "r", tool_call_id="c"),
]


@pytest.mark.behaviour("BUILD-09e")
def test_a_round_of_tools() -> None:
    assert items(ROUND) == [
        {"type": "message", "role": "user", "content": "q"},
        {"type": "reasoning", "summary": [], "encrypted_content": "sealed"},
        {"type": "message", "role": "assistant", "content": "Looking."},
        {"type": "function_call", "call_id": "c", "name": "echo", "arguments": '{"a":2,"b":1}'},
        {"type": "function_call_output", "call_id": "c", "output": "r"},
    ]


def test_the_phase_of_a_message_goes_back() -> None:
    said = Message("assistant", "a", blocks=({"type": "message", "phase": "final_answer", "issuer": HERE},))
    history = [Message("user", "q"), said, Message("user", "r")]
    sent = {"type": "message", "role": "assistant", "content": "a", "phase": "final_answer"}
    assert items(history)[1] == sent
    assert "phase" not in items(history, view=View(MODE, issuer="elsewhere"))[1]


def test_images_of_users_and_tools() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    history = [
        Message("user", [{"type": "text", "text": "what?"}, IMAGE]),
        Message("assistant", None, tool_calls=(ToolCall("c", "look", "{}"),)),
        Message("tool", [{"type": "text", "text": "here"}, IMAGE], tool_call_id="c"),
    ]
    sent = items(history)
    assert sent[0]["content"] == [{"type": "input_text", "text": "what?"}, picture]
    assert sent[2]["output"] == [{"type": "input_text", "text": "here"}, picture]
    blind = items(history, view=View(MODE, vision=False))
    assert "input_image" not in json.dumps(blind)
    assert isinstance(blind[2]["output"], str)
    flat = items(history, view=View(MODE, repairs=frozenset({"flat_tool_content"})))
    assert isinstance(flat[2]["output"], str)


def test_a_user_who_says_nothing_is_not_left_out() -> None:
    assert items([Message("user", [{"type": "text", "text": " "}])]) == [
        {"type": "message", "role": "user", "content": NO_TEXT}
    ]
