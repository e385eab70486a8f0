"""Typed values as JSON and back: a journal is read back as exactly what was written.

A codec is built once per annotation. Dataclasses become objects of the fields that differ from their default,
members of a union of dataclasses name their class under ``"is"``, tuples and frozen sets become lists, and
enums become their value. A class with ``to_dict`` and ``from_dict`` is coded by these methods. Values
annotated as ``Any`` or as a mapping of ``Any`` must already be JSON.

A dataclass may consist of parts, which are dataclasses too. They structure the code; the stored form is flat.
(Why: decision 27.)
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import json
import math
import operator
import pathlib
import re
import reprlib
import types
import typing
import uuid
import zoneinfo
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.support.texts import compact_encoder

Coder = Callable[[Any], Any]

# Keys of a field's metadata

STORED = "stored"
"""``False`` excludes the field from storage."""
STORED_AS = "stored as"
"""The name under which the field is stored, if it differs from the field's own."""
PART = "part"
"""``True``: the field is a part. Its fields are stored as fields of the dataclass that contains it."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Codec:
    """``encode`` converts to JSON values, ``decode`` converts back. ``frozen``: values of this type never
    change, so identity implies equality. ``held`` returns what later values are compared with: a copy if
    values of the type can change."""

    encode: Coder
    decode: Coder
    frozen: bool = True
    held: Coder = _same


def dumps(value: object) -> str:
    """Return ASCII JSON, so that a lone surrogate, which models do write, survives in a UTF-8 file."""
    return "".join(pieces(value, 0))


def _plain(value: object) -> object:
    """Convert custom mappings and sequences to plain ones, and a dataclass carried by a hook or an event
    (``Tell.values``) to an object of its fields. Reject everything else rather than store it as something
    that it is not."""
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview | range):
        return list(value)
    raise TypeError(f"a {type(value).__name__} is not a JSON value: {value!r:.80}")


pieces = compact_encoder(_plain, ascii_only=True)


@functools.cache
def codec_of(annotation: Any) -> Codec:
    """Return the codec of a resolved annotation. Raises ``TypeError`` for an annotation without one."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return codec_of(arguments[0])
    if hasattr(annotation, "to_dict") and hasattr(annotation, "from_dict"):
        frozen = _is_frozen(annotation)
        return Codec(annotation.to_dict, annotation.from_dict, frozen, _same if frozen else copy.deepcopy)
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return _of_dataclass(annotation)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return Codec(lambda value: value.value, annotation)
    if annotation in (str, int, float, bool, type(None)) or origin is typing.Literal:
        return AS_IT_IS
    if origin in (typing.Union, types.UnionType):
        return _of_union(arguments)
    if origin in (tuple, list, frozenset) or origin is Sequence:
        return _of_items(origin, arguments)
    if origin in (dict, Mapping):
        return _of_mapping(*arguments)
    if annotation in (Any, object, dict, list):
        return Codec(_same, _same, frozen=False)
    raise TypeError(f"{annotation!r} cannot be stored")


AS_IT_IS = Codec(_same, _same)


def _of_items(kind: Any, arguments: tuple[Any, ...]) -> Codec:
    if (kind is tuple and len(arguments) != 2) or (kind is tuple and arguments[-1] is not ...):
        parts = [codec_of(one) for one in arguments]
        plain = all(part.encode is _same for part in parts)
        return Codec(
            _same
            if plain
            else lambda values: [part.encode(one) for part, one in zip(parts, values, strict=True)],
            lambda values: tuple(part.decode(one) for part, one in zip(parts, values, strict=True)),
            all(part.frozen for part in parts),
            _same
            if all(part.held is _same for part in parts)
            else lambda values: tuple(part.held(one) for part, one in zip(parts, values, strict=True)),
        )
    item = codec_of(arguments[0])
    make: Callable[[Any], Any] = {tuple: tuple, frozenset: frozenset, list: list}.get(kind, tuple)
    order: Callable[[Any], Any] = sorted if kind is frozenset else list
    held: Coder = list if kind is list else _same
    return Codec(
        order if item.encode is _same else lambda values: [item.encode(one) for one in order(values)],
        lambda values: make(item.decode(one) for one in values),
        kind is not list and item.frozen,
        held if item.held is _same else lambda values: make(item.held(one) for one in values),
    )


