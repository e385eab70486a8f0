"""Reasoning goes back to the provider that made it, and only there. The replies are those in each vendor's
public documentation, and their opaque parts return byte for byte."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_agent import Agent
from fsm_agent.conversation.effects import ApiMode, Runtime
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.vendors import (
    FAMILIES,
    GEMINI_STAND_IN,
    ReasoningFamily,
    issuer_of,
    runtime_family,
)
from fsm_agent.conversation.wire import WireCopy
from fsm_agent.conversation.wire.form import View, dump
from fsm_agent.fsm.codec import restore
from fsm_agent.providers.choose import choose
from fsm_agent.testing import Reply, ScriptedServer, repeat, status, text
from tests.helpers.harness import TOOLS, break_off, table
from tests.helpers.wire_rules import item

CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "echo", "arguments": "{}"}}
THOUGHT, SECRET = "I should look it up.", "EqQBCgIYAhIk+opaque/bytes=="


@dataclass(frozen=True)
class RecordedShape:
    """The pieces that a vendor sends, and the opaque parts of the next request: values by their
    place in the row (or item) that the reply became. Empty: none goes back."""

    model: str
    sent: tuple[dict[str, Any], ...]
    back: Mapping[str, Any]
    api_mode: ApiMode = "chat_completions"


def chunks(*deltas: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    said: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": ""}}]
    said += [*({"delta": delta} for delta in deltas), {"delta": {}, "finish_reason": "tool_calls"}]
    return tuple({"choices": [{"index": 0, **choice}]} for choice in said)


def thinking(*blocks: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """A reply of the Messages API; a block is its beginning, with its deltas under ``then``."""
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"model": "m", "usage": {}}}]
    for index, block in enumerate(blocks):
        deltas = block.pop("then", ())
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    return (*events, item("message_delta", delta={"stop_reason": "tool_use"}), item("message_stop"))


def signed() -> tuple[dict[str, Any], ...]:
    then = ({"type": "thinking_delta", "thinking": THOUGHT}, {"type": "signature_delta", "signature": SECRET})
    return thinking(
        {"type": "thinking", "thinking": "", "signature": "", "then": then},
        {"type": "redacted_thinking", "data": SECRET},
        {"type": "tool_use", "id": "toolu_1", "name": "echo", "input": {}},
    )


USED = item("tool_use", id="toolu_1", name="echo", input={})
SIGNED_THOUGHT = item("thinking", thinking=THOUGHT, signature=SECRET)
SIGNED = {"content": [SIGNED_THOUGHT, item("redacted_thinking", data=SECRET), USED]}
BARE = {"content": [USED]}
UNSIGNED = thinking(
    {"type": "thinking", "thinking": "", "then": ({"type": "thinking_delta", "thinking": THOUGHT},)},
    {"type": "tool_use", "id": "toolu_1", "name": "echo", "input": {}},
)
DETAIL = {"type": "reasoning.text", "text": THOUGHT, "signature": SECRET, "format": "anthropic-claude-v1"}
ENCRYPTED = item("reasoning.encrypted", data=SECRET, id="rs_1", format="openai-responses-v1", index=1)
GOOGLE = {"google": {"thought_signature": SECRET}}
SUMMARY = [item("summary_text", text=THOUGHT)]
SEALED = item("reasoning", id="rs_1", summary=SUMMARY, encrypted_content=SECRET)
FUNCTION = item("function_call", id="fc_1", call_id="call_1", name="echo", arguments="{}", status="completed")
SPOKEN_CHUNK = [{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}]
CONTENT = chunks(
    {"reasoning_content": THOUGHT[:9]}, {"reasoning_content": THOUGHT[9:]}, {"tool_calls": [CALL]}
)
ONE_CALL = {k: v for k, v in CALL.items() if k != "index"}
RECORDED: dict[str, RecordedShape] = {
    "anthropic": RecordedShape("anthropic:claude-sonnet-4-5", signed(), SIGNED, "anthropic_messages"),
    "claude": RecordedShape("zai:claude-by-way-of-others", signed(), SIGNED, "anthropic_messages"),
    "unsigned": RecordedShape(
        "moonshot:kimi-k2.5",
        UNSIGNED,
        {"content": [{"type": "thinking", "thinking": THOUGHT}, *BARE["content"]]},
        "anthropic_messages",
    ),
    "messages": RecordedShape("zai:glm-4.6", signed(), BARE, "anthropic_messages"),
    "responses": RecordedShape(
        "openai-responses:gpt-5",
        (
            {"type": "response.output_item.done", "output_index": 0, "item": SEALED},
            {"type": "response.output_item.done", "output_index": 1, "item": FUNCTION},
            {"type": "response.completed", "response": {"status": "completed"}},
        ),
        {key: value for key, value in SEALED.items() if key != "id"},
        "codex_responses",
    ),
    "openrouter": RecordedShape(
        "openrouter:anthropic/claude-sonnet-4.5",
        chunks(
            {"reasoning": THOUGHT, "reasoning_details": [{**DETAIL, "index": 0, "signature": None}]},
            {"reasoning_details": [{"type": "reasoning.text", "index": 0, "signature": SECRET}, ENCRYPTED]},
            {"tool_calls": [CALL]},
        ),
        {"reasoning_details": [{**DETAIL, "index": 0}, ENCRYPTED]},
    ),
    "gemini 2": RecordedShape(
        "gemini:gemini-2.5-pro",
        chunks({"tool_calls": [{**CALL, "extra_content": GOOGLE}]}),
        {"tool_calls": [{**ONE_CALL, "extra_content": GOOGLE}]},
    ),
    "gemini": RecordedShape(
        "gemini:gemini-3-pro-preview",
        chunks(
            {"content": "Looking.", "extra_content": {"google": {"thought": True}}},
            {"extra_content": GOOGLE},
            {"tool_calls": [{**CALL, "extra_content": GOOGLE}]},
        ),
        {"tool_calls": [{**ONE_CALL, "extra_content": GOOGLE}], "extra_content": GOOGLE},
    ),
    "deepseek": RecordedShape("deepseek:deepseek-v4-pro", CONTENT, {"reasoning_content": THOUGHT}),
    "kimi": RecordedShape("moonshot:kimi-k2-thinking", CONTENT, {"reasoning_content": THOUGHT}),
    "glm": RecordedShape("zai:glm-4.7", CONTENT, {"reasoning_content": THOUGHT}),
    "qwen": RecordedShape("qwen:qwen3-max", CONTENT, {"reasoning_content": THOUGHT}),
    "mistral": RecordedShape(
        "mistral:magistral-medium-latest",
        chunks({"content": SPOKEN_CHUNK}, {"tool_calls": [CALL]}),
        {"content": SPOKEN_CHUNK},
    ),
    "vllm": RecordedShape(
        "vllm:openai/gpt-oss-120b",
        chunks({"reasoning": THOUGHT}, {"tool_calls": [CALL]}),
        {"reasoning": THOUGHT},
    ),
    "llama.cpp": RecordedShape("llamacpp:qwen3", CONTENT, {"reasoning_content": THOUGHT}),
    "chat": RecordedShape(
        "groq:openai/gpt-oss-20b", chunks({"reasoning": THOUGHT}, {"tool_calls": [CALL]}), {}
    ),
}
MID_TURN = ["anthropic", "responses", "openrouter", "gemini", "deepseek", "mistral", "vllm"]
"""One of each way in which a vendor's thoughts are sent; the others are tried in the slow suite."""
OPAQUE = (THOUGHT, SECRET)
WHERE = ("reasoning_content", "reasoning_details", "reasoning", "extra_content")


