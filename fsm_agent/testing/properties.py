"""``assert_properties``: the properties of a table in one line of a test."""

from __future__ import annotations

from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify.properties import PropertyVerdict, judge


def assert_properties(table: Table) -> tuple[PropertyVerdict, ...]:
    """Prove the properties of ``table`` and give the verdicts. Raises ``AssertionError`` with a shortest run
    for each that is not proved and not declared as known, ``TableError`` for a table that is not proved
    itself. ``play(table, verdict.run)`` takes that run."""
    verdicts = judge(table)
    if findings := [verdict.finding for verdict in verdicts if verdict.finding]:
        raise AssertionError("\n".join(findings))
    return verdicts
