"""Converts a server's answers to what a model can take: text, and images, audio and PDFs as parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel

from fsm_agent.conversation.parts import AUDIO_FORMATS, PDF, Part, part_of
from fsm_agent.errors import ConfigError
from fsm_agent.support.media import IMAGE_TYPES
from fsm_agent.support.texts import clean

TAKEN = (*IMAGE_TYPES, *AUDIO_FORMATS, PDF)
MOST_PARTS = 8


@dataclass(frozen=True, slots=True)
class Result:
    """A converted result. ``failed``: the server reports that the tool failed."""

    text: str
    parts: tuple[Part, ...] = ()
    failed: bool = False


def result_of(answer: CallToolResult) -> Result:
    """Convert every block in order. Name content that a model cannot take, so that nothing is dropped
    silently."""
    texts: list[str] = []
    parts: list[Part] = []
    for block in answer.content:
        for item in _block(block, len(parts)):
            (texts if isinstance(item, str) else parts).append(item)  # type: ignore[arg-type]
    if answer.structured_content is not None and not _says(texts, answer.structured_content):
        texts.append(json.dumps(answer.structured_content, ensure_ascii=False))
    return Result(clean("\n".join(texts)), tuple(parts), bool(answer.is_error))


def list_of(entries: Iterable[BaseModel], cursor: str | None) -> Result:
    """Return one line of JSON per resource or prompt, and how to get the rest."""
    lines = [
        entry.model_dump_json(by_alias=True, exclude_none=True, exclude={"icons", "meta"})
        for entry in entries
    ]
    more = [f"[there are more: ask again with cursor {json.dumps(cursor)}]"] if cursor else []
    return Result(clean("\n".join((*lines, *more))))


def _block(block: ContentBlock, parts: int) -> Iterator[str | Part]:
    match block:
        case TextContent():
            yield block.text
        case ImageContent():
            yield _part(block.mime_type, block.data, parts)
        case AudioContent():
            yield _part(block.mime_type, block.data, parts)
        case ResourceLink():
            about = ", ".join(filter(None, (block.mime_type, block.description)))
            yield f"[resource {block.name}: {block.uri}{f' ({about})' if about else ''}]"
        case EmbeddedResource(resource=TextResourceContents() as resource):
            yield f"[resource {resource.uri}]\n{resource.text}"
        case EmbeddedResource(resource=BlobResourceContents() as resource):
            yield f"[resource {resource.uri}]"
            name = str(resource.uri).rsplit("/", 1)[-1]
            yield _part(resource.mime_type or "unknown type", resource.blob, parts, name)


def _part(kind: str, data: str, parts: int, name: str = "") -> str | Part:
    what = kind.partition("/")[0] if kind in TAKEN and kind != PDF else "content"
    if kind not in TAKEN:
        return f"[content left out: {kind}, {_size(data)}]"
    if parts >= MOST_PARTS:
        return f"[{what} left out: only {MOST_PARTS} are taken of one result]"
    try:
        return part_of({"type": "input_file", "filename": name, "file_data": f"data:{kind};base64,{data}"})
    except ConfigError:
        return f"[{what} left out: its data is broken]"


def _size(data: str) -> str:
    return f"{len(data) * 3 // 4:,} bytes"


def _says(texts: list[str], structured: Any) -> bool:
    """Return whether the texts already contain the structured value. Servers send both, and some wrap it:
    ``{"result": …}``, ``{"content": …}``."""
    values = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        values += structured.values()
    joined = "\n".join(texts)
    if any(_is(text, value) for text in (*texts, joined) for value in values):
        return True
    parts = values[-1]
    return isinstance(parts, list) and 0 < len(parts) == len(texts) and all(map(_is, texts, parts))


def _is(text: str, value: Any) -> bool:
    """Return whether the text is this value, or its JSON."""
    if text == value:
        return True
    try:
        return bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False
