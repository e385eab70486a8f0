"""An answer of a type on the wire: which way a model is asked for one, and the schema as its vendor takes
it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from fsm_agent.conversation.effects import ApiMode, OutputMode, OutputSpec, Runtime
from fsm_agent.conversation.wire.form import Ask, without_patterns

REPAIR = "structured_output"
"""Of a model that does not take a schema for its answers."""
FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
_BOUNDS = frozenset(
    {
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
        "pattern",
    }
)
_OTHER_BOUNDS = frozenset({"minLength", "maxLength", "uniqueItems"})
TAKEN: Mapping[ApiMode, frozenset[str]] = {
    "chat_completions": _BOUNDS,
    "codex_responses": _BOUNDS,
    "anthropic_messages": frozenset(),
}
"""What vendors take of the keywords that bound a value; the others are told in its description."""
_CANNOT = frozenset(
    {"allOf", "not", "if", "then", "else", "patternProperties", "prefixItems", "contains", "propertyNames",
     "dependentSchemas", "dependentRequired", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef"}
)  # fmt: skip


class NotStrictError(ValueError):
    """A schema that no vendor can hold a model to."""


def mode_of(
    spec: OutputSpec,
    runtime: Runtime,
    repairs: Collection[str],
    *,
    toolless: bool,
    tools: bool,
) -> OutputMode:
    """Return the way in which this model is asked for the answer: the one that is wanted, or the next that it
    can. ``tools``: others can be called besides; a local server holds a model to a schema by a grammar, in
    which there are no calls. ``toolless``: none can be called, and an unfinished answer is made up by
    nobody."""
    mode = "prompt" if toolless else spec.mode or runtime.structured_output
    calls = runtime.local and tools
    if mode == "native" and (REPAIR in repairs or calls or schema_for(spec, runtime) is None):
        return "tool"
    return mode


def schema_for(spec: OutputSpec, runtime: Runtime) -> dict[str, Any] | None:
    """Return the schema as this provider takes it, ``None`` where it cannot. Local servers take any."""
    if runtime.local:
        return dict(spec.schema)
    try:
        return strict(spec.schema, TAKEN[runtime.api_mode])
    except NotStrictError:
        return None


def without_answer_patterns(spec: OutputSpec) -> OutputSpec:
    """Return what can be made a grammar by a server that reads no patterns."""
    return replace(spec, schema=without_patterns(spec.schema))


def answer_fields(ask: Ask) -> dict[str, Any]:
    """Return the field of a request's body that holds the model to the schema; empty without one."""
    if ask.answer is None or (schema := schema_for(ask.answer, ask.runtime)) is None:
        return {}
    named = {"name": ask.answer.name, "schema": schema, "strict": True}
    match ask.runtime.api_mode:
        case "chat_completions":
            return {"response_format": {"type": "json_schema", "json_schema": named}}
        case "codex_responses":
            return {"text": {"format": {"type": "json_schema", **named}}}
        case "anthropic_messages":
            return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def strict(schema: Mapping[str, Any], taken: frozenset[str]) -> dict[str, Any]:
    """Return the schema in the form that vendors demand: objects are closed, all their members are required,
    and what bounds a value and is not ``taken`` is told in words. Whatever fits it fits ``schema``, those
    bounds apart. Raises ``NotStrictError`` for a schema without such a form: one with members of any name,
    for instance."""
    defs = {name: _strict(one, taken) for name, one in schema.get("$defs", {}).items()}
    root = {key: value for key, value in schema.items() if key != "$defs"}
    own = defs.get(str(root.get("$ref", "")).removeprefix("#/$defs/"))  # the root has to be an object itself
    made = _strict(root, taken) if own is None else own
    if made.get("type") != "object":
        raise NotStrictError("the root is no object")
    return {**made, "$defs": defs} if defs else made


def _strict(schema: Any, taken: frozenset[str]) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or _CANNOT & schema.keys():
        raise NotStrictError("it has parts that no vendor reads")
    if "$ref" in schema:
        if not str(schema["$ref"]).startswith("#/$defs/"):
            raise NotStrictError("it refers to elsewhere")
        return {"$ref": schema["$ref"]}
    made: dict[str, Any] = {key: schema[key] for key in ("type", "enum", "const") if key in schema}
    if (variants := schema.get("anyOf", schema.get("oneOf"))) is not None:
        made["anyOf"] = [_strict(one, taken) for one in variants]
    if not made or (isinstance(made.get("type"), list) and {"object", "array"} & set(made["type"])):
        raise NotStrictError("it takes values of many kinds")
    if schema.get("type") == "object":
        made |= _closed(schema, taken)
    elif schema.get("type") == "array":
        made["items"] = _strict(schema.get("items"), taken)
    bounds = {key: schema[key] for key in (*_BOUNDS, *_OTHER_BOUNDS, "format") if key in schema}
    kept = {key: bounds.pop(key) for key in sorted(bounds.keys() & taken)}
    if bounds.get("format") in FORMATS:
        kept["format"] = bounds.pop("format")
    words = [str(schema["description"])] if schema.get("description") else []
    words += [", ".join(f"{key}: {bounds[key]}" for key in sorted(bounds))] if bounds else []
    return made | kept | ({"description": "\n".join(words)} if words else {})


def _closed(schema: Mapping[str, Any], taken: frozenset[str]) -> dict[str, Any]:
    members, more = schema.get("properties", {}), schema.get("additionalProperties")
    if isinstance(more, Mapping) or (not members and (more is not False and "properties" not in schema)):
        raise NotStrictError("its members have any name")
    return {
        "properties": {name: _strict(one, taken) for name, one in members.items()},
        "required": list(members),
        "additionalProperties": False,
    }