def _of_mapping(key: Any, value: Any) -> Codec:
    """Keys that are not strings are written as JSON text."""
    keys, values = codec_of(key), codec_of(value)
    if values == codec_of(Any) and key is str:
        return Codec(_same, _same, frozen=False)
    write: Coder = _same if key is str else lambda one: dumps(keys.encode(one))
    read: Coder = _same if key is str else lambda one: keys.decode(json.loads(one))
    plain = key is str and values.encode is _same
    return Codec(
        dict if plain else lambda mapping: {write(k): values.encode(v) for k, v in mapping.items()},
        lambda mapping: {read(k): values.decode(v) for k, v in mapping.items()},
        frozen=False,
        held=dict
        if values.held is _same
        else lambda mapping: {k: values.held(v) for k, v in mapping.items()},
    )


def _of_union(members: tuple[Any, ...]) -> Codec:
    classes = [one for one in members if dataclasses.is_dataclass(one) and isinstance(one, type)]
    rest = [one for one in members if one not in classes and one is not type(None)]
    if len(classes) == 1 and not rest:
        return _optional(codec_of(classes[0]))
    if not classes:
        if len(rest) == 1:
            return _optional(codec_of(rest[0]))
        return Codec(_same, _same, all(codec_of(one).frozen for one in rest))
    by_name = {one.__name__: codec_of(one) for one in classes}
    if rest:
        raise TypeError(f"{members!r} mixes dataclasses with other types")
    named = Codec(
        lambda value: {"is": type(value).__name__, **by_name[type(value).__name__].encode(value)},
        lambda value: by_name[value["is"]].decode({k: v for k, v in value.items() if k != "is"}),
        all(one.frozen for one in by_name.values()),
        lambda value: by_name[type(value).__name__].held(value),
    )
    return _optional(named) if type(None) in members else named


def _optional(codec: Codec) -> Codec:
    if codec.encode is _same and codec.decode is _same:
        return codec
    return Codec(
        lambda value: None if value is None else codec.encode(value),
        lambda value: None if value is None else codec.decode(value),
        codec.frozen,
        lambda value: None if value is None else codec.held(value),
    )


@dataclass(frozen=True, slots=True)
class FieldCodec:
    """One stored field of a dataclass: its ``name`` in storage, and the dotted ``path`` to the attribute
    through the parts. A value equal to ``default`` is not written; ``MISSING`` when there is no default.
    ``hint``: its annotation."""

    name: str
    path: str
    codec: Codec
    default: Any
    hint: Any


