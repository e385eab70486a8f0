"""Assemble a reply of the chat-completions wire from chunks or from one object. No SDK, no network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import Finish, ModelReply, ToolCall, Usage
from fsm_agent.providers.failures import body_failure, shape_failure
from fsm_agent.providers.reply_values import (
    ID_CHARACTERS,
    NAME_CHARACTERS,
    id_of,
    mapping_of,
    mappings_of,
    text_of,
    usage_from,
)
from fsm_agent.runtime.ports import StreamSink
from fsm_agent.support.texts import clean

# Reasoning as vendors send it on the chat-completions wire.


_JOINED = ("text", "summary", "data")
"""Fields of a reasoning detail that arrive in pieces; of the others (format, signature, id) the last value is
kept."""

_FIELDS = frozenset(("reasoning", "reasoning_content", "reasoning_details", "extra_content"))


class Reasoning:
    """The reasoning of one reply: its text for display, and its details in the form that is sent back."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._details: list[dict[str, Any]] = []
        self._signed: Mapping[str, Any] | None = None
        """A vendor's extra content of the whole reply, if it contains a signature."""
        self._pieces: list[dict[str, list[str]]] = []
        """The pieces of each detail's ``_JOINED`` fields."""

    @property
    def text(self) -> str:
        """Return the reasoning text received so far."""
        return "".join(self._text)

    @property
    def blocks(self) -> tuple[Mapping[str, Any], ...]:
        """Return the details, pieces joined and otherwise verbatim, then the signed content."""
        details = (
            detail | {key: clean("".join(pieces)) for key, pieces in joined.items()}
            for detail, joined in zip(self._details, self._pieces, strict=True)
        )
        signed = self._signed
        return (*details, *([{"type": "extra_content", "extra_content": signed}] if signed else ()))

    def add(self, text: str) -> None:
        """Append a piece of text."""
        self._text.append(text)

    def feed(self, delta: Mapping[str, Any]) -> str:
        """Process the reasoning fields of a delta and return the text to show.

        Servers that send ``reasoning`` beside ``reasoning_details`` repeat the text: the first field with
        text is used."""
        details = mappings_of(delta.get("reasoning_details"))
        for part in details:
            self._merge(part)
        extra = mapping_of(delta.get("extra_content"))
        if any(mapping_of(one).get("thought_signature") for one in extra.values()):
            self._signed = extra
        for key in ("reasoning", "reasoning_content"):
            if text := text_of(delta.get(key)):
                return text
        return "".join(text_of(part.get("text")) or text_of(part.get("summary")) for part in details)

    def _merge(self, part: Mapping[str, Any]) -> None:
        last = self._details[-1] if self._details else None
        place = (part.get("type"), part.get("index"))
        if last is None or place[1] is None or place != (last.get("type"), last.get("index")):
            self._details.append(last := {})
            self._pieces.append({})
        for key, value in part.items():
            if value is None:
                last.setdefault(key, None)
            elif key not in _JOINED:
                last[key] = value
            elif isinstance(value, str):
                self._pieces[-1].setdefault(key, []).append(value)


def split_content(content: Any) -> tuple[str, str]:
    """Return the text and reasoning of a message's content: a string, or parts of types ``text`` and
    ``thinking``."""
    if content is None or isinstance(content, str):
        return content or "", ""
    parts = content if isinstance(content, list) else [content]
    texts, thoughts = [], []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and part.get("type") == "thinking":
            inner = part.get("thinking")
            thoughts.append(inner if isinstance(inner, str) else split_content(inner)[0])
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            texts.append(part["text"])
    return "\n".join(texts), "".join(thoughts)


# Assemble tool calls from their deltas.


@dataclass(slots=True)
class Slot:
    """A call that is still arriving. ``extra``: a vendor's signature that must be sent back with the call."""

    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    extra: Mapping[str, Any] | None = None


