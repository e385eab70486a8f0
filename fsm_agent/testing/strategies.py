"""Hypothesis strategies for input from outside: replies, tool calls, histories, error bodies, usage,
interruptions.

Every strategy yields values of the package's own types, so that a failing case can be pasted into a test.
Needs ``hypothesis`` (the extra ``testing``).

>>> from fsm_agent.testing.strategies import replies
>>> @given(script=st.lists(replies(tools=[lookup])))
... def test_every_turn_ends(script): ...
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import ModelReply, ToolCall, Usage
from fsm_agent.errors import ConfigError
from fsm_agent.providers.scripted.replies import (
    SERVED,
    Call,
    Reply,
    bad_json,
    blank,
    call,
    content_filter,
    cut,
    cut_tool_call,
    drop,
    empty_sse,
    json_reply,
    length,
    malformed_chunk,
    no_finish,
    overflow,
    reasoning,
    refusal,
    slow,
    status,
    text,
    tools,
)
from fsm_agent.support.installation import install_command
from fsm_agent.tools import Tool

__all__ = [
    "Moment",
    "answers_by_kind",
    "arguments",
    "awkward_texts",
    "error_bodies",
    "failures",
    "histories",
    "json_values",
    "malformed_calls",
    "moments",
    "replies",
    "small_settings",
    "tool_calls",
    "usages",
    "windows",
]


# ----------------------------------------------------------------------------------------------------
# Every kind of provider answer, by name: one example for each that users have reported.
#
# >>> from fsm_agent.testing.strategies import KINDS
# >>> ScriptedModel([KINDS["429"], KINDS["cut"], KINDS["text"]])
#
# They need no tool but ``echo``, which the invalid calls name. ``fsm_agent.testing.strategies.replies`` draws
# from them.


Answer = Reply | ModelReply | Failure


def error_body(message: str, code: str | None = None, kind: str = "invalid_request_error") -> dict[str, Any]:
    """Return the JSON body of an error as most providers write it."""
    return {"error": {"message": message, "code": code, "type": kind}}


SAID: Mapping[str, Answer] = {
    "text": text("an answer."),
    "unreported": text("without usage", usage=None),
    "announced": text("I'll look at the files now."),
    "thought text": text("<think>hm</think>so it is"),
    "open think": text("<think>never closed"),
    "open scratchpad": text("<scratchpad>never closed"),
    "slow": slow("one two three", 0.5),
    "bad json": bad_json(),
    "blank": blank(),
    "reasoning": reasoning("hm, let me see"),
    "length": length("part one, "),
    "incomplete": ModelReply("half of ", finish="incomplete", usage=SERVED),
    "incomplete thinking": ModelReply(reasoning="hm", finish="incomplete", usage=SERVED),
    "length thinking": length("<think>abc"),
    "length blank": length(""),
    "cut call": cut_tool_call(),
    "content filter": content_filter(),
    "filtered text": content_filter("half a sentence"),
    "refusal": refusal("no, sorry"),
    "whole": json_reply(text("a whole reply")),
}
"""Whole replies, useful or not."""

REFUSED: Mapping[str, Answer] = {
    "400": status(400),
    "401": status(401),
    "402": status(402),
    "403": status(403),
    "404": status(404, "Not Found"),
    "413": status(413),
    "422": status(422),
    "429": status(429),
    "429 with Retry-After": status(429, headers={"Retry-After": "7"}),
    "500": status(500),
    "502 page": status(502, "<html><title>Bad Gateway</title></html>"),
    "503": status(503, headers={"Retry-After": "0"}),
    "529": status(529),
    "no such model": status(404, error_body("The model does not exist", "model_not_found")),
    "no streaming": status(400, error_body("streaming is not supported by this model")),
    "no images": status(400, error_body("this model does not support image input")),
    "signature": status(400, error_body("Invalid signature in thinking block")),
    "grammar": status(400, error_body("error parsing grammar: x")),
    "output cap": status(
        400, error_body("max_tokens is too large: 9000. This model supports at most 4096 completion tokens.")
    ),
    "output cap unknown": status(400, error_body("max_tokens is too large for this model")),
    "certificate": Failure("transport", "x", exception="SSLError", detail="certificate verify failed"),
    "unsent": Failure("transport", "x", exception="ConnectError", detail="connection refused", sent=False),
    "encode": Failure("encode", "x", exception="UnicodeEncodeError", sent=False),
    "overflow": overflow(),
    "overflow of a small window": overflow(500),
    "local bug": Failure("local", "a bug", exception="TypeError"),
}
"""HTTP errors, and failures before anything was sent."""

BROKEN: Mapping[str, Answer] = {
    "drop": drop(),
    "cut": cut("half "),
    "cut nothing": cut(""),
    "no finish": no_finish("a text "),
    "empty stream": empty_sse(),
    "malformed": malformed_chunk(),
    "malformed after text": malformed_chunk("some "),
    "error in a 200": json_reply({"error": {"message": "overloaded", "code": 500}}),
    "not a reply": json_reply({"hello": 1}),
    "nothing": json_reply([]),
}
"""Replies that break off, are malformed, or are not replies at all."""

KINDS: Mapping[str, Answer] = {**SAID, **REFUSED, **BROKEN}


try:
    from hypothesis import strategies as st
    from hypothesis.strategies import SearchStrategy
except ImportError:
    raise ConfigError(
        "strategies need a package that is not installed", "hypothesis", install_command("testing")
    ) from None


NAMES = ("nope", "", "Echo_Tool", "functions.echo", "a name with spaces", "unknown_tool")
STATUSES = (400, 401, 402, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504, 529)
HINTS = (
    "",
    "context length exceeded",
    "rate limit reached, try again in 2 s",
    "invalid api key",
    "max_tokens is too large",
    "overloaded",
)


# Texts and values


def awkward_texts() -> SearchStrategy[str]:
    """Text as models and tools write it: lone surrogates, control characters, markup that resembles
    reasoning, empty text."""
    odd = [
        "",
        " ",
        "\x00",
        "\ud800",
        "<think>",
        "</think>",
        "<scratchpad>",
        "```json\n{}\n```",
        "用量",
        "e\u0301",
        "\u202eabc",
    ]
    return (
        st.sampled_from(odd)
        | st.text(max_size=40)
        | st.text(st.characters(codec=None, categories=["Cs", "Cc", "Lu"]), max_size=8)
    )


def json_values() -> SearchStrategy[Any]:
    """Small JSON values of any kind."""
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=12)
    )
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
        max_leaves=6,
    )


def usages() -> SearchStrategy[Usage | None]:
    """Token usage as a provider reports it: plausible, zero, missing, or wrong."""
    count = st.integers(0, 200_000)
    said = st.builds(
        Usage, input=count, output=count, cache_read=count, cache_write=count, reasoning=st.just(0)
    )
    return st.none() | st.just(Usage()) | said


# Calls of tools


def arguments(schema: Mapping[str, Any]) -> SearchStrategy[Any]:
    """Values that fit the JSON schema of a tool (``ToolSpec.parameters``)."""
    return _fitting(schema, schema.get("$defs", {}))


def _fitting(schema: Mapping[str, Any], named: Mapping[str, Any]) -> SearchStrategy[Any]:
    if "$ref" in schema:
        return st.deferred(lambda: _fitting(named[str(schema["$ref"]).rsplit("/", 1)[-1]], named))
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(list(schema["enum"]))
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return st.one_of([_fitting(option, named) for option in options])
    match schema.get("type"):
        case "string":
            least = int(schema.get("minLength", 0))
            return st.text(min_size=least, max_size=int(schema.get("maxLength", least + 20)))
        case "integer":
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case "number":
            return st.floats(
                schema.get("minimum"), schema.get("maximum"), allow_nan=False, allow_infinity=False
            )
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "array":
            return st.lists(_fitting(schema.get("items", {}), named), max_size=3)
        case "object":
            return _object(schema, named)
    return json_values()


def _object(schema: Mapping[str, Any], named: Mapping[str, Any]) -> SearchStrategy[Any]:
    members = {name: _fitting(value, named) for name, value in schema.get("properties", {}).items()}
    required = {name: value for name, value in members.items() if name in schema.get("required", ())}
    return st.fixed_dictionaries(
        required, optional={name: value for name, value in members.items() if name not in required}
    )


def tool_calls(offered: Sequence[Tool]) -> SearchStrategy[Call]:
    """A valid call of one of these tools, with arguments that fit its schema."""
    if not offered:
        raise ValueError("tool_calls needs at least one tool")
    return st.one_of([_call_of(tool) for tool in offered])


def _call_of(tool: Tool) -> SearchStrategy[Call]:
    return arguments(tool.spec.parameters).map(lambda value: call(tool.spec.name, value))


def malformed_calls(offered: Sequence[Tool] = ()) -> SearchStrategy[Call]:
    """Realistic calls that cannot run: an unknown name, arguments that are invalid JSON, not an object, cut,
    or of the wrong type, or an id that is missing or repeated."""
    known = [tool.spec.name for tool in offered] or ["echo"]
    names = st.sampled_from([*known, *NAMES])
    texts = st.sampled_from(
        ["", "{", '{"a": ', '{"a": }', "[1, 2]", "null", "'single'", '{"a": 1}}', '{"a": "\\ud800"}']
    ) | json_values().map(json.dumps)
    ids = st.sampled_from([None, None, "", "same", "call_0"])
    return st.builds(Call, names, texts, ids)


# Replies


def failures() -> SearchStrategy[Answer]:
    """HTTP errors with any body, lost connections, requests that could not be sent."""
    headers = st.sampled_from([{}, {}, {"Retry-After": "0"}, {"Retry-After": "7"}, {"Retry-After": "soon"}])
    any_status = st.builds(status, st.sampled_from(STATUSES), error_bodies(), headers)
    return st.sampled_from([*REFUSED.values(), *BROKEN.values()]) | any_status


def error_bodies() -> SearchStrategy[Any]:
    """The body of an HTTP error: an object with a message and a code, a proxy's page, a list, nothing."""
    codes = st.sampled_from(
        [None, "model_not_found", "insufficient_quota", "context_length_exceeded", "rate_limit_exceeded"]
    )
    usual = st.builds(error_body, st.sampled_from(HINTS) | st.text(max_size=30), codes)
    return (
        usual | st.sampled_from(["", "Not Found", "<html><title>Bad Gateway</title></html>"]) | json_values()
    )


