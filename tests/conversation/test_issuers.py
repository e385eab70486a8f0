"""Whatever a history holds, a request contains the opaque parts of its issuer, byte for byte, and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.thinking import FAMILIES, ReasoningFamily
from fsm_agent.conversation.wire import View, WireCopy
from fsm_agent.conversation.wire.form import dump
from fsm_agent.testing import Reply, ScriptedServer, call, repeat, status, text, tools
from tests.helpers.harness import table

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
        draw(st.lists(st.booleans(), max_size=2)),
        draw(st.booleans()),
        draw(st.booleans()),
    )


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


@given(st.lists(assistants(), max_size=5), st.sampled_from(FAMILIES))
def test_a_model_that_nobody_names_gets_none(drawn: list[Any], family: ReasoningFamily) -> None:
    for issuer in ("", "a stranger"):
        view = View(family.mode, family=family, issuer=issuer)
        assert not MARK.search(b"".join(WireCopy().messages("", history_of(drawn), (), view)).decode())


def test_rows_that_become_one_keep_the_parts_of_each() -> None:
    details = [{"type": "reasoning.text", "text": text} for text in ("one", "two")]
    rows = [
        Message("user", "q"),
        *(Message("assistant", "a", blocks=(one,), issuer="here") for one in details),
    ]
    openrouter = next(family for family in FAMILIES if family.name == "openrouter")
    sent = b"".join(WireCopy().messages("", rows, (), View(family=openrouter, issuer="here")))
    assert dump({"reasoning_details": details})[1:-1] in sent


THOUGHT = "what only its maker may read"


def test_a_thought_signature_goes_back_with_its_call_and_in_the_next_turn() -> None:
    function = {"name": "echo", "arguments": "{}"}
    made = {"id": "c", "type": "function", "function": function, "extra_content": google("signed-4711")}
    message = {"role": "assistant", "content": None, "tool_calls": [made]}
    first = Reply(shape="verbatim", body={"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    with table([first, text("done"), text("again")], model="gemini:gemini-3-pro") as (agent, server, *_):
        assert agent.chat("go") == "done"
        assert agent.chat("and now?") == "again"
        sent = [
            row["tool_calls"] for body in server.bodies for row in body["messages"] if "tool_calls" in row
        ]
    assert [calls[0]["extra_content"] for calls in sent] == [google("signed-4711")] * 2


def test_a_fallback_does_not_get_the_thoughts_of_the_primary() -> None:
    primary = [tools(call("echo", {}), reasoning=THOUGHT), repeat(status(401))]
    with ScriptedServer([text("done")]) as deepseek:
        fallback = {"model": "deepseek:deepseek-reasoner", "base_url": deepseek.url, "api_key": "k"}
        with table(primary, model="anthropic:claude-sonnet-4-5", fallbacks=[fallback]) as (agent, claude, *_):
            result = agent.run_conversation("go")
    assert result.final_response == "done"
    assert result.messages[1]["reasoning"] == THOUGHT
    assert THOUGHT in json.dumps(claude.bodies[1])
    assert THOUGHT not in json.dumps(deepseek.bodies)
