"""Codecs of single values for ``fsm_agent.fsm.values``: scalars, times, JSON; and how a value is refused."""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import fractions
import inspect
import math
import pathlib
import re
import reprlib
import typing
import uuid
import zoneinfo
from collections.abc import Iterable, Mapping
from typing import Any

from fsm_agent.fsm.codec import Codec, Coder

JSON_VALUES = "JSON values: None, bool, int, float, str, list, dict with str keys; or another annotation"
DIGITS = 14_280
"""Bits up to which an int is a figure in JSON: Python reads no more than 4,300 digits."""


class Unstorable(TypeError):
    """A ``value`` that its annotation does not allow. ``path`` leads to it: ``.items[3]['a']``."""

    def __init__(self, value: object, allowed: str, path: str = "") -> None:
        super().__init__(value, allowed, path)
        self.value, self.allowed, self.path = value, allowed, path

    @property
    def given(self) -> str:
        """The value and its type, in a few words."""
        return "None" if self.value is None else f"{name_of(type(self.value))} {reprlib.repr(self.value)}"

    def __str__(self) -> str:
        where = f" at {self.path}" if self.path else ""
        return f"{name_of(type(self.value))}{where}, not {self.allowed}"


class NoCodec(TypeError):
    """An annotation that cannot be stored: ``Item.lock (Lock)``."""