def rows_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows without the marks of the cache."""
    rows: list[dict[str, Any]] = body.get("messages") or body["input"]
    for row in rows:
        for part in row["content"] if isinstance(row.get("content"), list) else ():
            part.pop("cache_control", None)
    return rows


def the_reply_in(body: Mapping[str, Any]) -> dict[str, Any]:
    """The first row behind the user's that the reply has become."""
    return next(row for row in rows_of(body) if row.get("role") not in ("system", "developer", "user"))


def asked_anew(history: list[dict[str, Any]], server: ScriptedServer, recorded: RecordedShape) -> str:
    """The body of the next request when the history is handed to a new agent in front of ``server``."""
    options: dict[str, Any] = {"api_mode": recorded.api_mode, "tools": TOOLS, "toolsets": []}
    with Agent(recorded.model, base_url=server.url, api_key="k", **options) as agent:
        agent.run_conversation("and now?", conversation_history=history)
    return json.dumps(rows_of(server.bodies[-1]))


@pytest.mark.behaviour("BUILD-09", "BUILD-13", "BUILD-09d", "BUILD-09f")
@pytest.mark.parametrize("name", RECORDED)
def test_it_goes_back_to_its_issuer_as_it_came_and_to_nobody_else(name: str) -> None:
    vendor = RECORDED[name]
    said = Reply(shape="empty", raw=tuple(map(json.dumps, vendor.sent)))
    script = [said, text("done"), text("again")]
    options: dict[str, Any] = {"api_key": "k", "api_mode": vendor.api_mode}
    with table(script, model=vendor.model, **options) as (agent, server, *_):
        chosen = choose(vendor.model, base_url=server.url, **options)
        assert runtime_family(chosen.runtime()).name == name
        history = agent.run_conversation("go").messages
        row = the_reply_in(server.bodies[1])
        assert {key: row.get(key) for key in vendor.back} == dict(vendor.back)
        assert {key for key in WHERE if key in row} <= set(vendor.back)
        if not vendor.back:
            assert not any(part in json.dumps(server.bodies[1]) for part in OPAQUE)
        again = asked_anew(history, server, vendor)
        if vendor.api_mode != "anthropic_messages":  # there thoughts are of the loop they were thought in
            assert json.dumps(row) in again
    with ScriptedServer([text("ok")]) as elsewhere:
        other = asked_anew(history, elsewhere, vendor)
        assert not any(part in other for part in OPAQUE)


