"""Proofs about a table, on the table alone: nothing is run, no configuration is assumed.

``prove(table)`` raises unless the table can be used; it runs before a machine is built. ``verify_table(table,
limits)`` gives the whole report, with bounds as formulas and figures. What is assumed: a state returns,
reports only declared events, and counters are changed by the engine alone.

Only ``prove`` is loaded with the package; the rest on first use, since every start of a program imports a
machine."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fsm_agent.fsm.verify.proof import Fault
from fsm_agent.fsm.verify.proof.examine import Proof, examine, prove

if TYPE_CHECKING:
    from fsm_agent.fsm.verify.reachability.exact import Search, search
    from fsm_agent.fsm.verify.report import Check, Figure, Report
    from fsm_agent.fsm.verify.verdict import verify_table
    from fsm_agent.fsm.verify.worst_case.formulas import Bound, bounds

_HOMES = {
    **dict.fromkeys(("Bound", "bounds"), "worst_case.formulas"),
    **dict.fromkeys(("Check", "Figure", "Report"), "report"),
    "verify_table": "verdict",
    **dict.fromkeys(("Search", "search"), "reachability.exact"),
}

__all__ = [
    "Bound",
    "Check",
    "Fault",
    "Figure",
    "Proof",
    "Report",
    "Search",
    "bounds",
    "examine",
    "prove",
    "search",
    "verify_table",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
