"""Proofs about a table, on the table alone: nothing is run, no configuration is assumed.

``verify_table(table, limits)`` gives the whole report, with bounds as formulas and figures. What is assumed:
a state returns, reports only declared events, and counters are changed by the engine alone. ``fsm.proof`` has
what is proved before a machine is built."""

from __future__ import annotations

from fsm_agent.fsm.proof import Fault, Proof, examine, prove
from fsm_agent.fsm.verify.formulas import Bound, bounds
from fsm_agent.fsm.verify.reach import Search, search
from fsm_agent.fsm.verify.report import Check, Figure, Report, verify_table

__all__ = [
    "Bound", "Check", "Fault", "Figure", "Proof", "Report", "Search", "bounds", "examine", "prove", "search",
    "verify_table",
]  # fmt: skip
