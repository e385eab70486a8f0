"""The command line parser's own errors, in the form of all others: what, given, allowed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fsm_agent.errors import ConfigError, near

_EXTRA = re.compile(r"Got unexpected extra argument\S* \((.*)\)", re.DOTALL)
_EXPECTED = re.compile(r"Input should be (.+?)(?:, unable to .*)?$", re.DOTALL)
_BRACES = re.compile(r"\{(\w+)\}")
"""What the parser puts around the names of required arguments."""


def usage_error(error: Any, words: Sequence[str]) -> str:
    """Return the line for an ``error`` of the parser in the command line ``words``."""
    return str(_config_error(error, words) or error.format_message())


def _config_error(error: Any, words: Sequence[str]) -> ConfigError | None:
    context: Any = getattr(error, "ctx", None)
    message = str(getattr(error, "message", ""))
    form = _form(context) if context is not None else ""
    match type(error).__name__:
        case "MissingParameter":
            name, kind = _name(error.param), error.param.param_type_name
            allowed = form if kind == "argument" else f"{name} VALUE"
            return ConfigError(f"{kind} {name} is missing", context.command_path, allowed)
        case "NoSuchOption":
            known = [name for one in context.command.get_params(context) for name in one.opts]
            options = [name for name in known if name.startswith("-")]
            return ConfigError("no such option", error.option_name, near(error.option_name, options))
        case "BadOptionUsage":
            option = error.option_name
            if "requires" in message:
                return ConfigError("option has no value", option, f"{option} VALUE")
            given = next((word for word in words if word.startswith(f"{option}=")), option)
            return ConfigError("option takes no value", given, option)
        case "BadParameter" if error.param is not None:
            found: list[Any] = getattr(error.__cause__, "errors", list)()
            expected = _EXPECTED.match(message)
            allowed = expected[1] if expected else message
            return ConfigError(
                f"{_name(error.param)} cannot be used", found[0]["input"] if found else None, allowed
            )
    extra = _EXTRA.match(message)
    return ConfigError("too many arguments", extra[1], form) if extra else None


def _form(context: Any) -> str:
    """The command with its arguments on one line."""
    return " ".join(_BRACES.sub(r"\1", context.get_usage().removeprefix("Usage: ")).split())


def _name(parameter: Any) -> str:
    """What a person types for the parameter."""
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return str(parameter.metavar or parameter.name.upper())
