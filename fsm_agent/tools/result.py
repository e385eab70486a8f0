"""From what a handler returned, or raised, to the text that the model reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from fsm_agent.conversation.messages import Part
from fsm_agent.support.texts import clean, shorten

NO_OUTPUT = "(no output)"
IMAGE_ONLY = "(an image)"
MAX_LOOKED_AT = 20_000
"""Characters of an exception's text that are cleaned."""
MAX_ERROR = 2_000
"""Characters of an exception's text; more is a dump, and nobody but the handler decided what is in it."""

_ROLES = (
    "system|developer|user|assistant|human|tool"
    "|tool_calls?|tool_results?|tool_response|function_calls?|invoke"
)
_ROLE_TAG = re.compile(
    rf"</?\s*(?:{_ROLES})\b[^<>]{{0,200}}>|<\|[^<>|]{{0,60}}\|>|\[/?INST\]|<</?SYS>>", re.IGNORECASE
)
_FENCE = re.compile(r"`{3,}|~{3,}")


def images_of(value: object) -> tuple[Part, ...]:
    """The images of a result that is a list of content parts; empty for every other result."""
    if not isinstance(value, list | tuple) or not value:
        return ()
    if not all(isinstance(part, Mapping) and part.get("type") in ("text", "image_url") for part in value):
        return ()
    return tuple(dict(part) for part in value if part["type"] == "image_url")


def text_of(value: object) -> str:
    """A result as text: strings as they are, bytes decoded, ``None`` as "(no output)", of content parts their
    texts, all else as JSON.

    Pydantic models, dataclasses, dates, sets and paths become their JSON forms; what has none becomes its
    ``str``."""
    if value is None:
        return NO_OUTPUT
    if images_of(value):
        parts: Any = value
        return clean("\n".join(str(part["text"]) for part in parts if part["type"] == "text")) or IMAGE_ONLY
    if isinstance(value, bytes | bytearray | memoryview):
        return clean(bytes(value).decode("utf-8", "replace"))
    plain = value if isinstance(value, str) else _plain(value)
    return clean(plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False))


def _plain(value: object) -> Any:
    try:
        return to_jsonable_python(value, fallback=str)
    except UnicodeDecodeError:  # bytes inside that are no text
        return to_jsonable_python(value, fallback=str, bytes_mode="base64")


def text_of_error(error: BaseException) -> str:
    """An exception as text: its type and message, without anything that reads like a role, bounded."""
    try:
        message = str(error)[:MAX_LOOKED_AT]
    except Exception:
        message = ""
    text = _FENCE.sub(" ", _ROLE_TAG.sub(" ", clean(message))).strip()
    return shorten(f"{type(error).__name__}: {text}" if text else type(error).__name__, MAX_ERROR - 100)


def words_of(failure: Any) -> str:
    """The own words of a ``ToolFailure``."""
    return clean(str(failure)) or "The tool failed without saying why."
