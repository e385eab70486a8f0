"""Finding the JSON in what a model wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from fsm_agent.conversation import lenient_json
from fsm_agent.conversation.nesting import checked, json_of

_FENCE = re.compile(r"^[ \t]*```[\w+-]*[ \t]*\r?\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)


def dump(value: Any) -> str:
    """Return the value as JSON text."""
    return json.dumps(value, ensure_ascii=False)


def json_in(text: str) -> tuple[str, Any] | None:
    """Return (the JSON that the text is, or the last that it has in a fence; its value), ``None`` for a text
    without any. Slips that tool calls are forgiven are mended."""
    for part in _parts(text):
        try:
            return part, json_of(part, _STRICT)
        except ValueError:
            pass
    for part in _parts(text):
        try:
            value, whole = lenient_json.read(part)
            if whole:
                return dump(checked(value)), value
        except (lenient_json.DamagedError, ValueError):
            pass
    return None


def _parts(text: str) -> Iterator[str]:
    yield text.strip().removeprefix("\ufeff").strip()
    yield from (part.strip() for part in reversed(_FENCE.findall(text)))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_no_constant)
