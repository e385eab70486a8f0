"""Replies as the providers of each wire send them, with every field, and the ways in which they go wrong.

The recordings follow the vendors' documentation. They hold every type of event, item, block, and part that
the ports read, and some that they ignore. The fields are taken from the recordings, so none is forgotten."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from http import HTTPStatus
from typing import Any

from hypothesis import strategies as st

from tests.helpers.wire_rules import item

Place = tuple[str | int, ...]
Change = Callable[["Recorded"], "Recorded"]


@dataclass(frozen=True)
class Recorded:
    """A response. ``events`` are those of a stream; a whole reply and an error are one. ``odd``: what was made
    of it, in words."""

    wire: str
    name: str
    events: tuple[Any, ...]
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    cut: int | None = None
    odd: str = ""

    @property
    def is_stream(self) -> bool:
        return len(self.events) > 1 or self.name == "stream"

    def __repr__(self) -> str:
        head = f" {self.status}" * (self.status != 200)
        head += "".join(f" {name}: {value[:40]!r}" for name, value in self.headers)
        cut = "" if self.cut is None else f" cut at {self.cut}"
        return f"<{self.wire} {self.name}{head}{cut}: {self.odd or 'as it should be'}>"

    def content(self) -> bytes:
        """The body; of it the first ``cut`` bytes."""
        if not self.is_stream:
            return b"".join(map(written, self.events[:1]))[: self.cut]
        named = self.wire != "chat_completions"
        lines = []
        for event in self.events:
            name = event.get("type") if isinstance(event, dict) else None
            safe = isinstance(name, str) and name.isascii() and name.isprintable() and len(name) < 200
            lines.append(
                (b"event: %s\n" % name.encode() if named and safe else b"") + b"data: %s\n\n" % written(event)
            )
        return b"".join([*lines, *([] if named else [b"data: [DONE]\n\n"])])[: self.cut]

    def response(self) -> bytes:
        """The response, head and all; the connection ends with it, whatever the head says."""
        content = self.content()
        kind = "text/event-stream" if self.is_stream else "application/json"
        fields = {"content-type": kind, "content-length": str(len(content)), "connection": "close"}
        fields |= dict(self.headers)
        phrase = HTTPStatus(self.status).phrase if self.status in set(HTTPStatus) else "Odd"
        head = [f"HTTP/1.1 {self.status} {phrase}", *(f"{name}: {value}" for name, value in fields.items())]
        return "\r\n".join([*head, "", ""]).encode("latin-1") + content


# Odd values

DIGITS = "@digits@"
"""Placeholder for a whole number of 5,000 digits, which Python's own JSON neither reads nor writes."""


def nested(levels: int) -> Any:
    value: Any = "deep"
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value


def written(value: Any) -> bytes:
    return json.dumps(value).replace(f'"{DIGITS}"', "9" * 5_000).encode()


