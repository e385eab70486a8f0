"""JSON that somebody else wrote, read only as deep as everything that walks it later can go."""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 200
"""Levels of arrays and objects. Ordinary values have ten; recursive code fails at about a thousand."""
MAX_BRACKETS = 50_000
"""Opening brackets in a text, also those in strings: a value of more takes long to be made."""
_CONTAINERS = frozenset((dict, list))


class OverlyNestedError(ValueError):
    """A value of more levels, or of more arrays and objects, than anybody means."""


def json_of(text: str, decoder: json.JSONDecoder | None = None) -> Any:
    """The value of a JSON text. Raises ``ValueError`` for what is none, and ``OverlyNestedError``."""
    brackets = text.count("[") + text.count("{")
    if brackets > MAX_BRACKETS:
        raise OverlyNestedError(f"it has more than {MAX_BRACKETS:,} brackets")
    try:
        value = json.loads(text) if decoder is None else decoder.decode(text)
    except RecursionError:
        raise OverlyNestedError(f"it is nested in more than {MAX_DEPTH} levels") from None
    return value if brackets <= MAX_DEPTH else checked(value)


def portable(value: Any) -> bool:
    """Say whether a value can be stored, sent and read again: text is Unicode and numbers are finite, and it
    is half as deep as what is read at most, because it becomes a part of something else."""
    try:
        json.dumps(checked(value, MAX_DEPTH // 2), ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return True


def checked(value: Any, levels: int = MAX_DEPTH) -> Any:
    """The value of a JSON text itself. Raises ``OverlyNestedError`` for one that is too deep, which is found
    out level by level, without recursion."""
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(levels):
        if not level:
            return value
        parts = (one.values() if type(one) is dict else one for one in level)
        level = [part for many in parts for part in many if type(part) in _CONTAINERS]
    if level:
        raise OverlyNestedError(f"it is nested in more than {levels} levels")
    return value
