"""Codecs for values of the user's own types: the contents of a ``Workflow`` turn, its requests and its
replies.

A codec is built once per annotation, together with those of all types inside, so a type that cannot be stored
is refused before anything runs (``NoCodec``). ``encode`` checks each value: a value is exactly of the type
that its annotation names, or it is refused (``Unstorable``) with the path to it. So a value read back is
equal and of the same type, and nothing is ever written as its ``repr``.

- None, bool, int, float and str are themselves; numbers that JSON cannot write (inf, nan, an int of over
    4,300 digits) become texts. Times, paths, Decimal, UUID and bytes become texts. An enum becomes its value,
  or its name if the value is not a scalar. Sets are lists, sorted by their JSON: equal sets have equal texts.
- Dataclasses, named tuples, TypedDicts and pydantic models are stored field by field, so all of this
  holds at any depth. They are rebuilt without being validated again.
- A member of a union that is not a JSON scalar names its type under ``"is"``.
- ``Any`` and ``object`` hold JSON values, and nothing else.
- Any other class that pydantic has a JSON schema for goes through its ``TypeAdapter``; each value is read
  back at once, and refused if it has changed.

``fsm_agent.fsm.codec`` stores the engine's own types in the same form. It checks nothing, because it writes
every move of an agent. (Why: decision 27.)
"""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import dataclasses
import enum
import functools
import inspect
import json
import operator
import pathlib
import sys
import threading
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.fsm import codec as engine
from fsm_agent.fsm.base_turn import BaseTurn
from fsm_agent.fsm.codec import (
    JSON,
    PART,
    SCALARS,
    STORED,
    STORED_AS,
    Codec,
    Coder,
    FieldCodec,
    NoCodec,
    Unstorable,
    as_it_is,
    assemble,
    at_place,
    dumps,
    entries_of,
    enum_codec,
    exactly,
    items_of,
    json_value,
    key_of,
    name_of,
    parts_of,
    path_codec,
)

STORABLE = (
    "None, bool, int, float, complex, str, bytes, Decimal, Fraction, UUID, date, time, datetime, timedelta,"
    " Path, enums, dataclasses, NamedTuple, TypedDict, pydantic models, list, tuple, set, frozenset, deque,"
    " dict, Literal and unions of these, Any for JSON values"
)
__all__ = [
    "STORABLE",
    "UNREADABLE",
    "NoCodec",
    "Unstorable",
    "codec_of",
    "field_to_json",
    "fields_in",
    "fields_of",
    "from_json",
    "is_flat",
    "name_of",
    "to_json",
]
UNREADABLE = (TypeError, ValueError, KeyError, AttributeError, ArithmeticError)
"""The errors that ``decode`` raises for JSON that ``encode`` did not write."""


_LOCK = threading.RLock()
_KNOWN: dict[Any, Codec] = {}


def codec_of(annotation: Any) -> Codec:
    """Return the codec of a resolved annotation. Raises ``NoCodec`` if it cannot be stored."""
    try:
        hash(annotation)
    except TypeError:  # its metadata cannot be hashed, and does not matter here
        return _build(annotation)
    with _LOCK:
        if (known := _KNOWN.get(annotation)) is not None:
            return known
        # A type may contain itself: the inner use gets this codec, which is complete by the time it is
        # called.
        codecs: list[Codec] = []
        size = len(_KNOWN)
        _KNOWN[annotation] = Codec(
            lambda value: codecs[0].encode(value), lambda stored: codecs[0].decode(stored), frozen=False
        )
        try:
            codecs.append(_build(annotation))
        except BaseException:
            while len(_KNOWN) > size:  # codecs built meanwhile may contain it
                _KNOWN.popitem()
            raise
        _KNOWN[annotation] = codecs[0]
        return codecs[0]


