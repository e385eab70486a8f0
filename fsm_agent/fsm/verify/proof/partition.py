"""Check 1: for each (state, event) exactly one row is open, for every configuration and every count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fsm_agent.fsm.verify.proof.fault import Fault
from fsm_agent.fsm.verify.proof.truth_tables import LineTruth


def partition_faults(truths: Iterable[LineTruth]) -> tuple[Fault, ...]:
    """Holes (no row is open), overlaps (two rows are open) and rows that can never be true."""
    return tuple(fault for truth in truths for fault in _line_faults(truth))


def _line_faults(truth: LineTruth) -> Iterator[Fault]:
    covered = 0
    for position, (row, regions) in enumerate(truth.rows):
        if not regions:
            what = f"row can never be true ({row.guard.label})"
            yield Fault((row.id,), what, "remove the rung, or the rung before it that is always open")
        both = covered & regions
        if both:
            other, also = next((other, regions & seen) for other, seen in truth.rows[:position] if regions & seen)
            what = f"overlap, both rows are open when {truth.words(also)}"
            yield Fault((other.id, row.id), what, f"let {row.id} need what {other.id} refuses")
        covered |= regions
    hole = truth.everywhere & ~covered
    if hole:
        where = f"{truth.source}.{truth.event}"
        yield Fault((where,), f"hole, no row is open when {truth.words(hole)}", "add a last rung that needs nothing")
