"""Histories that a caller supplies, in the forms in which vendors and other programs keep theirs."""

from __future__ import annotations

import contextlib
import json
import operator
import sqlite3
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_agent.conversation.effects import Runtime
from fsm_agent.conversation.history import read_history
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.vendors import issuer_of
from fsm_agent.conversation.wire import WireCopy
from fsm_agent.conversation.wire.form import View
from fsm_agent.errors import ConfigError
from fsm_agent.testing import text
from fsm_agent.testing.strategies import histories, json_values
from fsm_agent.testing.wires import chat_rows
from tests.helpers.harness import play, table

OPENROUTER = Runtime("openrouter", "a/b", "https://o.example/v1")
DEEPSEEK = Runtime("deepseek", "d", "https://d.example/v1")
RESPONSES = Runtime("openai-responses", "gpt-5", "https://r.example/v1", api_mode="codex_responses")
GEMINI = Runtime("gemini", "gemini-3-pro", "https://g.example/v1")
CLAUDE = Runtime("anthropic", "claude", "https://c.example/v1", api_mode="anthropic_messages")
VLLM = Runtime("vllm", "m", "http://v.example/v1")
MISTRAL = Runtime("mistral", "magistral", "https://m.example/v1")
DETAIL = {"type": "reasoning.text", "text": "hm", "signature": "s"}
SEALED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}
SIGNATURE = {"google": {"thought_signature": "s"}}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "s"}
CHUNK = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
TEXT = {"type": "text", "text": "a"}
FUNCTION = {"name": "echo", "arguments": "{}"}
SIGNED_CALL = {"id": "c", "type": "function", "function": FUNCTION, "extra_content": SIGNATURE}


def read(row: dict[str, Any], runtime: Runtime) -> Any:
    (message,) = read_history([{"role": "assistant", "content": "a", **row}], runtime).messages
    return message


@pytest.mark.behaviour("PREP-07b")
@pytest.mark.parametrize(
    ("fields", "maker", "others"),
    [
        ({"reasoning_details": [DETAIL]}, OPENROUTER, (DEEPSEEK, RESPONSES, GEMINI, CLAUDE, MISTRAL)),
        ({"codex_reasoning_items": [SEALED]}, RESPONSES, (OPENROUTER, DEEPSEEK, GEMINI, CLAUDE, MISTRAL)),
        ({"reasoning_content": "hm"}, DEEPSEEK, (OPENROUTER, RESPONSES, GEMINI, CLAUDE, MISTRAL)),
        ({"extra_content": SIGNATURE}, GEMINI, (OPENROUTER, DEEPSEEK, RESPONSES, CLAUDE, MISTRAL)),
        ({"tool_calls": [SIGNED_CALL]}, GEMINI, (OPENROUTER, DEEPSEEK, RESPONSES, CLAUDE, MISTRAL)),
        ({"content": [THINKING, TEXT]}, CLAUDE, (OPENROUTER, DEEPSEEK, RESPONSES, GEMINI, MISTRAL)),
        ({"content": [CHUNK, TEXT]}, MISTRAL, (OPENROUTER, DEEPSEEK, RESPONSES, GEMINI, CLAUDE)),
        ({"reasoning": "hm"}, None, (OPENROUTER, DEEPSEEK, RESPONSES, GEMINI, CLAUDE, MISTRAL)),
    ],
)
def test_what_does_not_name_its_maker_is_of_the_model_that_makes_such_things(
    fields: dict[str, Any], maker: Runtime | None, others: tuple[Runtime, ...]
) -> None:
    if maker is not None:
        assert read(fields, maker).issuer == issuer_of(maker)
    for other in others:
        kept = read(fields, other)
        assert kept.issuer is None
        assert kept.reasoning or kept.blocks or kept.tool_calls, "it is kept all the same"
    named = {**fields, "issuer": "openrouter:https://elsewhere#x"}
    assert read(named, maker or DEEPSEEK).issuer == "openrouter:https://elsewhere#x"


def test_arguments_of_a_call_may_be_an_object() -> None:
    called = {
        "id": "c",
        "type": "function",
        "function": {"name": "echo", "arguments": {"text": "ä", "n": None}},
    }
    assert read({"tool_calls": [called]}, DEEPSEEK).tool_calls[0].arguments == '{"text": "ä", "n": null}'