EARLIER = "call_earlier"
"""The id of a call that the session has already."""
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 0.5, 2**63, -(2**63) - 1, 10**18, 1e308, float("nan"), float("inf"), DIGITS,
    "", " ", "0", "null", "\x00", "\ud800", "tail \ud83d", "\u202e\x1b[31m\r\n", "x" * 60_000, "🜚" * 30, "unknown_kind", EARLIER,
    "<think>never closed", "[" * 1_000, "{}", '{"text": "\\ud800"}', '{"text": 1e999}', '{"text": NaN}',
    [], {}, [None], [[]], [{}], {"": None}, [1, "a", {"text": "in a list"}], {"type": "text", "text": "alone"}, {"text": "\ud800"},
    {"\ud800": 1}, {"type": ["list"]}, nested(40), nested(150), nested(190), nested(260),
)  # fmt: skip
HEADERS: dict[str, tuple[str, ...]] = {
    "content-type": ("", "text/html", "text/plain", "application/octet-stream", "text/event-stream; charset=utf-16",
                     "application/json; charset=\xff", "\xff\xfe", "x" * 2_000),
    "content-encoding": ("gzip", "br", "", "identity, identity", "\xff"),
    "content-length": ("0", "1", "999999"),
    "retry-after": ("", "-1", "0", "1e5", "nan", "inf", "9" * 20, "9" * 400, "Wed, 21 Oct 99999 07:28:00 GMT", "Wed, 21 Oct 2015 07:28:00 -9999",
                    "Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "\xff", "²"),
    "retry-after-ms": ("-1", "nan", "9" * 300, "x"),
    "x-ratelimit-remaining-requests": ("0", "-1", "nan", "x"),
    "x-ratelimit-reset-requests": ("9" * 30, "99999d", "-5s", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00", "\xff"),
    "location": ("", "http://[", "//", "\xff", "javascript:x"),
    "request-id": ("", "\xff", "x" * 2_000),
    "x-should-retry": ("true", "false", "\xff"),
    "transfer-encoding": ("chunked", "gzip", "x"),
    "date": ("x", "\xff"),
}  # fmt: skip
"""By name what a header may hold. Each is tried also where it does not belong."""
STATUSES = (
    100, 102, 199, 201, 202, 204, 205, 206, 299, 300, 301, 304, 307, 399, 400, 401, 402, 403, 404, 408, 409, 413, 418, 422, 429, 451,
    499, 500, 502, 503, 504, 520, 529, 598, 600, 777, 999,
)  # fmt: skip


# Recordings


def _chat() -> Iterator[Recorded]:
    recorded = partial(Recorded, "chat_completions")
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "system_fingerprint": "fp",
            "service_tier": "default", "provider": "p"}  # fmt: skip
    usage = {
        "prompt_tokens": 50, "completion_tokens": 9, "total_tokens": 59, "prompt_cache_hit_tokens": 8, "cached_tokens": 8,
        "cache_read_input_tokens": 8, "cache_creation_input_tokens": 2, "reasoning_tokens": 3, "cost": 0.1,
        "prompt_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }  # fmt: skip
    detail = {"type": "reasoning.text", "text": "hm", "signature": "s", "format": "f", "id": "r1", "index": 0}
    summary = {"type": "reasoning.summary", "summary": "so", "index": 1}
    hidden = {"type": "reasoning.encrypted", "data": "zzz", "index": 2}
    google = {"google": {"thought_signature": "sig"}}

    def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}

    def call(**more: Any) -> dict[str, Any]:
        return {"index": 0, **more}

    function = {"name": "echo", "arguments": ""}
    opening = {"id": "call_a", "type": "function", "function": function, "extra_content": google}
    yield recorded("stream", (
        chunk(role="assistant", content=""),
        chunk(reasoning_content="I think"), chunk(reasoning="therefore", reasoning_details=[detail, summary]),
        chunk(reasoning_details=[detail]), chunk(reasoning_details=[hidden]),
        chunk(content="Hello "), chunk(content=[{"type": "text", "text": "there"}, {"type": "thinking", "thinking": [{"type": "text", "text": "x"}]}]),
        chunk(refusal=None), chunk(extra_content=google),
        chunk(tool_calls=[call(**opening)]), chunk(tool_calls=[call(function={"arguments": '{"text": '})]),
        chunk(tool_calls=[call(function={"arguments": '"a"}'})]),
        chunk(tool_calls=[{**opening, "index": 1, "id": "call_b", "function": {"name": "echo", "arguments": {"text": "b"}}}]),
        chunk("tool_calls"), {**head, "choices": [], "usage": usage},
    ))  # fmt: skip
    yield recorded("stream", (
        chunk(role="assistant", content=""), chunk(content="Hello "), chunk(content="there"), {**chunk("stop"), "usage": usage},
    ))  # fmt: skip
    whole = {**head, "object": "chat.completion", "usage": usage}
    message = {
        "role": "assistant", "content": "Hello", "refusal": None, "annotations": [], "reasoning_content": "I think",
        "reasoning": "therefore", "reasoning_details": [detail, summary, hidden], "extra_content": google,
        "tool_calls": [{"id": "call_a", "type": "function", "function": {"name": "echo", "arguments": '{"text": "a"}'}, "extra_content": google}],
    }  # fmt: skip
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
    yield recorded("whole", ({**whole, "choices": [choice]},))
    said = {
        "role": "assistant", "content": [item("text", text="no")], "refusal": "I will not",
        "tool_calls": None,
    }  # fmt: skip
    yield recorded("whole", ({**whole, "choices": [{"index": 0, "message": said, "finish_reason": "stop"}]},))
    raw = '{"error": {"message": "behind it", "code": 500}}'
    error = {"message": "no such thing", "type": "invalid_request_error", "param": "messages", "code": "bad",
             "metadata": {"raw": raw, "provider_name": "p", "headers": {"X-RateLimit-Reset": "5"}},
             "details": [{"@type": "RetryInfo", "retryDelay": "5s"}], "status": "FAILED"}  # fmt: skip
    yield recorded("error", ({"error": error, "user_id": "u"},), status=400)
    slow = {"code": 429, "message": "slow", "status": "RESOURCE_EXHAUSTED"}
    yield recorded("error", ([{"error": slow}],), status=429)
    yield recorded("whole", ({"error": error, "choices": None},))
    yield recorded("stream", (chunk(content="Hello"), {**head, "choices": [], "error": error}))


def _messages() -> Iterator[Recorded]:
    recorded = partial(Recorded, "anthropic_messages")
    usage = {
        "input_tokens": 50, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 8, "output_tokens": 1,
        "cache_creation": {"ephemeral_5m_input_tokens": 2}, "output_tokens_details": {"thinking_tokens": 1}, "service_tier": "standard",
    }  # fmt: skip
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
            "stop_sequence": None, "usage": usage}  # fmt: skip

    def start(index: int, **block: Any) -> dict[str, Any]:
        return {"type": "content_block_start", "index": index, "content_block": block}

    def delta(index: int, **given: Any) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": given}

    def stop(index: int) -> dict[str, Any]:
        return {"type": "content_block_stop", "index": index}

    def ending(reason: str, **more: Any) -> tuple[Any, ...]:
        return (
            {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None, **more},
             "usage": {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 2}}},
            {"type": "message_stop"},
        )  # fmt: skip

    thought = {"type": "thinking", "thinking": "I think", "signature": "s1"}
    hidden = {"type": "redacted_thinking", "data": "zzz"}
    later = {"type": "thinking", "thinking": "more", "signature": "s2"}
    used = {"type": "tool_use", "id": "toolu_a", "name": "echo", "input": {"text": "a"}}
    yield recorded("stream", (
        {"type": "message_start", "message": head}, {"type": "ping"},
        start(0, type="thinking", thinking="", signature=""), delta(0, type="thinking_delta", thinking="I think"),
        delta(0, type="signature_delta", signature="s1"), stop(0),
        start(1, **hidden), stop(1),
        start(2, type="text", text="", citations=None), delta(2, type="text_delta", text="Hello "), delta(2, type="text_delta", text="there"),
        delta(2, type="citations_delta", citation={"type": "char_location", "cited_text": "x"}), stop(2),
        start(3, **later), stop(3),
        start(4, **{**used, "input": {}}), delta(4, type="input_json_delta", partial_json='{"text": '),
        delta(4, type="input_json_delta", partial_json='"a"}'), stop(4),
        start(5, **{**used, "id": "toolu_b"}), stop(5),
        *ending("tool_use"),
    ))  # fmt: skip
    refused = {"type": "refusal", "category": None, "explanation": "I will not"}
    yield recorded("stream", (
        {"type": "message_start", "message": head}, start(0, type="text", text=""), delta(0, type="text_delta", text="Hello"), stop(0),
        *ending("end_turn", stop_details=refused),
    ))  # fmt: skip
    overloaded = item("overloaded_error", message="Overloaded", details={"error_code": "x"})
    error = item("error", error=overloaded, request_id="r")
    yield recorded("stream", (
        {"type": "message_start", "message": head}, start(0, type="text", text=""), delta(0, type="text_delta", text="Hello"), error,
    ))  # fmt: skip
    whole = {
        **head,
        "content": [thought, hidden, {"type": "text", "text": "Hello", "citations": []}, later, used],
    }
    yield recorded("whole", ({**whole, "stop_reason": "tool_use"},))
    no = {"content": [{"type": "text", "text": "no"}], "stop_reason": "refusal", "stop_details": refused}
    yield recorded("whole", ({**head, **no},))
    yield recorded("error", (error,), status=529)
    yield recorded("whole", (error,))


