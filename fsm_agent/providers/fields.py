"""A field of a reply as what it should be; what it is not counts as not said. Every reader of a wire takes
the fields of a reply by these, because a provider may put anything anywhere. What was JSON has its mappings
as dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def text_of(value: Any) -> str:
    """Return a value that is text, and nothing for any other."""
    return value if isinstance(value, str) else ""


def mapping_of(value: Any) -> Mapping[str, Any]:
    """Return a value that is a mapping, and an empty one for any other."""
    return value if isinstance(value, dict) else {}


def mappings_of(value: Any) -> list[Mapping[str, Any]]:
    """Return the mappings of a list, and none for any other value."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def id_of(value: Any) -> str:
    """Return an id that is text or, as some servers have it, a whole number; nothing for any other."""
    return str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""


def place_of(value: Any) -> str | int | None:
    """Return what tells the parts of a stream apart, ``None`` for all that are told apart by nothing."""
    return value if isinstance(value, (str, int)) else None
