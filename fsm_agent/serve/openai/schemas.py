"""The schema of an answer, as a client may send it: one that is checked quickly, whatever the answer is.

A schema is a program of the client that runs here, for each answer. Two things can make it slow: a regular
expression that backtracks, and references that multiply. The first is matched by RE2, the second counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from fsm_agent.errors import ConfigError
from fsm_agent.output import JsonSchema
from fsm_agent.support.texts import is_regular

MOST = 10_000
"""Subschemas that one value may be checked against, references included."""
UNUSABLE = ("patternProperties", "$dynamicRef", "$anchor", "$dynamicAnchor")
_BY_NAME = ("properties", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = (
    "items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip


def check_schema(schema: Mapping[str, Any], name: str) -> None:
    """Raise ``ConfigError`` for what is not a JSON schema, and for one that may be slow."""
    JsonSchema(schema, name)
    if _Counter(schema).weight(schema) > MOST:
        raise ConfigError(
            "the schema is too large",
            None,
            f"{MOST:,} subschemas, each counted as often as it is referred to",
        )


class _Counter:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[int, int] = {}

    def weight(self, schema: Any) -> int:
        """How many subschemas a value is checked against; at most ``MOST`` + 1."""
        if not isinstance(schema, Mapping):
            return 1
        if id(schema) in self._known:
            return self._known[id(schema)]
        self._known[id(schema)] = 1  # a schema that refers to itself
        self._refuse(schema)
        total = 1 + sum(self.weight(below) for below in _below(schema))
        if (reference := schema.get("$ref")) is not None:
            total += self.weight(self._target(reference))
        self._known[id(schema)] = total = min(total, MOST + 1)
        return total

    def _refuse(self, schema: Mapping[str, Any]) -> None:
        for word in UNUSABLE:
            if word in schema:
                raise ConfigError(f"{word} is not read in a schema", None, "properties, $defs and $ref")
        if "$id" in schema and schema is not self._root:
            raise ConfigError("$id is read at the top of a schema alone", str(schema["$id"])[:80])
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and not is_regular(pattern):
            raise ConfigError("the pattern cannot be matched quickly", pattern[:80], "the syntax of RE2")

    def _target(self, reference: str) -> Any:
        found: Any = self._root
        steps = reference.removeprefix("#").removeprefix("/").split("/") if reference != "#" else []
        for step in steps:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) else None
        if not reference.startswith("#") or not isinstance(found, Mapping | bool):
            raise ConfigError("a reference of the schema leads nowhere", reference[:80], "#/$defs/NAME")
        return found


def _below(schema: Mapping[str, Any]) -> Iterator[Any]:
    for word in _BY_NAME:
        named = schema.get(word)
        if isinstance(named, Mapping):
            yield from named.values()
    for word in _LISTS:
        yield from schema.get(word) or ()
    for word in _SINGLE:
        if word in schema:
            yield schema[word]