def _build(annotation: Any) -> Codec:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if (same := _another_name(annotation, origin, arguments)) is not None:
        return codec_of(same[0])
    if annotation in SCALARS:
        return SCALARS[annotation]
    if annotation in (Any, object):
        return JSON
    if origin in (typing.Union, types.UnionType):
        return _of_union(annotation, arguments)
    if origin is typing.Literal:
        return _of_union(annotation, tuple(dict.fromkeys(type(one) for one in arguments)))
    kind = origin or annotation
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](kind, arguments)
    if not isinstance(kind, type) or kind.__module__ in ("collections", "collections.abc", "typing"):
        raise NoCodec(name_of(annotation))
    if (
        hasattr(kind, "model_fields")
        and not kind.__module__.startswith("pydantic.")
        and hasattr(kind, "__pydantic_validator__")
    ):
        return _of_model(kind)
    if hasattr(kind, "to_dict") and hasattr(kind, "from_dict"):
        return Codec(lambda value: JSON.encode(exactly(kind, value).to_dict()), kind.from_dict, frozen=False)
    if dataclasses.is_dataclass(kind):
        return _of_dataclass(annotation)
    if issubclass(kind, enum.Enum):
        return enum_codec(kind)
    if kind is pathlib.PurePath:  # any of them is one
        return codec_of(pathlib.PurePosixPath | pathlib.PureWindowsPath | pathlib.Path)
    if issubclass(kind, pathlib.PurePath):
        return path_codec(kind)
    if hasattr(kind, "__required_keys__"):  # of typing or of typing_extensions
        return _of_typed_dict(annotation)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _of_named_tuple(annotation)
    return _of_other(annotation)


def _another_name(annotation: Any, origin: Any, arguments: tuple[Any, ...]) -> tuple[Any] | None:
    """Resolve a NewType, an alias, a type variable, or a mark such as ``Final``; the result is in a tuple."""
    if origin in (typing.Annotated, typing.Final, typing.ClassVar, dataclasses.InitVar):
        return arguments[:1] or (Any,)
    if hasattr(annotation, "__supertype__"):
        return (annotation.__supertype__,)
    if hasattr(annotation, "__value__"):  # ``type Name = ...``
        return (_resolve_alias(annotation),)
    if hasattr(origin, "__value__"):
        return (
            _fill_type_variables(
                _resolve_alias(origin), dict(zip(origin.__type_params__, arguments, strict=False))
            ),
        )
    if isinstance(annotation, typing.TypeVar):
        return (
            typing.Union[annotation.__constraints__]  # noqa: UP007 - they are not known before
            if annotation.__constraints__
            else annotation.__bound__ or Any,
        )
    return None


def _resolve_alias(alias: Any) -> Any:
    """Resolve an alias, whose value may be written as a string."""
    names = types.SimpleNamespace(__annotations__={"it": alias.__value__})
    return typing.get_type_hints(names, vars(sys.modules[alias.__module__]))["it"]


# Containers


def _of_items(kind: type, arguments: tuple[Any, ...]) -> Codec:
    item = codec_of(arguments[0] if arguments else Any)
    make: Callable[[Iterable[Any]], Any] = kind
    return Codec(
        lambda values: items_of(item.encode, exactly(kind, values)),
        lambda stored: make(map(item.decode, stored)),
        frozen=kind is tuple and item.frozen,
    )


def _of_set(kind: type, arguments: tuple[Any, ...]) -> Codec:
    item = codec_of(arguments[0] if arguments else Any)
    make: Callable[[Iterable[Any]], Any] = kind
    return Codec(
        lambda values: sorted(items_of(item.encode, exactly(kind, values)), key=dumps),
        lambda stored: make(map(item.decode, stored)),
        frozen=kind is frozenset and item.frozen,
    )


def _of_tuple(kind: type, arguments: tuple[Any, ...]) -> Codec:
    if not arguments or arguments[-1] is ...:
        return _of_items(tuple, arguments[:1])
    if arguments == ((),):
        arguments = ()
    return _of_row(tuple, tuple(codec_of(one) for one in arguments), tuple)


def _of_row(kind: type, places: tuple[Codec, ...], make: Callable[[Iterable[Any]], Any]) -> Codec:
    def encode(values: Any) -> list[Any]:
        if len(exactly(kind, values)) != len(places):
            raise Unstorable(values, f"a tuple of {len(places)}")
        pairs = zip(places, values, strict=True)
        return items_of(lambda pair: pair[0].encode(pair[1]), pairs)

    return Codec(
        encode,
        lambda stored: make(place.decode(one) for place, one in zip(places, stored, strict=True)),
        frozen=all(place.frozen for place in places),
    )


