"""Reading what a face was given as JSON: a wrong value is a ``MalformedArgument`` that says which, what was
given and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsm_agent.errors import ConfigError

Arguments = Mapping[str, Any]


class MalformedArgument(ConfigError):
    """An argument that no face of ours would send: missing, or of another type than it must be."""


def number(arguments: Arguments, name: str, default: int | None = None, *, least: int | None = 0) -> int:
    """Return a whole number that is not below ``least``, if there is one. Raises ``MalformedArgument``."""
    value = arguments.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        raise MalformedArgument(
            f"{name} is no number", value, "a whole number" + (f" from {least}" if least is not None else "")
        )
    return value


def text(arguments: Arguments, name: str) -> str:
    """Return a text. Raises ``MalformedArgument``."""
    value = arguments.get(name)
    if not isinstance(value, str):
        raise MalformedArgument(f"{name} is no text", value, "some text")
    return value


def texts(arguments: Arguments, name: str) -> tuple[str, ...]:
    """Return a list of texts, empty when it is not given. Raises ``MalformedArgument``."""
    value = arguments.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise MalformedArgument(f"{name} is no list of texts", value, "a list of texts")
    return tuple(value)


def objects(arguments: Arguments, name: str) -> list[Arguments]:
    """Return a list of objects, empty when it is not given. Raises ``MalformedArgument``."""
    value = arguments.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise MalformedArgument(f"{name} is no list of objects", value, "a list of objects")
    return value
