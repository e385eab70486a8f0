"""One-line errors about invalid settings: the name, the given value, the allowed values."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_settings import SettingsError

from fsm_agent.errors import ConfigError
from fsm_agent.settings import ENV_PREFIX, BySize, Settings

# The values that each setting accepts, in words: for error messages, ``fsm-agent config list`` and the
# docs.


JsonSchema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its nested name, its default, and the allowed values in words."""

    name: str
    default: Any
    allowed: str


@cache
def every_setting() -> Mapping[str, Setting]:
    """Return all settings by name, in declaration order."""
    return {one.name: one for one in _settings((), Settings, None)}


def _settings(path: tuple[str, ...], kind: type[BaseModel], group: BaseModel | None) -> Iterator[Setting]:
    for name, field in kind.model_fields.items():
        default = field.get_default(call_default_factory=True) if group is None else getattr(group, name)
        if isinstance(default, BaseModel):
            yield from _settings((*path, name), type(default), default)
        else:
            kept: Any = Annotated[field.annotation, field]
            yield Setting(".".join((*path, name)), default, _words(TypeAdapter(kept).json_schema()))


def words_at(model: type[BaseModel], path: Sequence[int | str], otherwise: str) -> str:
    """Describe the values accepted at a path in a table of ``model``; return ``otherwise`` if they cannot be
    described."""
    schema = whole = model.model_json_schema()
    for part in path:
        schema = schema.get("properties", {}).get(part) or schema.get("additionalProperties") or {}
        if "$ref" in schema:
            schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
    options = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    known = bool(options) and all({"type", "enum", "const"} & one.keys() for one in options)
    return " or ".join(dict.fromkeys(map(_words, options))) if known else otherwise


def _words(schema: JsonSchema) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_words(one) for one in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(str(one) for one in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "null":
            return "nothing"
        case "boolean":
            return "true, false"
        case "integer":
            return f"whole number{_range(schema)}"
        case "number":
            return f"number{_range(schema)}"
        case "array":
            rows = [row["properties"] for row in schema.get("$defs", {}).values()]
            named = [f"{name} ({_words(field)})" for row in rows for name, field in row.items()]
            return f"list of tables with {', '.join(named)}" if named else "list of texts"
        case "object":
            values = schema.get("additionalProperties")
            return f"table of {_words(values)}" if isinstance(values, dict) and "type" in values else "table"
        case _:
            some = "some text" if "minLength" in schema else "text"
            return f"text that fits {schema['pattern']}" if "pattern" in schema else some


def _range(schema: JsonSchema) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    above = "above " if "exclusiveMinimum" in schema else ""
    below = "below " if "exclusiveMaximum" in schema else ""
    if low is None and high is None:
        return ""
    if high is None:
        return f" {above}{low:,}" if above else f" from {low:,}"
    return f" {above}{low:,} to {below}{high:,}"


def explain(error: ValidationError | SettingsError) -> ConfigError:
    """Explain the first error."""
    if isinstance(error, SettingsError):
        return _unreadable(error)
    first = error.errors(include_url=False)[0]
    path = _path(first["loc"])
    name = ".".join(path)
    if first["type"] == "extra_forbidden":
        names = _fields(path[:-1])
        alike = get_close_matches(path[-1], names, 1)
        allowed = (
            f"{'.'.join((*path[:-1], alike[0]))}, perhaps; fsm-agent config list has all" if alike else ""
        )
        allowed = allowed or ", ".join(names) or _allowed_values(path, first["msg"])
        return ConfigError(f"unknown setting {name}", first["input"], allowed)
    if first["type"] == "contradiction":
        return _contradicting(name, first["ctx"])
    if first["type"] == "taken":
        return ConfigError(f"setting {name} is out of range", first["ctx"]["given"], first["ctx"]["allowed"])
    variable = f"{ENV_PREFIX}{'__'.join(path).upper()}"
    given = "nothing" if first["input"] is None else first["input"]
    origin = f" ({variable})" if os.environ.get(variable) == given else ""
    what = f"setting {name or 'settings'}{origin} is out of range"
    return ConfigError(what, given, _allowed_values(path, first["msg"]))


def about_unknown(variable: str) -> str:
    """Report an environment variable that is not a setting, with a suggestion."""
    known = {f"{ENV_PREFIX}{name.upper().replace('.', '__')}" for name in every_setting()}
    alike = get_close_matches(variable.upper(), known, 1, 0.8)
    perhaps = f"{alike[0]}, perhaps" if alike else "see fsm-agent config list"
    return f"{variable} in the environment is not a setting; {perhaps}"


def _unreadable(error: SettingsError) -> ConfigError:
    """Name the variable with invalid JSON by its text, because the library names only the group."""
    text = getattr(error.__cause__, "doc", None)
    ours = ((name, value) for name, value in os.environ.items() if name.upper().startswith(ENV_PREFIX))
    holds = next((name for name, value in ours if value == text), str(error))
    text = None if "HEADERS" in holds.upper() else text
    allowed = """JSON, for example '["one", "two"]' or '{"name": 1}'"""
    return ConfigError(f"{holds} cannot be read", text, allowed)


def _contradicting(name: str, context: Mapping[str, Any]) -> ConfigError:
    values: Mapping[str, float] = context["values"]
    both = " and ".join(f"{name}.{field}" for field in values)
    given = ", ".join(f"{field} {value:g}" for field, value in values.items())
    return ConfigError(f"settings {both} contradict each other", given, context["allowed"])


def _path(loc: tuple[int | str, ...]) -> list[str]:
    """Return the parts of a name, without the type that the library adds for a setting of several types."""
    parts = [str(part) for part in loc]
    return parts[: next((at for at, part in enumerate(parts) if "[" in part), None)]


def _allowed_values(path: list[str], otherwise: str) -> str:
    """Describe the accepted values: of a setting or an item in it its range, of a group its names."""
    for length in range(len(path), 0, -1):
        if known := every_setting().get(".".join(path[:length])):
            return known.allowed
    names = _fields(path)
    number = "a number, or " if names == list(BySize.model_fields) else ""
    return f"{number}a table of {', '.join(names)}" if names else otherwise


def _fields(path: list[str]) -> list[str]:
    """Return the names in a group; empty if it does not exist."""
    group: Any = Settings
    for part in path:
        field = group.model_fields.get(part)
        group = field.annotation if field else None
        if not (isinstance(group, type) and issubclass(group, BaseModel)):
            return []
    return list(group.model_fields)
