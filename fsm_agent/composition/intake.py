"""What becomes of the parts of a message before its turn: made to fit where that can be done, else refused in
one line. A model of the chain that reads less than the first gets a text or a name in their place."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fsm_agent.conversation.effects import Runtime
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.parts import (
    PDF,
    Part,
    data_of,
    image_of,
    kind_of,
    named,
    parts_of,
    said,
    size_of,
    text_of_file,
)
from fsm_agent.conversation.wire import View
from fsm_agent.conversation.wire.parts import obstacle
from fsm_agent.errors import ConfigError
from fsm_agent.settings.model import PartSettings
from fsm_agent.support.installation import install_command
from fsm_agent.support.media import ImageBounds, UnusableMedia, fitted, text_of_pdf

MAX_MESSAGE = 8_000_000
"""Characters of text of one user message; more is refused, not cut."""
EXTRAS = {"Pillow is not installed": "images", "pypdf is not installed": "pdf"}


def message_of(
    content: Any, chain: Sequence[Runtime], settings: PartSettings, *, asks_images: bool = False
) -> Any:
    """Return the content of a user's message as a turn can begin with it. ``chain``: the model in use first.
    ``asks_images``: it can have another model look at images that it does not read.
    May take seconds. Raises ``ConfigError`` for a message that is empty or too long, and for a part that
    cannot be used or that the model does not read: the line names both."""
    if isinstance(content, Sequence | str) and not content:
        raise ConfigError("the message is empty", content, "some text, or a content part")
    read = parts_of(content)
    if read is None:
        raise ConfigError("the message has the wrong type", None, "text, or a list of content parts")
    length = len(said(read))
    if isinstance(read, str) and not read.strip():
        raise ConfigError("the message is empty", read, "some text")
    if length > MAX_MESSAGE:
        raise ConfigError("the message is too long", f"{length:,} characters", f"up to {MAX_MESSAGE:,}")
    return read if isinstance(read, str) else [_usable(part, chain, settings, asks_images) for part in read]


def history_of(
    rows: Iterable[Message], chain: Sequence[Runtime], settings: PartSettings
) -> tuple[Message, ...]:
    """Return the rows of a history with parts that fit, as far as that can be done; what a model does not
    read is named to it, because a history must not end a conversation."""
    return tuple(_fitting(row, chain, settings) for row in rows)


def _fitting(row: Message, chain: Sequence[Runtime], settings: PartSettings) -> Message:
    if isinstance(row.content, str | None) or not any(map(kind_of, row.content)):
        return row
    content: list[Part] = []
    for part in row.content:
        try:
            content.append(_converted(part, chain, settings)[0])
        except UnusableMedia:
            content.append(part)
    return replace(row, content=content)


def _usable(part: Part, chain: Sequence[Runtime], settings: PartSettings, asks_images: bool) -> Part:
    if kind_of(part) is None:
        return part
    size = size_of(part)
    if size > settings.max_bytes:
        raise ConfigError(
            f"{named(part)} is too large",
            f"{size:,} bytes",
            f"up to {settings.max_bytes:,} (parts.max_bytes)",
        )
    model = f"{chain[0].provider}:{chain[0].model}"
    try:
        made, problem = _converted(part, chain, settings)
    except UnusableMedia as error:
        raise ConfigError(
            f"{named(part)} cannot be made to fit {model}",
            str(error),
            _remedy(str(error), "a smaller image, as PNG or JPEG"),
        ) from None
    if asks_images and kind_of(part) == "image":
        return made
    if (why := obstacle(made, View.of(chain[0], frozenset()))) and not text_of_file(made):
        kind = kind_of(part)
        what = f"{named(part)} cannot be sent: {model} {why}"
        given = f"its text cannot be sent instead: {problem}" if problem else None
        raise ConfigError(
            what,
            given,
            _remedy(problem, f'a model that takes it, or parts.assume=["{kind}"] if this one does'),
        )
    return made


def _remedy(problem: str, otherwise: str) -> str:
    extra = EXTRAS.get(problem)
    return f"{install_command(extra)}, or {otherwise}" if extra else otherwise


def _converted(part: Part, chain: Sequence[Runtime], settings: PartSettings) -> tuple[Part, str]:
    """(the part as it fits, why a PDF has no text though a model of the chain needs it). Raises
    ``UnusableMedia`` for an image that does not fit."""
    media_type, data = data_of(part)
    if kind_of(part) == "image" and data:
        raw = base64.b64decode(data)
        made, found = fitted(raw, media_type, ImageBounds(settings.image_bytes, settings.image_side))
        return (part if made is raw else image_of(part, found, made)), ""
    needs_text = any(obstacle(part, View.of(runtime, frozenset())) for runtime in chain)
    if media_type == PDF and needs_text and not text_of_file(part):
        try:
            return {**part, "text": text_of_pdf(base64.b64decode(data), settings.pdf_chars)}, ""
        except UnusableMedia as error:
            return part, str(error)
    return part, ""