def _of_deque(kind: type, arguments: tuple[Any, ...]) -> Codec:
    item = codec_of(arguments[0] if arguments else Any)

    def encode(value: Any) -> Any:
        items = items_of(item.encode, exactly(kind, value))
        return items if value.maxlen is None else {"maxlen": value.maxlen, "items": items}

    def decode(stored: Any) -> Any:
        limited = isinstance(stored, dict)
        items = map(item.decode, stored["items"] if limited else stored)
        return collections.deque(items, stored["maxlen"] if limited else None)

    return Codec(encode, decode, frozen=False)


def _of_mapping(kind: type, arguments: tuple[Any, ...]) -> Codec:
    """Keys that are not strings are written as JSON text."""
    if kind is collections.Counter:
        arguments = (*arguments, int)
    keys, values = (codec_of(one) for one in (arguments if len(arguments) == 2 else (str, Any)))
    text = not arguments or arguments[0] is str
    write: Coder = key_of if text else lambda key: dumps(keys.encode(key))
    read: Coder = as_it_is if text else lambda stored: keys.decode(json.loads(stored))
    make: Callable[[Any], Any] = kind if issubclass(kind, dict) else dict
    return Codec(
        lambda value: entries_of(values.encode, write, exactly(make, value)),  # type: ignore[arg-type]
        lambda stored: make({read(key): values.decode(one) for key, one in stored.items()}),
        frozen=False,
    )


def _of_either(*kinds: Any) -> Callable[[type, tuple[Any, ...]], Codec]:
    """Return a function that builds the codec of an abstract container: any of these."""

    def made(kind: type, arguments: tuple[Any, ...]) -> Codec:
        item = arguments[0] if arguments else Any
        members = tuple(tuple[item, ...] if one is tuple else one[item] for one in kinds)  # type: ignore[valid-type]
        return _of_union(f"{name_of(kind)}: {', '.join(one.__name__ for one in kinds)}", members)

    return made


def _of_sequence(kind: type, arguments: tuple[Any, ...]) -> Codec:
    """Encode a tuple in the plain form, and mark a list as one."""
    either = _of_either(list, tuple)(kind, arguments)
    rows = _of_items(tuple, arguments)

    def decode(stored: Any) -> Any:
        return rows.decode(stored) if isinstance(stored, list) else either.decode(stored)

    def encode(value: Any) -> Any:
        return rows.encode(value) if type(value) is tuple else either.encode(value)

    return Codec(encode, decode, frozen=False)


_CONTAINERS: dict[Any, Callable[[type, tuple[Any, ...]], Codec]] = {
    list: _of_items,
    collections.abc.MutableSequence: lambda kind, arguments: _of_items(list, arguments),
    collections.abc.Sequence: _of_sequence,
    tuple: _of_tuple,
    set: _of_set,
    frozenset: _of_set,
    collections.abc.Set: _of_either(set, frozenset),
    collections.abc.MutableSet: lambda kind, arguments: _of_set(set, arguments),
    collections.abc.Collection: _of_either(list, tuple, set, frozenset),
    collections.deque: _of_deque,
    dict: _of_mapping,
    collections.OrderedDict: _of_mapping,
    collections.Counter: _of_mapping,
    collections.abc.Mapping: _of_mapping,
    collections.abc.MutableMapping: _of_mapping,
}


# Unions


def _of_union(annotation: Any, members: tuple[Any, ...]) -> Codec:
    allowed = annotation if isinstance(annotation, str) else name_of(annotation)
    rest = [one for one in members if one not in (None, type(None))]
    codecs = [codec_of(one) for one in rest]
    optional = len(rest) < len(members)
    if len(rest) == 1 and optional:
        return _optional(codecs[0])
    labels = [name_of(one) for one in rest]
    labels = [one if labels.count(one) == 1 else f"{one} {place}" for place, one in enumerate(labels)]
    flat = {label for label, one in zip(labels, rest, strict=True) if is_flat(one)}
    named = dict(zip(labels, codecs, strict=True))

    def encode(value: Any) -> Any:
        deepest = Unstorable(value, allowed)
        if value is None and optional:
            return None
        for label, codec in named.items():
            try:
                stored = codec.encode(value)
            except Unstorable as error:
                deepest = max(deepest, error, key=lambda one: len(one.path))
                continue
            if stored is value and not isinstance(value, dict | list):
                return value
            return {"is": label, **stored} if label in flat else {"is": label, "value": stored}
        raise deepest

    def decode(stored: Any) -> Any:
        if not isinstance(stored, dict) or stored.get("is") not in named:
            return stored
        label = stored["is"]
        inner = {key: one for key, one in stored.items() if key != "is"} if label in flat else stored["value"]
        return named[label].decode(inner)

    return Codec(encode, decode, frozen=all(one.frozen for one in codecs))