@pytest.mark.behaviour("PREP-07b")
def test_every_form_is_kept() -> None:
    row = {
        "content": [THINKING, CHUNK, TEXT], "reasoning_content": None, "reasoning_details": [DETAIL],
        "codex_reasoning_items": [SEALED],
        "codex_message_items": [{"type": "message", "phase": "commentary"}], "extra_content": SIGNATURE,
        "tool_calls": [SIGNED_CALL],
    }  # fmt: skip
    message = read(row, CLAUDE)
    assert (message.content, message.reasoning) == ([TEXT], "hm")
    phase = {"type": "message", "phase": "commentary"}
    extra = {"type": "extra_content", "extra_content": SIGNATURE}
    assert message.blocks == (THINKING, DETAIL, SEALED, phase, extra)
    assert message.tool_calls[0].extra == SIGNATURE
    assert type(message).from_dict(json.loads(json.dumps(message.to_dict()))).to_dict() == message.to_dict()


@pytest.mark.behaviour("SESS-02b")
def test_a_call_has_an_id_and_its_item_another() -> None:
    call = {"id": "fc_1", "call_id": "call_1", "type": "function", "function": FUNCTION}
    for answered in ("fc_1", "call_1"):
        rows = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": answered, "content": "done"},
        ]
        _, said, result = read_history(rows, RESPONSES).messages
        ids = (said.tool_calls[0].id, said.tool_calls[0].item_id, result.tool_call_id)
        assert ids == ("call_1", "fc_1", "call_1")
        assert said.to_dict()["tool_calls"] == [{**call, "id": "call_1", "response_item_id": "fc_1"}]


