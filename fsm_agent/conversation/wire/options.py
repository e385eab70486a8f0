"""Options of a request besides the conversation (``settings.request``): which wire supports which, and their
wire form. An unsupported option is refused for the model in use, and reported for a fallback.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fsm_agent.conversation.effects import ApiMode, OutputMode, OutputSpec, Runtime
from fsm_agent.conversation.vendors import HostedTool, hosted_tools
from fsm_agent.conversation.wire.form import Ask, dump, without_patterns
from fsm_agent.errors import ConfigError
from fsm_agent.settings import EFFORTS, Effort, RequestSettings

# Levels of reasoning effort by model name, as vendors publish them. They change without notice.


_USUAL: tuple[Effort, ...] = ("low", "medium", "high")
NORMALIZED = EFFORTS[:-1]
"""The levels that an aggregator accepts for every model and converts."""

_LEVELS: dict[str, tuple[Effort, ...]] = {
    "o1": _USUAL,
    "o1-mini": (),
    "o1-preview": (),
    "o3": _USUAL,
    "o4": _USUAL,
    "codex": _USUAL,
    "gpt-5": ("minimal", *_USUAL),
    "gpt-5-chat": (),
    "gpt-5-codex": _USUAL,
    "gpt-5-pro": ("high",),
    "gpt-5.": ("none", *_USUAL, "xhigh"),
    "gpt-5.1": ("none", *_USUAL),
    "gpt-5.1-codex": _USUAL,
    "gpt-5.1-codex-max": (*_USUAL, "xhigh"),
    "gpt-6": ("none", *_USUAL, "xhigh"),
    "gemini-2.5": _USUAL,
    "gemini-3": _USUAL,
}
"""Levels by the beginning of a model's name; the longest match wins. Without levels, the model does not
reason, or its effort cannot be requested."""


def levels_of(model: str) -> tuple[Effort, ...]:
    """Return the effort levels of a model by its name, ignoring an aggregator's prefix; empty if effort
    cannot be requested."""
    name = model.lower().rsplit("/", 1)[-1]
    return _LEVELS[max((part for part in _LEVELS if name.startswith(part)), key=len, default="o1-mini")]


def reasons(model: str) -> bool:
    """Return whether this model accepts a reasoning effort: others refuse a request that contains one."""
    return bool(levels_of(model))


def nearest(wish: Effort, levels: Sequence[Effort]) -> Effort:
    """Return the highest level that is not above the wish, else the lowest level."""
    return max(levels, key=lambda one: (_rank(one) <= _rank(wish), -abs(_rank(one) - _rank(wish))))


def _rank(effort: Effort) -> int:
    return EFFORTS.index(effort)


# Properties of models on the Messages wire: the maximum reply, and how thinking is requested.
#
# Figures are those that Anthropic publishes, in tokens; they change without notice. A model without a row
# counts as a new one. Since API version 2026-10-21 no Claude model accepts a temperature.


Thinking = Literal["none", "budget", "adaptive"]
NEWEST = 128_000
BUDGETS: dict[Effort, int] = {
    "none": 0, "minimal": 2_048, "low": 4_096, "medium": 8_192, "high": 16_384, "xhigh": 32_768, "max": 65_536
}  # fmt: skip
"""Tokens for thoughts, limited by the maximum reply."""
ROOM = 4_096
"""Minimum tokens of a reply besides its thoughts (FMT-07)."""


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """``output``: maximum reply in tokens; ``thinking``: how it is requested, adaptively up to ``efforts``;
    ``temperature``: whether it may be set."""

    output: int
    thinking: Thinking
    temperature: bool = False
    efforts: tuple[Effort, ...] = ("low", "medium", "high", "xhigh", "max")

    def budget(self, effort: Effort | None) -> int:
        """Return the tokens for thoughts at this effort; 0 for none."""
        return min(BUDGETS[effort], self.output - ROOM) if effort and self.thinking == "budget" else 0


_NOT_XHIGH: tuple[Effort, ...] = ("low", "medium", "high", "max")
_FAMILIES: dict[str, ModelFamily] = {
    "claude-2": ModelFamily(4_096, "none"),
    "claude-3": ModelFamily(4_096, "none"),
    "claude-3-5": ModelFamily(8_192, "none"),
    "claude-3-7": ModelFamily(64_000, "budget"),
    "claude-haiku-4": ModelFamily(64_000, "budget"),
    "claude-sonnet-4": ModelFamily(64_000, "budget"),
    "claude-sonnet-4-6": ModelFamily(64_000, "adaptive", efforts=_NOT_XHIGH),
    "claude-opus-4": ModelFamily(32_000, "budget"),
    "claude-opus-4-5": ModelFamily(64_000, "budget"),
    "claude-opus-4-6": ModelFamily(NEWEST, "adaptive", efforts=_NOT_XHIGH),
    "claude-opus-4-7": ModelFamily(NEWEST, "adaptive"),
    "claude-opus-4-8": ModelFamily(NEWEST, "adaptive"),
    "claude": ModelFamily(NEWEST, "adaptive"),
    "": ModelFamily(NEWEST, "budget", temperature=True),
}
"""By a part of the model's name; the longest match wins. The last row is for other vendors' models on this
wire."""


def family_of(model: str) -> ModelFamily:
    """Return the family of a model's name; an unknown name counts as a new model."""
    name = model.lower().replace(".", "-")
    return _FAMILIES[max((part for part in _FAMILIES if part in name), key=len)]


