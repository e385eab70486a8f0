"""Requests and replies of any table as JSON: to be shown, kept, and read back. What a request declares about
itself is in ``request``."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.fsm import values
from fsm_agent.fsm.codec import Codec, dumps
from fsm_agent.request import answerable, effect_of, refuse_effect, without_doubt

DEEP = 12
"""Values within values that are shown; deeper ones as their text."""


def plain(value: Any, depth: int = 0) -> Any:
    """A dataclass becomes an object that says under ``"is"`` what it is; what JSON has no word for, its
    ``repr``."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
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


def refuse_unstorable(kind: type) -> None:
    """Raise ``ConfigError`` for a class of requests that cannot be stored, or whose reply cannot be, and for
    one that says nonsense of its effect."""
    types = {f"request {kind.__name__}": kind}
    if hasattr(kind, "reply"):
        types[f"the reply to {kind.__name__}"] = kind.reply
    for what, annotation in types.items():
        try:
            values.codec_of(annotation)
        except values.NoCodec as error:
            raise ConfigError(f"{what} cannot be stored", str(error), values.STORABLE) from None
    refuse_effect(kind)


def _reply_codec(request: Any) -> Codec:
    return values.codec_of(type(request).reply)


def _kept(annotation: Any, value: Any) -> dict[str, Any]:
    """A value with the name of its type; fields of a dataclass stand beside it."""
    name, encoded = values.name_of(annotation), values.codec_of(annotation).encode(value)
    return {"is": name, **encoded} if values.is_flat(annotation) else {"is": name, "value": encoded}


def _unkept(annotation: Any, kept: Mapping[str, Any]) -> Any:
    decode = values.codec_of(annotation).decode
    if values.is_flat(annotation):
        return decode({key: one for key, one in kept.items() if key != "is"})
    return decode(kept.get("value"))


def kept_request(request: Any) -> dict[str, Any]:
    """A request as it is kept, which is how it is known again. Raises ``ConfigError`` for one that cannot be
    stored."""
    kind = type(request)
    try:
        kept = _kept(kind, request)
    except values.NoCodec as error:
        raise ConfigError(f"request {kind.__name__} cannot be stored", str(error), values.STORABLE) from None
    except values.Unstorable as error:
        what = f"request {kind.__name__}{error.path} cannot be stored"
        raise ConfigError(what, error.given, error.allowed) from None
    if effect_of(request) == "unsafe":  # after the crash it would be too late
        try:
            _reply_codec(request).encode(request.in_doubt())
        except values.Unstorable:
            raise without_doubt(kind) from None
    return kept


def is_kept_as(request: Any, kept: Any) -> bool:
    """Is this the request that was kept? Older versions kept requests as they are ``shown``."""
    return any(kept == json.loads(dumps(form(request))) for form in (kept_request, shown))


def kept_reply(request: Any, reply: Any) -> dict[str, Any]:
    """A reply as it is kept, every field of it; ``read_reply`` reads it. Raises ``ConfigError`` for one of
    another type than the request names."""
    if not answerable(request):
        return shown(reply)
    try:
        return _kept(type(request).reply, reply)
    except values.Unstorable as error:
        what = f"the reply to {type(request).__name__}{error.path} cannot be stored"
        raise ConfigError(what, error.given, error.allowed) from None


def read_reply(request: Any, kept: Mapping[str, Any]) -> Any:
    """The reply that ``kept_reply`` kept. Only of a request that is ``answerable``."""
    return _unkept(type(request).reply, kept)


def answered(request: Any, said: Any) -> Any:
    """The reply that a person's words stand for. Raises ``ConfigError``."""
    name = type(request).__name__
    if not answerable(request):
        raise ConfigError(
            f"nobody knows what {name} is answered with",
            None,
            f"in class {name}: reply: ClassVar[type] = TheReply; or let it be done",
        )
    kind: Any = type(request).reply
    if kind is type(None):
        return None
    fields = [one.name for one in dataclasses.fields(kind)] if values.is_flat(kind) else []
    allowed = ", ".join(fields) or values.name_of(kind)
    if fields:
        said = said if isinstance(said, Mapping) else {fields[0]: said}
        if unknown := sorted(set(said) - {*fields, "is"}):
            raise ConfigError(f"{name} cannot be answered so", unknown[0], allowed)
    try:
        reply = _unkept(kind, said if fields else {"value": said})
        values.codec_of(kind).encode(reply)
    except values.UNREADABLE as error:
        raise ConfigError(f"{name} cannot be answered so ({error})", said, allowed) from None
    return reply
