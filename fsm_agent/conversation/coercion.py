"""Fitting values to a JSON schema where a model wrote the right value in the wrong type.

Only conversions that lose nothing are made. What cannot be converted stays as it is, so that the tool's own
validation tells the model what is wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fsm_agent.conversation.nesting import json_of

Schema = Mapping[str, Any]

MAX_DEPTH = 100
MAX_STEPS = 50_000
"""Schemas looked at for one call. A schema that refers to itself in two ways would otherwise take for
ever."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,400}(\.0+)?")
_DECIMAL = re.compile(r"[+-]?([0-9]++(?:\.[0-9]*+)?|\.[0-9]++)([eE][+-]?[0-9]++)?")
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def coerce(arguments: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """The arguments with each value in the type that ``schema`` (a JSON schema object) asks for, where that
    is exact.

    ``"42"`` → 42, ``"3.0"`` → 3, ``"true"`` → true, a JSON string → array or object, a scalar → an array of
    one, ``"null"`` → null where null is allowed; inside properties, items, unions and references. The given
    mapping and its values are not changed."""
    value = _Coercer(schema).fit(dict(arguments), schema, 0)
    return value if isinstance(value, dict) else dict(arguments)


class _Coercer:
    __slots__ = ("root", "steps")

    def __init__(self, root: Schema) -> None:
        self.root, self.steps = root, 0

    def spent(self, depth: int) -> bool:
        self.steps += 1
        return depth > MAX_DEPTH or self.steps > MAX_STEPS

    def fit(self, value: Any, schema: object, depth: int) -> Any:
        """``value`` as ``schema`` wants it, or ``value`` itself."""
        if self.spent(depth) or not isinstance(schema, Mapping):
            return value
        if "$ref" in schema:
            value = self.fit(value, self.resolve(schema["$ref"]), depth + 1)
        for part in _list(schema.get("allOf")):
            value = self.fit(value, part, depth + 1)
        branches = _list(schema.get("anyOf")) or _list(schema.get("oneOf"))
        if branches:
            value = self.fit_any(value, branches, depth + 1)
        types = _types(schema)
        if "null" in types and value == "null" and value not in _list(schema.get("enum")):
            return None
        if types and not _is_any(value, types):
            value = self.convert(value, schema, types, depth)
        return self.inside(value, schema, depth)

    def fit_any(self, value: Any, branches: Sequence[Any], depth: int) -> Any:
        """A union: what already fits a branch stays; else the first branch that its conversion fits."""
        if value == "null" and any(self.accepts(None, branch, depth) for branch in branches):
            return None
        for branch in branches:
            if self.accepts(value, branch, depth):
                return value
        for branch in branches:
            fitted = self.fit(value, branch, depth)
            if self.accepts(fitted, branch, depth):
                return fitted
        return value

    def convert(self, value: Any, schema: Schema, types: Sequence[str], depth: int) -> Any:
        for name in types:
            converted = _scalar(value, name)
            if converted is not None:
                return converted
        if "array" in types and isinstance(value, str | int | float):
            item = self.fit(value, schema.get("items"), depth + 1)
            if self.accepts(item, schema.get("items", {}), depth + 1):
                return [item]
        return value

    def inside(self, value: Any, schema: Schema, depth: int) -> Any:
        if isinstance(value, dict):
            properties = schema.get("properties")
            known = properties if isinstance(properties, Mapping) else {}
            other = schema.get("additionalProperties")
            return {key: self.fit(item, known.get(key, other), depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            first = _list(schema.get("prefixItems"))
            rest = schema.get("items")
            return [
                self.fit(item, first[index] if index < len(first) else rest, depth + 1)
                for index, item in enumerate(value)
            ]
        return value

    def accepts(self, value: Any, schema: object, depth: int) -> bool:
        """Does ``value`` have the types, names and constants of ``schema``? Ranges and patterns are not
        looked at."""
        if self.spent(depth) or not isinstance(schema, Mapping):
            return schema is not False
        if "$ref" in schema and not self.accepts(value, self.resolve(schema["$ref"]), depth + 1):
            return False
        if not all(self.accepts(value, part, depth + 1) for part in _list(schema.get("allOf"))):
            return False
        branches = _list(schema.get("anyOf")) or _list(schema.get("oneOf"))
        if branches and not any(self.accepts(value, branch, depth + 1) for branch in branches):
            return False
        types = _types(schema)
        if types and not _is_any(value, types):
            return False
        if "const" in schema and value != schema["const"]:
            return False
        if "enum" in schema and value not in _list(schema["enum"]):
            return False
        return self.accepts_inside(value, schema, depth + 1)

    def accepts_inside(self, value: Any, schema: Schema, depth: int) -> bool:
        if isinstance(value, list):
            first, rest = _list(schema.get("prefixItems")), schema.get("items", True)
            return all(
                self.accepts(item, first[index] if index < len(first) else rest, depth)
                for index, item in enumerate(value)
            )
        if not isinstance(value, dict):
            return True
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        other = schema.get("additionalProperties", True)
        return all(name in value for name in _list(schema.get("required"))) and all(
            self.accepts(item, known.get(key, other), depth) for key, item in value.items()
        )

    def resolve(self, reference: object) -> object:
        """What a reference inside the same document (``#/$defs/Name``) points to; ``None`` when it points
        nowhere."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        target: object = self.root
        for step in filter(None, reference[1:].split("/")):
            if not isinstance(target, Mapping):
                return None
            target = target.get(step.replace("~1", "/").replace("~0", "~"))
        return target


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _types(schema: Schema) -> Sequence[str]:
    given = schema.get("type")
    if isinstance(given, str):
        return (given,)
    if given is None and isinstance(schema.get("properties"), Mapping):
        return ("object",)
    return [name for name in _list(given) if isinstance(name, str)]


def _is_any(value: Any, types: Sequence[str]) -> bool:
    """A boolean is no number here, and an unknown type name accepts everything."""
    for name in types:
        wanted = _PYTHON_TYPES.get(name)
        if wanted is None or (
            isinstance(value, wanted) and (name == "boolean" or not isinstance(value, bool))
        ):
            return True
    return False


def _scalar(value: Any, name: str) -> Any:
    """``value`` as the JSON type ``name``, or ``None`` when there is no exact conversion."""
    if isinstance(value, float) and name == "integer":
        return int(value) if math.isfinite(value) and value.is_integer() else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    if name == "boolean":
        return {"true": True, "false": False}.get(text.lower())
    if name in ("integer", "number") and _WHOLE.fullmatch(text) and (name == "integer" or "." not in text):
        return int(text.partition(".")[0])
    if name == "number" and _DECIMAL.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    if name in ("array", "object"):
        return _container(text, list if name == "array" else dict)
    return None


def _container(text: str, wanted: type) -> Any:
    if text[:1] not in ("[", "{"):
        return None
    try:
        value = json_of(text)
    except ValueError:
        return None
    return value if isinstance(value, wanted) else None
