"""Replies of a scripted provider: one builder for each kind, used by the server and the scripted model.

===================  =====================================================================================
``text("hi")``       text, finish ``stop``
``tools(call(…))``   tool calls, finish ``tool_calls``
``blank()``          a complete but empty reply
``reasoning("…")``   reasoning and nothing else
``length("…")``      text, finish ``length``
``cut_tool_call()``  a tool call whose arguments stop in the middle, finish ``length``
``bad_json()``       a tool call whose arguments end in a brace but are not valid JSON
``content_filter()`` ``refusal("…")``  the model declined
``status(500)``      an HTTP error; ``overflow()`` is the 400 of a prompt that is too long
``drop()``           the connection is closed before any header
``cut("…")``         text, then the connection breaks in the middle of a chunk
``no_finish("…")``   text, then the stream ends without a finish reason
``empty_sse()``      a stream with no chunk in it
``silence()``        nothing more arrives
``slow("…", 0.1)``   text with a pause before each delta
``json_reply(…)``    a whole JSON object although a stream was requested
``malformed_chunk()`` a chunk that is not valid JSON
``repeat(…)``        these replies, indefinitely
===================  =====================================================================================

Every builder takes ``usage`` (``None``: not reported), ``model``, and ``on_request`` (called with the request
before the reply begins).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypedDict, Unpack

from fsm_agent.conversation.messages import Usage

SERVED = Usage(input=10, output=5)
"""The usage of a reply that does not specify its own."""

Shape = Literal["message", "status", "drop", "mute", "empty", "verbatim"]
End = Literal["done", "eof", "cut", "hold"]
Hook = Callable[[Any], object]


class Options(TypedDict, total=False):
    """Common options of all builders."""

    usage: Usage | None
    model: str
    on_request: Hook | None


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call. ``id`` ``None`` lets the server choose a unique one; an empty string sends none."""

    name: str
    arguments: str
    id: str | int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a scripted provider.

    ``shape``: a message, an HTTP status, a drop before the headers, silence before the headers, a stream
    without chunks, or a verbatim JSON ``body``. ``end``: how a message ends: whole, at the end of the stream
    without a finish reason, broken within a chunk, or held open. ``whole``: one JSON object even when a
    stream was asked for. ``raw``: verbatim data lines after the message. ``overflowed``: for a prompt that is
    too long, the tokens that fit and those that were sent. ``headers``: additional headers of the response.
    ``on_hold`` is called when the reply falls silent."""

    shape: Shape = "message"
    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    refusal: str | None = None
    finish: str | None = "stop"
    end: End = "done"
    whole: bool = False
    raw: tuple[str, ...] = ()
    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    overflowed: tuple[int, int] | None = None
    usage: Usage | None = SERVED
    model: str = "scripted"
    delay: float = 0.0
    on_request: Hook | None = None
    on_hold: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Repeat:
    """Entries that are served in turn, indefinitely."""

    entries: tuple[Any, ...]


def call(name: str, arguments: Mapping[str, Any] | str | None = None, id: str | int | None = None) -> Call:
    """Build a tool call; a string of arguments is sent verbatim."""
    return Call(name, arguments if isinstance(arguments, str) else json.dumps(arguments or {}), id)


def text(content: str, *, reasoning: str = "", **options: Unpack[Options]) -> Reply:
    """Reply with text, optionally preceded by thoughts."""
    return Reply(text=content, reasoning=reasoning, **options)


def tools(*calls: Call, text: str = "", reasoning: str = "", **options: Unpack[Options]) -> Reply:
    """Reply with tool calls, optionally beside text."""
    return Reply(text=text, reasoning=reasoning, calls=calls, finish="tool_calls", **options)


def blank(**options: Unpack[Options]) -> Reply:
    """Reply with nothing at all."""
    return Reply(**options)


def reasoning(content: str, **options: Unpack[Options]) -> Reply:
    """Reply with thoughts and nothing else."""
    return Reply(reasoning=content, **options)


def length(content: str, **options: Unpack[Options]) -> Reply:
    """Reply with text that was truncated by the output cap."""
    return Reply(text=content, finish="length", **options)


def cut_tool_call(name: str = "echo", arguments: str = '{"text": "abc', **options: Unpack[Options]) -> Reply:
    """Reply with a call whose arguments were truncated by the output cap."""
    return Reply(calls=(call(name, arguments),), finish="length", **options)


def bad_json(name: str = "echo", arguments: str = '{"text": }', **options: Unpack[Options]) -> Reply:
    """Reply with a call whose arguments are not valid JSON."""
    return Reply(calls=(call(name, arguments),), finish="tool_calls", **options)


def content_filter(content: str = "", **options: Unpack[Options]) -> Reply:
    """Reply with text that was cut off by the provider's filter."""
    return Reply(text=content, finish="content_filter", **options)


