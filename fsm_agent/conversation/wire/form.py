"""What an API mode must implement so that conversations can be written in it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, Protocol

from fsm_agent.conversation.effects import ApiMode, OutputSpec, Runtime, ToolSpec
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.parts import (
    BYTES_PER_CHAR,
    IMAGE_CHARS,
    OTHERS_BLOCKS,
    Carrier,
    Kind,
    Part,
    carrier_of,
    data_of,
    image_of,
    kind_of,
    name_part,
    part_of,
    text_of_file,
)
from fsm_agent.conversation.vendors import ReasoningFamily, family_of, issuer_of, runtime_family
from fsm_agent.errors import ConfigError
from fsm_agent.settings import CacheTtl, Effort, RequestSettings
from fsm_agent.support.media import IMAGE_TYPES, ImageBounds, UnusableMedia, fit_image
from fsm_agent.support.texts import clean

WireRow = dict[str, Any]
PLAIN = family_of("chat_completions")
NO_OPTIONS = RequestSettings()
Pieces = Sequence[bytes | bytearray]
"""Consecutive bytes. They are copied once, when the whole body is assembled: a long conversation is
megabytes, and every further copy would cost more than everything new."""


@dataclass(frozen=True, slots=True)
class View:
    """The inputs, besides the row itself, that determine how a row is written. ``issuer`` and ``family``:
    whose reasoning this model accepts back, and in which form. ``prompt_role``: role of the prompt's row.
    ``vision``, ``audio``, ``files``: inputs of the model. ``repairs``: wire modes that recoveries switched
    on. ``marks``: whether the last rows carry cache marks; ``ttl``: how long the marked content is cached."""

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
    @lru_cache(maxsize=64)
    def of(cls, runtime: Runtime, repairs: frozenset[str], ttl: CacheTtl = "5m") -> View:
        """Build the view of a runtime with the repairs of its requests."""
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

    def accepts(self, by: str | None) -> bool:
        """Return whether reasoning made by ``by`` is accepted back. Reasoning of unknown origin never is."""
        return bool(by) and by == self.issuer

    def own_blocks(self, message: Message) -> Iterator[Mapping[str, Any]]:
        """Yield the blocks of a message that this issuer made. Older stores name the issuer in each block."""
        for block in message.blocks:
            if self.accepts(block.get("issuer", message.issuer)):
                yield {key: value for key, value in block.items() if key != "issuer"}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request without its messages. ``system`` is the prompt, ``ephemeral`` the uncached text after it.
    ``tools`` is their wire form (``Format.tools``), ``None`` for a toolless request. ``output_cap`` in
    tokens, ``None`` for the provider's default; ``raised``: the cap requests a longer reply than the last one
    and is not a user's limit; ``firm``: a longer reply would exceed a limit, so thoughts must fit in.
    ``effort``: how much a thinking model should think, ``None`` for its default. ``options``: the other
    options of the request; ``free``: the model no longer has to call a tool. ``answer``: the schema that the
    provider enforces on the answer. ``ttl``: see ``View``."""

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
        """Return whether ``message`` starts a new run after ``run``."""

    def rows(self, run: Sequence[Message], seen_ids: set[str], view: View) -> list[WireRow]:
        """Return one run as valid rows. ``seen_ids`` are the call ids of earlier runs; it is not changed."""

    def ids(self, rows: Sequence[WireRow]) -> set[str]:
        """Return the call ids in these rows."""

    def system_row(self, prompt: str, ephemeral: str, view: View) -> WireRow | None:
        """Return the prompt and the text after it as a row, or ``None`` if the wire has no such row."""

    def mark(self, row: WireRow, ttl: CacheTtl) -> WireRow | None:
        """Return the row with a cache mark, its text unchanged; ``None`` if it cannot carry one."""

    def tools(self, tools: Sequence[ToolSpec], repairs: frozenset[str]) -> bytes: ...

    def body(self, ask: Ask, messages: Pieces) -> bytes:
        """Return the exact body. Fields that vary between requests come after the messages."""


def cache_mark(ttl: CacheTtl) -> dict[str, str]:
    """Return the value of a cache mark; five minutes is the default of every provider that reads marks."""
    return {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}


