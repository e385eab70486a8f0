"""The internal form of a conversation: OpenAI-style messages as immutable values.

A ``Message`` is compared by identity and never edited, so its wire form can be computed once and reused. What
is stored and what is sent are different values: recovery scaffolding exists only in the wire copy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from fsm_agent.conversation.parts import Part, kind_of
from fsm_agent.conversation.parts import text_only as said_of
from fsm_agent.errors import ConfigError, expect
from fsm_agent.support.texts import clean, portable

Role = Literal["system", "user", "assistant", "tool"]
AGENT_NAME = "agent"
"""The name of an agent that was not given one."""
ROLES: tuple[str, ...] = get_args(Role)
Content = str | Sequence[Part] | None
# Types in a tuple, and dict before Mapping, because histories of thousands of rows are checked with them.
TEXT, CONTENT = (str, type(None)), (str, list, type(None))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the model wrote it. ``arguments``: the raw JSON text, not yet checked. ``id``: referenced
    by the result; ``item_id``: an additional id in the Responses API; ``extra``: a vendor's own fields, for
    the issuer of the message."""

    id: str
    name: str
    arguments: str
    item_id: str = ""
    extra: Mapping[str, Any] | None = field(default=None, hash=False)

    def cleaned(self) -> ToolCall:
        """Return the call cleaned as in ``ModelReply.cleaned``."""
        id, name, arguments, item_id = map(clean, (self.id, self.name, self.arguments, self.item_id))
        extra = self.extra if self.extra is None or portable(self.extra) else None
        return ToolCall(id, name, arguments, item_id, extra)

    def to_dict(self) -> dict[str, Any]:
        """Return the call in the form of chat completions."""
        function = {"name": self.name, "arguments": self.arguments}
        row: dict[str, Any] = {"id": self.id, "type": "function", "function": function}
        if self.item_id:
            row |= {"call_id": self.id, "response_item_id": self.item_id}
        return row | {"extra_content": dict(self.extra)} if self.extra else row


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Message:
    """One row of a transcript.

    ``reasoning``, ``name`` and ``finish_reason`` are bookkeeping and not sent. ``sent`` replaces ``content``
    in requests: the preview of a long result, the user's text with injected context. ``interrupted`` marks
    text that was cut by the user. ``wire`` is false for a row that tells people why a turn failed and is
    never sent to a model. ``summary`` marks a row that replaces rows before it. ``blocks`` keeps a provider's
    own reasoning items verbatim. ``issuer``: the model that made ``reasoning``, ``blocks`` and other vendor
    fields; if it is ``None`` (unknown), they are kept but never sent."""

    role: Role
    content: Content = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    sent: str | None = None
    interrupted: bool = False
    wire: bool = True
    summary: bool = False
    blocks: tuple[Mapping[str, Any], ...] = ()
    issuer: str | None = None

    @property
    def text(self) -> str:
        """The textual content; parts joined by newlines."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(str(part["text"]) for part in self.content or () if part.get("type") == "text")

    def made_by(self, issuer: str | None) -> Message:
        """Return the row with its issuer, if any of its parts are only for its issuer."""
        opaque = self.reasoning or self.blocks or any(call.extra for call in self.tool_calls)
        return replace(self, issuer=issuer) if opaque else self

    @property
    def said(self) -> str:
        """The text sent for the row, with a line for each part that is not text."""
        if self.sent is None:
            return said_of(self.content)
        others = () if isinstance(self.content, str | None) else self.content
        return "\n".join(filter(None, (self.sent, said_of([part for part in others if kind_of(part)]))))

    def followed_by(self, text: str) -> Message:
        """Return the row as it is sent, with text appended."""
        if self.sent is not None:
            return replace(self, sent=f"{self.sent}\n\n{text}")
        if isinstance(self.content, str | None):
            return replace(self, content=f"{self.content or ''}\n\n{text}".lstrip())
        return replace(self, content=[*self.content, {"type": "text", "text": text}])

    def reworded(self, words: Callable[[Part], str]) -> Message:
        """Return the row with each non-text part replaced by ``words(part)``, unless that is empty."""
        if isinstance(self.content, str | None):
            return self
        texts = [words(part) if kind_of(part) else "" for part in self.content]
        if not any(texts):
            return self
        content = [
            {"type": "text", "text": text} if text else part
            for part, text in zip(self.content, texts, strict=True)
        ]
        sent = None if self.sent is None else "\n".join(filter(None, (self.sent, *texts)))
        return replace(self, content=content, sent=sent)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a plain dict, without empty fields."""
        row: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            row["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        if self.tool_call_id is not None:
            row["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            row["name"] = self.name
        if self.reasoning is not None:
            row["reasoning"] = self.reasoning
        if self.finish_reason is not None:
            row["finish_reason"] = self.finish_reason
        if self.sent is not None:
            row["sent"] = self.sent
        if self.issuer is not None:
            row["issuer"] = self.issuer
        if self.blocks:
            row["blocks"] = [dict(block) for block in self.blocks]
        if self.interrupted:
            row["interrupted"] = True
        if not self.wire:
            row["wire"] = False
        if self.summary:
            row["summary"] = True
        return row

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Message:
        """Parse a row from a caller or a store. Raises ``ConfigError`` for a row that is not a message."""
        if not isinstance(row, (dict, Mapping)) or row.get("role") not in ROLES:
            raise ConfigError("not a message", row, f"a mapping with role in {', '.join(ROLES)}")
        content = row.get("content")
        if not isinstance(content, CONTENT):
            raise ConfigError(
                "a message's content has the wrong type", content, "a string, a list of parts, or None"
            )
        for key in ("reasoning", "issuer", "tool_call_id", "name"):
            if not isinstance(row.get(key), TEXT):
                raise ConfigError(f"{key} of a message has the wrong type", row[key], "a string or None")
        blocks = row.get("blocks") or ()
        if blocks and not (
            isinstance(blocks, (list, tuple)) and all(isinstance(one, Mapping) for one in blocks)
        ):
            raise ConfigError("blocks of a message has the wrong type", blocks, "a list of objects")
        calls = row.get("tool_calls") or ()
        expect("tool_calls of a message", calls, (list, tuple), "a list of calls")
        return cls(
            role=row["role"],
            content=content,
            tool_calls=tuple(map(_call_from, calls)) if calls else (),
            tool_call_id=row.get("tool_call_id"),
            name=row.get("name"),
            reasoning=row.get("reasoning"),
            finish_reason=row.get("finish_reason"),
            sent=row.get("sent"),
            interrupted=bool(row.get("interrupted", False)),
            wire=bool(row.get("wire", True)),
            summary=bool(row.get("summary", False)),
            blocks=tuple(blocks),
            issuer=row.get("issuer"),
        )


def _call_from(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, (dict, Mapping)) else None
    if not isinstance(function, (dict, Mapping)):
        raise ConfigError("not a tool call", call, '{"id": …, "function": {"name": …, "arguments": …}}')
    given, extra = str(call.get("id") or ""), call.get("extra_content")
    call_id = str(call.get("call_id") or given)
    arguments = function.get("arguments")
    if not isinstance(arguments, str | None):  # an object, as Ollama has it, instead of its text
        arguments = json.dumps(arguments, ensure_ascii=False, default=str)
    return ToolCall(
        call_id,
        str(function.get("name") or ""),
        arguments or "",
        item_id=str(call.get("response_item_id") or (given if given != call_id else "")),
        extra=extra if isinstance(extra, Mapping) else None,
    )


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more responses, in disjoint buckets: the prompt is input + cache_read + cache_write,
    and reasoning is a part of output."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    @property
    def prompt(self) -> int:
        """Return the tokens of the whole request, cached or not."""
        return self.input + self.cache_read + self.cache_write

    @property
    def total(self) -> int:
        """Return the tokens of request and reply."""
        return self.prompt + self.output

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
        )


NO_USAGE = Usage()

Finish = Literal["stop", "length", "tool_calls", "content_filter", "incomplete"]


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The reply to one request, on any wire.

    ``text`` is as received (inline reasoning tags not yet stripped). ``finish`` is ``None`` if the stream
    ended without a reason; ``cut``: the connection broke after something was delivered. ``usage`` is ``None``
    if the provider did not report any: unknown is not zero. ``changed_by``: hooks that changed the reply;
    ``sent`` is false if a hook supplied it in place of a model."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Finish | None = "stop"
    cut: bool = False
    refusal: str | None = None
    usage: Usage | None = None
    model: str | None = None
    blocks: tuple[Mapping[str, Any], ...] = field(default=())
    changed_by: tuple[str, ...] = ()
    sent: bool = True

    def cleaned(self) -> ModelReply:
        """Return the reply in a form that can be stored, sent and shown: all text is valid Unicode, and
        verbatim vendor parts are kept only if any JSON reader accepts them."""
        return replace(
            self,
            text=clean(self.text),
            reasoning=clean(self.reasoning),
            tool_calls=tuple(call.cleaned() for call in self.tool_calls),
            refusal=None if self.refusal is None else clean(self.refusal),
            model=None if self.model is None else clean(self.model),
            blocks=tuple(block for block in self.blocks if portable(block)),
        )


@dataclass(frozen=True, slots=True)
class StoredPrompt:
    """The system prompt of a session: the bytes that are sent, and a digest of each input by layer name."""

    text: str
    inputs: Mapping[str, str]


IN_DOUBT = (
    "Unknown outcome: the process ended while this ran, so it may or may not have taken effect. It was not"
    " run again. Find out what happened before repeating it."
)
"""The result of a call whose process ended."""


def unanswered_calls(rows: Sequence[Message]) -> list[ToolCall]:
    """Return the calls of the last assistant row that have no result yet."""
    answered = set()
    for row in reversed(rows):
        if row.role == "tool":
            answered.add(row.tool_call_id)
        elif row.role == "assistant":
            return [call for call in row.tool_calls if call.id not in answered]
        elif row.role == "user":
            return []
    return []