@pytest.mark.behaviour("PREP-07")
@pytest.mark.parametrize("role", ["system", "developer"])
def test_rows_of_the_system_at_the_beginning_join_the_prompt(role: str) -> None:
    history = [
        {"role": role, "content": "Speak Latin."},
        {"role": role, "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
    ]
    played = play([text("salve")], history=history)
    prompt, *rows = played.server.bodies[0]["messages"]
    assert prompt["role"] == "system"
    assert "Speak Latin.\n\nBe brief." in prompt["content"]
    assert [row["role"] for row in rows] == ["user", "assistant", "user"]
    assert [row["role"] for row in played.result.messages] == ["user", "assistant", "user", "assistant"]


def test_what_the_caller_says_to_the_system_twice_is_said_once() -> None:
    history = [{"role": "system", "content": "Speak Latin."}]
    supplied = read_history(history, DEEPSEEK)
    assert supplied.with_prompt("Be brief.") == "Be brief.\n\nSpeak Latin."
    assert supplied.with_prompt("Speak Latin.") == supplied.with_prompt(None) == "Speak Latin."
    assert read_history([], DEEPSEEK).with_prompt(None) is None


@pytest.mark.behaviour("PREP-07")
@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (
            [{"role": "user", "content": "q"}, {"role": "system", "content": "Speak Latin."}],
            "a system row follows other rows of conversation_history; given: Speak Latin.; allowed: system rows at"
            " its beginning",
        ),
        (
            [{"role": "assistant", "content": "a", "reasoning_details": "hm"}],
            "reasoning_details of a message has the",
        ),
        (
            [{"role": "assistant", "content": "a", "codex_reasoning_items": ["x"]}],
            "codex_reasoning_items of a message",
        ),
        (
            [{"role": "assistant", "content": "a", "tool_calls": 3}],
            "tool_calls of a message has the wrong type",
        ),
        (
            [{"role": "tool", "content": "a", "tool_call_id": ["x"]}],
            "tool_call_id of a message has the wrong",
        ),
        (["x"], "not a message"),
    ],
)
def test_what_cannot_be_taken_is_refused_in_one_line(rows: list[Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_history(rows, DEEPSEEK)
    assert str(refused.value).startswith(line), str(refused.value)
    assert "\n" not in str(refused.value)


FIELDS = (
    "reasoning", "reasoning_content", "reasoning_details", "codex_reasoning_items", "codex_message_items",
    "extra_content", "blocks", "issuer",
)  # fmt: skip
ROWS = [[{}], [{"type": "reasoning.text", "text": 1}], [{"type": "thinking", "thinking": {}}], [{"type": []}]]
ODD = json_values() | st.sampled_from([*ROWS, {"a": {}}])


def messages_or_refusal(rows: list[Any], runtime: Runtime) -> tuple[Message, ...] | str:
    try:
        return read_history(rows, runtime).messages
    except ConfigError as refused:
        return str(refused)


@settings(max_examples=300)
@given(
    st.dictionaries(st.sampled_from(FIELDS), ODD, max_size=3),
    st.dictionaries(st.sampled_from(["extra_content", "call_id", "response_item_id", "id"]), ODD, max_size=2),
    st.lists(
        st.sampled_from([TEXT, THINKING, CHUNK]) | st.builds(lambda odd: {**CHUNK, "thinking": odd}, ODD)
    ),
    st.sampled_from([OPENROUTER, DEEPSEEK, RESPONSES, GEMINI, CLAUDE, MISTRAL]),
)
def test_odd_values_are_refused_in_one_line_or_sent(
    fields: dict[str, Any], call: dict[str, Any], content: list[Any], runtime: Runtime
) -> None:
    said = {
        "role": "assistant", "content": content, "tool_calls": [{"id": "c", "function": FUNCTION, **call}],
    }  # fmt: skip
    result = {"role": "tool", "tool_call_id": "c", "content": "r"}
    rows = [{"role": "user", "content": "q"}, {**said, **fields}, result]
    messages = messages_or_refusal(rows, runtime)
    if isinstance(messages, str):
        assert "\n" not in messages
        return
    stored = [one.to_dict() for one in messages]
    assert [Message.from_dict(one).to_dict() for one in stored] == stored
    json.loads(b"".join(WireCopy().messages("", messages, (), View.of(runtime, frozenset()))))


@given(histories(), histories(), st.data())
def test_a_history_that_begins_as_the_session_has_those_very_messages(
    before: list[dict[str, Any]], after: list[dict[str, Any]], data: st.DataObject
) -> None:
    runtime = data.draw(st.sampled_from([OPENROUTER, DEEPSEEK, GEMINI, CLAUDE]))
    known = read_history(before, runtime).messages
    kept = data.draw(st.integers(0, len(before)))
    handed = [{"role": "system", "content": "p"}, *(one.to_dict() for one in known[:kept]), *after]
    read = read_history(handed, runtime, known).messages
    assert all(map(operator.is_, read, known[:kept]))
    assert repr(read) == repr(read_history(handed, runtime).messages)


@pytest.mark.parametrize(
    "fields",
    [
        {"extra_content": {"n": 1}}, {"tool_calls": [{**SIGNED_CALL, "extra_content": {"n": 1}}]},
        {"content": [{"type": "text", "text": "a"}]}, {"reasoning": "hm"},
    ],
)  # fmt: skip
def test_what_may_be_equal_and_yet_be_sent_otherwise_is_read_again(fields: dict[str, Any]) -> None:
    rows = [{"role": "assistant", "content": "a", **fields}]
    known = read_history(rows, OPENROUTER).messages
    again = json.loads(json.dumps(rows).replace("1", "true"))
    assert repr(read_history(again, VLLM, known)) == repr(read_history(again, VLLM))


def test_a_history_that_is_handed_over_again_is_stored_and_written_once() -> None:
    with table([text("one"), text("two"), text("three")]) as (agent, server, _, _):
        first = agent.run_conversation("a", conversation_history=[{"role": "user", "content": "x"}])
        again = agent.run_conversation("b", conversation_history=first.messages)
        changed = [{**first.messages[0], "content": "y"}, *first.messages[1:]]
        agent.run_conversation("c", conversation_history=changed)
        with contextlib.closing(sqlite3.connect(agent.home / "sessions.db")) as database:
            stored = [body for (body,) in database.execute("SELECT body FROM messages ORDER BY number")]
        sent = [[row["content"] for row in chat_rows(body)[1:]] for body in server.bodies]
    assert again.messages[: len(first.messages)] == first.messages
    assert sent == [["x\n\na"], ["x\n\na", "one", "b"], ["y\n\na", "one", "c"]]
    assert len(stored) == len(first.messages) + 2 + len(changed) + 2
