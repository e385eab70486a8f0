"""Diagrams of what turns are expected to do: the share of turns that take each row, in words and in color.

The turns are given: ``fsm_agent.backtest.predict`` draws them at random from what was recorded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fsm_agent.diagram.markdown import grid, rung_of
from fsm_agent.diagram.model import Arrow, Box, Diagram, Mark, ShownStep, StateEntry
from fsm_agent.fsm.table import Row, Table

LIKELY, POSSIBLE = 0.5, 0.05
"""Shares of turns from which a row is likely, and possible; below it is seldom."""
LEGEND = (
    ("62 %", "of turns take it: half of them or more"),
    ("12 %", "one in twenty or more"),
    ("<1 %", "fewer"),
    ("faint", "not expected"),
)


@dataclass(frozen=True)
class Paths:
    """Turns as the rows that they take. ``title`` and ``words`` say what they are turns of."""

    turns: Sequence[Sequence[Row]]
    title: str
    words: Sequence[str] = ()

    def share(self, rows: Sequence[str]) -> float:
        """The share of turns that take at least one of these rows."""
        return sum(any(row.id in rows for row in turn) for turn in self.turns) / len(self.turns)

    def visits(self, state: str) -> float:
        """How often a turn leaves this state, on average."""
        return sum(row.source == state for turn in self.turns for row in turn) / len(self.turns)


def predict_diagram(diagram: Diagram, paths: Paths) -> Diagram:
    """The diagram with the share of turns behind each rung and arrow."""
    boxes = tuple(_box(box, paths) for box in diagram.boxes)
    arrows = tuple(_arrow(arrow, paths) for arrow in diagram.arrows)
    caption = paths.title, tuple(("", line) for line in paths.words)
    return replace(diagram, boxes=boxes, arrows=arrows, caption=caption, legend=LEGEND, judged=True)


def percent(share: float) -> str:
    """``62 %``; ``<1 %`` for less, ``>99 %`` for almost all, empty for none."""
    if not share:
        return ""
    if share < 0.01:
        return "<1 %"
    return ">99 %" if 0.99 < share < 1 else f"{share:.0%}".replace("%", " %")


def _mark(share: float) -> Mark:
    return (
        "likely" if share >= LIKELY else "possible" if share >= POSSIBLE else "seldom" if share else "unused"
    )


def _box(box: Box, paths: Paths) -> Box:
    entries = tuple(_entry(entry, paths) for entry in box.entries)
    if box.final:
        return replace(box, entries=entries)
    visits = paths.visits(box.state)
    badge = f"{visits:.2g} visit{'s' * (visits != 1)}" if visits else ""
    return replace(box, entries=entries, badge=badge, mark="" if visits else "unused")


def _entry(entry: StateEntry, paths: Paths) -> StateEntry:
    steps = tuple(step if step.kind == "note" else _step(step, paths) for step in entry.steps)
    return replace(entry, steps=steps, short=steps, mark="" if paths.share(entry.rows) else "unused")


def _step(step: ShownStep, paths: Paths) -> ShownStep:
    share = paths.share(step.rows)
    return replace(step, mark=_mark(share), tail=percent(share))


def _arrow(arrow: Arrow, paths: Paths) -> Arrow:
    shares = [paths.share(rows) for rows in arrow.by_label]
    if not any(shares):
        return replace(arrow, mark="unused")
    told = [(label, one) for label, one in zip(arrow.labels, shares, strict=True) if one]
    labels = tuple(f"{label} {percent(one)}" for label, one in told)
    marks = tuple(_mark(one) for _, one in told)
    return replace(arrow, labels=labels, marks=marks, mark=_mark(paths.share(arrow.rows)))


def forecast_markdown(table: Table, paths: Paths) -> str:
    """The rows that turns are expected to take, the most frequent first."""
    found = sorted(((paths.share([row.id]), row) for row in table.rows), key=lambda one: -one[0])
    lines = [f"# Predicted rows of the {table.name} table", "", *paths.words, ""]
    taken = [(f"`{row.id}`", rung_of(row), percent(share)) for share, row in found if share]
    lines += [*grid(("Row", "Rung", "Turns that take it"), taken), ""]
    lines.append(f"{len(table.rows) - len(taken)} other rows are not expected.")
    return "\n".join(lines) + "\n"


def forecast_json(table: Table, paths: Paths) -> str:
    """``table, digest, turns, rows`` (the share of turns by row), ``visits`` (by state), and ``exits``."""
    exits = Counter(turn[-1].exit or "" for turn in paths.turns)
    value = {
        "table": table.name,
        "digest": table.digest,
        "turns": len(paths.turns),
        "rows": {row.id: paths.share([row.id]) for row in table.rows},
        "visits": {state: paths.visits(state) for state in table.states if state != table.final},
        "exits": {name: number / len(paths.turns) for name, number in exits.most_common()},
    }
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