def replies(tools: Sequence[Tool] = ()) -> SearchStrategy[Answer]:
    """Any provider answer: whole replies, valid and malformed calls of ``tools``, errors, broken streams."""
    calls = st.lists(
        malformed_calls(tools) | (tool_calls(tools) if tools else st.nothing()), min_size=1, max_size=3
    )
    calling = st.builds(_calling, calls, awkward_texts(), usages())
    saying = st.builds(Reply, text=awkward_texts(), reasoning=st.sampled_from(["", "hm"]), usage=usages())
    return st.sampled_from(list(SAID.values())) | saying | calling | calling | failures()


def _calling(calls: Sequence[Call], said: str, usage: Usage | None) -> Reply:
    return tools(*calls, text=said, usage=usage)


def answers_by_kind(offered: Sequence[Tool]) -> dict[str, SearchStrategy[Answer]]:
    """Answers by their effect on a turn, each kind with its own texts, calls and bodies: for choosing every
    kind about equally often."""
    words = st.text(st.characters(categories=["Lu", "Ll"]), min_size=1, max_size=12)
    said, error = words.map("the answer is {}.".format), partial(st.builds, status)
    good = st.lists(tool_calls(offered), min_size=1, max_size=3)
    return {
        "text": st.builds(text, said, usage=usages()),
        "cut text": st.builds(length, said.map("{} ".format)) | st.builds(cut, said),
        "announced": words.map("I'll look at the file {} now.".format).map(text),
        "scratchpad": said.map("<scratchpad>{}".format).map(text),
        "incomplete": st.builds(ModelReply, said, finish=st.just("incomplete")),
        "thinking": st.builds(length, said.map("<think>{}".format)),
        "thought": st.builds(reasoning, said),
        "blank": st.just(blank()),
        "tools": st.builds(_calling, good, st.just("") | said, usages()),
        "no tool": st.builds(lambda name: tools(call(f"no-{name}")), words),
        "bad json": words.map('{{"{}": }}'.format).map(lambda arguments: bad_json(arguments=arguments)),
        "cut call": words.map('{{"text": "{}'.format).map(
            lambda arguments: cut_tool_call(arguments=arguments)
        ),
        "dropped call": st.builds(
            ModelReply, tool_calls=st.just((ToolCall("cut", "put", "{}"),)), cut=st.just(True)
        ),
        "odd calls": st.builds(
            _calling, st.lists(malformed_calls(offered), min_size=1, max_size=2), said, usages()
        ),
        "401": error(st.sampled_from([401, 402]), st.none() | error_bodies()),
        "429": error(st.just(429)),
        "no reply": json_values().map(json_reply),
        "503": error(st.sampled_from([503, 529])),
        "unreachable": st.just(
            Failure("transport", "x", exception="ConnectError", detail="refused", sent=False)
        ),
        "500": error(st.sampled_from([500, 502]), st.just("") | words),
        "overflow": st.integers(100, 40_000).map(overflow),
        "404": st.just(KINDS["no such model"]),
        "policy": st.just(status(400, error_body("flagged", "content_policy_violation"))),
        "certificate": st.just(KINDS["certificate"]),
        "output cap": st.integers(1, 30_000).map(_cap_reply),
        "no output cap": st.just(KINDS["output cap unknown"]),
        "repairable": st.sampled_from(
            [KINDS[name] for name in ("no streaming", "no images", "signature", "grammar", "encode")]
        ),
    }


