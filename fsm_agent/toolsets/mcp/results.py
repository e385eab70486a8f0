"""From what a server answered to what a model can be given: text, and images as content parts."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
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

from fsm_agent.conversation.messages import Part
from fsm_agent.support.texts import clean

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""What all providers take."""
MOST_IMAGES = 8
MAX_IMAGE = 5_000_000
"""Characters of base64; the least that a large provider allows for one image."""


@dataclass(frozen=True, slots=True)
class Result:
    """``failed``: the server says that the tool failed."""

    text: str
    images: tuple[Part, ...] = ()
    failed: bool = False


def result_of(answer: CallToolResult) -> Result:
    """Every block in order. What a model cannot be given is named instead, so that nothing disappears in
    silence."""
    texts: list[str] = []
    images: list[Part] = []
    for block in answer.content:
        for said in _block(block, len(images)):
            (texts if isinstance(said, str) else images).append(said)  # type: ignore[arg-type]
    if answer.structured_content is not None and not _says(texts, answer.structured_content):
        texts.append(json.dumps(answer.structured_content, ensure_ascii=False))
    return Result(clean("\n".join(texts)), tuple(images), bool(answer.is_error))


def _block(block: ContentBlock, images: int) -> Iterator[str | Part]:
    match block:
        case TextContent():
            yield block.text
        case ImageContent():
            yield _image(block.mime_type, block.data, images)
        case AudioContent():
            yield f"[audio left out: {block.mime_type}, {_size(block.data)}]"
        case ResourceLink():
            about = ", ".join(filter(None, (block.mime_type, block.description)))
            yield f"[resource {block.name}: {block.uri}{f' ({about})' if about else ''}]"
        case EmbeddedResource(resource=TextResourceContents() as resource):
            yield f"[resource {resource.uri}]\n{resource.text}"
        case EmbeddedResource(resource=BlobResourceContents() as resource):
            yield f"[resource {resource.uri}]"
            yield _image(resource.mime_type or "unknown type", resource.blob, images)


def _image(kind: str, data: str, images: int) -> str | Part:
    if kind not in IMAGES:
        return f"[content left out: {kind}, {_size(data)}]"
    if images >= MOST_IMAGES:
        return f"[image left out: only {MOST_IMAGES} are taken of one result]"
    if len(data) > MAX_IMAGE:
        return f"[image left out: {_size(data)} is too large]"
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return "[image left out: its data is broken]"
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}


def _size(data: str) -> str:
    return f"{len(data) * 3 // 4:,} bytes"


def _says(texts: list[str], structured: Any) -> bool:
    """Do the texts already say it? Servers give both, and some wrap what they say: ``{"result": …}``,
    ``{"content": …}``."""
    values = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        values += structured.values()
    joined = "\n".join(texts)
    if any(_is(text, value) for text in (*texts, joined) for value in values):
        return True
    parts = values[-1]
    return isinstance(parts, list) and 0 < len(parts) == len(texts) and all(map(_is, texts, parts))


def _is(text: str, value: Any) -> bool:
    """Is the text this value, or its JSON?"""
    if text == value:
        return True
    try:
        return bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False
