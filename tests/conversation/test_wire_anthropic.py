"""Anthropic's Messages API as a wire: valid whatever was stored, the same bytes however it was built up."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.conversation.effects import ApiMode, Runtime, ToolSpec
from fsm_agent.conversation.families import family_of
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.wire import Ask, View, WireCopy, format_of
from fsm_agent.settings.model import Effort
from fsm_agent.support.texts import clean
from tests.helpers.closed_types import adapter

MODE: ApiMode = "anthropic_messages"
ISSUER = "anthropic:here"
CLAUDE, UNSIGNED = family_of(MODE, "anthropic"), family_of(MODE, "moonshot")
PLAIN = View(MODE)
NATIVE = View(MODE, family=CLAUDE, issuer=ISSUER)
MARKED = View(MODE, family=CLAUDE, issuer=ISSUER, marks=True)
VIEWS = st.sampled_from(
    [PLAIN, NATIVE, MARKED, View(MODE, vision=False), View(MODE, repairs=frozenset({"flat_tool_content"}))]
)
PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}

TEXT = st.text(max_size=12) | st.sampled_from(["", "  ", "\ud800", "a\x00b"])
IDS = st.sampled_from(["call_0", "call.1", "call_1", "ü", ""])
CALLS = st.builds(
    ToolCall,
    id=IDS,
    name=st.sampled_from(["echo", "a.b c", ""]),
    arguments=st.sampled_from(["{}", '{"b":1,"a":2}', "", "{broken", "[1]"]),
)
IMAGES = st.sampled_from(
    ["data:image/jpg;base64,AAAA", "data:,", "data:image/tiff;base64,AAAA", "https://x.example/y.png", ""]
)
PARTS = st.lists(
    st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, TEXT),
        st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, IMAGES),
        st.just(PNG),
    ),
    max_size=3,
)
BLOCKS = st.lists(
    st.one_of(
        st.builds(
            lambda signature, issuer, before: {
                "type": "thinking",
                "thinking": "hm",
                "signature": signature,
                "issuer": issuer,
                **before,
            },
            st.sampled_from(["signed", ""]),
            st.sampled_from([ISSUER, "elsewhere"]),
            st.sampled_from([{}, {"before": "call_0"}, {"before": "call.1"}, {"before": ""}]),
        ),
        st.just({"type": "redacted_thinking", "data": "dark", "issuer": ISSUER}),
        st.just({"type": "reasoning.text", "text": "of another wire"}),
    ),
    max_size=3,
).map(tuple)
MESSAGES = st.one_of(
    st.builds(Message, role=st.just("user"), content=TEXT | PARTS, wire=st.sampled_from([True, True, False])),
    st.builds(
        Message,
        role=st.just("assistant"),
        content=TEXT | st.none() | PARTS,
        tool_calls=st.lists(CALLS, max_size=3).map(tuple),
        blocks=BLOCKS,
    ),
    st.builds(Message, role=st.just("tool"), content=TEXT | PARTS, tool_call_id=IDS),
    st.builds(Message, role=st.just("system"), content=TEXT),
)
HISTORIES = st.lists(MESSAGES, max_size=14)
SCAFFOLD = (Message("assistant", "so far"), Message("user", "go on"))


def written(
    wire: WireCopy, history: Sequence[Message], scaffold: Sequence[Message] = (), view: View = PLAIN
) -> bytes:
    return b"".join(wire.messages("prompt", history, scaffold, view))


def rows(
    history: Sequence[Message], scaffold: Sequence[Message] = (), view: View = PLAIN
) -> list[dict[str, Any]]:
    decoded: list[dict[str, Any]] = json.loads(written(WireCopy(), history, scaffold, view))
    return decoded


def violations(messages: list[dict[str, Any]]) -> list[str]:
    """The rules of the Messages API as its documentation states them, in words; empty when all are kept."""
    found = [] if not messages or messages[0]["role"] == "user" else ["the first row is not the user's"]
    used: set[str] = set()
    for index, row in enumerate(messages):
        blocks = row["content"]
        kinds = [block["type"] for block in blocks]
        if index and row["role"] == messages[index - 1]["role"]:
            found.append(f"row {index} has the role of the row before it")
        if not blocks:
            found.append(f"row {index} is empty")
        if kinds and kinds[-1] in ("thinking", "redacted_thinking"):
            found.append(f"row {index} ends with a thought")
        if row["role"] == "user" and set(kinds) - {"text", "image", "tool_result"}:
            found.append(f"row {index} of the user holds {kinds}")
        if row["role"] == "assistant" and set(kinds) - {"text", "tool_use", "thinking", "redacted_thinking"}:
            found.append(f"row {index} of the assistant holds {kinds}")
        if kinds != sorted(kinds, key=lambda kind: kind != "tool_result") and row["role"] == "user":
            found.append(f"row {index} has results behind other blocks")
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if used & set(calls) or len(set(calls)) != len(calls):
            found.append(f"row {index} uses an id again")
        used |= set(calls)
        behind = messages[index + 1]["content"] if index + 1 < len(messages) else []
        answers = [block["tool_use_id"] for block in behind if block["type"] == "tool_result"]
        if sorted(calls) != sorted(answers) if row["role"] == "assistant" else answers and calls:
            found.append(f"the calls of row {index} are answered by {answers}")
        for block in blocks:
            found += [f"row {index}: {problem}" for problem in _block_violations(block)]
    return found


def _block_violations(block: dict[str, Any]) -> list[str]:
    found = []
    if block["type"] == "text" and not block["text"].strip():
        found.append("a blank text")
    if block["type"] == "tool_use" and not (
        re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]) and isinstance(block["input"], dict)
    ):
        found.append(f"a call that is none: {block}")
    if block["type"] == "tool_use" and not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", block["name"]):
        found.append(f"a name that is none: {block['name']!r}")
    if block["type"] in ("thinking", "redacted_thinking") and "cache_control" in block:
        found.append("a mark in a thought")
    for inner in block["content"] if isinstance(block.get("content"), list) else ():
        found += _block_violations(inner)
    text = json.dumps(block, ensure_ascii=False)
    return [*found, *(["text that is not valid"] if text != clean(text) else [])]


def unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [unmarked(item) for item in value] if isinstance(value, list) else value


def marks(value: Any) -> int:
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(map(marks, value.values()))
    return sum(map(marks, value)) if isinstance(value, list) else 0


# Any history


@pytest.mark.behaviour("BUILD-15", "CACHE-07")
@given(HISTORIES, VIEWS, st.sampled_from([(), SCAFFOLD]))
def test_any_history_becomes_valid(history: list[Message], view: View, scaffold: tuple[Message, ...]) -> None:
    assert violations(rows(history, scaffold, view)) == []


@given(HISTORIES, VIEWS)
def test_built_up_or_at_once_the_bytes_are_the_same(history: list[Message], view: View) -> None:
    growing = WireCopy()
    for end in range(len(history) + 1):
        step_by_step = written(growing, history[:end], (), view)
    assert step_by_step == written(WireCopy(), history, (), view)


@given(HISTORIES, VIEWS)
def test_scaffolding_leaves_no_trace(history: list[Message], view: View) -> None:
    wire = WireCopy()
    before = written(wire, history, (), view)
    written(wire, history, SCAFFOLD, view)
    assert written(wire, history, (), view) == before


@pytest.mark.behaviour("CACHE-01b", "CACHE-02", "CACHE-05")
@given(HISTORIES)
def test_marks_are_three_at_most_and_change_nothing_else(history: list[Message]) -> None:
    marked, plain = rows(history, (), MARKED), rows(history, (), NATIVE)
    assert unmarked(marked) == plain
    assert marks(marked) == min(3, len(plain))
    assert all(marks(row) for row in marked[-3:])


TOOL_LOOP = st.lists(
    st.tuples(TEXT, st.lists(st.sampled_from(['{"a":1}', "{}"]), min_size=1, max_size=3), TEXT, BLOCKS),
    min_size=1,
    max_size=8,
)


@given(TOOL_LOOP)
def test_in_a_tool_loop_each_request_is_a_prefix_of_the_next(
    loop: list[tuple[str, list[str], str, Any]],
) -> None:
    history, wire, before = [Message("user", "go")], WireCopy(), b""
    for turn, (said, calls, result, blocks) in enumerate(loop):
        made = tuple(ToolCall(f"c{turn}_{n}", "echo", arguments) for n, arguments in enumerate(calls))
        history.append(Message("assistant", said, tool_calls=made, blocks=blocks))
        history += [Message("tool", result, tool_call_id=call.id) for call in made]
        now = written(wire, history, (), NATIVE)
        assert now.startswith(before)
        assert unmarked(json.loads(written(WireCopy(), history, (), MARKED))) == json.loads(now)
        before = now[:-1]


@pytest.mark.behaviour("MODE-02d")
@given(TOOL_LOOP)
def test_nothing_that_the_wire_can_carry_is_lost(loop: list[tuple[str, list[str], str, Any]]) -> None:
    history = [Message("user", "go")]
    for turn, (said, calls, result, _) in enumerate(loop):
        made = tuple(ToolCall(f"c{turn}_{n}", "echo", arguments) for n, arguments in enumerate(calls))
        history.append(Message("assistant", said, tool_calls=made))
        history += [Message("tool", result, tool_call_id=call.id) for call in made]
    assert list(map(trimmed, read_back(rows(history)))) == [trimmed(row) for row in history]


def read_back(messages: list[dict[str, Any]]) -> list[Message]:
    """From the wire to the internal form."""
    history = []
    for row in messages:
        text = "".join(block["text"] for block in row["content"] if block["type"] == "text")
        if row["role"] == "assistant":
            calls = [block for block in row["content"] if block["type"] == "tool_use"]
            made = tuple(
                ToolCall(call["id"], call["name"], json.dumps(call["input"], separators=(",", ":")))
                for call in calls
            )
            history.append(Message("assistant", text, tool_calls=made))
            continue
        for block in row["content"]:
            if block["type"] == "tool_result":
                history.append(Message("tool", block.get("content", ""), tool_call_id=block["tool_use_id"]))
            else:
                history.append(Message("user", block["text"]))
    return history


def trimmed(message: Message) -> tuple[Any, ...]:
    return (message.role, clean(message.text).strip(), message.tool_calls, message.tool_call_id)


# Rows one by one


def exchange(*calls: ToolCall, blocks: Any = (), said: str | None = None) -> list[Message]:
    return [
        Message("user", "q"),
        Message("assistant", said, tool_calls=calls, blocks=blocks),
        *(Message("tool", f"r{number}", tool_call_id=call.id) for number, call in enumerate(calls)),
    ]


def thought(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": f"signed {text}", "issuer": ISSUER, **more}


def test_results_and_the_words_behind_them_are_one_row() -> None:
    sent = rows(
        [*exchange(ToolCall("c", "echo", '{ "b": 1, "a": "é" }'), said="Look:"), Message("user", "and?")]
    )
    assert sent == [
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Look:"},
                {"type": "tool_use", "id": "c", "name": "echo", "input": {"a": "é", "b": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": "r0"},
                {"type": "text", "text": "and?"},
            ],
        },
    ]


def test_a_call_whose_result_never_came_is_removed_not_invented() -> None:
    history = [
        Message("user", "q"),
        Message("assistant", None, tool_calls=(ToolCall("c", "echo", "{}"),)),
        Message("user", "hm"),
    ]
    assert [row["content"][0]["text"] for row in rows(history)] == ["q", "(tool call removed)", "hm"]


def test_ids_that_this_wire_forbids_are_rewritten_and_stay_apart() -> None:
    one, two = rows(exchange(ToolCall("a.b", "echo", "{}"), ToolCall("a_b", "echo", "{}")))[1]["content"]
    assert one["id"].startswith("a_b_")
    assert two["id"] == "a_b"


def test_corrupted_arguments_are_blanked_and_said() -> None:
    _, said, answered = rows(exchange(ToolCall("c", "echo", "{broken")))
    assert said["content"][0]["input"] == {}
    assert "corrupted" in answered["content"][0]["content"]


def test_thoughts_lead_or_stand_before_the_call_that_they_led_to() -> None:
    kept = (
        thought("one"),
        {"type": "redacted_thinking", "data": "dark", "issuer": ISSUER},
        thought("two", before="b"),
    )
    said = rows(
        exchange(ToolCall("a", "x", "{}"), ToolCall("b", "y", "{}"), blocks=kept, said="So:"), (), NATIVE
    )[1]["content"]
    kinds = ["thinking", "redacted_thinking", "text", "tool_use", "thinking", "tool_use"]
    assert [block["type"] for block in said] == kinds
    assert said[0] == {"type": "thinking", "thinking": "one", "signature": "signed one"}
    assert (said[4]["thinking"], said[5]["id"]) == ("two", "b")


@pytest.mark.parametrize(
    ("view", "kept"),
    [
        (NATIVE, ["thinking"]),
        (PLAIN, []),
        (View(MODE, family=CLAUDE, issuer="anthropic:elsewhere"), []),
        (View(MODE, family=CLAUDE, issuer=ISSUER, repairs=frozenset({"thinking_signature"})), []),
        (View(MODE, family=UNSIGNED, issuer=ISSUER), []),
    ],
    ids=[
        "native",
        "another kind of provider",
        "another issuer",
        "after a refusal",
        "a wire of unsigned thoughts",
    ],
)
def test_thoughts_go_back_only_to_who_signed_them(view: View, kept: list[str]) -> None:
    history = exchange(ToolCall("a", "x", "{}"), blocks=(thought("one"),))
    assert [block["type"] for block in rows(history, (), view)[1]["content"]] == [*kept, "tool_use"]
    assert history[1].blocks == (thought("one"),), "what is stored stays"


def test_unsigned_thoughts_are_text_for_who_signs_and_thoughts_for_who_does_not() -> None:
    history = exchange(ToolCall("a", "x", "{}"), blocks=({**thought("one"), "signature": ""},))
    assert rows(history, (), NATIVE)[1]["content"][0] == {"type": "text", "text": "one"}
    unsigned = View(MODE, family=UNSIGNED, issuer=ISSUER)
    assert rows(history, (), unsigned)[1]["content"][0] == {"type": "thinking", "thinking": "one"}


def test_thoughts_are_forgotten_once_the_user_speaks() -> None:
    first, second = (
        exchange(ToolCall("a", "x", "{}"), blocks=(thought("one"),)),
        exchange(ToolCall("b", "x", "{}"), blocks=(thought("two"),)),
    )
    wire = WireCopy()
    assert b"signed one" in written(wire, first, (), NATIVE)
    later = written(wire, [*first, Message("assistant", "done"), *second], (), NATIVE)
    assert b"signed one" not in later
    assert b"signed two" in later


def test_images_by_address_and_by_value() -> None:
    history = [
        Message(
            "user",
            [
                PNG,
                {"type": "image_url", "image_url": "https://x.example/y.png"},
                {"type": "text", "text": "?"},
            ],
        )
    ]
    sent = rows(history)[0]["content"]
    assert sent[0]["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    assert sent[1]["source"] == {"type": "url", "url": "https://x.example/y.png"}
    blind = rows(history, (), View(MODE, vision=False))[0]["content"]
    assert [block["type"] for block in blind] == ["text", "text", "text"]


@pytest.mark.behaviour("FMT-13")
def test_only_the_newest_images_of_tools_are_sent() -> None:
    history, wire = [Message("user", [PNG])], WireCopy()
    for number in range(5):
        call = ToolCall(f"c{number}", "look", "{}")
        history += [
            Message("assistant", None, tool_calls=(call,)),
            Message("tool", [PNG], tool_call_id=call.id),
        ]
        sent = written(wire, history)
        assert sent.count(b'"image"') == 1 + min(3, number + 1)
    results = [row["content"][0]["content"] for row in json.loads(sent)[2::2]]
    assert [isinstance(content, str) for content in results] == [True, True, False, False, False]


def test_marks_live_as_long_as_was_asked() -> None:
    hour = View(MODE, marks=True, ttl="1h")
    assert rows([Message("user", "q")], (), hour)[0]["content"][0]["cache_control"] == {
        "type": "ephemeral",
        "ttl": "1h",
    }


# The body


TOOLS = (
    ToolSpec(
        "echo", "Say it.", {"type": "object", "properties": {"text": {"type": "string", "pattern": "^a"}}}
    ),
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
    HISTORIES,
    VIEWS,
    st.sampled_from([None, "low", "high"]),
    st.sampled_from(["claude-sonnet-4-5", "claude-opus-5", "claude-3-haiku"]),
)
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
        ("claude-3-haiku-20240307", 4_096),
        ("claude-3-5-sonnet-latest", 8_192),
        ("claude-3.7-sonnet", 64_000),
        ("anthropic/claude-opus-4.1", 32_000),
        ("claude-haiku-4-5", 64_000),
        ("claude-opus-4-7", 128_000),
        ("claude-sonnet-5-5", 128_000),
        ("kimi-k2", 128_000),
    ],
)
def test_the_cap_is_mandatory_and_known_by_family(model: str, cap: int) -> None:
    assert body(model)["max_tokens"] == cap
    assert body(model, output_cap=100)["max_tokens"] == 100
    assert body(model, output_cap=100, raised=True)["max_tokens"] == cap
    assert body(model, window=4_096)["max_tokens"] == 4_095
    assert body(model, window=None)["max_tokens"] == cap


def adaptive(effort: str) -> dict[str, Any]:
    return {
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": effort},
    }


@pytest.mark.behaviour("FMT-07")
@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("claude-sonnet-4-5", "low", {"thinking": {"type": "enabled", "budget_tokens": 4_096}}),
        ("claude-3-7-sonnet", "high", {"thinking": {"type": "enabled", "budget_tokens": 16_384}}),
        ("claude-opus-4-7", "medium", adaptive("medium")),
        ("claude-sonnet-4-5", "xhigh", {"thinking": {"type": "enabled", "budget_tokens": 32_768}}),
        ("claude-sonnet-4-5", "max", {"thinking": {"type": "enabled", "budget_tokens": 59_904}}),
        ("claude-opus-4-1", "max", {"thinking": {"type": "enabled", "budget_tokens": 27_904}}),
        ("claude-sonnet-4-5", "minimal", {"thinking": {"type": "enabled", "budget_tokens": 2_048}}),
        ("claude-opus-4-6", "xhigh", adaptive("high")),
        ("claude-opus-4-6", "max", adaptive("max")),
        ("claude-opus-4-7", "xhigh", adaptive("xhigh")),
        ("claude-opus-4-7", "minimal", adaptive("low")),
        ("claude-opus-4-7", "none", {}),
        ("claude-sonnet-4-5", "none", {}),
        ("claude-3-haiku", "high", {}),
        ("claude-sonnet-4-5", None, {}),
        ("claude-opus-4-7", None, {}),
    ],
)
def test_thinking_is_asked_for_only_on_demand_and_by_family(
    model: str, effort: Effort | None, expected: dict[str, Any]
) -> None:
    sent = body(model, effort=effort)
    assert {key: sent[key] for key in ("thinking", "output_config") if key in sent} == expected


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
    assert "thinking" in body(
        history=[*exchange(call), Message("assistant", "done"), Message("user", "more")], effort="low"
    )
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
    assert before[:same] == after[:same]
    assert before[same:] == b'"max_tokens":64000}'


def test_thoughts_have_to_fit_in_a_cap_that_nobody_pays_beyond() -> None:
    runtime = Runtime("anthropic", "claude-sonnet-4", api_mode=MODE, most_output=64_000)
    rows = WireCopy().messages("", [Message("user", "hi")], (), PLAIN)
    asked = Ask(runtime, output_cap=2_000, effort="high")
    assert json.loads(format_of(MODE).body(asked, rows))["max_tokens"] > 8_000
    body = json.loads(format_of(MODE).body(replace(asked, firm=True), rows))
    assert (body["max_tokens"], "thinking" in body) == (2_000, False)