SAID_FOR = {
    "tools": "tools", "text": "text", "unverified": "text", "announced": "announced", "blank": "blank",
    "cut_text": "cut text", "dropped_call": "dropped call", "cut_call": "cut call",
    "incomplete": "incomplete",
    "open_scratchpad": "scratchpad", "all_thinking": "thinking", "summary": "text", "no_summary": "blank",
    "unknown_tools": "no tool", "bad_json": "bad json",
    "thought": "thought", "thought_after_tools": "thought",
    "repairable": "repairable", "bad_key": "401", "key_limited": "429", "limited": "no reply",
    "overloaded": "503", "unreachable": "unreachable", "server_error": "500", "summary_failed": "500",
    "overflow": "overflow", "outgrown": "overflow", "compression_off": "overflow", "rejected": "404",
    "refused": "policy", "fatal": "certificate", "cap_unknown": "no output cap",
    "compressed": "text", "unchanged": "text", "stuck": "text",
}  # fmt: skip
"""The kind of answer after which a state reports the event."""
SAID_BEFORE = {"tools": ("no tool", "bad json"), "blank": ("thought",)}
"""Answers that two states examine: the event of the second one says more."""


def answers_for(events: Sequence[str]) -> list[str]:
    """Return the kinds of ``answers_by_kind`` in the order in which models must answer for a turn to take
    these events, as far as answers decide that."""
    kinds: list[str] = []
    for before, event in pairwise(("", *events)):
        if (kind := SAID_FOR.get(event)) is not None:
            if kind in SAID_BEFORE.get(before, ()):
                kinds.pop()
            kinds.append(kind)
    return kinds


