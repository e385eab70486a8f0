"""Anthropic's Messages API as a wire: valid whatever was stored, the same bytes however it was built up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.conversation.effects import ApiMode, Runtime, ToolSpec
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.wire import WireCopy, format_of
from fsm_agent.conversation.wire.form import Ask, View
from fsm_agent.settings import Effort
from tests.helpers.closed_types import adapter
from tests.helpers.wire_rules import HERE as ISSUER
from tests.helpers.wire_rules import HISTORIES, MARKED, NATIVE, PNG, VIEWS, exchange, written

MODE: ApiMode = "anthropic_messages"
PLAIN = View(MODE)


def rows(history: Sequence[Message], view: View = PLAIN) -> list[dict[str, Any]]:
    decoded: list[dict[str, Any]] = json.loads(written(WireCopy(), history, (), view))
    return decoded


def unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [unmarked(item) for item in value] if isinstance(value, list) else value


def marks(value: Any) -> int:
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(map(marks, value.values()))
    return sum(map(marks, value)) if isinstance(value, list) else 0


# Any history


@pytest.mark.behaviour("CACHE-01b", "CACHE-02", "CACHE-05")
@given(HISTORIES)
def test_marks_are_three_at_most_and_change_nothing_else(history: list[Message]) -> None:
    marked, plain = rows(history, MARKED), rows(history, NATIVE)
    assert unmarked(marked) == plain
    assert marks(marked) == min(3, len(plain))
    assert all(marks(row) for row in marked[-3:])


# Rows one by one


def thought(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": f"signed {text}", "issuer": ISSUER, **more}


def test_results_and_the_words_behind_them_are_one_row() -> None:
    call = ToolCall("c", "echo", '{ "b": 1, "a": "é" }')
    asked, said, answered = rows([*exchange(call, said="Look:"), Message("user", "and?")])
    assert asked == {"role": "user", "content": [{"type": "text", "text": "q"}]}
    use = {"type": "tool_use", "id": "c", "name": "echo", "input": {"a": "é", "b": 1}}
    assert said == {"role": "assistant", "content": [{"type": "text", "text": "Look:"}, use]}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "r0"}
    assert answered == {"role": "user", "content": [result, {"type": "text", "text": "and?"}]}


def test_thoughts_lead_or_stand_before_the_call_that_they_led_to() -> None:
    dark = {"type": "redacted_thinking", "data": "dark", "issuer": ISSUER}
    kept, calls = (
        (thought("one"), dark, thought("two", before="b")),
        (ToolCall("a", "x", "{}"), ToolCall("b", "y", "{}")),
    )
    said = rows(exchange(*calls, blocks=kept, said="So:"), NATIVE)[1]["content"]
    kinds = ["thinking", "redacted_thinking", "text", "tool_use", "thinking", "tool_use"]
    assert [block["type"] for block in said] == kinds
    assert said[0] == {"type": "thinking", "thinking": "one", "signature": "signed one"}
    assert (said[4]["thinking"], said[5]["id"]) == ("two", "b")


def test_images_by_address_and_by_value() -> None:
    address = {"type": "image_url", "image_url": "https://x.example/y.png"}
    history = [Message("user", [PNG, address, {"type": "text", "text": "?"}])]
    sent = rows(history)[0]["content"]
    assert sent[0]["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    assert sent[1]["source"] == {"type": "url", "url": "https://x.example/y.png"}
    blind = rows(history, View(MODE, vision=False))[0]["content"]
    assert [block["type"] for block in blind] == ["text", "text", "text"]


@pytest.mark.behaviour("FMT-13")
def test_only_the_newest_images_of_tools_are_sent() -> None:
    history, wire = [Message("user", [PNG])], WireCopy()
    for number in range(5):
        call = ToolCall(f"c{number}", "look", "{}")
        asked = Message("assistant", None, tool_calls=(call,))
        history += [asked, Message("tool", [PNG], tool_call_id=call.id)]
        sent = written(wire, history, view=PLAIN)
        assert sent.count(b'"image"') == 1 + min(3, number + 1)
    results = [row["content"][0]["content"] for row in json.loads(sent)[2::2]]
    assert [isinstance(content, str) for content in results] == [True, True, False, False, False]


# The body


STRING = {"type": "string", "pattern": "^a"}
TOOLS = (
    ToolSpec("echo", "Say it.", {"type": "object", "properties": {"text": STRING}}),
    ToolSpec("bare", "", {}),
)


def body(
    model: str = "claude-sonnet-4-5",
    history: Sequence[Message] = (),
    view: View = NATIVE,
    window: int | None = 200_000,
    **ask: Any,
) -> dict[str, Any]:
    runtime = Runtime("anthropic", model, api_mode=MODE, window=window, cache_marks=view.marks)
    form = format_of(MODE)
    messages = WireCopy().messages("", history or [Message("user", "q")], (), view)
    asked = Ask(runtime, "Be good.", tools=form.tools(TOOLS, view.repairs), **ask)
    decoded: dict[str, Any] = json.loads(form.body(asked, messages))
    return decoded


@pytest.fixture(scope="module")
def official() -> Any:
    """The request types of the official SDK."""
    from anthropic.types import MessageCreateParams

    return adapter(MessageCreateParams)


@pytest.mark.behaviour("MODE-02c")
@given(
    HISTORIES, st.sampled_from(VIEWS[MODE]), st.sampled_from([None, "low", "high"]),
    st.sampled_from(["claude-sonnet-4-5", "claude-opus-5", "claude-3-haiku"]),
)  # fmt: skip
def test_the_official_sdk_accepts_any_body(
    official: Any, history: list[Message], view: View, effort: Effort | None, model: str
) -> None:
    official.validate_python(body(model, history, view, effort=effort, temperature=0.5))


def test_the_official_check_is_strict(official: Any) -> None:
    good = body(history=exchange(ToolCall("a", "x", "{}"), blocks=(thought("one"),)))
    official.validate_python(good)
    for place in ([good], good["messages"], *(row["content"] for row in good["messages"]), good["tools"]):
        place[0]["unknown_key"] = 1
        with pytest.raises(ValueError, match="unknown_key"):
            official.validate_python(good)
        del place[0]["unknown_key"]


@pytest.mark.behaviour("BUILD-17", "CACHE-01")
def test_system_and_marks() -> None:
    assert body()["system"] == "Be good."
    sent = body(view=MARKED, history=exchange(*(ToolCall(f"c{n}", "x", "{}") for n in range(3))))
    assert sent["system"] == [{"type": "text", "text": "Be good.", "cache_control": {"type": "ephemeral"}}]
    assert marks(sent) == 4


def test_tools() -> None:
    echo, bare = body()["tools"]
    assert echo == {"name": "echo", "description": "Say it.", "input_schema": TOOLS[0].parameters}
    assert bare == {"name": "bare", "input_schema": {"type": "object"}}
    plain = body(view=View(MODE, repairs=frozenset({"grammar"})))["tools"][0]
    assert plain["input_schema"]["properties"] == {"text": {"type": "string"}}


@pytest.mark.parametrize(
    ("model", "cap"),
    [
        ("claude-3-haiku-20240307", 4_096), ("claude-3-5-sonnet-latest", 8_192),
        ("claude-3.7-sonnet", 64_000), ("anthropic/claude-opus-4.1", 32_000), ("claude-haiku-4-5", 64_000),
        ("claude-opus-4-7", 128_000), ("claude-sonnet-5-5", 128_000), ("kimi-k2", 128_000),
    ],
)  # fmt: skip
def test_the_cap_is_mandatory_and_known_by_family(model: str, cap: int) -> None:
    assert body(model)["max_tokens"] == cap
    assert body(model, output_cap=100)["max_tokens"] == 100
    assert body(model, output_cap=100, raised=True)["max_tokens"] == cap
    assert body(model, window=4_096)["max_tokens"] == 4_095
    assert body(model, window=None)["max_tokens"] == cap


def adaptive(effort: str) -> dict[str, Any]:
    return {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": effort}}


def budget(tokens: int) -> dict[str, Any]:
    return {"thinking": {"type": "enabled", "budget_tokens": tokens}}


THINKING = (
    ("claude-sonnet-4-5", "low", budget(4_096)), ("claude-3-7-sonnet", "high", budget(16_384)),
    ("claude-opus-4-7", "medium", adaptive("medium")), ("claude-sonnet-4-5", "xhigh", budget(32_768)),
    ("claude-sonnet-4-5", "max", budget(59_904)), ("claude-opus-4-1", "max", budget(27_904)),
    ("claude-sonnet-4-5", "minimal", budget(2_048)), ("claude-opus-4-6", "xhigh", adaptive("high")),
    ("claude-opus-4-6", "max", adaptive("max")), ("claude-opus-4-7", "xhigh", adaptive("xhigh")),
    ("claude-opus-4-7", "minimal", adaptive("low")), ("claude-opus-4-7", "none", {}),
    ("claude-sonnet-4-5", "none", {}), ("claude-3-haiku", "high", {}), ("claude-sonnet-4-5", None, {}),
    ("claude-opus-4-7", None, {}),
)  # fmt: skip


@pytest.mark.behaviour("FMT-07")
def test_thinking_is_asked_for_only_on_demand_and_by_family() -> None:
    for model, effort, expected in THINKING:
        sent = body(model, effort=effort)
        thinking = {key: sent[key] for key in ("thinking", "output_config") if key in sent}
        assert thinking == expected, (model, effort)


@pytest.mark.behaviour("FMT-07")
def test_a_budget_for_thoughts_makes_room_for_them_or_is_left_out() -> None:
    assert body(output_cap=1_000, effort="medium")["max_tokens"] == 8_192 + 4_096
    assert body("claude-opus-4-1", effort="max")["max_tokens"] == 32_000
    small = body(window=8_000, effort="medium")
    assert (small["max_tokens"], "thinking" in small) == (7_999, False)


def test_a_model_with_a_budget_is_not_asked_to_begin_thinking_inside_a_tool_loop() -> None:
    call = ToolCall("a", "x", "{}")
    assert "thinking" not in body(history=exchange(call), effort="low")
    assert "thinking" in body(history=exchange(call, blocks=(thought("one"),)), effort="low")
    later = [*exchange(call), Message("assistant", "done"), Message("user", "more")]
    assert "thinking" in body(history=later, effort="low")
    assert "thinking" in body("claude-opus-4-7", history=exchange(call), effort="low")


def test_temperature_only_where_it_is_allowed() -> None:
    assert "temperature" not in body(temperature=0.5)
    assert body("kimi-k2", temperature=1.5)["temperature"] == 1.0
    assert "temperature" not in body("kimi-k2", temperature=0.5, effort="low")


def test_what_recoveries_change_stands_behind_the_messages() -> None:
    form, wire = format_of(MODE), WireCopy()
    runtime = Runtime("anthropic", "claude-sonnet-4-5", api_mode=MODE)
    before, after = (
        form.body(
            Ask(runtime, "Be good.", output_cap=cap),
            wire.messages("", exchange(ToolCall("a", "x", "{}")), (), PLAIN),
        )
        for cap in (None, 9_999)
    )
    same = before.index(b'"max_tokens"')
    assert (before[:same], before[same:]) == (after[:same], b'"max_tokens":64000}')


def test_thoughts_have_to_fit_in_a_cap_that_nobody_pays_beyond() -> None:
    runtime = Runtime("anthropic", "claude-sonnet-4", api_mode=MODE, most_output=64_000)
    rows = WireCopy().messages("", [Message("user", "hi")], (), PLAIN)
    asked = Ask(runtime, output_cap=2_000, effort="high")
    assert json.loads(format_of(MODE).body(asked, rows))["max_tokens"] > 8_000
    body = json.loads(format_of(MODE).body(replace(asked, firm=True), rows))
    assert (body["max_tokens"], "thinking" in body) == (2_000, False)
