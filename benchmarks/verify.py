"""What the proofs cost: ``prove`` runs at every start of a machine, the report on request, scripts
when tests are made.

make bench, or: python benchmarks/verify.py
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from fsm_agent.conversation.effects import Runtime
from fsm_agent.fsm.verify import bounds, examine, verify_table
from fsm_agent.fsm.verify.cover import pair_scripts, row_scripts
from fsm_agent.fsm.verify.reach import limit_names
from fsm_agent.fsm.verify.worst_case import Flow, long_run
from fsm_agent.settings import Settings
from fsm_agent_states.table import TURN
from fsm_agent_states.turn import limits_of
from tests.helpers.tables import chain

LIMITS = limits_of(Settings(), Runtime("any", "any", usable_fallbacks=2, possible_rekeys=2))


def best_of(times: int, work: Callable[[], object]) -> float:
    """Seconds of the fastest of several runs."""
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def report_of(states: int) -> object:
    """The report on a wide table, seven rows and two budgets for each state, within the usual time."""
    table = chain(states)
    return verify_table(table, dict.fromkeys(limit_names(table), 3), watch=("S3",))


def main() -> None:
    proof = examine(TURN)
    command = [sys.executable, "-m", "fsm_agent", "verify", "--json"]
    for what, seconds in {
        "partition, structure, counters, end (at every start)": best_of(5, lambda: examine(TURN)),
        "bounds as formulas": best_of(3, lambda: bounds(proof.without_caps, proof.with_caps)),
        "a run with 2,776 requests": best_of(
            3, lambda: long_run(Flow(proof.without_caps, LIMITS), ("CallLLM",), caps=False, enough=2776)
        ),
        "the whole report": best_of(3, lambda: verify_table(TURN, LIMITS)),
        "fsm-agent verify": best_of(3, lambda: subprocess.run(command, check=True, capture_output=True)),
        "the whole report, 56 rows": best_of(2, lambda: report_of(8)),
        "the whole report, 140 rows": best_of(1, lambda: report_of(20)),
        "the whole report, 210 rows": best_of(1, lambda: report_of(30)),
        "scripts for every row": best_of(3, lambda: row_scripts(TURN)),
        "scripts for every pair of rows": best_of(2, lambda: pair_scripts(TURN)),
    }.items():
        print(f"{what:55} {seconds * 1000:8,.0f} ms")


if __name__ == "__main__":
    main()