def output_cap(family: ModelFamily, ask: Ask) -> int:
    """Return ``max_tokens``, which is mandatory on this wire: the configured limit, or else the model's
    maximum; with room for requested thinking, and below the window."""
    most, window = ask.runtime.most_output or family.output, ask.runtime.window
    cap = most if ask.raised else ask.output_cap or most
    if (budget := family.budget(ask.effort)) and not ask.firm:
        cap = max(cap, budget + ROOM)
    return max(1, cap if window is None else min(cap, window - 1))


def thinking_params(family: ModelFamily, effort: Effort | None, cap: int) -> dict[str, Any]:
    """Return the parameters that request thinking within a reply of ``cap`` tokens; empty if thinking is off
    or there is no room."""
    if effort in (None, "none") or family.thinking == "none":
        return {}
    if family.thinking == "adaptive":
        return {
            "thinking": {"type": "adaptive", "display": "summarized"},
            "output_config": {"effort": nearest(effort, family.efforts)},
        }
    budget = family.budget(effort)
    return {"thinking": {"type": "enabled", "budget_tokens": budget}} if cap >= budget + ROOM else {}


HAD: Mapping[ApiMode, tuple[str, ...]] = {
    "chat_completions": ("tool_choice", "parallel_tool_calls", "top_p", "seed", "stop"),
    "codex_responses": ("tool_choice", "parallel_tool_calls", "top_p"),
    "anthropic_messages": ("tool_choice", "parallel_tool_calls", "top_p", "stop"),
}
WORDS = ("auto", "none", "required")
_FORCED: Mapping[str, dict[str, str]] = {
    "auto": {"type": "auto"},
    "none": {"type": "none"},
    "required": {"type": "any"},
}


def options_of(runtime: Runtime) -> tuple[str, ...]:
    """Return the options that this model's wire supports."""
    options, sampled = HAD[runtime.api_mode], runtime.api_mode != "anthropic_messages"
    if not sampled and not family_of(runtime.model).temperature:
        return tuple(name for name in options if name != "top_p")
    return options


def lacking(runtime: Runtime, wanted: RequestSettings) -> tuple[str, ...]:
    """Return the requested options that this model's wire does not support."""
    known, hosted = options_of(runtime), hosted_tools(runtime)
    return (
        *(name for name in wanted.asked if name not in known),
        *(f"hosted_tools.{name}" for name in wanted.hosted_tools if name not in hosted),
    )


