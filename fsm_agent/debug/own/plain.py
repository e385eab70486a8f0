"""Requests and replies of a table that is not ours, as JSON values to look at."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.fsm.codec import codec_of

DEEP = 12
"""Values within values that are shown; deeper ones as their text."""


def plain(value: Any, depth: int = 0) -> Any:
    """A dataclass becomes an object that says under ``"is"`` what it is; what JSON has no word for, its ``repr``."""
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, enum.Enum) else value
    if depth >= DEEP:
        return repr(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: plain(getattr(value, one.name), depth + 1) for one in dataclasses.fields(value)}
        return {"is": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one, depth + 1) for one in value]
    return repr(value)


def shown(value: Any) -> dict[str, Any]:
    """As ``plain``, but always an object: how requests and replies are kept."""
    made = plain(value)
    return made if isinstance(made, dict) else {"is": type(value).__name__, "value": made}


def name_of(request: Any) -> str:
    """A few words that tell a request from others of its kind: its first field, if that is a short text."""
    if dataclasses.is_dataclass(request) and (fields := dataclasses.fields(request)):
        first = getattr(request, fields[0].name)
        if isinstance(first, str) and len(first) <= 40:
            return first
    return ""


def answerable(request: Any) -> bool:
    """Does the request say what it is answered with, in a class variable ``reply``?"""
    return isinstance(getattr(type(request), "reply", None), type)


def answered(request: Any, said: Any) -> Any:
    """The reply that a person's words stand for. Raises ``ConfigError``."""
    kind = getattr(type(request), "reply", None)
    name = type(request).__name__
    if not isinstance(kind, type):
        raise ConfigError(
            f"nobody knows what {name} is answered with",
            None,
            f"in class {name}: reply: ClassVar[type] = TheReply; or let it be done",
        )
    if kind is type(None):
        return None
    if not dataclasses.is_dataclass(kind):
        if not isinstance(said, kind):
            raise ConfigError(f"{name} cannot be answered so", said, kind.__name__)
        return said
    return _dataclass(name, kind, said)


def _dataclass(name: str, kind: type, said: Any) -> Any:
    fields = [one.name for one in dataclasses.fields(kind)]
    values = {fields[0]: said} if not isinstance(said, Mapping) and fields else said
    if not isinstance(values, Mapping) or (unknown := sorted(set(values) - {*fields, "is"})):
        raise ConfigError(
            f"{name} cannot be answered so", said if not isinstance(values, Mapping) else unknown[0], ", ".join(fields)
        )
    try:
        return codec_of(kind).decode({key: one for key, one in values.items() if key != "is"})
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(f"{name} cannot be answered so ({error})", said, ", ".join(fields)) from None
