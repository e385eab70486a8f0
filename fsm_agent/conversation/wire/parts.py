"""What each wire takes of content parts, and what goes out in place of those that it or a model does not
take. Nothing is left out without a word: a part goes as it is, as the text that it has, or as a line that
names it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence

from fsm_agent.conversation.effects import ApiMode
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.parts import (
    OTHERS_BLOCKS,
    Carrier,
    Kind,
    Part,
    carrier_of,
    data_of,
    image_of,
    kind_of,
    named,
    part_of,
    text_of_file,
)
from fsm_agent.conversation.wire.form import View
from fsm_agent.errors import ConfigError
from fsm_agent.support.media import IMAGE_TYPES, ImageBounds, UnusableMedia, fitted

TAKEN: Mapping[ApiMode, Mapping[Kind, tuple[Carrier, ...]]] = {
    "chat_completions": {"image": ("data", "url"), "audio": ("data",), "file": ("data", "id")},
    "codex_responses": {"image": ("data", "url", "id"), "file": ("data", "url", "id")},
    "anthropic_messages": {"image": ("data", "url"), "file": ("data", "url")},
}
"""Kinds of parts by wire, and how they may be there, as the vendors document them. Audio is for chat
completions alone; an upload's id needs a header on the Messages wire that is not sent."""
PLURAL: Mapping[Kind, str] = {"image": "images", "audio": "audio", "file": "files"}
REPAIRED = ImageBounds(size=3_500_000, side=1_568)
"""What an image is made to fit when a provider found one too large: the least bounds known, of 5 MB in base64
and of 2,000 pixels where there are many."""
_CARRIED = {"data": "that come with the message", "url": "by address", "id": "by the id of an upload"}


def obstacle(part: Part, view: View) -> str:
    """Return why a part cannot go out as it is, as words behind a model's name; empty when it can."""
    kind, carrier = kind_of(part), carrier_of(part)
    if kind is None or carrier is None:
        return "" if kind is None else "gets only its name"
    if not _reads(view, kind):
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


def _reads(view: View, kind: Kind) -> bool:
    return {"image": view.vision, "audio": view.audio, "file": view.files}[kind]


def content_of(message: Message, view: View) -> str | list[Part] | None:
    """Return what goes out of a message: text, or parts of which each is a text or can be taken by this wire
    and model. What an assistant or a tool said is one text when nothing else is in it."""
    content = message.content
    if message.sent is not None:  # in place of its texts
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
    """A text, or a part that was stored in another form than ours."""
    try:
        read = part_of(part)
    except ConfigError:
        words = part.get("text")
        return _text(words if isinstance(words, str) else line(part, "not sent, its type is not known"))
    return _outgoing(read, message, view) if kind_of(read) else read


def line(part: Part, why: str) -> str:
    """Return the line that stands for a part."""
    return f"[{named(part)}: {why}]"


def _text(words: str) -> Part:
    return {"type": "text", "text": words}


def _smaller(part: Part) -> Part:
    """The image within the least bounds that are known, or a line when that cannot be done."""
    media_type, data = data_of(part)
    if not data:
        return part
    try:
        raw = base64.b64decode(data)
        made, found = fitted(raw, media_type, REPAIRED)
    except (binascii.Error, ValueError):
        return part
    except UnusableMedia as error:
        return _text(line(part, f"not sent, it is too large for this model and {error}"))
    return part if made is raw else image_of(part, found, made)


def reduced(rows: Sequence[Message], view: View) -> tuple[list[str], list[str]]:
    """Return the names of the parts in these rows of which a model of this view is told only that they are
    there, and of the files of which it gets only the text."""
    told: list[str] = []
    read: list[str] = []
    for row in rows:
        if isinstance(row.content, str | None) or not row.wire:
            continue
        for part in row.content:
            if carrier_of(part) is not None and kind_of(part) and obstacle(part, view):
                (read if text_of_file(part) else told).append(named(part))
    return told, read
