"""Convert a handler's result or exception to the text that the model reads."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from fsm_agent.conversation.arguments import signature
from fsm_agent.conversation.effects import RunTool, ToolOutcome
from fsm_agent.conversation.parts import (
    AudioPart,
    FilePart,
    ImagePart,
    Part,
    data_of,
    image_of,
    kind_of,
    name_part,
    part_of,
)
from fsm_agent.errors import ConfigError
from fsm_agent.request import NotYet, Waits
from fsm_agent.support.media import ImageBounds, UnusableMedia, fit_image
from fsm_agent.support.texts import clean, shorten

NO_OUTPUT = "(no output)"
TYPED = (ImagePart, AudioPart, FilePart)
BOUNDS = ImageBounds(size=3_700_000, side=8_000)
"""Bounds of images in results: accepted by all large vendors."""
MAX_LOOKED_AT = 20_000
"""Characters of an exception's text that are cleaned."""
MAX_ERROR = 2_000
"""Maximum characters of an exception's text; a longer one is a dump, whose content only the handler chose."""

_ROLES = (
    "system|developer|user|assistant|human|tool"
    "|tool_calls?|tool_results?|tool_response|function_calls?|invoke"
)
_ROLE_TAG = re.compile(
    rf"</?\s*(?:{_ROLES})\b[^<>]{{0,200}}>|<\|[^<>|]{{0,60}}\|>|\[/?INST\]|<</?SYS>>", re.IGNORECASE
)
_ADDRESS = re.compile(r"<.* at 0x[0-9a-fA-F]+>", re.DOTALL)
"""Python's default text of an object without a text of its own."""
_FENCE = re.compile(r"`{3,}|~{3,}")


def parts_in(value: object) -> list[Part]:
    """Return the content parts of a result in stored form: one of our classes, or a list of parts of which at
    least one is not text; empty for any other result. An image that is too large is shrunk, or replaced by
    words."""
    items = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(one, TYPED) or (isinstance(one, Mapping) and "type" in one) for one in items):
        return []
    try:
        parts = [part_of(one) for one in items]
    except ConfigError:  # rows of a table with a column "type"
        return []
    return list(map(_fitting, parts)) if any(map(kind_of, parts)) else []


def _fitting(part: Part) -> Part:
    media_type, data = data_of(part)
    if kind_of(part) != "image" or not data:
        return part
    raw = base64.b64decode(data)
    try:
        image, found = fit_image(raw, media_type, BOUNDS)
    except UnusableMedia as error:
        why = f"left out, it is too large or of another type, and {error}"
        return {"type": "text", "text": f"[{name_part(part)}: {why}]"}
    return part if image is raw else image_of(part, found, image)


def text_of(value: object, parts: Sequence[Part] = ()) -> str:
    """Return a result as text: strings unchanged, bytes decoded, ``None`` as "(no output)", anything else as
    JSON. ``parts``: the result of ``parts_in``; if there are any, their texts are used.

    Pydantic models, dataclasses, dates, sets and paths become their JSON forms; a value without one becomes
    its ``str``. Raises ``TypeError`` for an object that has no text of its own either."""
    if value is None:
        return NO_OUTPUT
    if parts:
        return clean("\n".join(part["text"] for part in parts if kind_of(part) is None)) or _only(parts)
    if isinstance(value, bytes | bytearray | memoryview):
        return clean(bytes(value).decode("utf-8", "replace"))
    plain = value if isinstance(value, str) else _plain(value)
    return clean(plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False))


def _only(parts: Sequence[Part]) -> str:
    kinds = dict.fromkeys(kind_of(part) for part in parts)
    return " and ".join("(a file)" if kind == "file" else f"(an {kind})" for kind in kinds)


def _plain(value: object) -> Any:
    try:
        return to_jsonable_python(value, fallback=_own_text)
    except UnicodeDecodeError:  # bytes inside that are not text
        return to_jsonable_python(value, fallback=_own_text, bytes_mode="base64")


def _own_text(value: object) -> str:
    text = str(value)
    if _ADDRESS.fullmatch(text):
        raise TypeError(
            f"{type(value).__name__} has no JSON form and no text; return a text, a dict, a list, a number,"
            " a dataclass or a pydantic model"
        )
    return text


def text_of_error(error: BaseException) -> str:
    """Return an exception as text: its type and message, of bounded length, without anything that looks like
    a role marker."""
    try:
        message = str(error)[:MAX_LOOKED_AT]
    except Exception:
        message = ""
    text = _FENCE.sub(" ", _ROLE_TAG.sub(" ", clean(message))).strip()
    return shorten(f"{type(error).__name__}: {text}" if text else type(error).__name__, MAX_ERROR - 100)


def words_of(failure: Any) -> str:
    """Return the text of a ``ToolFailure``."""
    return clean(str(failure)) or "The tool failed without saying why."


# How a handler reports a failure.


class ToolFailure(Exception):  # a result, not a bug
    """Raised by a tool's handler to give the model an error result in the tool's own words.

    ``status`` is ``unknown`` if the handler cannot tell whether the call took effect. The runner converts it
    to a ``ToolOutcome`` with this status and exactly this text, so it never leaves a turn and is not part of
    the tree in ``fsm_agent.errors``. Any other exception becomes an error result with its type."""

    def __init__(self, text: str = "", *, status: Literal["error", "unknown"] = "error") -> None:
        super().__init__(text)
        self.status = status


# How a handler reports that its result arrives later, so that the turn is suspended until then.


NOT_KEPT = (
    "Its result was to come later, but the wait cannot be stored at the moment. Any work that was started"
    " continues by itself."
)


class ComesLater(Exception):
    """Raised by a handler whose result is not available yet. ``asked``: what it waits for, in words."""

    kind: Waits = "result"
    choices: tuple[str, ...] = ()
    due: float | None = None

    def __init__(self, asked: str) -> None:
        super().__init__(asked)
        self.asked = asked

    def later(self, request: RunTool) -> NotYet:
        """Return the placeholder for the result of this call."""
        return NotYet(
            self.kind,
            request.call_id,
            request.name,
            self.asked,
            self.choices,
            signature(request.name, request.arguments),
            self.due,
            ToolOutcome(request.call_id, "error", NOT_KEPT),
        )


class ResultLater(ComesLater):
    """Raised by a tool that has passed its work on; ``asked`` says to whom. The tool is not called again:
    ``agent.answer``, or ``fsm-agent pending answer``, provides the result of the call."""


class WakeAt(ComesLater):
    """Raised by a tool to suspend the turn until ``at``: an aware ``datetime``, or seconds since the epoch.
    ``result`` is then the result of the call; the tool is not called again. Raises ``ConfigError`` for an
    invalid time."""

    kind: Waits = "timer"

    def __init__(self, at: datetime | float, result: str = "It is time.") -> None:
        super().__init__(result)
        if isinstance(at, datetime):
            at = at.timestamp() if at.tzinfo is not None else math.nan
        if isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at):
            raise ConfigError(
                "the turn cannot be woken then", at, "seconds since the epoch, or a datetime with its zone"
            )
        self.due = float(at)


class AnswerLater(ComesLater):
    """Raised by a tool when no person can be asked now. ``choices``: answers that it offers."""

    kind: Waits = "question"

    def __init__(self, asked: str, choices: tuple[str, ...] = ()) -> None:
        super().__init__(asked)
        self.choices = choices


def answer_result(question: str, choices: Sequence[str], answer: str) -> dict[str, Any]:
    """Return the result of a question to a person."""
    return {"question": question, "choices": list(choices), "answer": answer}
