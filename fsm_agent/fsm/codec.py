"""Typed values as JSON values and back: what a journal writes is read again as what it was.

A codec is made once for an annotation: dataclasses become objects of their fields that are not at their
default, members of a union of dataclasses say which one they are under ``"is"``, tuples and frozen sets
become lists, enums their value. A class with ``to_dict`` and ``from_dict`` is coded by these. What is
annotated ``Any`` or as a mapping of ``Any`` must be JSON already.

A dataclass may be made of parts, which are dataclasses too: they order the code, and what is stored does not
show them. (Why: decision 27.)
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import json
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Coder = Callable[[Any], Any]

# Keys of a field's metadata

STORED = "stored"
"""``False`` keeps the field out of what is stored."""
STORED_AS = "stored as"
"""The name under which the field is stored, where that is not its own."""
PART = "part"
"""``True``: the field is a part. Its fields are stored as fields of the dataclass that it belongs to."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Codec:
    """``encode`` to JSON values, ``decode`` from them. ``frozen``: a value of this type never changes, so the
    same object is the same value. ``held``: what a later value is compared with, a copy for a type whose
    values do change."""

    encode: Coder
    decode: Coder
    frozen: bool = True
    held: Coder = _same


def dumps(value: object) -> str:
    """JSON in ASCII: half a surrogate pair, which models do write, survives a file that must be UTF-8."""
    return "".join(_encoded(value, 0))


def _plain(value: object) -> object:
    """A mapping or sequence of a caller's own kind is stored as a plain one, and a dataclass that a hook or
    an event carries (``Tell.values``) by its fields. Nothing else is stored as what it is not."""
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview | range):
        return list(value)
    raise TypeError(f"a {type(value).__name__} is no JSON value: {value!r:.80}")


def _encoder() -> Callable[[object, int], Iterable[str]]:
    """The encoder that ``json.dumps`` creates for each call, created once: most values are small."""
    made: Any = json.JSONEncoder(separators=(",", ":"), default=_plain)
    if json.encoder.c_make_encoder is None:  # type: ignore[attr-defined]
        return lambda value, level: made.iterencode(value)
    return json.encoder.c_make_encoder(  # type: ignore[attr-defined, no-any-return]
        None, _plain, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, True
    )


_encoded = _encoder()


@functools.cache
def codec_of(annotation: Any) -> Codec:
    """The codec of a resolved annotation. Raises ``TypeError`` for one that has none."""
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
    """One stored field of a dataclass: ``name`` in storage, ``path`` to the attribute, with a dot after
    each part. A value equal to ``default`` is not written; ``MISSING`` when there is no default."""

    name: str
    path: str
    codec: Codec
    default: Any


def fields_of(kind: type) -> tuple[FieldCodec, ...]:
    """The stored fields of a dataclass and of its parts in order, with their codecs. Raises ``TypeError``
    when two of them have the same name."""
    if kind not in _FIELDS:
        found = tuple(_field_codecs(kind, ""))
        names = [field.name for field in found]
        if twice := {name for name in names if names.count(name) > 1}:
            raise TypeError(
                f"{kind.__name__} has parts with fields of the same name: {', '.join(sorted(twice))}"
            )
        _FIELDS[kind] = found
    return _FIELDS[kind]


_FIELDS: dict[type, tuple[FieldCodec, ...]] = {}


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
            yield FieldCodec(
                field.metadata.get(STORED_AS, field.name), path, codec_of(hints[field.name]), default
            )


@functools.cache
def values_of(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """What reads the stored fields of such a dataclass, in the order of ``fields_of``."""
    paths = [field.path for field in fields_of(kind)]
    if len(paths) > 1:
        return operator.attrgetter(*paths)
    return lambda value: tuple(operator.attrgetter(path)(value) for path in paths)


@functools.cache
def parts_of(kind: type) -> Mapping[str, type]:
    """The parts of a dataclass by the names of their fields."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.metadata.get(PART)}


@functools.cache
def _places(kind: type) -> Mapping[str, tuple[str, str]]:
    """By each name that a value may be given under, stored ones included: its part ("" for none), and its
    name there."""
    found = {name: (part, name) for part, holder in parts_of(kind).items() for name in _places(holder)}
    for field in dataclasses.fields(kind):
        found[field.name] = found[field.metadata.get(STORED_AS, field.name)] = "", field.name
    return found


def assemble(kind: type, values: Mapping[str, Any]) -> Any:
    """Make a dataclass from values by name, stored or not, of whichever part each of them is. Raises
    ``TypeError`` for a name that it does not have and for a value that is missing."""
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
    # fields are looked up when first used: a dataclass may name itself
    def encode(value: Any) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for field, found in zip(_FIELDS.get(kind) or fields_of(kind), values_of(kind)(value), strict=True):
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
    """A dataclass from what is stored of it; what it does not know is passed over. ``given`` are the fields
    that are not stored, or others than stored."""
    codecs = {field.name: field.codec for field in fields_of(kind)}
    return assemble(
        kind, {name: codecs[name].decode(one) for name, one in stored.items() if name in codecs} | given
    )
