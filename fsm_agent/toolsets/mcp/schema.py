"""Making a server's schema fit for every provider: one that a provider refuses would make every request of
the session fail."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class Listed:
    """``name`` is the server's own. The hints are what the server says of itself; ``None`` when it says
    nothing. ``problem``: why its schema cannot be given to a model, empty when it can."""

    name: str
    description: str
    schema: Mapping[str, Any]
    reads_only: bool | None = None
    repeatable: bool | None = None
    problem: str = ""


MAX_SCHEMA = 40_000
"""Characters of one tool's schema as JSON; it is sent with every request."""
MAX_DEPTH = 40
_REFUSED_ON_TOP = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else")
"""Providers take none of these beside ``type: object``. The server checks its arguments itself."""
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VERBATIM = ("default", "const", "enum", "examples")


class Unfit(Exception):
    """A tool that cannot be offered; the text says why."""


def fitted(schema: object) -> dict[str, Any]:
    """A JSON schema object of the 2020-12 dialect that says the same as the given one, where a provider can
    be told.

    Raises ``Unfit``.
    """
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise Unfit("its arguments are not an object")
    made = {
        key: value
        for key, value in _modern(schema, 0).items()
        if key not in ("$schema", "$id", *_REFUSED_ON_TOP)
    }
    made["type"] = "object"
    made.setdefault("properties", {})
    size = len(json.dumps(made, ensure_ascii=False))
    if size > MAX_SCHEMA:
        raise Unfit(f"its schema has {size:,} characters, more than {MAX_SCHEMA:,}")
    if (problem := next(iter(_validator().iter_errors(made)), None)) is not None:
        raise Unfit(f"its schema is not valid: {problem.message[:200]}")
    return made


def looked_over(listed: Iterable[Listed]) -> list[Listed]:
    """The tools with fitted schemas, or with their problem. Takes milliseconds for each: not for an event
    loop."""
    return [_one(tool) for tool in listed]


def _one(tool: Listed) -> Listed:
    try:
        return replace(tool, schema=fitted(tool.schema))
    except Unfit as problem:
        return replace(tool, problem=str(problem))


def _modern(schema: Any, depth: int) -> Any:
    """Tuples of older drafts in the words of the newest."""
    if depth > MAX_DEPTH:
        raise Unfit("its schema is nested too deeply")
    if isinstance(schema, list):
        return [_modern(part, depth + 1) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = {}
    for key, part in schema.items():
        if key in _MAPS and isinstance(part, Mapping):
            made[key] = {name: _modern(inner, depth + 1) for name, inner in part.items()}
        else:
            made[key] = part if key in _VERBATIM else _modern(part, depth + 1)
    if isinstance(made.get("items"), list):
        made["prefixItems"] = made.pop("items")
        if "additionalItems" in made:
            made["items"] = made.pop("additionalItems")
    return made


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(Draft202012Validator.META_SCHEMA)