def system_text(prompt: str, ephemeral: str) -> str:
    """Return the prompt and the text after it as one string."""
    return "\n\n".join(text for one in (prompt, ephemeral) if (text := clean(one).strip()))


def system_blocks(prompt: str, ephemeral: str, ttl: CacheTtl) -> list[dict[str, Any]]:
    """Return the prompt and the text after it as blocks. The prompt has a cache mark: the text after it may
    change in the next turn."""
    blocks: list[dict[str, Any]] = []
    if text := clean(prompt).strip():
        blocks.append({"type": "text", "text": text, "cache_control": cache_mark(ttl)})
    if text := clean(ephemeral).strip():
        blocks.append({"type": "text", "text": text})
    return blocks


def dump(value: Any) -> bytes:
    """Return compact JSON as UTF-8."""
    return _COMPACT.encode(value).encode("utf-8", "replace")


_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def join_json(
    head: dict[str, Any], named: Sequence[tuple[str, bytes | Pieces | None]], tail: dict[str, Any]
) -> bytes:
    """Return one JSON object, joined from a small head, prepared values by name, and a small tail."""
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


IMAGES = ("image_url", "image", "input_image")
OTHERS = ("input_audio", "file", "input_file", "document")


def excess(value: Any) -> int:
    """Return the bytes of images, audio and files in a row's content beyond their estimated size."""
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
    """Return a JSON schema without the keywords that some servers cannot turn into a grammar."""
    if isinstance(schema, dict):
        return {
            key: without_patterns(value)
            for key, value in schema.items()
            if key not in ("pattern", "format") or not isinstance(value, str)
        }
    return [without_patterns(item) for item in schema] if isinstance(schema, list) else schema


REFUSED_ON_TOP = frozenset(
    {"$schema", "$id", "anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else"}
)
"""Keywords that OpenAI and Anthropic refuse beside ``type: object``. The tool checks its arguments itself."""


def tool_schema(tool: ToolSpec, repairs: frozenset[str]) -> Mapping[str, Any]:
    """Return the parameters of a tool in the form that these wires accept."""
    schema = tool.parameters
    if not REFUSED_ON_TOP.isdisjoint(schema):
        schema = {key: value for key, value in schema.items() if key not in REFUSED_ON_TOP}
    plain: Mapping[str, Any] = without_patterns(schema) if "grammar" in repairs else schema
    return plain


# Who may begin and who may end a conversation on each wire.


Speaker = Literal["", "user", "assistant", "tool"]
"""The role of a row; ``""`` without a row."""


@dataclass(frozen=True, slots=True)
class WireTakes:
    """Roles that may begin and end a conversation on one wire, accepted by every server of that wire."""

    first: frozenset[Speaker]
    tail: frozenset[Speaker]


WIRES: Mapping[ApiMode, WireTakes] = MappingProxyType(
    {
        # servers with a chat template want the user first; several refuse an assistant row at the end
        "chat_completions": WireTakes(frozenset({"user"}), frozenset({"user", "tool"})),
        # an assistant row at the end is a prefill, which newer models and thinking refuse; results are
        # user rows there
        "anthropic_messages": WireTakes(frozenset({"user"}), frozenset({"user", "tool"})),
        # a list of items, any of which may begin; a reply to a reply would be unrequested
        "codex_responses": WireTakes(frozenset({"user", "assistant"}), frozenset({"user", "tool"})),
    }
)


# The content parts that each wire accepts, and the replacements for those that it or a model does not.
# Nothing is omitted silently: a part is sent as it is, as its text, or as a line that names it.


