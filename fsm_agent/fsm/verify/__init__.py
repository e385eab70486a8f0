"""Proofs about a table alone: nothing is run, no configuration is assumed.

``verify_table(table, limits)`` returns the whole report, with bounds as formulas and figures. Assumptions: a
state returns, reports only declared events, and only the engine changes counters. ``fsm.proof`` contains the
proofs that precede the construction of a machine."""

from __future__ import annotations

from fsm_agent.fsm.proof import Fault, Proof, examine, prove
from fsm_agent.fsm.verify.formulas import Bound, bounds
from fsm_agent.fsm.verify.reach import Search, search
from fsm_agent.fsm.verify.report import Check, Figure, Report, verify_table

__all__ = [
    "Bound", "Check", "Fault", "Figure", "Proof", "Report", "Search", "bounds", "examine", "prove", "search",
    "verify_table",
]  # fmt: skip