def name_of(annotation: Any) -> str:
    """An annotation as it is written in a program."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return "None" if annotation is type(None) else annotation.__name__
    text = getattr(annotation, "__name__", "") if inspect.isroutine(annotation) else str(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?:<locals>\.)?", "", text)


def exactly(kind: type, value: Any) -> Any:
    """The value, of this very class."""
    if type(value) is not kind:
        raise Unstorable(value, name_of(kind))
    return value


def at_place(codec: Codec, place: str, value: Any) -> Any:
    """The value encoded; a refusal names its place."""
    try:
        return codec.encode(value)
    except Unstorable as error:
        error.path = place + error.path
        raise


def items_of(encode: Coder, values: Iterable[Any]) -> list[Any]:
    """Values encoded in order; a refusal names its place."""
    done: list[Any] = []
    try:
        for one in values:
            done.append(encode(one))
    except Unstorable as error:
        error.path = f"[{len(done)}]{error.path}"
        raise
    return done


def entries_of(encode: Coder, write: Coder, values: Mapping[Any, Any]) -> dict[str, Any]:
    """A mapping with its keys written and its values encoded; a refusal names the key."""
    done: dict[str, Any] = {}
    for key, one in values.items():
        try:
            done[write(key)] = encode(one)
        except Unstorable as error:
            error.path = f"[{key!r}]{error.path}"
            raise
    return done


def _scalar(kind: type, write: Coder, read: Coder, *, frozen: bool = True) -> Codec:
    return Codec(lambda value: write(exactly(kind, value)), read, frozen)


def _plain(*kinds: type) -> Coder:
    def encode(value: Any) -> Any:
        if type(value) not in kinds:
            raise Unstorable(value, name_of(kinds[0]))
        return value

    return encode


def as_it_is(value: Any) -> Any:
    """What needs no coding."""
    return value


_BETWEEN = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")
"""Where two halves of a surrogate pair meet: JSON reads them as one character."""


def _str(value: Any) -> Any:
    """A text, or its pieces."""
    if type(value) is not str:
        raise Unstorable(value, "str")
    return value if value.isascii() or not _BETWEEN.search(value) else _BETWEEN.split(value)


def _as_str(stored: Any) -> Any:
    if isinstance(stored, str):
        return stored
    text = "".join(stored)
    if _str(text) != stored:
        raise ValueError("these are no pieces of a text")
    return text


TEXT = Codec(_str, _as_str)


def key_of(value: Any) -> str:
    """A text that may be a key."""
    if not isinstance(text := _str(value), str):
        raise Unstorable(value, "a key without halves of a surrogate pair")
    return text


_whole, _real = _plain(int, bool), _plain(float, int, bool)


def _int(value: Any) -> Any:
    return hex(value) if _whole(value).bit_length() > DIGITS else value


def _float(value: Any) -> Any:
    if type(value) is float and not math.isfinite(value):
        return repr(value)
    return value if type(_real(value)) is float else _int(value)


def _as_int(stored: Any) -> Any:
    return int(stored, 16) if isinstance(stored, str) and "0x" in stored[:3] else stored


def _as_float(stored: Any) -> Any:
    return float(stored) if stored in ("inf", "-inf", "nan") else _as_int(stored)


def _zone(value: datetime.datetime | datetime.time) -> str:
    """What the text of a time does not say: its zone, where that is more than an offset, and its fold."""
    zone, fold = value.tzinfo, "#1" if value.fold else ""
    match zone:
        case None:
            return fold
        case datetime.timezone():
            offset = zone.utcoffset(None)
            named = zone.tzname(None) != datetime.timezone(offset).tzname(None)
            return f"[={zone.tzname(None)}]{fold}" if named else fold
        case zoneinfo.ZoneInfo(key=str(key)):
            return f"[{key}]{fold}"
    if type(zone).__module__.startswith("pydantic"):  # what its models make of a text
        return f"[~]{fold}"
    raise Unstorable(zone, "timezone or ZoneInfo", ".tzinfo")


_TIME = re.compile(r"([^\[#]*)(?:\[(.*)\])?(#1)?", re.DOTALL)


def _time_from(kind: Any) -> Coder:
    def decode(stored: str) -> Any:
        text, zone, fold = _TIME.fullmatch(stored).groups()  # type: ignore[union-attr]
        value = kind.fromisoformat(text)
        if zone == "~":
            from pydantic_core import TzInfo

            value = value.replace(tzinfo=TzInfo(value.utcoffset().total_seconds()))
        elif zone is not None and zone.startswith("="):
            value = value.replace(tzinfo=datetime.timezone(value.utcoffset(), zone[1:]))
        elif zone is not None:
            value = value.replace(tzinfo=zoneinfo.ZoneInfo(zone))
        return value.replace(fold=1) if fold else value

    return decode


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


_FLOAT = Codec(_float, _as_float)
SCALARS: dict[Any, Codec] = {
    None: Codec(_plain(type(None)), as_it_is),
    type(None): Codec(_plain(type(None)), as_it_is),
    bool: Codec(_plain(bool), as_it_is),
    int: Codec(_int, _as_int),
    float: _FLOAT,
    str: TEXT,
    complex: _scalar(
        complex, lambda value: [_float(value.real), _float(value.imag)],
        lambda stored: complex(*map(_as_float, stored)),
    ),
    bytes: _scalar(bytes, _base64, base64.b64decode),
    bytearray: _scalar(
        bytearray, _base64, lambda stored: bytearray(base64.b64decode(stored)), frozen=False
    ),
    decimal.Decimal: _scalar(decimal.Decimal, str, decimal.Decimal),
    fractions.Fraction: _scalar(fractions.Fraction, str, fractions.Fraction),
    uuid.UUID: _scalar(uuid.UUID, str, uuid.UUID),
    datetime.date: _scalar(datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.datetime: _scalar(
        datetime.datetime, lambda value: value.isoformat() + _zone(value), _time_from(datetime.datetime)
    ),
    datetime.time: _scalar(
        datetime.time, lambda value: value.isoformat() + _zone(value), _time_from(datetime.time)
    ),
    datetime.timedelta: _scalar(
        datetime.timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda stored: datetime.timedelta(*stored),
    ),
}  # fmt: skip


def enum_codec(kind: type[enum.Enum]) -> Codec:
    """By values, where they are scalars; else by names."""
    members = [*kind.__members__.values()]
    if issubclass(kind, enum.Flag) or all(type(one.value) in (str, int, bool) for one in members):
        return Codec(lambda value: exactly(kind, value).value, kind)
    return Codec(lambda value: exactly(kind, value).name, lambda stored: kind[stored])


def path_codec(kind: type[pathlib.PurePath]) -> Codec:
    """Of a class of paths; that of another system is refused."""
    try:
        made = type(kind())
    except NotImplementedError:  # it is of another system
        raise NoCodec(name_of(kind)) from None
    return Codec(
        lambda value: TEXT.encode(str(exactly(made, value))), lambda stored: kind(TEXT.decode(stored))
    )


# JSON values


def json_value(value: Any) -> Any:
    """A copy of a JSON value."""
    kind = type(value)
    if value is None or kind is bool or (kind is str and isinstance(_str(value), str)):
        return value
    if (kind is int and value.bit_length() <= DIGITS) or (kind is float and math.isfinite(value)):
        return value
    if kind is list:
        return items_of(json_value, value)
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise Unstorable(key, JSON_VALUES, " (a key)")
        return entries_of(json_value, key_of, value)
    raise Unstorable(value, JSON_VALUES)


JSON = Codec(json_value, as_it_is, frozen=False)
