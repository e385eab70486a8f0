"""Every kind of answer that a provider gives, by name: what people report against agents, one example each.

>>> from fsm_agent.testing.kinds import KINDS
>>> ScriptedModel([KINDS["429"], KINDS["cut"], KINDS["text"]])

None of them needs a tool of its own but ``echo``, which the calls that cannot run name.
``fsm_agent.testing.strategies.replies`` draws from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.providers.scripted.replies import (
    SERVED,
    Reply,
    bad_json,
    blank,
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
)

Answer = Reply | ModelReply | Failure


def error_body(message: str, code: str | None = None, kind: str = "invalid_request_error") -> dict[str, Any]:
    """The JSON body of an error as most providers write it."""
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
"""Replies that end in the middle, or are none."""

KINDS: Mapping[str, Answer] = {**SAID, **REFUSED, **BROKEN}