def is_flat(annotation: Any) -> bool:
    """Return whether this is a dataclass whose fields may be stored beside ``"is"``."""
    kind = typing.get_origin(annotation) or annotation
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)) or hasattr(kind, "to_dict"):
        return False
    return all(field.metadata.get(STORED_AS, field.name) != "is" for field in dataclasses.fields(kind))


def _optional(codec: Codec) -> Codec:
    return Codec(
        lambda value: None if value is None else codec.encode(value),
        lambda stored: None if stored is None else codec.decode(stored),
        codec.frozen,
    )


# Dataclasses, and other classes with fields


def _fill_type_variables(hint: Any, given: Mapping[Any, Any]) -> Any:
    """Replace the type variables in ``hint``."""
    if hint in given:
        return given[hint]
    open_ = (
        () if isinstance(hint, type) and not typing.get_args(hint) else getattr(hint, "__parameters__", ())
    )
    return hint[tuple(given.get(one, one) for one in open_)] if open_ else hint


def _type_arguments(annotation: Any) -> Iterator[tuple[type, dict[Any, Any]]]:
    """Yield a class and each of its bases with the values of their type variables."""
    kind = typing.get_origin(annotation) or annotation
    given = dict(zip(getattr(kind, "__parameters__", ()), typing.get_args(annotation), strict=False))
    yield kind, given
    for base in vars(kind).get("__orig_bases__", kind.__bases__):
        origin = typing.get_origin(base) or base
        if origin not in (typing.Generic, typing.Protocol) and isinstance(origin, type):
            yield from _type_arguments(_fill_type_variables(base, given))


def hints_of(annotation: Any) -> dict[str, Any]:
    """Return the annotations of a class by name, with type variables filled in. Raises ``NoCodec`` if they
    contain an unknown name."""
    kind = typing.get_origin(annotation) or annotation
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError) as error:
        raise NoCodec(f"{name_of(kind)}, whose annotations cannot be read: {error}") from None
    if not getattr(kind, "__parameters__", ()) and not hasattr(kind, "__orig_bases__"):
        return hints
    given = dict(_type_arguments(annotation))
    owners = {name: one for one in reversed(kind.__mro__) for name in vars(one).get("__annotations__", ())}
    return {
        name: _fill_type_variables(hint, given.get(owners.get(name, kind), {}))
        for name, hint in hints.items()
    }


def _field_codec(kind: type, name: str, hint: Any) -> Codec:
    try:
        return codec_of(hint)
    except NoCodec as error:
        inside = "" if str(error) == name_of(hint) else f": {error}"
        raise NoCodec(f"{name_of(kind)}.{name} ({name_of(hint)}){inside}") from None


def fields_of(annotation: Any) -> tuple[FieldCodec, ...]:
    """Return the stored fields of a dataclass and its parts in order, as ``fsm_agent.fsm.codec.fields_of``
    does. Raises ``NoCodec``, with the name of the field, if it cannot be stored or restored."""
    found = _FIELDS.get(annotation)
    if found is None:
        found = _FIELDS[annotation] = tuple(_field_codecs(annotation, ""))
        names = [field.name for field in found]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise NoCodec(
                f"{name_of(annotation)}, whose parts have fields of the same name: {', '.join(twice)}"
            )
    return found


_FIELDS: dict[Any, tuple[FieldCodec, ...]] = {}
_OF_THE_ENGINE = {field.name for field in dataclasses.fields(BaseTurn)}


