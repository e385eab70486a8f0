"""The official schema of the Debug Adapter Protocol, which the package ``debugpy`` brings along; and a check
that is stricter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import files
from typing import Any

from jsonschema import Draft4Validator

TITLES = {"request": "Request", "response": "Response", "event": "Event"}


@cache
def schema() -> dict[str, Any]:
    found = next(file for file in files("debugpy") or () if file.name == "debugProtocol.json")
    loaded: dict[str, Any] = json.loads(found.read_text("utf-8"))
    return loaded


@cache
def _validator(definition: str) -> Draft4Validator:
    return Draft4Validator({**schema(), "$ref": f"#/definitions/{definition}"})


def definition_of(message: Mapping[str, Any]) -> str:
    """Which of the schema's definitions a message is one of."""
    if message["type"] == "response" and not message["success"]:
        return "ErrorResponse"
    name = str(message.get("command") or message["event"])
    return name[0].upper() + name[1:] + TITLES[message["type"]]


def check(message: Mapping[str, Any]) -> None:
    """Valid by the schema, and with no part that the schema does not name: that would be a misspelt one."""
    definition = definition_of(message)
    assert definition in schema()["definitions"], f"the protocol has no {definition}"
    _validator(definition).validate(message)
    if definition in ("LaunchRequest", "AttachRequest"):  # their arguments are each server's own
        return
    unnamed = list(_unnamed({"$ref": f"#/definitions/{definition}"}, message, definition))
    assert not unnamed, f"parts that the protocol does not have: {unnamed}"


def _unnamed(rule: Mapping[str, Any], value: Any, way: str) -> Iterator[str]:
    rules = list(_flat(rule))
    if isinstance(value, Mapping):
        named: dict[str, Any] = {}
        for one in rules:
            named |= one.get("properties", {})
        if not named or any(one.get("additionalProperties") for one in rules):
            return
        for key, part in value.items():
            if key in named:
                yield from _unnamed(_merged(rules, key), part, f"{way}.{key}")
            else:
                yield f"{way}.{key}"
    elif isinstance(value, list):
        for one in rules:
            for index, part in enumerate(value if "items" in one else ()):
                yield from _unnamed(one["items"], part, f"{way}[{index}]")


def _merged(rules: list[Mapping[str, Any]], key: str) -> dict[str, Any]:
    return {"allOf": [one["properties"][key] for one in rules if key in one.get("properties", {})]}


def _flat(rule: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "$ref" in rule:
        yield from _flat(schema()["definitions"][rule["$ref"].rpartition("/")[2]])
    for part in rule.get("allOf", ()):
        yield from _flat(part)
    yield rule
