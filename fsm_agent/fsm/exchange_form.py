"""Requests and replies of any table as JSON: to be shown, kept, and read back. What a request declares about
itself is in ``request``."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.fsm.codec import codec_of, fields_of, values_of
from fsm_agent.request import answerable

DEEP = 12
"""Values within values that are shown; deeper ones as their text."""


def plain(value: Any, depth: int = 0) -> Any:
    """A dataclass becomes an object that says under ``"is"`` what it is; what JSON has no word for, its
    ``repr``."""
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
    """As ``plain``, but always an object: how requests are kept."""
    made = plain(value)
    return made if isinstance(made, dict) else {"is": type(value).__name__, "value": made}


def kept_reply(request: Any, reply: Any) -> dict[str, Any]:
    """A reply as it is kept, every field of it; ``read_reply`` reads it. Raises ``TypeError`` for one of
    another type than the request names."""
    if not answerable(request):
        return shown(reply)
    kind: type = type(request).reply
    if not (type(reply) is kind if dataclasses.is_dataclass(kind) else isinstance(reply, kind)):
        raise TypeError(
            f"{type(request).__name__} was answered with a {type(reply).__name__}, and not with a"
            f" {kind.__name__}"
        )
    if not dataclasses.is_dataclass(kind):
        return {"is": kind.__name__, "value": codec_of(kind).encode(reply)}
    fields = zip(fields_of(kind), values_of(kind)(reply), strict=True)
    return {"is": kind.__name__, **{one.name: one.codec.encode(value) for one, value in fields}}


def read_reply(request: Any, kept: Mapping[str, Any]) -> Any:
    """The reply that ``kept_reply`` kept. Only of a request that is ``answerable``."""
    kind: type = type(request).reply
    if dataclasses.is_dataclass(kind):
        return codec_of(kind).decode({key: one for key, one in kept.items() if key != "is"})
    return codec_of(kind).decode(kept.get("value"))


def answered(request: Any, said: Any) -> Any:
    """The reply that a person's words stand for. Raises ``ConfigError``."""
    name = type(request).__name__
    if not answerable(request):
        raise ConfigError(
            f"nobody knows what {name} is answered with",
            None,
            f"in class {name}: reply: ClassVar[type] = TheReply; or let it be done",
        )
    kind: type = type(request).reply
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
            f"{name} cannot be answered so",
            said if not isinstance(values, Mapping) else unknown[0],
            ", ".join(fields),
        )
    try:
        return codec_of(kind).decode({key: one for key, one in values.items() if key != "is"})
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(f"{name} cannot be answered so ({error})", said, ", ".join(fields)) from None
