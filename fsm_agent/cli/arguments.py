"""Parses texts on the command line: tables (the turn's, or one of the user's own), settings, values."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from fsm_agent.composition.turn_wiring import TURN
from fsm_agent.errors import ConfigError, TableError
from fsm_agent.fsm.table import Table
from fsm_agent.tools import Tool, as_tool


def table_of(name: str | None) -> Table:
    """Return a table: the turn's by default, ``module:attribute``, looked up in the current directory first,
    or that of a file, which may hold a machine of another engine."""
    if name is None:
        return TURN
    if name.endswith((".json", ".scxml")):
        from fsm_agent.diagram.versions import version_of

        return version_of(name).table
    table = attribute_of(name)
    if not isinstance(table, Table):
        raise ConfigError("this is not a transition table", name, "module:attribute of a Table")
    return table


def tools_of(names: Sequence[str]) -> list[Tool]:
    """Return the tools that each ``module:attribute`` is, or lists. Raises ``ConfigError``."""
    found = [
        attribute_of(name, "the tool", "module:attribute of a tool, or of a list of tools") for name in names
    ]
    return [
        as_tool(one) for thing in found for one in (thing if isinstance(thing, list | tuple) else (thing,))
    ]


def attribute_of(name: str, what: str = "the table", allowed: str = "module:attribute of a Table") -> object:
    """Return the value of ``module:attribute``. Raises ``ConfigError`` if ``what`` cannot be loaded,
    ``TableError`` for an invalid table."""
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(import_module(module), attribute)
    except TableError:
        raise
    except Exception as error:  # the user's module may raise anything
        raise ConfigError(f"{what} cannot be loaded ({error})", name, allowed) from error


def nest_settings(sets: Sequence[str]) -> dict[str, Any]:
    """Return the mapping that ``nested.name=value`` texts describe. Raises ``ConfigError`` for a malformed
    text."""
    values: dict[str, Any] = {}
    for text in sets:
        name, equals, value = text.partition("=")
        path = name.strip().split(".")
        if not equals or not all(path):
            raise ConfigError(
                "--set cannot be read", text, "nested.name=value, for example --set budget.grace_call=false"
            )
        group = values
        for part in path[:-1]:
            group = group.setdefault(part, {})
            if not isinstance(group, dict):
                raise ConfigError("--set names both a setting and a part of it", text, "one of the two")
        group[path[-1]] = value_of(value, name.strip())
    return values


def value_of(text: str, setting: str = "") -> Any:
    """Parse a text on the command line, or of a tool's arguments: as JSON if it can be read as such, else as
    itself. For a setting that is a text, ``3.13`` and ``true`` are texts."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not setting or value is None or isinstance(value, str):
        return value
    from fsm_agent.settings.errors import every_setting

    known = every_setting().get(setting)
    return text if known is not None and known.allowed.startswith(("text", "some text")) else value