class CallSlots:
    """Tool calls by the index of their deltas.

    A new id on an index in use opens a new slot: some servers send every call at index 0. A name is assigned,
    not appended: some servers repeat it in every delta. A delta without an index belongs to the slot of its
    id; one without either continues the last slot, unless it has a name. ``newest``: (name, piece of the
    arguments) of the last delta."""

    def __init__(self) -> None:
        self._slots: list[Slot] = []
        self._open: dict[int, Slot] = {}
        self._by_id: dict[str, Slot] = {}
        self.newest = "", ""

    def __bool__(self) -> bool:
        return bool(self._slots)

    def feed(self, delta: Mapping[str, Any]) -> str | None:
        """Process one delta. Return the call's name if this delta revealed it."""
        call_id, name, arguments = id_of(delta.get("id")), "", None
        match delta:
            case {"function": dict(function)}:
                name, arguments = text_of(function.get("name"))[:NAME_CHARACTERS], function.get("arguments")
        slot = self._slot(delta.get("index"), call_id, name)
        slot.id = slot.id or call_id
        self._by_id.setdefault(slot.id, slot)
        known, slot.name = bool(slot.name), name or slot.name
        if isinstance(arguments, str):
            slot.pieces.append(arguments)
        elif arguments is not None:
            slot.pieces = [json.dumps(arguments, ensure_ascii=False)]
        self.newest = slot.name, "" if arguments is None else slot.pieces[-1]
        match delta:
            case {"extra_content": dict(extra)}:
                slot.extra = extra
        return slot.name if slot.name and not known else None

    def calls(self) -> tuple[ToolCall, ...]:
        """Return the calls in the order of their first deltas, each with a unique id."""
        calls = read_calls((slot.id, slot.name, "".join(slot.pieces)) for slot in self._slots)
        return tuple(
            replace(call, extra=slot.extra) if slot.extra is not None else call
            for call, slot in zip(calls, self._slots, strict=True)
        )

    def _slot(self, index: Any, call_id: str, name: str) -> Slot:
        if isinstance(index, int):
            slot = self._open.get(index)
            if slot is None or (call_id and slot.id and call_id != slot.id):
                slot = self._open[index] = self._new()
            return slot
        if call_id:
            return self._by_id.get(call_id) or self._new()
        return self._new() if name or not self._slots else self._slots[-1]

    def _new(self) -> Slot:
        self._slots.append(Slot())
        return self._slots[-1]


def read_calls(calls: Iterable[tuple[str, str, str]]) -> Iterator[ToolCall]:
    """Yield the calls of a reply, given as (id, name, arguments), with unique ids. A missing, duplicate, or
    overlong id is replaced; an overlong name is cut."""
    seen: set[str] = set()
    for index, (given, name, arguments) in enumerate(calls):
        given = clean(given)
        usable = 0 < len(given) <= ID_CHARACTERS and given not in seen
        call_id = given if usable else stable_id(name, arguments, index)
        seen.add(call_id)
        yield ToolCall(call_id, name[:NAME_CHARACTERS], arguments)


def stable_id(name: str, arguments: str, index: int) -> str:
    """Return the id of a call that came without one: the same reply always gets the same id."""
    return (
        "call_" + hashlib.sha256(f"{index}\0{name}\0{arguments}".encode("utf-8", "replace")).hexdigest()[:24]
    )


_FINISH: dict[str, Finish] = {
    **dict.fromkeys(("stop", "end_turn", "eos", "eos_token", "stop_sequence"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "model_length", "max_output_tokens"), "length"),
    **dict.fromkeys(("tool_calls", "function_call", "tool_use"), "tool_calls"),
    **dict.fromkeys(("content_filter", "safety", "recitation", "sensitive", "refusal"), "content_filter"),
    **dict.fromkeys(("guardrail_intervened", "blocklist"), "content_filter"),
}
EMPTY = "empty stream: it ended before anything was said"
_BROKEN = frozenset({"error", "network_error", "insufficient_system_resource"})
"""Finish reasons of an aborted reply, which counts as cut."""


