"""What may be asked of a model besides the conversation (``settings.request``): which wire has which, and how
it is written there. What a wire lacks is refused for the model in use, and said of a fallback."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from fsm_agent.conversation.effects import ApiMode, Runtime
from fsm_agent.conversation.hosted import HostedTool, hosted_by
from fsm_agent.conversation.wire.claude import family_of
from fsm_agent.conversation.wire.form import Ask, dump
from fsm_agent.errors import ConfigError
from fsm_agent.settings.model import RequestSettings

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


def had_by(runtime: Runtime) -> tuple[str, ...]:
    """Return the options that this model's wire has words for."""
    had, sampled = HAD[runtime.api_mode], runtime.api_mode != "anthropic_messages"
    if not sampled and not family_of(runtime.model).temperature:
        return tuple(name for name in had if name != "top_p")
    return had


def lacking(runtime: Runtime, wanted: RequestSettings) -> tuple[str, ...]:
    """Return what is asked for and this model's wire has no word for."""
    had, hosted = had_by(runtime), hosted_by(runtime)
    return (
        *(name for name in wanted.asked if name not in had),
        *(f"hosted_tools.{name}" for name in wanted.hosted_tools if name not in hosted),
    )


def check_options(chain: Collection[Runtime], wanted: RequestSettings, tools: Collection[str]) -> list[str]:
    """Return a line for each fallback that is asked for less than the model in use, which is the first of
    ``chain``. Raises ``ConfigError`` for what that one lacks, and for a tool that is not among ``tools``."""
    primary, *others = chain
    for name in lacking(primary, wanted):
        what = f"request.{name} cannot be asked of {primary.provider}:{primary.model} ({primary.api_mode})"
        hosted = name.startswith("hosted_tools")
        had = ", ".join(hosted_by(primary)) or "none there" if hosted else ", ".join(had_by(primary))
        raise ConfigError(what, None if hosted else getattr(wanted, name), had)
    if both := [name for name in wanted.hosted_tools if name in tools]:
        what = "a tool of the agent has the name of a hosted tool"
        raise ConfigError(what, both[0], "another name, or a toolset without it")
    choice = wanted.tool_choice
    if choice is not None and choice not in WORDS and choice not in tools:
        raise ConfigError("request.tool_choice names no tool", choice, ", ".join((*WORDS, *tools)))
    return [
        f"{one.provider}:{one.model} is asked without {', '.join(missing)}: its wire has no word for it"
        for one in others
        if (missing := lacking(one, wanted))
    ]


def changed_body(body: bytes, options: Mapping[str, Any], rows: Collection[Mapping[str, Any]]) -> bytes:
    """Return the body of a request with other fields, ``None`` for those to leave out, and with rows behind
    its messages."""
    if not (options or rows):
        return body
    fields = json.loads(body)
    fields.update(options)
    said = "input" if "input" in fields else "messages"
    fields[said] = [*fields[said], *rows]
    kept = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()


def forces(ask: Ask) -> bool:
    """Say whether the model must call a tool: only as long as none has run in its turn, because a turn in
    which every reply has to call one would have no answer."""
    return ask.tools is not None and not ask.free and ask.options.tool_choice not in (None, "auto", "none")


def option_fields(ask: Ask) -> dict[str, Any]:
    """Return the fields of a request's body that its options are."""
    wanted, mode, missing = ask.options, ask.runtime.api_mode, lacking(ask.runtime, ask.options)
    fields: dict[str, Any] = dict(wanted.extra_body) if ask.runtime.primary else {}
    for tool, given in hosted_of(ask):
        fields |= {**tool.form, **given} if tool.place == "body" else {}
    for name in ("top_p", "seed", "stop"):
        if name in wanted.asked and name not in missing:
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


def hosted_of(ask: Ask) -> list[tuple[HostedTool, Mapping[str, Any]]]:
    """Return the hosted tools of a request that its provider has, each with what was said of it."""
    had = hosted_by(ask.runtime)
    return [(had[name], given) for name, given in ask.options.hosted_tools.items() if name in had]


def all_tools(ask: Ask) -> bytes | None:
    """Return the list of tools: those of the agent, and behind them the provider's own."""
    hosted = [{**tool.form, **given} for tool, given in hosted_of(ask) if tool.place == "tools"]
    if not hosted:
        return ask.tools
    ours, theirs = (ask.tools or b"[]")[:-1], dump(hosted)[1:]
    return ours + (b"," if len(ours) > 1 else b"") + theirs


def _claude_choice(choice: str | None, parallel: bool | None) -> dict[str, Any]:
    if choice is None and parallel is not False:
        return {}
    form: dict[str, Any] = dict(_FORCED.get(choice or "auto", {"type": "tool", "name": choice}))
    if parallel is False and form["type"] != "none":
        form["disable_parallel_tool_use"] = True
    return {"tool_choice": form}
