"""From messages to a request and back: nothing is lost that the API mode can carry, in any of the three."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.conversation.effects import ApiMode, Runtime
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.wire import WireCopy, format_of
from fsm_agent.conversation.wire.form import Ask, View

CHARACTERS = st.characters(codec="utf-8", exclude_characters="\x00")
WORDS = st.text(CHARACTERS, min_size=1, max_size=20).filter(lambda t: t == t.strip() and t)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | WORDS,
    lambda v: st.lists(v, max_size=2) | st.dictionaries(WORDS, v, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["path", "text", "n"]), VALUES, max_size=3)
PIXEL = "iVBORw0KGgo="
Said = tuple[Any, ...]


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """As the engine stores them: a request, rounds of calls with all results, an answer; several times."""
    history: list[Message] = []
    for turn in range(draw(st.integers(1, 3))):
        history.append(draw(requests()))
        for number in range(draw(st.integers(0, 3))):
            history += draw(tool_rounds(f"{turn}_{number}"))
        history.append(Message("assistant", draw(WORDS)))
    return [*history, draw(requests())]


@st.composite
def requests(draw: st.DrawFn) -> Message:
    words = draw(WORDS)
    if draw(st.integers(0, 3)):
        return Message("user", words)
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    return Message("user", [{"type": "text", "text": words}, image])


@st.composite
def tool_rounds(draw: st.DrawFn, number: str) -> list[Message]:
    calls = tuple(
        ToolCall(f"call_{number}_{i}", draw(st.sampled_from(["echo", "put"])), json.dumps(draw(ARGUMENTS)))
        for i in range(draw(st.integers(1, 3)))
    )
    results = [Message("tool", draw(WORDS), tool_call_id=call.id, name=call.name) for call in calls]
    return [Message("assistant", draw(st.none() | WORDS), tool_calls=calls), *results]


def said(history: list[Message]) -> list[Said]:
    """What a conversation says, independent of any wire."""
    return [part for row in history for part in _said(row)]


def _said(row: Message) -> list[Said]:
    if row.role == "tool":
        return [("result", row.tool_call_id, row.text)]
    parts: list[Said] = [(row.role, row.text)] if row.text else []
    if isinstance(row.content, list):
        parts += [("image", PIXEL) for part in row.content if part["type"] == "image_url"]
    return parts + [("call", call.id, call.name, json.loads(call.arguments)) for call in row.tool_calls]


def as_list(content: Any, kind: str = "text") -> list[dict[str, Any]]:
    return content if isinstance(content, list) else [{"type": kind, "text": content}]


def from_chat(body: dict[str, Any]) -> list[Said]:
    parts: list[Said] = []
    for row in body["messages"]:
        if row["role"] == "tool":
            parts.append(("result", row["tool_call_id"], row["content"]))
        if row["role"] in ("tool", "system"):
            continue
        for item in as_list(row["content"]):
            if item["type"] == "text" and item["text"]:
                parts.append((row["role"], item["text"]))
            elif item["type"] == "image_url":
                parts.append(("image", item["image_url"]["url"].split(",")[1]))
        for call in row.get("tool_calls", ()):
            made = call["function"]
            parts.append(("call", call["id"], made["name"], json.loads(made["arguments"])))
    return parts


def from_responses(body: dict[str, Any]) -> list[Said]:
    parts: list[Said] = []
    for item in body["input"]:
        match item.get("type", "message"):
            case "function_call":
                parts.append(("call", item["call_id"], item["name"], json.loads(item["arguments"])))
            case "function_call_output":
                parts.append(("result", item["call_id"], item["output"]))
            case "message":
                for part in as_list(item["content"], "input_text"):
                    if part["type"] in ("input_text", "output_text"):
                        parts.append((item["role"], part["text"]))
                    elif part["type"] == "input_image":
                        parts.append(("image", part["image_url"].split(",")[1]))
    return parts


def from_anthropic(body: dict[str, Any]) -> list[Said]:
    parts: list[Said] = []
    for row in body["messages"]:
        for block in as_list(row["content"]):
            match block["type"]:
                case "text":
                    parts.append((row["role"], block["text"]))
                case "image":
                    parts.append(("image", block["source"]["data"]))
                case "tool_use":
                    parts.append(("call", block["id"], block["name"], block["input"]))
                case "tool_result":
                    inner = block["content"]
                    text = inner if isinstance(inner, str) else "".join(part["text"] for part in inner)
                    parts.append(("result", block["tool_use_id"], text))
    return parts


READERS: dict[ApiMode, Callable[[dict[str, Any]], list[Said]]] = {
    "chat_completions": from_chat, "codex_responses": from_responses, "anthropic_messages": from_anthropic,
}  # fmt: skip


@pytest.mark.parametrize("mode", READERS)
@given(history=conversations())
def test_nothing_is_lost_on_the_way(mode: ApiMode, history: list[Message]) -> None:
    runtime = Runtime("openai", "some-model", api_mode=mode)
    pieces = WireCopy().messages("You help.", history, (), View.of(runtime, frozenset()))
    body = json.loads(format_of(mode).body(Ask(runtime, "You help."), pieces))
    assert READERS[mode](body) == said(history)
