"""The table that a command is about: the turn's, or one of the user's own."""

from __future__ import annotations

import sys
from importlib import import_module

from fsm_agent.composition.turn_table import TURN
from fsm_agent.errors import ConfigError, TableError
from fsm_agent.fsm.table import Table


def table_of(name: str | None) -> Table:
    """The turn's table, or ``module:attribute``, looked for in the current directory first."""
    if name is None:
        return TURN
    table = attribute_of(name)
    if not isinstance(table, Table):
        raise ConfigError("this is no transition table", name, "module:attribute of a Table")
    return table


def attribute_of(name: str) -> object:
    """What ``module:attribute`` is. Raises ``ConfigError`` for what cannot be loaded, ``TableError`` for a wrong table."""
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(import_module(module), attribute)
    except TableError:
        raise
    except Exception as error:  # a module of the user's may raise anything
        raise ConfigError(f"the table cannot be loaded ({error})", name, "module:attribute of a Table") from error