def _responses() -> Iterator[Recorded]:
    recorded = partial(Recorded, "codex_responses")
    usage = {
        "input_tokens": 50, "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 2}, "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 59,
    }  # fmt: skip
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "in_progress", "error": None,
            "incomplete_details": None, "output": [], "usage": None, "parallel_tool_calls": True, "tools": []}  # fmt: skip
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I think"}],
               "content": [{"type": "reasoning_text", "text": "so"}], "encrypted_content": "zzz"}  # fmt: skip
    part = {"type": "output_text", "text": "Hello there", "annotations": [], "logprobs": []}
    done = {"status": "completed"}
    said = item("message", id="msg_1", role="assistant", **done, phase="commentary", content=[part])
    answer = {**said, "id": "msg_2", "phase": "final_answer"}
    refused = {**said, "id": "msg_3", "phase": None, "content": [item("refusal", refusal="I will not")]}
    asks = {"call_id": "call_a", "name": "echo", "arguments": '{"text": "a"}'}
    call = {"type": "function_call", "id": "fc_1", **asks, **done}
    searched = item("web_search_call", id="ws_1", **done, action=item("search", query="x"))

    def about(kind: str, index: int, item: str, **more: Any) -> dict[str, Any]:
        return {
            "type": f"response.{kind}", "sequence_number": 1, "output_index": index, "item_id": item, **more,
        }  # fmt: skip

    def begun(index: int, item: dict[str, Any], **empty: Any) -> dict[str, Any]:
        begins = {**item, **empty, "status": "in_progress"}
        return {"type": "response.output_item.added", "output_index": index, "item": begins}

    def done(index: int, item: dict[str, Any]) -> dict[str, Any]:
        return {"type": "response.output_item.done", "output_index": index, "item": item}

    def ended(status: str, output: list[Any], **more: Any) -> dict[str, Any]:
        ends = {**head, "status": status, "output": output, "usage": usage, **more}
        return {"type": f"response.{status}", "response": ends}

    yield recorded("stream", (
        {"type": "response.created", "response": head}, {"type": "response.in_progress", "response": head},
        begun(0, thought, summary=[], content=[]),
        about("reasoning_summary_part.added", 0, "rs_1", summary_index=0, part={"type": "summary_text", "text": ""}),
        about("reasoning_summary_text.delta", 0, "rs_1", summary_index=0, delta="I think"),
        about("reasoning_text.delta", 0, "rs_1", content_index=0, delta="so"), done(0, thought),
        begun(1, said, content=[]), about("content_part.added", 1, "msg_1", content_index=0, part={**part, "text": ""}),
        about("output_text.delta", 1, "msg_1", content_index=0, delta="Hello ", logprobs=[]),
        about("output_text.delta", 1, "msg_1", content_index=0, delta="there", logprobs=[]),
        about("output_text.done", 1, "msg_1", content_index=0, text="Hello there"), done(1, said),
        begun(2, call, arguments=""), about("function_call_arguments.delta", 2, "fc_1", delta='{"text": '),
        about("function_call_arguments.delta", 2, "fc_1", delta='"a"}'),
        about("function_call_arguments.done", 2, "fc_1", arguments='{"text": "a"}'), done(2, call),
        begun(3, searched), done(3, searched), ended("completed", [thought, said, call, searched]),
    ))  # fmt: skip
    yield recorded("stream", (
        {"type": "response.created", "response": head}, begun(0, answer, content=[]),
        about("output_text.delta", 0, "msg_2", content_index=0, delta="Hello"), done(0, answer),
        begun(1, refused, content=[]), about("refusal.delta", 1, "msg_3", content_index=0, delta="I will not"), done(1, refused),
        ended("incomplete", [], incomplete_details={"reason": "max_output_tokens"}),
    ))  # fmt: skip
    error = {"code": "server_error", "type": "server_error", "message": "it broke", "param": None}
    yield recorded("stream", (begun(0, said, content=[]), ended("failed", [], error=error)))
    yield recorded("stream", (begun(0, said, content=[]), ended("cancelled", [])))
    yield recorded("stream", ({"type": "response.created", "response": head}, {"type": "error", **error}))
    whole = {**head, "status": "completed", "usage": usage}
    yield recorded("whole", ({**whole, "output": [thought, said, call, searched]},))
    yield recorded("whole", ({**whole, "output": [answer, refused]},))
    yield recorded("whole", ({**whole, "status": "failed", "error": error},))
    yield recorded("error", ({"error": error},), status=500)


