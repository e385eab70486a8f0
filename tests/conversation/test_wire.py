"""The wire copy: valid whatever was stored, and the same bytes however it was built up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.conversation.effects import Runtime
from fsm_agent.conversation.families import family_of
from fsm_agent.conversation.history_rules import violations
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.wire import Ask, View, WireCopy, format_of

TEXT = st.text(max_size=12) | st.sampled_from(["", "  ", "\ud800", "a\x00b", "<think>x</think>"])
IDS = st.sampled_from(["call_0", "call_1", "call_2", ""])
CALLS = st.builds(
    ToolCall,
    id=IDS,
    name=st.sampled_from(["echo", "put", ""]),
    arguments=st.sampled_from(["{}", '{"b":1,"a":2}', "", "{broken", "[1]"]),
)
PARTS = st.lists(st.builds(lambda text: {"type": "text", "text": text}, TEXT), min_size=1, max_size=2)
MESSAGES = st.one_of(
    st.builds(Message, role=st.just("user"), content=TEXT.filter(str.strip) | PARTS),
    st.builds(
        Message,
        role=st.just("assistant"),
        content=TEXT | st.none(),
        tool_calls=st.lists(CALLS, max_size=3).map(tuple),
        wire=st.booleans(),
    ),
    st.builds(Message, role=st.just("tool"), content=TEXT, tool_call_id=IDS),
    st.builds(Message, role=st.just("system"), content=TEXT),
)
HISTORIES = st.lists(MESSAGES, max_size=14)


def written(wire: WireCopy, history: list[Message], scaffold: tuple[Message, ...] = ()) -> bytes:
    return b"".join(wire.messages("prompt", history, scaffold, View()))


def rows(wire: WireCopy, history: list[Message], scaffold: tuple[Message, ...] = ()) -> list[dict[str, Any]]:
    decoded: list[dict[str, Any]] = json.loads(written(wire, history, scaffold))
    return decoded


@pytest.mark.behaviour(
    "BUILD-15",
    "BUILD-06",
    "BUILD-06b",
    "INV-01",
    "INV-02",
    "INV-03",
    "INV-05",
    "INV-07",
    "INV-08",
    "EXEC-18c",
)
@given(HISTORIES)
def test_any_history_becomes_valid(history: list[Message]) -> None:
    assert violations(rows(WireCopy(), history)) == []


@pytest.mark.behaviour("BUILD-24")
@given(HISTORIES)
def test_any_history_is_valid_with_scaffolding(history: list[Message]) -> None:
    scaffold = (Message("assistant", "so far"), Message("user", "go on"))
    assert violations(rows(WireCopy(), history, scaffold)) == []


@pytest.mark.behaviour("BUILD-24")
@given(HISTORIES)
def test_built_up_or_at_once_the_bytes_are_the_same(history: list[Message]) -> None:
    growing = WireCopy()
    for end in range(len(history) + 1):
        step_by_step = written(growing, history[:end])
    assert step_by_step == written(WireCopy(), history)


@given(HISTORIES)
def test_scaffolding_leaves_no_trace(history: list[Message]) -> None:
    wire = WireCopy()
    before = written(wire, history)
    rows(wire, history, (Message("assistant", "x"), Message("user", "y")))
    assert written(wire, history) == before


@pytest.mark.behaviour("BUILD-14")
def test_arguments_are_sorted_and_compact_so_that_prefixes_stay_stable() -> None:
    history = [
        Message("user", "q"),
        Message("assistant", None, tool_calls=(ToolCall("c", "echo", '{ "b": 1, "a": "é" }'),)),
        Message("tool", "r", tool_call_id="c"),
    ]
    assert rows(WireCopy(), history)[2]["tool_calls"][0]["function"]["arguments"] == '{"a":"é","b":1}'


@pytest.mark.behaviour("INV-08")
def test_corrupted_arguments_are_blanked_on_the_wire_only() -> None:
    call = ToolCall("c", "echo", "{broken")
    history = [
        Message("user", "q"),
        Message("assistant", None, tool_calls=(call,)),
        Message("tool", "r", tool_call_id="c"),
    ]
    sent = rows(WireCopy(), history)
    assert sent[2]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert "corrupted" in sent[3]["content"]
    assert history[1].tool_calls[0].arguments == "{broken"


def test_a_replaced_history_is_read_anew() -> None:
    wire = WireCopy()
    rows(wire, [Message("user", "a"), Message("assistant", "b"), Message("user", "c")])
    assert [row["content"] for row in rows(wire, [Message("user", "x")])] == ["prompt", "x"]


@given(HISTORIES, st.data())
def test_a_wire_that_is_told_what_replaced_a_history_writes_that(
    history: list[Message], data: st.DataObject
) -> None:
    wire = WireCopy()
    written(wire, history)
    changed = data.draw(st.lists(st.sampled_from(range(len(history)))) if history else st.just([]))
    replaced = [Message("user", "new") if at in changed else row for at, row in enumerate(history)]
    wire.replaced(replaced)
    assert written(wire, replaced) == written(WireCopy(), replaced)


@pytest.mark.behaviour("BUILD-06")
def test_a_call_whose_result_never_came_is_removed_not_invented() -> None:
    history = [
        Message("user", "q"),
        Message("assistant", None, tool_calls=(ToolCall("c", "echo", "{}"),)),
        Message("user", "hm"),
    ]
    assert [row["content"] for row in rows(WireCopy(), history)] == [
        "prompt",
        "q",
        "(tool call removed)",
        "hm",
    ]


@pytest.mark.behaviour("BUILD-18")
def test_images_become_words_for_a_model_without_eyes() -> None:
    history = [
        Message(
            "user", [{"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": "what?"}]
        )
    ]
    sent = json.loads(b"".join(WireCopy().messages("", history, (), View(vision=False))))
    assert all(part["type"] == "text" for part in sent[0]["content"])


def test_thoughts_of_other_wires_are_no_details() -> None:
    detail = {"type": "reasoning.text", "text": "hm", "signature": "s"}
    foreign = (
        {"type": "thinking", "thinking": "x", "signature": "y", "issuer": "z"},
        {"type": "reasoning", "id": "rs_1"},
    )
    view = View(family=family_of("chat_completions", "openrouter"), issuer="here")
    for blocks, sent in (((*foreign, detail), [detail]), (foreign, None)):
        history = [Message("user", "q"), Message("assistant", "a", blocks=blocks, issuer="here")]
        assert (
            json.loads(b"".join(WireCopy().messages("", history, (), view)))[1].get("reasoning_details")
            == sent
        )


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
        sent = json.loads(b"".join(WireCopy().messages("prompt", history, (), view)))
        assert [row["content"][0]["cache_control"] for row in sent] == [mark, mark]


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
        Message("user", "one"),
        Message("assistant", "two"),
        Message("user", [{"type": "text", "text": "three"}, {"type": "text", "text": "four"}]),
        Message("assistant", "five"),
        Message("user", "six"),
        Message("assistant", None, (call,)),
        Message("tool", "seven", tool_call_id="c"),
    ]
    before = [row.to_dict() for row in history]
    mark = {"cache_control": {"type": "ephemeral"}}
    sent = json.loads(b"".join(WireCopy().messages("prompt", history, (), View(marks=True))))
    assert [json.dumps(row).count("cache_control") for row in sent] == [1, 0, 0, 1, 1, 1, 0, 0]
    assert sent[3]["content"] == [{"type": "text", "text": "three"}, {"type": "text", "text": "four", **mark}]
    assert sent[4]["content"] == [{"type": "text", "text": "five", **mark}]
    assert [row.to_dict() for row in history] == before
