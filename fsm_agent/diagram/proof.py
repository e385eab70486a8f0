"""What is proved of a table, in the few lines that a picture has room for."""

from __future__ import annotations

from fsm_agent.diagram.model import words
from fsm_agent.table import Table
from fsm_agent.verify import verify_table

ROOM = 200  # letters of the longest formula that is shown; `fsm-agent verify` prints them all


def proof_lines(table: Table) -> tuple[str, ...]:
    """What holds for every setting: the checks, and bounds that hold without the caps. Nothing when a check fails."""
    report = verify_table(table, small=False)
    if not report.ok:
        return ()
    shown = [figure for figure in report.figures if not figure.caps and len(figure.formula) <= ROOM]
    legend = dict.fromkeys(line for figure in shown for line in figure.legend)
    return (
        "; ".join(check.name for check in report.checks).capitalize() + ".",
        *(f"{figure.quantity} ≤ {words(figure.formula)}" for figure in shown),
        *(words(line) for line in legend),
    )