RECORDED = (*_chat(), *_messages(), *_responses())
WIRES = ("chat_completions", "anthropic_messages", "codex_responses")
KINDS = ("whole", "stream", "error")


# Fields, and changes of them


def fields(value: Any, path: Place = ()) -> Iterator[Place]:
    """The place of every value inside a value, itself included."""
    yield path
    listed = value if isinstance(value, list | tuple) else ()
    parts = value.items() if isinstance(value, dict) else enumerate(listed)
    for key, part in parts:
        yield from fields(part, (*path, key))


@cache
def tags(wire: str) -> tuple[str, ...]:
    """Every word that tells a kind or a state on a wire."""
    reasons = ("finish_reason", "stop_reason", "reason")
    names = ("type", "status", *reasons, "object", "role", "phase", "code", "name")
    events = [recorded.events for recorded in RECORDED if recorded.wire == wire]
    found = (at(one, path) for one in events for path in fields(one) if path and path[-1] in names)
    return tuple(dict.fromkeys([*(tag for tag in found if isinstance(tag, str)), "length", "content_filter", "incomplete",
                                "queued", "pause_turn", "error"]))  # fmt: skip


def at(value: Any, path: Place) -> Any:
    for key in path:
        value = value[key]
    return value


def changed(recorded: Recorded, path: Place, words: str, change: Callable[[Any, Any], None]) -> Recorded:
    """The response after ``change``, which gets what holds the field, and its key there."""
    events = list(recorded.events)
    events[int(path[0])] = copy.deepcopy(events[int(path[0])])
    change(at(events, path[:-1]), path[-1])
    where = ".".join(map(str, path))
    return replace(recorded, events=tuple(events), odd=f"{recorded.odd}; {where} {words}".lstrip("; "))