def check_options(chain: Collection[Runtime], wanted: RequestSettings, tools: Collection[str]) -> list[str]:
    """Return a line for each fallback that lacks some of the requested options. ``chain`` begins with the
    model in use. Raises ``ConfigError`` for options that the model in use lacks, and for a tool that is not
    among ``tools``."""
    primary, *others = chain
    for name in lacking(primary, wanted):
        problem = f"request.{name} cannot be asked of {primary.provider}:{primary.model} ({primary.api_mode})"
        hosted = name.startswith("hosted_tools")
        known = ", ".join(hosted_tools(primary)) or "none there" if hosted else ", ".join(options_of(primary))
        raise ConfigError(problem, None if hosted else getattr(wanted, name), known)
    if both := [name for name in wanted.hosted_tools if name in tools]:
        problem = "a tool of the agent has the name of a hosted tool"
        raise ConfigError(problem, both[0], "another name, or a toolset without it")
    choice = wanted.tool_choice
    if choice is not None and choice not in WORDS and choice not in tools:
        raise ConfigError("request.tool_choice names no tool", choice, ", ".join((*WORDS, *tools)))
    return [
        f"{one.provider}:{one.model} is asked without {', '.join(missing)}: its wire has no word for it"
        for one in others
        if (missing := lacking(one, wanted))
    ]


def change_body(body: bytes, options: Mapping[str, Any], rows: Collection[Mapping[str, Any]]) -> bytes:
    """Return the body of a request with changed fields (``None`` removes one), and with rows appended to its
    messages."""
    if not (options or rows):
        return body
    fields = json.loads(body)
    fields.update(options)
    place = "input" if "input" in fields else "messages"
    fields[place] = [*fields[place], *rows]
    kept = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()


def forces(ask: Ask) -> bool:
    """Return whether the model must call a tool: only until one has run in the turn, because otherwise the
    turn could not end with an answer."""
    return ask.tools is not None and not ask.free and ask.options.tool_choice not in (None, "auto", "none")


def option_fields(ask: Ask) -> dict[str, Any]:
    """Return the options as fields of a request's body."""
    wanted, mode, known = ask.options, ask.runtime.api_mode, options_of(ask.runtime)
    fields: dict[str, Any] = dict(wanted.extra_body) if ask.runtime.primary else {}
    for tool, given in hosted_tools_of(ask):
        fields |= {**tool.form, **given} if tool.place == "body" else {}
    for name in wanted.asked:
        if name in ("top_p", "seed", "stop") and name in known:
            value = getattr(wanted, name)
            key = "stop_sequences" if (name, mode) == ("stop", "anthropic_messages") else name
            fields[key] = list(value) if name == "stop" else value
    if ask.tools is None:
        return fields
    choice = wanted.tool_choice if forces(ask) or wanted.tool_choice in ("auto", "none") else None
    if mode == "anthropic_messages":
        return fields | _claude_choice(choice, wanted.parallel_tool_calls)
    if choice is not None:
        named = {"name": choice}
        flat = mode == "codex_responses"
        form = {"type": "function", **(named if flat else {"function": named})}
        fields["tool_choice"] = choice if choice in WORDS else form
    if wanted.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = wanted.parallel_tool_calls
    return fields


def hosted_tools_of(ask: Ask) -> list[tuple[HostedTool, Mapping[str, Any]]]:
    """Return the requested hosted tools that the provider has, each with the user's options."""
    if not (wanted := ask.options.hosted_tools):
        return []
    tools = hosted_tools(ask.runtime)
    return [(tools[name], given) for name, given in wanted.items() if name in tools]


def all_tools(ask: Ask) -> bytes | None:
    """Return the list of tools: those of the agent, followed by hosted ones."""
    hosted = [{**tool.form, **given} for tool, given in hosted_tools_of(ask) if tool.place == "tools"]
    if not hosted:
        return ask.tools
    head, tail = (ask.tools or b"[]")[:-1], dump(hosted)[1:]
    return head + (b"," if len(head) > 1 else b"") + tail


def _claude_choice(choice: str | None, parallel: bool | None) -> dict[str, Any]:
    if choice is None and parallel is not False:
        return {}
    form: dict[str, Any] = dict(_FORCED.get(choice or "auto", {"type": "tool", "name": choice}))
    if parallel is False and form["type"] != "none":
        form["disable_parallel_tool_use"] = True
    return {"tool_choice": form}


# Typed answers on the wire: how a model is asked for one, and the schema in its vendor's form.


