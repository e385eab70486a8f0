"""The Responses wire: valid whatever was stored, the same bytes however it was built up, and accepted by the
SDK's types."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
from fsm_agent.conversation.wire.efforts import levels_of, nearest, reasons
from fsm_agent.conversation.wire.responses import NO_TEXT
from fsm_agent.settings.model import EFFORTS

MODE = "codex_responses"
HERE = "openai-responses:"
VIEW = View(MODE, issuer=HERE)
RESPONSES = format_of(MODE)

TEXT = st.text(max_size=12) | st.sampled_from(["", "  ", "\ud800", "a\x00b", "<think>x</think>"])
IDS = st.sampled_from(["call_0", "call_1", "call_2", "", "x" * 80])
CALLS = st.builds(
    ToolCall,
    id=IDS,
    name=st.sampled_from(["echo", "put", "", "bad name!"]),
    arguments=st.sampled_from(["{}", '{"b":1,"a":2}', "", "{broken", "[1]"]),
)
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
PARTS = st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, TEXT) | st.just(IMAGE), min_size=1, max_size=2
)
THOUGHTS = st.builds(
    lambda issuer, sealed: {
        "type": "reasoning",
        "id": "rs",
        "summary": [],
        "encrypted_content": sealed,
        "issuer": issuer,
    },
    st.sampled_from([HERE, "elsewhere"]),
    st.sampled_from(["sealed-1", "sealed-2", ""]),
)
SIGNED = st.just({"type": "thinking", "thinking": "hm", "signature": "s", "issuer": HERE})
PHASES = st.just({"type": "message", "phase": "commentary", "issuer": HERE})
MESSAGES = st.one_of(
    st.builds(Message, role=st.just("user"), content=TEXT.filter(str.strip) | PARTS),
    st.builds(
        Message,
        role=st.just("assistant"),
        content=TEXT | st.none(),
        tool_calls=st.lists(CALLS, max_size=3).map(tuple),
        blocks=st.lists(THOUGHTS | SIGNED | PHASES, max_size=2).map(tuple),
        wire=st.booleans(),
    ),
    st.builds(Message, role=st.just("tool"), content=TEXT | PARTS, tool_call_id=IDS),
    st.builds(Message, role=st.just("system"), content=TEXT),
)
HISTORIES = st.lists(MESSAGES, max_size=14)


def dumped(
    wire: WireCopy, history: Sequence[Message], scaffold: tuple[Message, ...] = (), view: View = VIEW
) -> bytes:
    return b"".join(wire.messages("prompt", history, scaffold, view))


def items(
    history: Sequence[Message], scaffold: tuple[Message, ...] = (), view: View = VIEW
) -> list[dict[str, Any]]:
    decoded: list[dict[str, Any]] = json.loads(dumped(WireCopy(), history, scaffold, view))
    return decoded


def faults(sent: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is wrong with these items, in words; written down from the API's rules, not from the code that
    makes them."""
    found: list[str] = []
    if sent and (sent[0]["type"], sent[0].get("role")) != ("message", "user"):
        found.append(f"begins with {sent[0]}")
    open_calls: list[str] = []
    ever: set[str] = set()
    speaker = ""
    for index, item in enumerate(sent):
        kind = item["type"]
        if open_calls and kind not in ("function_call", "function_call_output"):
            found.append(f"{open_calls} not answered before item {index}")
        if kind == "message":
            if not item["content"] or any(
                not part.get("text") and "image_url" not in part for part in _list(item["content"])
            ):
                found.append(f"item {index} is empty")
            if item["role"] == speaker:
                found.append(f"two messages of {speaker} in a row at {index}")
            speaker = item["role"]
            if item["role"] == "assistant" and not isinstance(item["content"], str):
                found.append(f"item {index}: the assistant speaks in parts")
        elif kind == "function_call":
            if item["call_id"] in ever or not 0 < len(item["call_id"]) <= 64:
                found.append(f"bad id {item['call_id']}")
            if not item["name"] or set(item["name"]) & set(" !"):
                found.append(f"bad name {item['name']}")
            if not isinstance(json.loads(item["arguments"]), dict):
                found.append(f"bad arguments {item['arguments']}")
            ever.add(item["call_id"])
            open_calls.append(item["call_id"])
            speaker = ""
        elif kind == "function_call_output":
            if item["call_id"] not in open_calls:
                found.append(f"item {index} answers no open call")
            else:
                open_calls.remove(item["call_id"])
            speaker = ""
        elif kind == "reasoning":
            if "id" in item or "issuer" in item or not item["encrypted_content"]:
                found.append(f"bad reasoning {item}")
            if index + 1 == len(sent) or sent[index + 1].get("role") == "user":
                found.append(f"reasoning {index} leads to nothing")
        else:
            found.append(f"unknown item {kind}")
    return found + ([f"{open_calls} never answered"] if open_calls else [])


def _list(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"text": content}]


@pytest.mark.behaviour("BUILD-06b")
@given(HISTORIES)
def test_any_history_becomes_valid(history: list[Message]) -> None:
    assert faults(items(history)) == []
    assert (
        faults(items(history, view=View(MODE, issuer=HERE, vision=False, repairs=frozenset({"ascii"})))) == []
    )


@given(HISTORIES)
def test_any_history_is_valid_with_scaffolding(history: list[Message]) -> None:
    assert faults(items(history, (Message("assistant", "so far"), Message("user", "go on")))) == []