def _cap_reply(most: int) -> Reply:
    return status(
        400,
        error_body(f"max_tokens is too large: 90000. This model supports at most {most} completion tokens."),
    )


# Histories


def histories(*, valid: bool = False, max_size: int = 8) -> SearchStrategy[list[dict[str, Any]]]:
    """Rows for ``conversation_history``. Without ``valid`` they have the flaws of foreign stores: results
    without calls, calls without results, repeated ids, two rows of one role, empty rows."""
    if valid:
        return st.lists(_exchange(), max_size=max_size // 2).map(
            lambda groups: [row for rows in groups for row in rows]
        )
    ids = st.sampled_from(["a", "b", ""])
    said = awkward_texts()
    made = st.builds(
        lambda id, text: {"id": id, "type": "function", "function": {"name": "echo", "arguments": text}},
        ids,
        said,
    )
    row = st.one_of(
        st.builds(lambda text: {"role": "user", "content": text}, said.filter(str.strip)),
        st.builds(lambda text: {"role": "assistant", "content": text}, said),
        st.builds(
            lambda text, calls: {"role": "assistant", "content": text, "tool_calls": calls},
            said,
            st.lists(made, min_size=1, max_size=2),
        ),
        st.builds(lambda id, text: {"role": "tool", "tool_call_id": id, "content": text}, ids, said),
    )
    return st.lists(row, max_size=max_size)