REPAIR = "structured_output"
"""The repair of a model that does not accept a schema for its answers."""
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
"""Keywords for bounds that vendors accept; the others are written into the description."""
_CANNOT = frozenset(
    {"allOf", "not", "if", "then", "else", "patternProperties", "prefixItems", "contains", "propertyNames",
     "dependentSchemas", "dependentRequired", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef"}
)  # fmt: skip


class NotStrictError(ValueError):
    """A schema that no vendor can enforce."""


def mode_of(
    spec: OutputSpec,
    runtime: Runtime,
    repairs: Collection[str],
    *,
    toolless: bool,
    tools: bool,
) -> OutputMode:
    """Return how this model is asked for the answer: the wanted mode, or the next that it supports.
    ``tools``: other tools can be called too; a local server enforces a schema by a grammar, which allows no
    calls. ``toolless``: no tool can be called, and an unfinished answer is not completed."""
    mode = "prompt" if toolless else spec.mode or runtime.structured_output
    calls = runtime.local and tools
    if mode == "native" and (REPAIR in repairs or calls or schema_for(spec, runtime) is None):
        return "tool"
    return mode


def schema_for(spec: OutputSpec, runtime: Runtime) -> dict[str, Any] | None:
    """Return the schema in this provider's form, ``None`` if it has none. Local servers accept any."""
    if runtime.local:
        return dict(spec.schema)
    try:
        return strict(spec.schema, TAKEN[runtime.api_mode])
    except NotStrictError:
        return None


def without_answer_patterns(spec: OutputSpec) -> OutputSpec:
    """Return the spec without the patterns that some servers cannot turn into a grammar."""
    return replace(spec, schema=without_patterns(spec.schema))


def answer_fields(ask: Ask) -> dict[str, Any]:
    """Return the field of a request's body that enforces the schema; empty without one."""
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
    """Return the schema in the form that vendors require: objects are closed, all their members are required,
    and bounds that are not ``taken`` are written into descriptions. A value that fits it fits ``schema``,
    except for those bounds. Raises ``NotStrictError`` for a schema without such a form, such as an object
    with arbitrary members."""
    defs = {name: _strict(one, taken) for name, one in schema.get("$defs", {}).items()}
    root = {key: value for key, value in schema.items() if key != "$defs"}
    own = defs.get(str(root.get("$ref", "")).removeprefix("#/$defs/"))  # the root must itself be an object
    result = _strict(root, taken) if own is None else own
    if result.get("type") != "object":
        raise NotStrictError("the root is not an object")
    return {**result, "$defs": defs} if defs else result


def _strict(schema: Any, taken: frozenset[str]) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or _CANNOT & schema.keys():
        raise NotStrictError("it has parts that no vendor reads")
    if "$ref" in schema:
        if not str(schema["$ref"]).startswith("#/$defs/"):
            raise NotStrictError("it refers to elsewhere")
        return {"$ref": schema["$ref"]}
    result: dict[str, Any] = {key: schema[key] for key in ("type", "enum", "const") if key in schema}
    if (variants := schema.get("anyOf", schema.get("oneOf"))) is not None:
        result["anyOf"] = [_strict(one, taken) for one in variants]
    if not result or (isinstance(result.get("type"), list) and {"object", "array"} & set(result["type"])):
        raise NotStrictError("it takes values of many kinds")
    if schema.get("type") == "object":
        result |= _close_schema(schema, taken)
    elif schema.get("type") == "array":
        result["items"] = _strict(schema.get("items"), taken)
    bounds = {key: schema[key] for key in (*_BOUNDS, *_OTHER_BOUNDS, "format") if key in schema}
    kept = {key: bounds.pop(key) for key in sorted(bounds.keys() & taken)}
    if bounds.get("format") in FORMATS:
        kept["format"] = bounds.pop("format")
    words = [str(schema["description"])] if schema.get("description") else []
    words += [", ".join(f"{key}: {bounds[key]}" for key in sorted(bounds))] if bounds else []
    return result | kept | ({"description": "\n".join(words)} if words else {})


def _close_schema(schema: Mapping[str, Any], taken: frozenset[str]) -> dict[str, Any]:
    members, more = schema.get("properties", {}), schema.get("additionalProperties")
    if isinstance(more, Mapping) or (not members and (more is not False and "properties" not in schema)):
        raise NotStrictError("its members have any name")
    return {
        "properties": {name: _strict(one, taken) for name, one in members.items()},
        "required": list(members),
        "additionalProperties": False,
    }
