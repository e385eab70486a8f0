"""What an API mode must say of itself so that conversations can be written in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fsm_agent.conversation.effects import ApiMode, OutputSpec, Runtime, ToolSpec
from fsm_agent.conversation.families import ReasoningFamily, family_of, issuer_of, runtime_family
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.parts import BYTES_PER_CHAR, IMAGE_CHARS
from fsm_agent.settings.model import CacheTtl, Effort, RequestSettings
from fsm_agent.support.texts import clean

CHARS_PER_TOKEN = 4

WireRow = dict[str, Any]
PLAIN = family_of("chat_completions")
NO_OPTIONS = RequestSettings()
Pieces = Sequence[bytes | bytearray]
"""Bytes that belong one behind the other. They are copied once, when the whole body is put together: a long
conversation is megabytes, and every further copy would cost more than all that is new."""


@dataclass(frozen=True, slots=True)
class View:
    """What the shape of a row depends on besides the row itself. ``issuer``: whose parts this model takes
    back, ``family``: in which form. ``prompt_role``: of the row that the prompt is. ``vision``, ``audio``,
    ``files``: what the model reads. ``repairs``: wire modes that recoveries switched on. ``marks``: whether
    the last rows carry cache marks; ``ttl``: how long what they mark is kept."""

    mode: ApiMode = "chat_completions"
    family: ReasoningFamily = PLAIN
    issuer: str = ""
    prompt_role: str = "system"
    vision: bool = True
    audio: bool = False
    files: bool = False
    repairs: frozenset[str] = frozenset()
    marks: bool = False
    ttl: CacheTtl = "5m"

    @classmethod
    def of(cls, runtime: Runtime, repairs: frozenset[str], ttl: CacheTtl = "5m") -> View:
        """Make it of what a turn runs on, and of the repairs that were done on its requests."""
        return cls(
            mode=runtime.api_mode,
            family=runtime_family(runtime),
            issuer=issuer_of(runtime),
            prompt_role=runtime.prompt_role,
            vision=runtime.vision and "vision" not in repairs,
            audio=runtime.audio and "audio" not in repairs,
            files=runtime.files and "files" not in repairs,
            repairs=repairs,
            marks=runtime.cache_marks,
            ttl=ttl,
        )

    def made(self, by: str | None) -> bool:
        """Say whether what ``by`` made is taken back. What nobody is known to have made never is."""
        return bool(by) and by == self.issuer

    def own_blocks(self, message: Message) -> Iterator[Mapping[str, Any]]:
        """The blocks of a message that this issuer made. Older stores name it with each of them."""
        for block in message.blocks:
            if self.made(block.get("issuer", message.issuer)):
                yield {key: value for key, value in block.items() if key != "issuer"}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request besides its messages. ``system`` is the prompt, ``ephemeral`` what stands behind it and in
    no cache. ``tools`` is their wire form (``Format.tools``), ``None`` for a toolless request. ``output_cap``
    in tokens, ``None`` for the provider's default; ``raised``: it is a wish for a longer reply than the last
    and no limit that anybody set; ``firm``: a longer reply is not paid for, so thoughts have to fit in.
    ``effort``: how much a model that can think should think, ``None`` when
    nobody asked. ``options``: what is asked for besides, and ``free``: no tool has to be called any more.
    ``answer``: what the provider is to hold the answer to.
    ``ttl``: see ``View``."""

    runtime: Runtime
    system: str = ""
    ephemeral: str = ""
    tools: bytes | None = None
    output_cap: int | None = None
    raised: bool = False
    firm: bool = False
    temperature: float | None = None
    effort: Effort | None = None
    options: RequestSettings = NO_OPTIONS
    free: bool = True
    answer: OutputSpec | None = None
    ttl: CacheTtl = "5m"


