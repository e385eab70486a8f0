"""Reading the arguments of a request: every wrong one is a ``ConfigError``, which the editor shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsm_agent.errors import ConfigError

Arguments = Mapping[str, Any]


def number(arguments: Arguments, name: str, default: int | None = None) -> int:
    """A whole number from 0. Raises ``ConfigError``."""
    value = arguments.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{name} is no number", value, "a whole number from 0")
    return value


def text(arguments: Arguments, name: str) -> str:
    """A text. Raises ``ConfigError``."""
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ConfigError(f"{name} is no text", value, "some text")
    return value


def objects(arguments: Arguments, name: str) -> list[Arguments]:
    """A list of objects, empty when it is not given. Raises ``ConfigError``."""
    value = arguments.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise ConfigError(f"{name} is no list of objects", value, "a list of objects")
    return value