@functools.cache
def fields_of(kind: type) -> tuple[FieldCodec, ...]:
    """Return the stored fields of a dataclass and its parts in order, with their codecs. Raises ``TypeError``
    when two of them have the same name."""
    found = tuple(_field_codecs(kind, ""))
    names = [field.name for field in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise TypeError(f"{kind.__name__} has parts with fields of the same name: {', '.join(sorted(twice))}")
    return found


def _field_codecs(kind: type, prefix: str) -> Iterator[FieldCodec]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        path = prefix + field.name
        if field.metadata.get(PART):
            yield from _field_codecs(hints[field.name], f"{path}.")
        elif field.metadata.get(STORED, True) is True:
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            hint = hints[field.name]
            yield FieldCodec(field.metadata.get(STORED_AS, field.name), path, codec_of(hint), default, hint)


@functools.cache
def values_of(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads the stored fields of such a dataclass, in the order of ``fields_of``."""
    paths = [field.path for field in fields_of(kind)]
    if len(paths) > 1:
        return operator.attrgetter(*paths)
    return lambda value: tuple(operator.attrgetter(path)(value) for path in paths)


@functools.cache
def parts_of(kind: type) -> Mapping[str, type]:
    """Return the parts of a dataclass by field name."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.metadata.get(PART)}


@functools.cache
def _places(kind: type) -> Mapping[str, tuple[str, str]]:
    """Map each accepted name of a field, stored names included, to its part ("" for none) and its name
    there."""
    found = {name: (part, name) for part, holder in parts_of(kind).items() for name in _places(holder)}
    for field in dataclasses.fields(kind):
        found[field.name] = found[field.metadata.get(STORED_AS, field.name)] = "", field.name
    return found


def assemble(kind: type, values: Mapping[str, Any]) -> Any:
    """Build a dataclass from values by field name, stored or not, assigning each to the part that owns it.
    Raises ``TypeError`` for an unknown name and for a missing value."""
    places = _places(kind)
    own: dict[str, Any] = {}
    of_parts: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name not in places:
            raise TypeError(f"{kind.__name__} has no field {name!r}")
        part, field = places[name]
        (of_parts.setdefault(part, {}) if part else own)[field] = value
    return kind(**own, **{part: assemble(parts_of(kind)[part], inner) for part, inner in of_parts.items()})


def _is_frozen(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _of_dataclass(kind: type) -> Codec:
    # looked up on first use: a dataclass may refer to itself
    def encode(value: Any) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for field, found in zip(fields_of(kind), values_of(kind)(value), strict=True):
            if found is not field.default and found != field.default:
                coder = field.codec.encode
                out[field.name] = found if coder is _same else coder(found)
        return out

    def held(value: Any) -> Any:
        own = {field.path: field.codec for field in fields_of(kind) if "." not in field.path}
        codecs = own | {name: codec_of(part) for name, part in parts_of(kind).items()}
        copies = {
            name: one.held(getattr(value, name)) for name, one in codecs.items() if one.held is not _same
        }
        return dataclasses.replace(value, **copies)

    frozen = _is_frozen(kind)
    return Codec(encode, lambda value: restore(kind, value), frozen, _same if frozen else held)


def restore(kind: type, stored: Mapping[str, Any], **given: Any) -> Any:
    """Restore a dataclass from its stored fields, ignoring unknown ones. ``given`` are fields that are not
    stored, or values that override the stored ones."""
    codecs = {field.name: field.codec for field in fields_of(kind)}
    return assemble(
        kind, {name: codecs[name].decode(one) for name, one in stored.items() if name in codecs} | given
    )


def check_field(kind: type, name: str, value: Any) -> None:
    """Raise ``ConfigError`` when a stored field of a dataclass cannot have this JSON value: it cannot be
    decoded, or its type differs from the field's."""
    from pydantic import TypeAdapter  # only a person's changes are checked

    field = next(one for one in fields_of(kind) if one.name == name)
    try:
        TypeAdapter(field.hint).validate_python(field.codec.decode(value), strict=True)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError):
        expected = inspect.formatannotation(field.hint)
        raise ConfigError(f"{name} of {kind.__name__} cannot be set so", value, expected) from None


# ----------------------------------------------------------------------------------------------------
# Codecs of single values for ``fsm_agent.fsm.values`` (scalars, times, JSON), and the errors for values that
# cannot be stored.


JSON_VALUES = "JSON values: None, bool, int, float, str, list, dict with str keys; or another annotation"
DIGITS = 14_280
"""Longest int, in bits, that is written as a JSON number: Python reads no more than 4,300 digits."""


class Unstorable(TypeError):
    """Raised for a ``value`` that its annotation does not allow. ``path`` leads to it: ``.items[3]['a']``."""

    def __init__(self, value: object, allowed: str, path: str = "") -> None:
        super().__init__(value, allowed, path)
        self.value, self.allowed, self.path = value, allowed, path

    @property
    def given(self) -> str:
        """The type and a short ``repr`` of the value."""
        return "None" if self.value is None else f"{name_of(type(self.value))} {reprlib.repr(self.value)}"

    def __str__(self) -> str:
        where = f" at {self.path}" if self.path else ""
        return f"{name_of(type(self.value))}{where}, not {self.allowed}"


class NoCodec(TypeError):
    """Raised for an annotation that cannot be stored: ``Item.lock (Lock)``."""


def name_of(annotation: Any) -> str:
    """Return an annotation as written in source code."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return "None" if annotation is type(None) else annotation.__name__
    text = getattr(annotation, "__name__", "") if inspect.isroutine(annotation) else str(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?:<locals>\.)?", "", text)


def exactly(kind: type, value: Any) -> Any:
    """Return the value if its class is exactly ``kind``. Raises ``Unstorable`` otherwise."""
    if type(value) is not kind:
        raise Unstorable(value, name_of(kind))
    return value


def at_place(codec: Codec, place: str, value: Any) -> Any:
    """Encode the value; an ``Unstorable`` error includes its place."""
    try:
        return codec.encode(value)
    except Unstorable as error:
        error.path = place + error.path
        raise


def items_of(encode: Coder, values: Iterable[Any]) -> list[Any]:
    """Encode values in order; an ``Unstorable`` error includes the index."""
    done: list[Any] = []
    try:
        for one in values:
            done.append(encode(one))
    except Unstorable as error:
        error.path = f"[{len(done)}]{error.path}"
        raise
    return done


def entries_of(encode: Coder, write: Coder, values: Mapping[Any, Any]) -> dict[str, Any]:
    """Encode the keys and values of a mapping; an ``Unstorable`` error includes the key."""
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


def _exactly(*kinds: type) -> Coder:
    def encode(value: Any) -> Any:
        if type(value) not in kinds:
            raise Unstorable(value, name_of(kinds[0]))
        return value

    return encode


def as_it_is(value: Any) -> Any:
    """Return the value unchanged."""
    return value


_BETWEEN = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")
"""Where two halves of a surrogate pair meet: JSON would read them as one character."""


def _str(value: Any) -> Any:
    """Return a string, or its pieces where surrogate halves meet."""
    if type(value) is not str:
        raise Unstorable(value, "str")
    return value if value.isascii() or not _BETWEEN.search(value) else _BETWEEN.split(value)


def _as_str(stored: Any) -> Any:
    if isinstance(stored, str):
        return stored
    text = "".join(stored)
    if _str(text) != stored:
        raise ValueError("these are not pieces of a text")
    return text


TEXT = Codec(_str, _as_str)


def key_of(value: Any) -> str:
    """Encode a string used as a key; it must not contain adjoining surrogate halves."""
    if not isinstance(text := _str(value), str):
        raise Unstorable(value, "a key without halves of a surrogate pair")
    return text


_whole, _real = _exactly(int, bool), _exactly(float, int, bool)


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
    """Return what ``isoformat`` omits: the zone, if it is more than an offset, and the fold."""
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
    if type(zone).__module__.startswith("pydantic"):  # pydantic parses times into this type
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
    None: Codec(_exactly(type(None)), as_it_is),
    type(None): Codec(_exactly(type(None)), as_it_is),
    bool: Codec(_exactly(bool), as_it_is),
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
    """Encode members by value if all values are scalars, else by name."""
    members = [*kind.__members__.values()]
    if issubclass(kind, enum.Flag) or all(type(one.value) in (str, int, bool) for one in members):
        return Codec(lambda value: exactly(kind, value).value, kind)
    return Codec(lambda value: exactly(kind, value).name, lambda stored: kind[stored])


def path_codec(kind: type[pathlib.PurePath]) -> Codec:
    """Return the codec of a path class. Raises ``NoCodec`` for one of another operating system."""
    try:
        concrete = type(kind())
    except NotImplementedError:  # a class of another operating system
        raise NoCodec(name_of(kind)) from None
    return Codec(
        lambda value: TEXT.encode(str(exactly(concrete, value))), lambda stored: kind(TEXT.decode(stored))
    )


# JSON values


def json_value(value: Any) -> Any:
    """Return a copy of a JSON value."""
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
