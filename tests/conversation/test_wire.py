"""The wire copy: valid whatever was stored, the same bytes however it was built up; the Responses wire; and
schemas of answers as vendors take them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from pydantic import BaseModel, Field, TypeAdapter

from fsm_agent.conversation.effects import ApiMode, OutputSpec, Runtime, ToolSpec
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.wire import WireCopy, format_of
from fsm_agent.conversation.wire.form import Ask, View
from fsm_agent.conversation.wire.openai import NO_TEXT
from fsm_agent.conversation.wire.options import (
    TAKEN,
    NotStrictError,
    levels_of,
    mode_of,
    nearest,
    reasons,
    strict,
)
from fsm_agent.output import OutputType
from fsm_agent.settings import EFFORTS
from tests.helpers.wire_rules import HERE, HISTORIES, RULES, SCAFFOLD, VIEWS, exchange, item, written

PLAIN = View()


def rows(wire: WireCopy, history: Sequence[Message], view: View = PLAIN) -> list[dict[str, Any]]:
    decoded: list[dict[str, Any]] = json.loads(written(wire, history, (), view))
    return decoded


@pytest.mark.behaviour("BUILD-15", "BUILD-06", "BUILD-06b", "BUILD-24", "EXEC-18c", "CACHE-07")
@pytest.mark.behaviour("INV-01", "INV-02", "INV-03", "INV-05", "INV-07", "INV-08")
@pytest.mark.parametrize("mode", VIEWS)
@given(HISTORIES, st.data())
def test_any_history_becomes_valid_with_and_without_scaffolding_which_leaves_no_trace(
    mode: ApiMode, history: list[Message], data: st.DataObject
) -> None:
    view, wire = data.draw(st.sampled_from(VIEWS[mode])), WireCopy()
    before = written(wire, history, (), view)
    scaffolded = written(wire, history, SCAFFOLD, view)
    assert RULES[mode](json.loads(before)) == RULES[mode](json.loads(scaffolded)) == []
    assert written(wire, history, (), view) == before


@pytest.mark.behaviour("BUILD-24")
@pytest.mark.parametrize("mode", VIEWS)
@given(HISTORIES, st.data())
def test_built_up_or_at_once_the_bytes_are_the_same(
    mode: ApiMode, history: list[Message], data: st.DataObject
) -> None:
    growing, view = WireCopy(), data.draw(st.sampled_from(VIEWS[mode]))
    for end in range(len(history) + 1):
        step_by_step = written(growing, history[:end], (), view)
    assert step_by_step == written(WireCopy(), history, (), view)


@pytest.mark.behaviour("BUILD-14", "INV-08")
def test_arguments_are_sorted_and_compact_and_corrupted_ones_are_blanked_on_the_wire_only() -> None:
    def sent(arguments: str) -> tuple[str, str]:
        history = exchange(ToolCall("c", "echo", arguments))
        _, _, said, result = rows(WireCopy(), history)
        assert history[1].tool_calls[0].arguments == arguments
        return said["tool_calls"][0]["function"]["arguments"], result["content"]

    assert sent('{ "b": 1, "a": "é" }') == ('{"a":"é","b":1}', "r0"), "so that prefixes stay stable"
    blanked, told = sent("{broken")
    assert blanked == "{}"
    assert "corrupted" in told


def test_a_replaced_history_is_read_again() -> None:
    wire = WireCopy()
    rows(wire, [Message("user", "a"), Message("assistant", "b"), Message("user", "c")])
    assert [row["content"] for row in rows(wire, [Message("user", "x")])] == ["prompt", "x"]


@given(HISTORIES, st.data())
def test_a_wire_told_what_replaced_a_history_writes_that(history: list[Message], data: st.DataObject) -> None:
    wire = WireCopy()
    written(wire, history)
    changed = data.draw(st.lists(st.sampled_from(range(len(history)))) if history else st.just([]))
    replaced = [Message("user", "new") if at in changed else row for at, row in enumerate(history)]
    wire.replace(replaced)
    assert written(wire, replaced) == written(WireCopy(), replaced)


@pytest.mark.behaviour("BUILD-06")
def test_a_call_whose_result_never_came_is_removed_not_invented() -> None:
    history = [*exchange(ToolCall("c", "echo", "{}"))[:2], Message("user", "hm")]
    sent = [row["content"] for row in rows(WireCopy(), history)]
    assert sent == ["prompt", "q", "(tool call removed)", "hm"]


@pytest.mark.parametrize(
    ("key", "sent"),
    [
        ("reasoning_effort", {"reasoning_effort": "low"}),
        ("reasoning", {"reasoning": {"effort": "low"}}),
        ("", {}),
    ],
)
def test_how_much_to_think_is_asked_as_the_provider_wants_it(key: Any, sent: dict[str, Any]) -> None:
    body = format_of("chat_completions").body(Ask(Runtime("p", "m", effort_key=key), effort="low"), [b"[]"])
    assert {name: value for name, value in json.loads(body).items() if name.startswith("reasoning")} == sent


@pytest.mark.behaviour("CACHE-03b", "CACHE-01")
def test_marks_live_as_long_as_was_asked() -> None:
    history = [Message("user", "q")]
    five, hour = View(marks=True), View(marks=True, ttl="1h")
    for view, mark in ((five, {"type": "ephemeral"}), (hour, {"type": "ephemeral", "ttl": "1h"})):
        sent = rows(WireCopy(), history, view)
        assert [row["content"][0]["cache_control"] for row in sent] == [mark, mark]
    (block,) = rows(WireCopy(), history, View("anthropic_messages", marks=True, ttl="1h"))[0]["content"]
    assert block["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


@pytest.mark.behaviour("BUILD-07b", "FMT-01")
def test_bookkeeping_is_not_sent() -> None:
    call = ToolCall("c", "echo", "{}", item_id="fc_1")
    history = [
        Message("user", "q"),
        Message("assistant", "a", (call,), reasoning="hm", finish_reason="tool_calls", issuer="elsewhere"),
        Message("tool", "r", tool_call_id="c", name="echo"),
    ]
    _, user, said, result = rows(WireCopy(), history)
    assert set(user) == {"role", "content"}
    assert set(said) == {"role", "content", "tool_calls"}
    assert set(said["tool_calls"][0]) == {"id", "type", "function"}
    assert set(result) == {"role", "content", "tool_call_id"}


@pytest.mark.behaviour("CACHE-01b", "CACHE-02", "CACHE-02b", "CACHE-03", "CACHE-03c", "CACHE-05")
def test_on_chat_completions_the_last_rows_with_content_of_their_own_are_marked() -> None:
    call = ToolCall("c", "echo", "{}")
    history = [
        Message("user", "one"), Message("assistant", "two"),
        Message("user", [{"type": "text", "text": "three"}, {"type": "text", "text": "four"}]),
        Message("assistant", "five"), Message("user", "six"), Message("assistant", None, (call,)),
        Message("tool", "seven", tool_call_id="c"),
    ]  # fmt: skip
    before = [row.to_dict() for row in history]
    mark = {"cache_control": {"type": "ephemeral"}}
    sent = rows(WireCopy(), history, View(marks=True))
    assert [json.dumps(row).count("cache_control") for row in sent] == [1, 0, 0, 1, 1, 1, 0, 0]
    assert sent[3]["content"] == [{"type": "text", "text": "three"}, {"type": "text", "text": "four", **mark}]
    assert sent[4]["content"] == [{"type": "text", "text": "five", **mark}]
    assert [row.to_dict() for row in history] == before


ALL = TAKEN["chat_completions"]


class Street(BaseModel):
    name: str = Field(pattern="^[A-Z]")


class House(BaseModel):
    """A house."""

    number: int = Field(ge=1, description="Of the street.")
    street: Street | None = None
    doors: list[Street] = Field(default=[], max_length=3)


def test_objects_are_closed_and_all_members_required() -> None:
    made = strict(OutputType[Any](House).spec.schema, ALL)
    assert made["required"] == ["number", "street", "doors"]
    assert made["additionalProperties"] is False
    assert made["$defs"]["Street"]["required"] == ["name"]
    assert made["$defs"]["Street"]["additionalProperties"] is False
    assert made["properties"]["number"] == {"type": "integer", "minimum": 1, "description": "Of the street."}
    assert "default" not in str(made)


def test_bounds_unsupported_by_a_vendor_are_described_in_words() -> None:
    made = strict(OutputType[Any](House).spec.schema, TAKEN["anthropic_messages"])
    assert made["properties"]["number"] == {"type": "integer", "description": "Of the street.\nminimum: 1"}
    street = made["$defs"]["Street"]["properties"]["name"]
    assert street == {"type": "string", "description": "pattern: ^[A-Z]"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"type": "array", "prefixItems": [{"type": "string"}]}}},
        {"type": "object", "properties": {"a": {"not": {"type": "string"}}}},
        {"type": "object", "properties": {"a": {"$ref": "#/definitions/a"}}, "definitions": {"a": {}}},
        {"type": "object", "properties": {"a": {"type": ["object", "null"]}}},
        {"anyOf": [{"type": "string"}]},
    ],
)
def test_a_schema_that_cannot_be_strict_is_reported(schema: Any) -> None:
    with pytest.raises(NotStrictError):
        strict(schema, ALL)


BASIC = [
    {"type": "string", "maxLength": 3}, {"type": "integer", "minimum": 2}, {"enum": ["a", 1]},
    {"const": None},
]  # fmt: skip
SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.sampled_from(BASIC),
    lambda inner: st.one_of(
        inner.map(lambda one: {"type": "array", "items": one}),
        st.lists(inner, min_size=1, max_size=3).map(lambda many: {"anyOf": many}),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(
            lambda members: {"type": "object", "properties": members, "required": list(members)[:1]}
        ),
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["a", "abcd"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(SCHEMAS, VALUES)
def test_what_fits_the_strict_schema_fits_the_other(schema: dict[str, Any], value: Any) -> None:
    """Except for bounds that the strict schema gives in words."""
    whole = {"type": "object", "properties": {"a": schema}}
    made = strict(whole, ALL | {"maxLength"})
    if jsonschema.Draft202012Validator(made).is_valid({"a": value}):
        jsonschema.validate({"a": value}, whole)


OPEN = {"type": "object", "additionalProperties": {"type": "integer"}}
CLOSED = {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("wanted", "best", "schema", "local", "tools", "repairs", "toolless", "mode"),
    [
        (None, "native", CLOSED, False, True, (), False, "native"),
        (None, "tool", CLOSED, False, True, (), False, "tool"),
        (None, "prompt", CLOSED, False, False, (), False, "prompt"),
        ("prompt", "native", CLOSED, False, True, (), False, "prompt"),
        ("native", "tool", CLOSED, False, True, (), False, "native"),
        (None, "native", OPEN, False, True, (), False, "tool"),  # no vendor holds a model to that
        (None, "native", OPEN, True, False, (), False, "native"),  # a grammar does
        (None, "native", CLOSED, True, True, (), False, "tool"),  # and in a grammar there are no calls
        (None, "native", CLOSED, False, True, ("structured_output",), False, "tool"),
        ("native", "tool", CLOSED, False, True, ("structured_output",), False, "tool"),
        (None, "native", CLOSED, False, True, (), True, "prompt"),
        ("tool", "native", CLOSED, False, True, (), True, "prompt"),
    ],
)
def test_a_model_is_asked_in_the_way_that_it_can(
    wanted: Any, best: Any, schema: Any, local: bool, tools: bool, repairs: Any, toolless: bool, mode: str
) -> None:
    runtime = Runtime("p", "m", local=local, structured_output=best)
    spec = OutputSpec("answer", schema, wanted)
    assert mode_of(spec, runtime, repairs, toolless=toolless, tools=tools) == mode


MODE = "codex_responses"
VIEW = View(MODE, issuer=HERE)
RESPONSES = format_of(MODE)
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def items(history: Sequence[Message], view: View = VIEW) -> list[dict[str, Any]]:
    return rows(WireCopy(), history, view)


@pytest.mark.behaviour("MODE-02b")
@given(HISTORIES, st.booleans(), st.sampled_from([None, "low", "high"]), st.sampled_from([None, 1, 9000]))
def test_the_sdk_takes_every_body(history: list[Message], stream: bool, effort: Any, cap: int | None) -> None:
    """By the types of the official SDK. They want an id in reasoning items, which the API does not: nothing
    is stored."""
    body = json.loads(body_of(history, stream=stream, effort=effort, cap=cap))
    for one in body["input"]:
        if one["type"] == "reasoning":
            one["id"] = "rs"
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
        ("gpt-5-mini", True), ("openai/o3", True), ("gpt-6-astra", True), ("gpt-4o", False),
        ("gpt-5-chat-latest", False), ("o", False),
    ],
)  # fmt: skip
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


SEALED = item("reasoning", id="rs_1", summary=[], encrypted_content="sealed", status=None, issuer=HERE)
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


def test_an_empty_user_message_is_kept() -> None:
    assert items([Message("user", [{"type": "text", "text": " "}])]) == [
        {"type": "message", "role": "user", "content": NO_TEXT}
    ]
