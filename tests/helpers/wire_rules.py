"""Histories as they may be stored, and the rules of each wire, written down from its documentation and not from the
code that writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from hypothesis import strategies as st

from fsm_agent.conversation.effects import ApiMode
from fsm_agent.conversation.history import violations
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.vendors import family_of
from fsm_agent.conversation.wire import WireCopy
from fsm_agent.conversation.wire.form import View
from fsm_agent.support.texts import clean

HERE = "here"
"""The issuer that the views name."""
TEXT = st.text(max_size=12) | st.sampled_from(["", "  ", "\ud800", "a\x00b", "<think>x</think>"])
IDS = st.sampled_from(["call_0", "call.1", "call_1", "ü", "", "x" * 80])
CALLS = st.builds(
    ToolCall, id=IDS, name=st.sampled_from(["echo", "put", "", "a.b c!"]),
    arguments=st.sampled_from(["{}", '{"b":1,"a":2}', "", "{broken", "[1]"]),
)  # fmt: skip
PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
IMAGES = st.sampled_from(
    ["data:image/jpg;base64,AAAA", "data:,", "data:image/tiff;base64,AAAA", "https://x.example/y.png", ""]
)
PARTS = st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, TEXT)
    | st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, IMAGES)
    | st.just(PNG),
    max_size=3,
)
OPAQUE = [
    {"type": "thinking", "thinking": "hm", "signature": "signed"},
    {"type": "thinking", "thinking": "hm", "signature": "signed", "before": "call_0"},
    {"type": "thinking", "thinking": "hm", "signature": "", "before": "call.1"},
    {"type": "redacted_thinking", "data": "dark"},
    {"type": "reasoning.text", "text": "of another wire"},
    {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "sealed"},
    {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": ""},
    {"type": "message", "phase": "commentary"},
]
BLOCKS = st.lists(
    st.builds(
        lambda part, issuer: {**part, "issuer": issuer},
        st.sampled_from(OPAQUE),
        st.sampled_from([HERE, "elsewhere"]),
    ),
    max_size=3,
).map(tuple)
MESSAGES = st.one_of(
    st.builds(Message, role=st.just("user"), content=TEXT | PARTS, wire=st.sampled_from([True, True, False])),
    st.builds(Message, role=st.just("assistant"), content=TEXT | st.none() | PARTS,
              tool_calls=st.lists(CALLS, max_size=3).map(tuple), blocks=BLOCKS, wire=st.booleans()),
    st.builds(Message, role=st.just("tool"), content=TEXT | PARTS, tool_call_id=IDS),
    st.builds(Message, role=st.just("system"), content=TEXT),
)  # fmt: skip
ROUNDS = st.builds(
    lambda calls, said, blocks: [
        Message("assistant", said, tool_calls=tuple(calls), blocks=blocks),
        *(Message("tool", "done", tool_call_id=call.id) for call in calls),
    ],
    st.lists(CALLS, min_size=1, max_size=3),
    TEXT,
    BLOCKS,
)
"""Calls that are all answered."""
HISTORIES = st.lists(ROUNDS | st.lists(MESSAGES, max_size=2), max_size=7).map(
    lambda parts: list(chain(*parts))
)
SCAFFOLD = (Message("assistant", "so far"), Message("user", "continue"))
CHAT, RESPONSES, MESSAGES_API = ("chat_completions", "codex_responses", "anthropic_messages")
CLAUDE = family_of(MESSAGES_API, "anthropic")
NATIVE = View(MESSAGES_API, family=CLAUDE, issuer=HERE)
MARKED = View(MESSAGES_API, family=CLAUDE, issuer=HERE, marks=True)
FLAT = frozenset({"flat_tool_content"})
VIEWS: dict[ApiMode, list[View]] = {
    "chat_completions": [View(), View(family=family_of(CHAT, "openrouter"), issuer=HERE), View(vision=False)],
    "codex_responses": [View(RESPONSES, issuer=HERE),
                        View(RESPONSES, vision=False, repairs=frozenset({"ascii"}))],
    "anthropic_messages": [View(MESSAGES_API), NATIVE, MARKED, View(MESSAGES_API, vision=False),
        View(MESSAGES_API, repairs=FLAT)],
}  # fmt: skip
"""Ways in which each wire may be asked to write a history."""


def item(kind: str, **fields: Any) -> dict[str, Any]:
    """An item, a block or a part of any wire."""
    return {"type": kind, **fields}


def exchange(*calls: ToolCall, blocks: Any = (), said: str | None = None) -> list[Message]:
    """A question, calls, and their results, which are r0, r1 and so on."""
    results = (Message("tool", f"r{number}", tool_call_id=call.id) for number, call in enumerate(calls))
    return [Message("user", "q"), Message("assistant", said, tool_calls=calls, blocks=blocks), *results]


def anthropic_violations(messages: list[dict[str, Any]]) -> list[str]:
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
        found.append(f"not a valid call: {block}")
    if block["type"] == "tool_use" and not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", block["name"]):
        found.append(f"not a valid name: {block['name']!r}")
    if block["type"] in ("thinking", "redacted_thinking") and "cache_control" in block:
        found.append("a mark in a thought")
    for inner in block["content"] if isinstance(block.get("content"), list) else ():
        found += _block_violations(inner)
    text = json.dumps(block, ensure_ascii=False)
    return [*found, *(["text that is not valid"] if text != clean(text) else [])]


def responses_faults(sent: Sequence[Mapping[str, Any]]) -> list[str]:
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
            parts = _list(item["content"])
            if not parts or any(not part.get("text") and "image_url" not in part for part in parts):
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


RULES: dict[ApiMode, Callable[[list[dict[str, Any]]], list[str]]] = {
    "chat_completions": violations,
    "codex_responses": responses_faults,
    "anthropic_messages": anthropic_violations,
}
"""What is wrong with the rows of a request, in words."""


def written(
    wire: WireCopy, history: Sequence[Message], scaffold: tuple[Message, ...] = (), view: View | None = None
) -> bytes:
    """The messages as they go out."""
    return b"".join(wire.messages("prompt", history, scaffold, view or View()))