@pytest.mark.behaviour("BUILD-09f")
def test_each_family_has_a_recorded_shape() -> None:
    assert set(RECORDED) == {family.name for family in FAMILIES}
    assert len(FAMILIES) == len(RECORDED)


@pytest.mark.behaviour("BUILD-09")
@pytest.mark.parametrize(
    "name",
    [*MID_TURN, *(pytest.param(name, marks=pytest.mark.slow) for name in RECORDED if name not in MID_TURN)],
)
def test_none_of_it_goes_to_any_other_family_in_mid_turn(name: str) -> None:
    """The reply with the call is of one vendor; then each other family is asked, the last of which answers."""
    vendor = RECORDED[name]
    others = {family: recorded for family, recorded in RECORDED.items() if family != name}
    said, no = Reply(shape="empty", raw=tuple(map(json.dumps, vendor.sent))), status(401, {"error": "no"})
    with ScriptedServer([*[no] * (len(others) - 1), text("done")]) as second:
        fallbacks = [
            {"model": one.model, "base_url": second.url, "api_key": "k", "api_mode": one.api_mode}
            for one in others.values()
        ]
        settings = {"max_attempts_per_call_block": 50}
        options: dict[str, Any] = {"api_mode": vendor.api_mode, "fallbacks": fallbacks, "settings": settings}
        with table([said, no], model=vendor.model, **options) as (agent, *_):
            assert agent.chat("go") == "done"
        bodies = dict(zip(others, map(json.dumps, map(rows_of, second.bodies)), strict=True))
    assert not [family for family, body in bodies.items() if any(part in body for part in OPAQUE)]
    blank = [family for family, body in bodies.items() if '"reasoning_content": " "' in body]
    assert blank == [family for family in ("deepseek", "kimi") if family != name]
    stood_in = [family for family, body in bodies.items() if GEMINI_STAND_IN in body]
    assert stood_in == [family for family in ("gemini",) if family != name]


@pytest.mark.parametrize(
    ("runtime", "issuer"),
    [
        (Runtime("deepseek", "m", "https://api.deepseek.com/v1"), "deepseek:https://api.deepseek.com/v1"),
        (Runtime("own", "m", "https://me:pw@h.example:8/v1?key=k", manners="deepseek"),
         "own:https://h.example:8/v1"),
        (Runtime("openrouter", "a/b", "https://o.example"), "openrouter:https://o.example#a/b"),
        (Runtime("scripted", "m"), "scripted:"),
    ],
)  # fmt: skip
def test_an_issuer_is_a_provider_an_address_and_sometimes_a_model(runtime: Runtime, issuer: str) -> None:
    assert issuer_of(runtime) == issuer