@given(HISTORIES)
def test_built_up_or_at_once_the_bytes_are_the_same(history: list[Message]) -> None:
    growing = WireCopy()
    for end in range(len(history) + 1):
        step_by_step = dumped(growing, history[:end])
    assert step_by_step == dumped(WireCopy(), history)


@given(HISTORIES, st.integers(0, 14))
def test_a_request_is_a_prefix_of_the_next(history: list[Message], end: int) -> None:
    """Between two requests of a turn: the second begins with all of the first, up to the run that can still
    grow."""
    answered = [
        *history[:end],
        Message("user", "q"),
        Message("assistant", "a", tool_calls=(ToolCall("c", "echo", "{}"),)),
    ]
    answered.append(Message("tool", "r", tool_call_id="c"))
    wire = WireCopy()
    before = dumped(wire, answered)
    after = dumped(wire, [*answered, Message("assistant", "b"), Message("user", "q2")])
    assert after.startswith(before[:-1])


@given(HISTORIES)
def test_scaffolding_leaves_no_trace(history: list[Message]) -> None:
    wire = WireCopy()
    before = dumped(wire, history)
    dumped(wire, history, (Message("assistant", "x"), Message("user", "y")))
    assert dumped(wire, history) == before


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


STREAMING, WHOLE = (
    TypeAdapter[Any](ResponseCreateParamsStreaming),
    TypeAdapter[Any](ResponseCreateParamsNonStreaming),
)


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
    spec = ToolSpec(
        "echo",
        "Give a text back.",
        {"type": "object", "properties": {"text": {"type": "string", "pattern": "a+"}}},
    )
    ask = Ask(
        Runtime("openai-responses", model, api_mode=MODE, streaming=stream),
        "You are kind.",
        tools=RESPONSES.tools([spec], frozenset()),
        output_cap=cap,
        effort=effort,
    )
    rows = [Message("user", "q"), *history]
    return RESPONSES.body(ask, WireCopy().messages("prompt", rows, (), VIEW))


def test_a_body() -> None:
    body = json.loads(body_of(cap=4, effort="low"))
    assert list(body)[-2:] == ["input", "max_output_tokens"], "what grows and what varies come last"
    assert (body["store"], body["stream"], body["instructions"]) == (False, True, "You are kind.")
    assert (body["reasoning"], body["include"]) == (
        {"effort": "low", "summary": "auto"},
        ["reasoning.encrypted_content"],
    )
    assert body["tools"][0]["strict"] is False
    assert body["max_output_tokens"] == 16
    assert {"include", "reasoning", "max_output_tokens"} & set(
        json.loads(body_of(model="gpt-4o", effort="low"))
    ) == set()


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


@pytest.mark.parametrize(
    "view", [View(MODE, issuer="elsewhere"), View(MODE, issuer=HERE, repairs=frozenset({"encrypted_replay"}))]
)
def test_reasoning_goes_back_only_to_its_issuer_and_while_it_is_taken(view: View) -> None:
    assert "reasoning" not in [item["type"] for item in items(ROUND, view=view)]
    assert ROUND[1].blocks == (SEALED,)


def test_the_phase_of_a_message_goes_back() -> None:
    said = Message("assistant", "a", blocks=({"type": "message", "phase": "final_answer", "issuer": HERE},))
    history = [Message("user", "q"), said, Message("user", "r")]
    assert items(history)[1] == {
        "type": "message",
        "role": "assistant",
        "content": "a",
        "phase": "final_answer",
    }
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


def test_ids_that_are_too_long_stay_pairs() -> None:
    long = "x" * 100
    history = [Message("user", "q"), Message("assistant", None, tool_calls=(ToolCall(long, "echo", "{}"),))]
    call, result = items([*history, Message("tool", "r", tool_call_id=long)])[1:]
    assert call["call_id"] == result["call_id"] != long
    assert len(call["call_id"]) <= 64


def rows_of(sent: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Back to the internal form."""
    rows: list[Message] = []
    thoughts: tuple[Mapping[str, Any], ...] = ()
    for item in sent:
        match item["type"]:
            case "reasoning":
                thoughts += ({**item, "issuer": HERE},)
            case "message":
                if "phase" in item:
                    thoughts += ({"type": "message", "phase": item["phase"], "issuer": HERE},)
                content = item["content"]
                rows.append(
                    Message(
                        item["role"],
                        content if isinstance(content, str) else [_internal(p) for p in content],
                        blocks=thoughts,
                    )
                )
                thoughts = ()
            case "function_call":
                call = ToolCall(item["call_id"], item["name"], item["arguments"])
                if thoughts or rows[-1].role != "assistant":
                    rows.append(Message("assistant", None, blocks=thoughts))
                    thoughts = ()
                last = rows.pop()
                rows.append(
                    Message(
                        "assistant", last.content, tool_calls=(*last.tool_calls, call), blocks=last.blocks
                    )
                )
            case "function_call_output":
                output = item["output"]
                content = output if isinstance(output, str) else [_internal(part) for part in output]
                rows.append(Message("tool", content, tool_call_id=item["call_id"]))
    return rows


def _internal(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "input_text":
        return {"type": "text", "text": part["text"]}
    return {"type": "image_url", "image_url": {"url": part["image_url"], "detail": part["detail"]}}


@given(HISTORIES)
def test_there_and_back_again_nothing_is_lost(history: list[Message]) -> None:
    """What was made valid once comes back as it is, from the wire to the internal form and out again (space
    at the end of a note on corrupted arguments apart)."""
    sent = items(history)
    for item in sent:
        if isinstance(item.get("output"), str):
            item["output"] = item["output"].strip()
    assert items(rows_of(sent)) == sent