def put(recorded: Recorded, path: Place, value: Any) -> Recorded:
    """The response with another value in a field."""
    seen = repr(value)
    return changed(recorded, path, f"is {seen if len(seen) < 60 else seen[:50] + '…'}",
                   lambda holder, key: holder.__setitem__(key, value))  # fmt: skip


def left_out(recorded: Recorded, path: Place) -> Recorded:
    return changed(recorded, path, "is left out", lambda holder, key: holder.pop(key))


def doubled(recorded: Recorded, path: Place) -> Recorded:
    """An item of a list twice; of an object the field as a list of it twice."""

    def twice(holder: Any, key: Any) -> None:
        if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            holder[key] = [holder[key], copy.deepcopy(holder[key])]

    return changed(recorded, path, "is there twice", twice)


def wrapped(recorded: Recorded, path: Place) -> Recorded:
    """The field one level deeper."""
    return changed(
        recorded, path, "is inside itself", lambda holder, key: holder.__setitem__(key, {key: holder[key]})
    )


def each_place() -> Iterator[tuple[Recorded, Place]]:
    for recorded in RECORDED:
        for path in fields(recorded.events):
            if path:
                yield recorded, path


def values_for(recorded: Recorded, path: Place) -> tuple[Any, ...]:
    """What is put into a field: every odd value, and into one that holds text every tag of the wire."""
    return (*ODD, *(tags(recorded.wire) if isinstance(at(recorded.events, path), str) else ()))