def test_mistral_gets_ids_of_nine_letters_and_digits_and_its_own_as_they_are() -> None:
    calls = tuple(ToolCall(given, "echo", "{}") for given in ("D681PevKs", "call_abcdefghijkl", "toolu-1"))
    results = [Message("tool", "done", tool_call_id=call.id) for call in calls]
    rows = [Message("user", "q"), Message("assistant", None, calls), *results]
    view = View.of(Runtime("mistral", "m"), frozenset())
    sent = json.loads(b"".join(WireCopy().messages("", rows, (), view)))
    ids = [call["id"] for call in sent[1]["tool_calls"]]
    assert ids[0] == "D681PevKs"
    assert all(len(one) == 9 and one.isalnum() for one in ids)
    assert [row["tool_call_id"] for row in sent[2:]] == ids
    others = WireCopy().messages("", rows, (), View())
    sent_ids = [call["id"] for call in json.loads(b"".join(others))[1]["tool_calls"]]
    assert sent_ids == [call.id for call in calls]


def test_what_older_journals_and_sessions_hold_is_read() -> None:
    """A block named its issuer. Reasoning, and a signature beside a call, did not: they are kept, but are
    never sent."""
    block = item("thinking", thinking="hm", signature=SECRET, issuer="anthropic:https://a.example")
    signature = {"type": "extra_content", "tool_call_id": "c", "extra_content": GOOGLE}
    stored = {"role": "assistant", "content": "a", "reasoning": THOUGHT, "blocks": [block, signature]}
    row = Message.from_dict(stored)
    assert row.to_dict() == stored
    claude = Runtime("anthropic", "claude-sonnet-4-5", "https://a.example", api_mode="anthropic_messages")
    gemini, deepseek = Runtime("gemini", "gemini-3"), Runtime("deepseek", "m")
    for runtime, parts in ((claude, [SECRET]), (gemini, []), (deepseek, [])):
        view = View.of(runtime, frozenset())
        sent = b"".join(WireCopy().messages("", [Message("user", "q"), row], (), view)).decode()
        assert [part for part in OPAQUE if part in sent] == parts
    known = restore(Runtime, {"provider": "deepseek", "model": "m", "reasoning_replay": "reasoning_content"})
    assert runtime_family(known).name == "deepseek"


@pytest.mark.parametrize("name", ["gemini", "deepseek"])
def test_a_turn_that_goes_on_in_another_process_still_has_them(name: str, tmp_path: Path) -> None:
    vendor = RECORDED[name]
    said = Reply(shape="empty", raw=tuple(map(json.dumps, vendor.sent)))

    def answer(request: Any) -> Reply:
        return text("done") if any(row["role"] == "tool" for row in rows_of(request.body)) else said

    def agent_at(url: str, home: Path) -> Agent:
        return Agent(vendor.model, base_url=url, api_key="k", tools=TOOLS, toolsets=[], home=home)

    with ScriptedServer(repeat(answer)) as server:
        for requests in (4, 8, 12, 15):
            home = tmp_path / str(requests)
            one = agent_at(server.url, home)
            turn = one.start("go")
            asyncio.run(break_off(one, turn, requests))
            assert agent_at(server.url, home).resume(turn.id).run().final_response == "done"
            row = the_reply_in(server.bodies[-1])
            assert {key: row.get(key) for key in vendor.back} == dict(vendor.back)


KINDS = ("signed", "unsigned", "redacted", "detail", "sealed", "extra")
ISSUERS = ("here", "there", "elsewhere")
MARK = re.compile(r"opaque-[0-9a-z-]+")


def google(mark: str) -> dict[str, Any]:
    return {"google": {"thought_signature": mark}}


