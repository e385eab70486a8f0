"""The wire copy: valid whatever was stored, and the same bytes however it was built up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.conversation.effects import ApiMode, Runtime
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.wire import Ask, View, WireCopy, format_of
from tests.helpers.wire_rules import HISTORIES, RULES, SCAFFOLD, VIEWS

PLAIN = View()


def written(
    wire: WireCopy, history: list[Message], scaffold: tuple[Message, ...] = (), view: View = PLAIN
) -> bytes:
    return b"".join(wire.messages("prompt", history, scaffold, view))


def rows(wire: WireCopy, history: list[Message], view: View = PLAIN) -> list[dict[str, Any]]:
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
        call = ToolCall("c", "echo", arguments)
        history = [
            Message("user", "q"),
            Message("assistant", None, tool_calls=(call,)),
            Message("tool", "r", tool_call_id="c"),
        ]
        _, _, said, result = rows(WireCopy(), history)
        assert history[1].tool_calls[0].arguments == arguments
        return said["tool_calls"][0]["function"]["arguments"], result["content"]

    assert sent('{ "b": 1, "a": "é" }') == ('{"a":"é","b":1}', "r"), "so that prefixes stay stable"
    blanked, told = sent("{broken")
    assert blanked == "{}"
    assert "corrupted" in told


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
    sent = [row["content"] for row in rows(WireCopy(), history)]
    assert sent == ["prompt", "q", "(tool call removed)", "hm"]


@pytest.mark.behaviour("BUILD-18")
def test_images_become_words_for_a_model_without_eyes() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    history = [Message("user", [image, {"type": "text", "text": "what?"}])]
    sent = json.loads(b"".join(WireCopy().messages("", history, (), View(vision=False))))
    assert all(part["type"] == "text" for part in sent[0]["content"])


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