def _field_codecs(annotation: Any, prefix: str) -> Iterator[FieldCodec]:
    kind = typing.get_origin(annotation) or annotation
    hints = hints_of(annotation)
    engines = _OF_THE_ENGINE if issubclass(kind, BaseTurn) else ()
    for field in kind.__dataclass_fields__.values():
        default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if field._field_type is dataclasses._FIELD_CLASSVAR:  # type: ignore[attr-defined]
            continue
        if field._field_type is dataclasses._FIELD_INITVAR or field.metadata.get(STORED, True) is not True:  # type: ignore[attr-defined]
            if not default and field.init:
                raise NoCodec(f"{name_of(kind)}.{field.name}, which is not stored and has no default,")
        elif field.metadata.get(PART):
            yield from _field_codecs(hints[field.name], f"{prefix}{field.name}.")
        else:
            hint = hints[field.name]
            codec = engine.codec_of(hint) if field.name in engines else _field_codec(kind, field.name, hint)
            stored_as = field.metadata.get(STORED_AS, field.name)
            yield FieldCodec(stored_as, prefix + field.name, codec, dataclasses.MISSING, hints[field.name])


_reading = functools.cache(operator.attrgetter)


def fields_in(value: Any, fields: Iterable[FieldCodec]) -> Iterator[tuple[FieldCodec, Any]]:
    """Yield the fields of a dataclass and their values; a field with ``init=False`` may have none yet."""
    for field in fields:
        with contextlib.suppress(AttributeError):
            yield field, _reading(field.path)(value)


def field_to_json(owner: Any, field: FieldCodec, value: Any) -> Any:
    """Return the stored form of one field's value. Raises ``ConfigError`` if it cannot be stored."""
    try:
        return field.codec.encode(value)
    except Unstorable as error:
        raise ConfigError(
            f"{name_of(type(owner))}.{field.path}{error.path} cannot be stored",
            error.given,
            error.allowed,
        ) from None
    except RecursionError:
        raise ConfigError(
            f"{name_of(type(owner))}.{field.path} cannot be stored",
            type(value).__name__,
            "a value that does not hold itself",
        ) from None


def to_json(value: Any) -> dict[str, Any]:
    """Return the stored fields of a dataclass. Raises ``ConfigError`` if a value cannot be stored."""
    return {
        field.name: field_to_json(value, field, found)
        for field, found in fields_in(value, fields_of(type(value)))
    }


def _of_dataclass(annotation: Any) -> Codec:
    kind = typing.get_origin(annotation) or annotation
    fields = fields_of(annotation)

    def encode(value: Any) -> dict[str, Any]:
        found = fields_in(exactly(kind, value), fields)
        return {field.name: at_place(field.codec, f".{field.path}", one) for field, one in found}

    return Codec(encode, lambda stored: from_json(annotation, stored), frozen=False)


def from_json(annotation: Any, stored: Mapping[str, Any], **given: Any) -> Any:
    """Restore a dataclass from its stored fields, ignoring unknown ones. ``given`` are fields that are not
    stored. ``__post_init__`` runs first; then every stored field gets its stored value."""
    kind = typing.get_origin(annotation) or annotation
    fields = [field for field in fields_of(annotation) if field.name in stored]
    values = {field.path: field.codec.decode(stored[field.name]) for field in fields}
    if _is_made_by_its_fields(kind):
        late = _not_in_init(kind)
        thing = assemble(
            kind, {path.rpartition(".")[2]: one for path, one in values.items() if path not in late} | given
        )
    else:
        thing = object.__new__(kind)
        for field in dataclasses.fields(kind):
            if field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING:
                factory: Any = field.default_factory
                values.setdefault(field.name, field.default if factory is dataclasses.MISSING else factory())
    for path, value in values.items():
        part, _, name = path.rpartition(".")
        owner = operator.attrgetter(part)(thing) if part else thing
        if getattr(owner, name, dataclasses.MISSING) is not value:
            object.__setattr__(owner, name, value)  # the class may be frozen
    return thing


@functools.cache
def _not_in_init(kind: type) -> frozenset[str]:
    own = {field.name for field in dataclasses.fields(kind) if not field.init}
    inner = {f"{part}.{name}" for part, one in parts_of(kind).items() for name in _not_in_init(one)}
    return frozenset(own | inner)


@functools.cache
def _is_made_by_its_fields(kind: type) -> bool:
    """Return whether the class can be called with its fields, without validation by pydantic."""
    if hasattr(kind, "__pydantic_validator__"):
        return False
    wanted = {field.name for field in dataclasses.fields(kind) if field.init}
    return wanted <= inspect.signature(kind).parameters.keys()