def block_of(kind: str, mark: str) -> dict[str, Any]:
    """An opaque part with a mark in it that no other has."""
    return {
        "signed": {"type": "thinking", "thinking": "hm", "signature": mark, "new": {"by": ["vendor"]}},
        "unsigned": {"type": "thinking", "thinking": mark, "signature": ""},
        "redacted": {"type": "redacted_thinking", "data": mark},
        "detail": {"type": "reasoning.encrypted", "index": 0, "data": mark, "format": None},
        "sealed": {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": mark},
        "extra": {"type": "extra_content", "extra_content": google(mark)},
    }[kind]


@st.composite
def assistants(draw: st.DrawFn) -> Any:
    """What one row of the assistant has: who made it, kinds of blocks, calls with a signature or none; and
    whether older stores named the issuer with each block."""
    return (
        draw(st.none() | st.sampled_from(ISSUERS)),
        draw(st.lists(st.sampled_from(KINDS), max_size=3, unique=True)),
        draw(st.lists(st.booleans(), max_size=2)), draw(st.booleans()), draw(st.booleans()),
    )  # fmt: skip


def history_of(drawn: Sequence[Any]) -> list[Message]:
    rows = [Message("user", "q")]
    for at, (issuer, kinds, calls, asked_between, old) in enumerate(drawn):
        blocks = [block_of(kind, f"opaque-{at}-{kind}") for kind in kinds]
        if old:
            blocks = [{**block, "issuer": issuer} for block in blocks]
        made = tuple(
            ToolCall(f"c{at}{n}", "echo", "{}", extra=google(f"opaque-{at}-call{n}") if is_signed else None)
            for n, is_signed in enumerate(calls)
        )
        opaque: dict[str, Any] = {"reasoning": f"opaque-{at}-text", "blocks": tuple(blocks), "issuer": issuer}
        rows.append(Message("assistant", "said", made, **opaque))
        rows += [Message("tool", "done", tool_call_id=call.id) for call in made]
        if asked_between or not made:
            rows.append(Message("user", "and?"))
    return rows


def expected(rows: Sequence[Message], family: ReasoningFamily) -> Iterator[bytes]:
    """The parts that must be in the request to "here", as they are written in it."""
    last_word = max(at for at, row in enumerate(rows) if row.role == "user")
    for at, row in enumerate(rows):
        if row.role != "assistant" or row.issuer != "here":
            continue
        blocks = [{k: v for k, v in block.items() if k != "issuer"} for block in row.blocks]
        current = at > last_word
        match family.replay:
            case "text":
                yield dump({family.field: row.reasoning})[1:-1]
            case "chunks":
                yield dump({"type": "thinking", "thinking": [{"type": "text", "text": row.reasoning}]})
            case "details":
                yield from (dump(block) for block in blocks if block["type"] == "reasoning.encrypted")
            case "extras":
                yield from (
                    dump({"extra_content": call.extra})[1:-1] for call in row.tool_calls if call.extra
                )
                yield from (dump(one["extra_content"]) for one in blocks if one["type"] == "extra_content")
            case "signed" if current:
                for one in blocks:
                    if one["type"] in ("thinking", "redacted_thinking"):
                        as_it_is = one.get("signature") or "data" in one
                        yield dump(one if as_it_is else {"type": "text", "text": one["thinking"]})
            case "unsigned" if current:
                for one in blocks:
                    if one["type"] == "thinking" and not one["signature"]:
                        yield dump({"type": "thinking", "thinking": one["thinking"]})
            case "items":
                for one in blocks:
                    if one["type"] == "reasoning":
                        yield dump({k: v for k, v in one.items() if k != "id"})


@given(st.lists(assistants(), max_size=5), st.sampled_from(FAMILIES))
@settings(max_examples=300)
def test_a_request_holds_the_opaque_parts_of_its_issuer_and_no_others(
    drawn: list[Any], family: ReasoningFamily
) -> None:
    rows = history_of(drawn)
    view = View(family.mode, family=family, issuer="here")
    sent = b"".join(WireCopy().messages("prompt", rows, (), view))
    parts = list(expected(rows, family))
    assert sorted(MARK.findall(sent.decode())) == sorted(MARK.findall(b"".join(parts).decode()))
    assert all(sent.count(part) >= 1 for part in parts)
    for issuer in ("", "a stranger"):
        other = View(family.mode, family=family, issuer=issuer)
        assert not MARK.search(b"".join(WireCopy().messages("", rows, (), other)).decode())


def test_rows_that_become_one_keep_the_parts_of_each() -> None:
    details = [{"type": "reasoning.text", "text": text} for text in ("one", "two")]
    rows = [
        Message("user", "q"),
        *(Message("assistant", "a", blocks=(one,), issuer="here") for one in details),
    ]
    openrouter = next(family for family in FAMILIES if family.name == "openrouter")
    sent = b"".join(WireCopy().messages("", rows, (), View(family=openrouter, issuer="here")))
    assert dump({"reasoning_details": details})[1:-1] in sent