class Format(Protocol):
    """One API mode. Pure; a *run* is the smallest piece of a history that can be made valid by itself, and
    only the last run of a history can still grow."""

    def opens_run(self, run: Sequence[Message], message: Message) -> bool:
        """Does ``message`` start a run of its own after ``run``?"""

    def rows(self, run: Sequence[Message], seen_ids: set[str], view: View) -> list[WireRow]:
        """One run as valid rows. ``seen_ids`` are the call ids of the runs before; it is not changed."""

    def ids(self, rows: Sequence[WireRow]) -> set[str]:
        """The call ids in these rows."""

    def system_row(self, prompt: str, ephemeral: str, view: View) -> WireRow | None:
        """The row that the prompt is, with what stands behind it, or ``None`` where it is no row."""

    def marked(self, row: WireRow, ttl: CacheTtl) -> WireRow | None:
        """The row with a cache mark; ``None`` when it cannot carry one. Its text keeps the same bytes."""

    def tools(self, tools: Sequence[ToolSpec], repairs: frozenset[str]) -> bytes: ...

    def body(self, ask: Ask, messages: Pieces) -> bytes:
        """The exact body. What varies from request to request comes behind the messages."""


def cache_mark(ttl: CacheTtl) -> dict[str, str]:
    """The value of a mark; five minutes are the default of every provider that reads marks."""
    return {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}


def system_text(prompt: str, ephemeral: str) -> str:
    """The prompt and what stands behind it, as one text."""
    return "\n\n".join(text for one in (prompt, ephemeral) if (text := clean(one).strip()))


def system_blocks(prompt: str, ephemeral: str, ttl: CacheTtl) -> list[dict[str, Any]]:
    """The same as blocks of text, the prompt with a cache mark: what stands behind it may be another text in
    the next turn."""
    blocks: list[dict[str, Any]] = []
    if text := clean(prompt).strip():
        blocks.append({"type": "text", "text": text, "cache_control": cache_mark(ttl)})
    if text := clean(ephemeral).strip():
        blocks.append({"type": "text", "text": text})
    return blocks


def dump(value: Any) -> bytes:
    """Compact JSON as UTF-8."""
    return _COMPACT.encode(value).encode("utf-8", "replace")


_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def joined(
    head: dict[str, Any], named: Sequence[tuple[str, bytes | Pieces | None]], tail: dict[str, Any]
) -> bytes:
    """One JSON object of a small head, ready-made values by name, and a small tail."""
    pieces: list[bytes | bytearray] = [b"{"]
    if head:
        pieces += [dump(head)[1:-1], b","]
    for name, value in named:
        if value is not None:
            pieces += [b'"', name.encode(), b'":', *([value] if isinstance(value, bytes) else value), b","]
    pieces += [dump(tail)[1:-1], b"}"] if tail else [b"}"]
    if not tail and pieces[-2] == b",":
        del pieces[-2]
    return b"".join(pieces)


def tokens_of(body_bytes: int) -> int:
    """A rough size in tokens: four characters each."""
    return body_bytes // CHARS_PER_TOKEN


IMAGES = ("image_url", "image", "input_image")
OTHERS = ("input_audio", "file", "input_file", "document")


def excess(value: Any) -> int:
    """Bytes of the images, audio and files in a row's content beyond what they count."""
    if isinstance(value, list):
        return sum(excess(item) for item in value)
    if not isinstance(value, dict):
        return 0
    if value.get("type") in IMAGES:
        return len(dump(value)) - IMAGE_CHARS
    if value.get("type") in OTHERS:
        length = len(dump(value))
        return length - max(IMAGE_CHARS, length // BYTES_PER_CHAR)
    inner = (value.get("content"), value.get("output"))
    return sum([excess(one) for one in inner if isinstance(one, (list, dict))])


def without_patterns(schema: Any) -> Any:
    """A JSON schema without the keywords that some servers cannot turn into a grammar."""
    if isinstance(schema, dict):
        return {
            key: without_patterns(value)
            for key, value in schema.items()
            if key not in ("pattern", "format") or not isinstance(value, str)
        }
    return [without_patterns(item) for item in schema] if isinstance(schema, list) else schema