def refusal(content: str, **options: Unpack[Options]) -> Reply:
    """Reply with a refusal in its own field, without text."""
    return Reply(refusal=content, **options)


def status(
    code: int, body: Any = None, headers: Mapping[str, str] | None = None, **options: Unpack[Options]
) -> Reply:
    """Reply with an HTTP error. ``body`` is sent as JSON, or verbatim if it is a string; by default it is a
    message with the code."""
    if body is None:
        body = {"error": {"message": f"scripted status {code}", "type": "scripted", "code": None}}
    return Reply(shape="status", status=code, body=body, headers=headers or {}, **options)


def overflow(limit: int = 8192, used: int | None = None, **options: Unpack[Options]) -> Reply:
    """Reply with the 400 of a prompt of ``used`` tokens that does not fit into ``limit``."""
    used = limit * 2 if used is None else used
    message = (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in "
        f"{used} tokens. Please reduce the length of the messages."
    )
    error = {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}
    return replace(
        status(400, {"error": {**error, "param": "messages"}}, **options), overflowed=(limit, used)
    )


def drop(**options: Unpack[Options]) -> Reply:
    """Close the connection before anything is sent."""
    return Reply(shape="drop", **options)


def cut(content: str = "", *calls: Call, **options: Unpack[Options]) -> Reply:
    """Close the connection in the middle of the reply."""
    return Reply(text=content, calls=calls, finish=None, end="cut", **options)


def no_finish(content: str = "", *calls: Call, **options: Unpack[Options]) -> Reply:
    """End the stream cleanly, but without a finish reason."""
    return Reply(text=content, calls=calls, finish=None, end="eof", **options)


def empty_sse(**options: Unpack[Options]) -> Reply:
    """Send a stream without a single event."""
    return Reply(shape="empty", **options)


def silence(
    after: Literal["connect", "headers"] | str = "headers",
    hook: Callable[[], object] | None = None,
    **options: Unpack[Options],
) -> Reply:
    """Stop sending: before the headers (``"connect"``), after them (``"headers"``), or after any other text.

    ``hook`` is called when the silence begins; advancing a fake clock there triggers a watchdog without a
    real wait."""
    if after == "connect":
        return Reply(shape="mute", on_hold=hook, **options)
    return Reply(text="" if after == "headers" else after, finish=None, end="hold", on_hold=hook, **options)


def slow(content: str | Reply, delay: float, **options: Unpack[Options]) -> Reply:
    """Reply with text, or another reply, with a pause of ``delay`` seconds before each delta, including the
    first."""
    return replace(content if isinstance(content, Reply) else text(content), delay=delay, **options)


def json_reply(body: Any, **options: Unpack[Options]) -> Reply:
    """Reply with one JSON object although a stream was requested: the message of another reply, or any value
    unchanged."""
    if isinstance(body, Reply):
        return Reply(
            text=body.text, reasoning=body.reasoning, calls=body.calls, refusal=body.refusal,
            finish=body.finish,
            whole=True, **options,
        )  # fmt: skip
    return Reply(shape="verbatim", body=body, **options)


def malformed_chunk(content: str = "", chunk: str = '{"choices": [{', **options: Unpack[Options]) -> Reply:
    """Send some text, then an event that is not valid JSON."""
    return Reply(text=content, finish=None, end="eof", raw=(chunk,), **options)


def repeat(*entries: Any) -> Repeat:
    """Repeat these replies indefinitely; the last entry of a script."""
    if not entries:
        raise ValueError("repeat needs at least one reply")
    return Repeat(entries)


# The wires that the scripted server speaks, by path. Each dialect writes the same reply in its own way.