def _of_named_tuple(annotation: Any) -> Codec:
    kind: Any = typing.get_origin(annotation) or annotation
    hints = hints_of(annotation)
    places = tuple(_field_codec(kind, name, hints.get(name, Any)) for name in kind._fields)
    return _of_row(kind, places, kind._make)


def _of_typed_dict(annotation: Any) -> Codec:
    kind = typing.get_origin(annotation) or annotation
    codecs = {name: _field_codec(kind, name, hint) for name, hint in hints_of(annotation).items()}

    def encode(value: Any) -> dict[str, Any]:
        if type(value) is not dict or value.keys() - codecs.keys():
            raise Unstorable(value, f"{name_of(kind)}, a dict with {', '.join(codecs)}")
        return {key: at_place(codecs[key], f"[{key!r}]", one) for key, one in value.items()}

    return Codec(
        encode, lambda stored: {key: codecs[key].decode(one) for key, one in stored.items()}, frozen=False
    )


UNSET, EXTRA, PRIVATE = "(unset)", "(extra)", "(private)"
"""Keys for the data of a pydantic model besides its fields; no field can have these names."""


def _of_model(kind: Any) -> Codec:
    kind.model_rebuild(raise_errors=False)
    codecs = {name: _field_codec(kind, name, one.annotation) for name, one in kind.model_fields.items()}
    secrets = kind.__private_attributes__
    hints = hints_of(kind) if secrets else {}
    private = {name: _field_codec(kind, name, hints.get(name, Any)) for name in secrets}

    def encode(value: Any) -> dict[str, Any]:
        exactly(kind, value)
        done = _fields(codecs, vars(value))
        if unset := [name for name in codecs if name not in value.model_fields_set]:
            done[UNSET] = unset
        if value.__pydantic_extra__:
            done[EXTRA] = json_value(value.__pydantic_extra__)
        if value.__pydantic_private__:
            done[PRIVATE] = _fields(private, value.__pydantic_private__)
        return done

    def decode(stored: Mapping[str, Any]) -> Any:
        values = {name: codec.decode(stored[name]) for name, codec in codecs.items() if name in stored}
        for name in codecs.keys() - values.keys():  # a field that was added later
            if kind.model_fields[name].is_required():
                raise KeyError(name)
            values[name] = kind.model_fields[name].get_default(call_default_factory=True, validated_data={})
        unset, extra = stored.get(UNSET, ()), stored.get(EXTRA, {})
        inner = {name: private[name].decode(one) for name, one in stored.get(PRIVATE, {}).items()}
        model = kind.__new__(kind)
        model.__setstate__(
            {
                "__dict__": values,
                "__pydantic_fields_set__": {*(stored.keys() & codecs.keys()), *extra} - {*unset},
                "__pydantic_extra__": dict(extra) if kind.model_config.get("extra") == "allow" else None,
                "__pydantic_private__": inner if secrets else None,
            }
        )
        return model

    return Codec(encode, decode, frozen=False)


def _fields(codecs: Mapping[str, Codec], values: Mapping[str, Any]) -> dict[str, Any]:
    """Encode all fields; cached properties are skipped."""
    return {
        name: at_place(codecs[name], f".{name}", value) for name, value in values.items() if name in codecs
    }


def _of_other(annotation: Any) -> Codec:
    """Return the codec of any other type with a JSON schema in pydantic: addresses, patterns, classes with a
    schema."""
    import pydantic

    hidden = hasattr(annotation, "get_secret_value")  # it would be written as asterisks
    if hidden or (typing.get_origin(annotation) or annotation) in (type, pydantic.BaseModel):
        raise NoCodec(name_of(annotation))
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(annotation)
        adapter.json_schema(mode="serialization")
    except Exception:
        raise NoCodec(name_of(annotation)) from None

    def encode(value: Any) -> Any:
        try:
            stored = json_value(adapter.dump_python(value, mode="json", warnings="error"))
            again = adapter.validate_python(stored)
            same = type(again) is type(value) and again == value
        except Exception:  # the user's class may raise anything
            same = False
        if not same:
            raise Unstorable(value, f"{name_of(annotation)} that pydantic reads back as it was")
        return stored

    return Codec(encode, adapter.validate_python, frozen=False)
