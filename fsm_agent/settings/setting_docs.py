"""What may stand in each setting, in words: for error messages, ``fsm-agent config list`` and the docs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter

from fsm_agent.settings.model import Settings

JsonSchema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """One figure: its nested name, its default, and what is allowed in words."""

    name: str
    default: Any
    allowed: str


@cache
def every_setting() -> Mapping[str, Setting]:
    """All settings by name, in the order in which they are declared."""
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
    """Say what may stand at a place in a table that ``model`` describes; ``otherwise`` where that is hard to
    say."""
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