@dataclass(frozen=True, slots=True)
class WireEvent:
    """One event of a stream. ``name``: its SSE event name, if the wire has any. ``delta``: a slow reply
    pauses before it. ``counted``: it contains the usage of the reply."""

    data: dict[str, Any]
    name: str = ""
    delta: bool = False
    counted: bool = False


class Dialect(Protocol):
    """``done`` is the data line after the last event of a stream; empty when the wire has none."""

    done: str

    def events(self, reply: Reply, number: int) -> Iterator[WireEvent]:
        """Yield a message as a stream. ``number`` makes ids unique within a script."""

    def whole(self, reply: Reply, number: int) -> dict[str, Any]:
        """Return the same message as one object."""

    def error(self, reply: Reply) -> Any:
        """Return the body of an HTTP error."""


# Scripted replies in the wire form of chat completions: chunks of a stream, or one object. Pure functions.


PIECES = 3
"""Number of deltas that a text is split into."""


class ChatDialect:
    """The ``Dialect`` of chat completions."""

    done = "[DONE]"

    def events(self, reply: Reply, number: int) -> Iterator[WireEvent]:
        for chunk in chunks(reply, number):
            yield WireEvent(
                chunk, delta=any(choice["delta"] for choice in chunk["choices"]), counted="usage" in chunk
            )

    def whole(self, reply: Reply, number: int) -> dict[str, Any]:
        return completion(reply, number)

    def error(self, reply: Reply) -> Any:
        return reply.body


def pieces(content: str, count: int = PIECES) -> list[str]:
    """Split the text into ``count`` parts of about equal length, none of them empty."""
    size = max(1, -(-len(content) // count))
    return [content[start : start + size] for start in range(0, len(content), size)]


def chunks(reply: Reply, number: int) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a message as in a real stream. ``number`` makes ids unique within a script."""
    yield _chunk(reply, number, {"role": "assistant", "content": ""})
    for part in pieces(reply.reasoning):
        yield _chunk(reply, number, {"reasoning_content": part})
    for part in pieces(reply.text):
        yield _chunk(reply, number, {"content": part})
    if reply.refusal is not None:
        yield _chunk(reply, number, {"refusal": reply.refusal})
    for index, entry in enumerate(reply.calls):
        function = {"name": entry.name, "arguments": ""}
        opening = {"index": index, **_id(entry, number, index), "type": "function", "function": function}
        yield _chunk(reply, number, {"tool_calls": [opening]})
        for part in pieces(entry.arguments):
            yield _chunk(reply, number, {"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    if reply.finish is not None:
        yield _chunk(reply, number, {}, reply.finish)
    if (served := served_usage(reply)) is not None:
        yield {**_head(reply, number, "chat.completion.chunk"), "choices": [], "usage": usage_to_wire(served)}


def completion(reply: Reply, number: int) -> dict[str, Any]:
    """Return the same message as one object."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.refusal is not None:
        message["refusal"] = reply.refusal
    if reply.calls:
        message["tool_calls"] = [
            {
                **_id(entry, number, n),
                "type": "function",
                "function": {"name": entry.name, "arguments": entry.arguments},
            }
            for n, entry in enumerate(reply.calls)
        ]
    body = _head(reply, number, "chat.completion")
    body["choices"] = [{"index": 0, "message": message, "finish_reason": reply.finish}]
    if (served := served_usage(reply)) is not None:
        body["usage"] = usage_to_wire(served)
    return body


def served_usage(reply: Reply) -> Usage | None:
    """Return the usage that a fully served reply reports; a broken one never gets that far."""
    return reply.usage if reply.shape == "message" and reply.end == "done" else None


def usage_to_wire(usage: Usage) -> dict[str, Any]:
    """Convert canonical counts to this wire, whose prompt tokens include the cached ones."""
    wire: dict[str, Any] = {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.total,
    }
    if usage.cache_read or usage.cache_write:
        wire["prompt_tokens_details"] = {
            "cached_tokens": usage.cache_read,
            "cache_write_tokens": usage.cache_write,
        }
    if usage.reasoning:
        wire["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return wire


def _head(reply: Reply, number: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 0, "model": reply.model}


def _chunk(reply: Reply, number: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {**_head(reply, number, "chat.completion.chunk"), "choices": [choice]}


def _id(entry: Call, number: int, index: int) -> dict[str, Any]:
    if entry.id == "":
        return {}
    return {"id": f"call_{number}_{index}" if entry.id is None else entry.id}
