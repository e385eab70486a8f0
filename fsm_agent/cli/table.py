"""``fsm-agent diagram`` and ``fsm-agent verify``: the table of a turn, or one of the user's own."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from fsm_agent.cli.given import nested
from fsm_agent.diagram import FORMATS, render
from fsm_agent.diagram.proof import proof_lines
from fsm_agent.errors import ConfigError
from fsm_agent.requests import Runtime
from fsm_agent.settings import Settings
from fsm_agent.table import Table
from fsm_agent.verify import verify_table
from states.layout import LAYOUT
from states.table import TURN
from states.turn import limits_of

_ENDINGS = {ending: name for name, ending in FORMATS.items()}


def diagram(name: str | None, format: str) -> int:
    """Print a table in a format, named as such or by the ending of its files."""
    table = table_of(name)
    chosen = _ENDINGS.get(format, format)
    if chosen not in FORMATS:
        raise ConfigError("unknown diagram format", format, ", ".join(["mermaid", "dot", "svg", "md", "json"]))
    layout = LAYOUT if table is TURN else None
    sys.stdout.write(render(table, chosen, layout=layout, proof_lines=proof_lines(table)))
    return 0


def verify(name: str | None, sets: Sequence[str], json: bool) -> int:
    """Print the report about a table; 1 when a check fails."""
    table = table_of(name)
    report = verify_table(table, limits(table, sets))
    print(jsonlib.dumps(report.to_dict(), ensure_ascii=False) if json else report.render())
    return 0 if report.ok else 1


def limits(table: Table, sets: Sequence[str]) -> Mapping[str, int] | None:
    """The limits that bounds are worked out for: the default settings' for the turn's table, changed by ``name=number``
    texts. ``None`` for a table of the user's own when none is given."""
    values: dict[str, int] = dict(limits_of(Settings(), Runtime("any", "any"))) if table is TURN else {}
    known = sorted({atom.limit for row in table.rows for atom in row.guard.atoms()})
    for limit, value in nested(sets).items():
        if limit not in known:
            raise ConfigError("unknown limit", limit, ", ".join(known))
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError(f"limit {limit} is out of range", value, "a whole number, 0 or more")
        values[limit] = value
    if values and (missing := [limit for limit in known if limit not in values]):
        raise ConfigError("limits are missing", ", ".join(missing), "a --set for each of them, or for none")
    return values or None


def table_of(name: str | None) -> Table:
    """The turn's table, or ``module:attribute``, looked for in the current directory first."""
    if name is None:
        return TURN
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        table = getattr(import_module(module), attribute)
    except Exception as error:  # a module of the user's may raise anything
        raise ConfigError(f"the table cannot be loaded ({error})", name, "module:attribute of a Table") from error
    if not isinstance(table, Table):
        raise ConfigError("this is no transition table", name, "module:attribute of a Table")
    return table
