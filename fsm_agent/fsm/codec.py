"""Typed values as JSON values and back: what a journal writes is read again as what it was.

A codec is made once for an annotation: dataclasses become objects of their fields that are not at their default, members
of a union of dataclasses say which one they are under ``"is"``, tuples and frozen sets become lists, enums their value. A
``Message`` is a row by its ``to_dict``. What is annotated ``Any`` or as a mapping of ``Any`` must be JSON already.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import operator
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.conversation.messages import Message

Coder = Callable[[Any], Any]
STORED = "stored"
"""Key of a field's metadata; ``False`` keeps the field out of what is stored."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Codec:
    """``encode`` to JSON values, ``decode`` from them. ``frozen``: a value of this type never changes, so the same object
    is the same value. ``held``: what a later value is compared with, a copy for a type whose values do change."""

    encode: Coder
    decode: Coder
    frozen: bool = True
    held: Coder = _same


def dumps(value: object) -> str:
    """JSON in ASCII: half a surrogate pair, which models do write, survives a file that must be UTF-8."""
    return _ENCODER.encode(value)


def _plain(value: object) -> object:
    """A mapping or sequence of a caller's own kind is stored as a plain one; anything else as its text."""
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return list(value)
    return str(value)


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)


@functools.cache
def codec_of(annotation: Any) -> Codec:
    """The codec of a resolved annotation. Raises ``TypeError`` for one that has none."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return codec_of(arguments[0])
    if annotation is Message:
        return Codec(Message.to_dict, Message.from_dict)
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
            _same if plain else lambda values: [part.encode(one) for part, one in zip(parts, values, strict=True)],
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
    """Keys that are no text are written as JSON text."""
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
        held=dict if values.held is _same else lambda mapping: {k: values.held(v) for k, v in mapping.items()},
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
    return _optional(
        Codec(
            lambda value: {"is": type(value).__name__, **by_name[type(value).__name__].encode(value)},
            lambda value: by_name[value["is"]].decode({k: v for k, v in value.items() if k != "is"}),
            all(one.frozen for one in by_name.values()),
            lambda value: by_name[type(value).__name__].held(value),
        )
    )


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
    """One stored field of a dataclass. ``default`` is left out of what is written; ``MISSING`` when there is none."""

    name: str
    codec: Codec
    default: Any


def fields_of(kind: type[Any]) -> tuple[FieldCodec, ...]:
    """The stored fields of a dataclass in order, with their codecs."""
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(_stored_fields(kind))
    return _FIELDS[kind]


_FIELDS: dict[type[Any], tuple[FieldCodec, ...]] = {}


def _stored_fields(kind: type[Any]) -> Iterator[FieldCodec]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.metadata.get(STORED, True) is True:
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            yield FieldCodec(field.name, codec_of(hints[field.name]), default)


@functools.cache
def values_of(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """What reads the stored fields of such a dataclass, in the order of ``fields_of``."""
    names = [field.name for field in fields_of(kind)]
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _of_dataclass(kind: type) -> Codec:
    # fields are looked up when first used: a dataclass may name itself
    def encode(value: Any) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for field, found in zip(fields_of(kind), values_of(kind)(value), strict=True):
            if found is not field.default and found != field.default:
                out[field.name] = field.codec.encode(found)
        return out

    def decode(value: Mapping[str, Any]) -> Any:
        codecs = {field.name: field.codec for field in fields_of(kind)}
        return kind(**{name: codecs[name].decode(one) for name, one in value.items() if name in codecs})

    def held(value: Any) -> Any:
        copies = {f.name: f.codec.held(getattr(value, f.name)) for f in fields_of(kind) if f.codec.held is not _same}
        return dataclasses.replace(value, **copies)

    frozen = bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    return Codec(encode, decode, frozen, _same if frozen else held)