def _exchange() -> SearchStrategy[list[dict[str, Any]]]:
    words = st.text(st.characters(categories=["Lu", "Ll"]), min_size=1, max_size=20)
    return st.builds(
        lambda asked, said: [{"role": "user", "content": asked}, {"role": "assistant", "content": said}],
        words,
        words,
    )


# The world around a turn


@dataclass(frozen=True)
class Moment:
    """An action at the ``nth`` occurrence (from 0) of this kind of event."""

    where: str
    nth: int
    what: Literal["interrupt", "steer"] = "interrupt"


def moments(where: Sequence[str] = ("model", "wait", "tool"), most: int = 12) -> SearchStrategy[Moment]:
    """Moments at which a person intervenes; interrupts twice as often as steering."""
    return st.builds(
        Moment,
        st.sampled_from(list(where)),
        st.integers(0, most),
        st.sampled_from(["interrupt", "interrupt", "steer"]),
    )


def windows() -> SearchStrategy[int | None]:
    """Context windows in tokens, small enough to cause compaction."""
    return st.sampled_from([None, 300, 700, 2_000, 20_000])


def small_settings() -> SearchStrategy[dict[str, Any]]:
    """Settings with small budgets, so that they run out; a dict for ``Agent(settings=…)``."""
    return st.fixed_dictionaries(
        {"max_iterations": st.sampled_from([12, 5, 5, 4, 3, 2, 1, 0])},
        optional={
            "api_max_retries": st.integers(1, 3),
            "max_attempts_per_turn": st.sampled_from([None, None, None, 1, 3, 8]),
            "max_attempts_per_call_block": st.sampled_from([None, None, None, 1, 3]),
            "max_output_tokens": st.just(100),
            "invalid_tool_strikes": st.integers(1, 3),
            "invalid_json_retries": _counts(2),
            "explain_abnormal_end": st.booleans(),
            "budget": _group(grace_call=st.booleans(), max_free_rounds=_counts(2)),
            "length": _group(max_continuations=_counts(3), tool_retries=_counts(3)),
            "continuation": _group(
                acks_enabled=st.booleans(),
                ack=_counts(2),
                scratchpad=_counts(2),
                verify_enabled=st.booleans(),
            ),
            "empty": _group(nudges=_counts(2), prefills=_counts(2), retries=_counts(3)),
            "compression": _group(
                enabled=st.booleans(),
                max_per_streak=_counts(3),
                preflight_passes=_counts(3),
                tail_floor=st.just(3),
            ),
            "guardrail": _group(
                hard_stop=st.booleans(), stop_exact=st.integers(1, 2), stop_same=st.integers(1, 2)
            ),
            "interrupt": _group(keep_partial=st.booleans()),
            "stale": _group(giveup=st.integers(1, 3)),
        },
    )


def _counts(most: int) -> SearchStrategy[int]:
    return st.integers(0, most)


def _group(**values: SearchStrategy[Any]) -> SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=values)