class ChatReply:
    """A growing reply. ``feed`` takes chunks in order and reports deltas to the sink; ``end`` builds the
    result."""

    def __init__(self, sink: StreamSink) -> None:
        self._sink = sink
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._reasoning = Reasoning()
        self._calls = CallSlots()
        self._finish: Finish | None = None
        self._model: str | None = None
        self.usage: Usage | None = None

    @property
    def finished(self) -> bool:
        """Whether a finish reason has arrived; only the usage can follow."""
        return self._finish is not None

    def feed(self, chunk: Any) -> None:
        """Process one decoded chunk. Ignores anything that is not a chunk (a ping, null)."""
        if not isinstance(chunk, dict) or not chunk:
            return
        self._sink.alive()
        if self._model is None:
            self._model = text_of(chunk.get("model")) or None
        if usage := chunk.get("usage"):
            self.usage = usage_from(usage) or self.usage
        match chunk.get("choices"):
            case [*choices]:
                for choice in choices:
                    if isinstance(choice, dict) and choice.get("index") in (0, None):
                        self._choice(choice)

    def _choice(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or _number_calls(choice.get("message"))
        if isinstance(delta, dict):
            self._delta(delta)
        match choice:
            case {"finish_reason": str(reason)} if reason:
                reason = reason.lower()
                self._finish = None if reason in _BROKEN else _FINISH.get(reason, "stop")

    def _delta(self, delta: Mapping[str, Any]) -> None:
        text, thinking = split_content(delta.get("content"))
        if not _FIELDS.isdisjoint(delta):
            thinking = self._reasoning.feed(delta) + thinking
        if thinking:
            self._reasoning.add(thinking)
            self._sink.reasoning(thinking)
        if text:
            self._text.append(text)
            self._sink.text(text)
        match delta:
            case {"refusal": str(refusal)} if refusal:
                self._refusal.append(refusal)
        match delta:
            case {"tool_calls": [*calls]}:
                for call in calls:
                    if isinstance(call, dict):
                        self._call(call)

    def _call(self, delta: Mapping[str, Any]) -> None:
        if name := self._calls.feed(delta):
            self._sink.tool(name)
        self._sink.arguments(*self._calls.newest)

    def end(self, failure: Failure | None = None) -> ModelReply | Failure:
        """Return the reply or a failure once the stream has ended; ``failure`` is the error that broke it
        off, if any.

        After a finish reason the reply is complete, whatever happened next. Text without one is a cut reply:
        asking again would show it twice. Nothing delivered, or a tool call in flight when the connection
        broke, is a failure. A tool call in a stream that merely ended without a finish reason is kept: its
        arguments may be complete."""
        if self._finish is not None:
            return self._reply()
        if failure is None and (self._text or self._calls or self._refusal):
            return self._reply()
        if failure is not None and self._text and not self._calls:
            return self._reply()
        if failure is None:
            failure = Failure("transport", EMPTY, exception="EmptyStream", detail=EMPTY)
        return replace(failure, usage=self.usage)

    def _reply(self) -> ModelReply:
        calls, finish = self._calls.calls(), self._finish
        if finish in ("stop", "tool_calls"):
            finish = "tool_calls" if calls else "stop"
        return ModelReply(
            text="".join(self._text),
            reasoning=self._reasoning.text,
            tool_calls=calls,
            finish=finish,
            cut=finish is None,
            refusal="".join(self._refusal) or None,
            usage=self.usage,
            model=self._model,
            blocks=self._reasoning.blocks,
        )


def _number_calls(message: Any) -> Any:
    """Give each call of a complete message an index: two calls with the same id are not pieces of one."""
    if not isinstance(message, dict) or not isinstance(calls := message.get("tool_calls"), list):
        return message
    numbered = [{**one, "index": at} if isinstance(one, Mapping) else one for at, one in enumerate(calls)]
    return {**message, "tool_calls": numbered}


def whole_reply(
    body: Any, sink: StreamSink, now: float = 0.0, secrets: Iterable[str] = ()
) -> ModelReply | Failure:
    """Parse a complete response object. Reports its text to the sink once; a missing finish reason counts as
    stop.

    ``now`` (wall time in seconds) and ``secrets`` are for the failure of a body without choices.
    """
    if not isinstance(body, Mapping):
        return shape_failure("the response is not a JSON object", body, secrets)
    choices, usage = body.get("choices"), usage_from(body.get("usage"))
    if not choices and body.get("error"):
        return replace(body_failure(body, now, secrets), usage=usage)
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, Mapping) or not isinstance(first.get("message"), Mapping):
        return replace(shape_failure("the response has no choices", body, secrets), usage=usage)
    reply = ChatReply(sink)
    reply.feed(
        body if first.get("finish_reason") else {**body, "choices": [{**first, "finish_reason": "stop"}]}
    )
    return reply.end()