TAKEN: Mapping[ApiMode, Mapping[Kind, tuple[Carrier, ...]]] = {
    "chat_completions": {"image": ("data", "url"), "audio": ("data",), "file": ("data", "id")},
    "codex_responses": {"image": ("data", "url", "id"), "file": ("data", "url", "id")},
    "anthropic_messages": {"image": ("data", "url"), "file": ("data", "url")},
}
"""Kinds of parts by wire, and how they may be carried, as the vendors document them. Audio works on chat
completions only; on the Messages wire, upload ids would need a header that is not sent."""
PLURAL: Mapping[Kind, str] = {"image": "images", "audio": "audio", "file": "files"}
REPAIRED = ImageBounds(size=3_500_000, side=1_568)
"""Bounds for an image that a provider rejected as too large: below the smallest known limits of 5 MB in
base64, and of 2,000 pixels in requests with many images."""
_CARRIED = {"data": "that come with the message", "url": "by address", "id": "by the id of an upload"}


def obstacle(part: Part, view: View) -> str:
    """Return why a part cannot be sent as it is, as words that follow a model's name; empty if it can."""
    kind, carrier = kind_of(part), carrier_of(part)
    if kind is None or carrier is None:
        return "" if kind is None else "gets only its name"
    if not {"image": view.vision, "audio": view.audio, "file": view.files}[kind]:
        return f"does not read {PLURAL[kind]}"
    carriers = TAKEN[view.mode].get(kind, ())
    if carrier not in carriers:
        return f"takes no {PLURAL[kind]} {_CARRIED[carrier]}" if carriers else f"takes no {PLURAL[kind]}"
    media_type = data_of(part)[0]
    if (
        view.mode == "anthropic_messages"
        and kind == "image"
        and carrier == "data"
        and media_type not in IMAGE_TYPES
    ):
        return f"takes no images of type {media_type}"
    return ""


def content_of(message: Message, view: View) -> str | list[Part] | None:
    """Return the content of a message as it is sent: text, or parts that are text or accepted by this wire
    and model. For roles other than the user,
    content of only text parts is joined to one text."""
    content = message.content
    if message.sent is not None:  # replaces its texts
        others = [] if isinstance(content, str | None) else [part for part in content if kind_of(part)]
        content = [_text(message.sent), *others] if others else message.sent
    if isinstance(content, str | None):
        return content
    parts = [_outgoing(part, message, view) for part in content if part.get("type") not in OTHERS_BLOCKS]
    if message.role != "user" and all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _outgoing(part: Part, message: Message, view: View) -> Part:
    kind = kind_of(part)
    if kind is None:
        return _older(part, message, view)
    flat = message.role == "tool" and "flat_tool_content" in view.repairs
    why = obstacle(part, view) or ("takes only text in results of tools" if flat else "")
    if not why and message.role != "assistant":
        return _smaller(part) if kind == "image" and "smaller_images" in view.repairs else part
    return _text(text_of_file(part) or line(part, f"not sent, this model {why}" if why else "not sent again"))


def _older(part: Part, message: Message, view: View) -> Part:
    """Return a text, or convert a part that was stored in another form."""
    try:
        read = part_of(part)
    except ConfigError:
        words = part.get("text")
        return _text(words if isinstance(words, str) else line(part, "not sent, its type is not known"))
    return _outgoing(read, message, view) if kind_of(read) else read


def line(part: Part, why: str) -> str:
    """Return the line that replaces a part."""
    return f"[{name_part(part)}: {why}]"


def _text(words: str) -> Part:
    return {"type": "text", "text": words}


def _smaller(part: Part) -> Part:
    """Shrink an image to the smallest known limits, or replace it by a line if that is impossible."""
    media_type, data = data_of(part)
    if not data:
        return part
    try:
        raw = base64.b64decode(data)
        image, found = fit_image(raw, media_type, REPAIRED)
    except (binascii.Error, ValueError):
        return part
    except UnusableMedia as error:
        return _text(line(part, f"not sent, it is too large for this model and {error}"))
    return part if image is raw else image_of(part, found, image)


def reduced_parts(rows: Sequence[Message], view: View) -> tuple[list[str], list[str]]:
    """Return the names of the parts in these rows of which a model with this view gets only the name, and of
    the files of which it gets only the text."""
    named: list[str] = []
    read: list[str] = []
    for row in rows:
        if isinstance(row.content, str | None) or not row.wire:
            continue
        for part in row.content:
            if carrier_of(part) is not None and kind_of(part) and obstacle(part, view):
                (read if text_of_file(part) else named).append(name_part(part))
    return named, read