def each_odd_value(recorded: Recorded, path: Place) -> Iterator[Recorded]:
    """A field of a recording with every odd value, left out, doubled, nested."""
    for value in values_for(recorded, path):
        yield put(recorded, path, value)
    yield left_out(recorded, path)
    yield doubled(recorded, path)
    yield wrapped(recorded, path)


def each_odd_order() -> Iterator[Recorded]:
    """Every stream cut behind each event, with two adjacent events swapped, and reversed."""
    for recorded in RECORDED:
        if recorded.is_stream:
            events = recorded.events
            for n in range(len(events)):
                yield replace(recorded, events=events[:n], odd=f"it ends before event {n}")
                yield replace(recorded, events=events[n:], odd=f"it begins with event {n}")
                turned = (*events[:n], *events[n : n + 2][::-1], *events[n + 2 :])
                yield replace(recorded, events=turned, odd=f"{n} comes late")
                yield replace(recorded, events=(*events, *events[n:]), odd=f"what is behind {n} comes again")
            yield replace(recorded, events=events[::-1], odd="it comes backwards")


def each_odd_head() -> Iterator[Recorded]:
    """Every recording's first with every status, and with every value of every header."""
    for wire in WIRES:
        whole, stream, error = (
            next(one for one in RECORDED if (one.wire, one.name) == (wire, name)) for name in KINDS
        )
        for recorded in (whole, stream, error):
            for status in STATUSES:
                yield replace(recorded, status=status, odd=f"its status is {status}")
            for name, values in HEADERS.items():
                for value in values:
                    yield replace(recorded, headers=((name, value),), odd=f"{name}: {value[:50]!r}")


# Strategies


@st.composite
def odd_replies(draw: st.DrawFn, wire: str) -> Recorded:
    """A response of this wire of which up to three fields are odd, which may be out of order, cut, and have an odd
    head."""
    recorded = draw(st.sampled_from([one for one in RECORDED if one.wire == wire]))
    for _ in range(draw(st.integers(0, 3))):
        places = list(fields(recorded.events))[1:]
        if not places:
            break
        path = draw(st.sampled_from(places))
        how = draw(st.sampled_from([put, put, put, put, left_out, doubled, wrapped]))
        value = [draw(st.sampled_from(values_for(recorded, path)))] if how is put else []
        recorded = how(recorded, path, *value)
    if recorded.is_stream and draw(st.integers(0, 3)) == 0:
        events = draw(st.permutations(recorded.events))[: draw(st.integers(0, len(recorded.events)))]
        recorded = replace(
            recorded, events=tuple(events), odd=f"{recorded.odd}; {len(events)} events in any order"
        )
    if draw(st.integers(0, 5)) == 0:
        recorded = replace(recorded, cut=draw(st.integers(0, len(recorded.content()))))
    if draw(st.integers(0, 3)) == 0:
        name = draw(st.sampled_from(sorted(HEADERS)))
        recorded = replace(recorded, headers=((name, draw(st.sampled_from(HEADERS[name]))),))
    if draw(st.integers(0, 3)) == 0:
        recorded = replace(recorded, status=draw(st.sampled_from(STATUSES)))
    return recorded
