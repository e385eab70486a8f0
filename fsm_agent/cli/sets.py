"""``nested.name=value`` texts of the command line. Loads nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fsm_agent.errors import ConfigError


def nested(sets: Sequence[str]) -> dict[str, Any]:
    """The mapping that ``nested.name=value`` texts describe. Raises ``ConfigError`` for a text that is not of
    this form."""
    values: dict[str, Any] = {}
    for text in sets:
        name, equals, value = text.partition("=")
        path = name.strip().split(".")
        if not equals or not all(path):
            raise ConfigError(
                "--set cannot be read", text, "nested.name=value, for example --set budget.grace_call=false"
            )
        group = values
        for part in path[:-1]:
            group = group.setdefault(part, {})
            if not isinstance(group, dict):
                raise ConfigError("--set names both a setting and a part of it", text, "one of the two")
        group[path[-1]] = value_of(value.strip())
    return values


def value_of(text: str) -> Any:
    """What a text on the command line means: JSON where it can be read as such, else itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
