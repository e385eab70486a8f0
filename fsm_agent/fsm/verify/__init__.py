"""Proofs about a table, on the table alone: nothing is run, no configuration is assumed.

``prove(table)`` raises unless the table can be used; it runs before a machine is built. ``verify_table(table,
limits)`` gives the whole report, with bounds as formulas and figures. What is assumed: a state returns,
reports only declared events, and counters are changed by the engine alone.

Only ``prove`` is loaded with the package; the rest on first use, since every start of a program imports a
machine."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fsm_agent.fsm.verify.proof import Fault, Proof, examine, prove

if TYPE_CHECKING:
    from fsm_agent.fsm.verify.formulas import Bound, bounds
    from fsm_agent.fsm.verify.reach import Search, search
    from fsm_agent.fsm.verify.report import Check, Figure, Report, verify_table

_HOMES = {
    **dict.fromkeys(("Bound", "bounds"), "formulas"),
    **dict.fromkeys(("Check", "Figure", "Report", "verify_table"), "report"),
    **dict.fromkeys(("Search", "search"), "reach"),
}

__all__ = [
    "Bound", "Check", "Fault", "Figure", "Proof", "Report", "Search", "bounds", "examine", "prove",
    "search", "verify_table",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
