"""What turns did, as Markdown for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from fsm_agent.diagram.counted import begun_in_words, coverage, duration, path_in_words
from fsm_agent.diagram.markdown import grid, row_grid, rung_of
from fsm_agent.diagram.recorded import Run
from fsm_agent.diagram.runs import Tally
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.table import Table

DEEPEST = 6
"""Levels of headings that Markdown has."""


def run_markdown(table: Table, tally: Tally) -> str:
    """The path of each turn in words, time by state, and every move of a single turn."""
    seconds = sum(tally.seconds.values())
    lines = [f"# {len(tally.runs)} turn{'s' * (len(tally.runs) != 1)} of the {table.name} table", ""]
    lines += [f"{tally.moves:,} moves, {duration(seconds)}."]
    for run in tally.runs:
        lines += ["", f"{' → '.join(path_in_words(table, run))} ⇥ *{run[-1].exit or 'not at its end'}*"]
    lines += ["", "## States", "", *_states(table, tally), *_foreign(tally)]
    if len(tally.runs) == 1:
        lines += ["", "## Moves", "", *_moves(tally.runs[0])]
    lines += _below(tally.runs[0] if len(tally.runs) == 1 else (), tally.begun, "##")
    return "\n".join(lines) + "\n"


def coverage_markdown(table: Table, tally: Tally) -> str:
    """Coverage by state, the rows that were never taken, and the counts of the others."""
    taken, rows = coverage(table, tally)
    never = [row for row in table.rows if not tally.rows[row.id]]
    lines = [f"# Row coverage of the {table.name} table", ""]
    lines += [f"**{taken} of {rows} rows** ({100 * taken // rows} %) taken by {tally.moves:,} moves.", ""]
    lines += [*_states(table, tally), *_foreign(tally)]
    if never:
        lines += ["", "## Never taken", "", *row_grid(table, never)]
    counts = [
        (f"`{row.id}`", rung_of(row), f"{tally.rows[row.id]:,}") for row in table.rows if tally.rows[row.id]
    ]
    lines += ["", "## Taken", "", *grid(("Row", "Rung", "Times"), counts)]
    return "\n".join(lines) + "\n"


def counted_json(table: Table, tally: Tally) -> str:
    """``table, digest, taken, of, moves, turns, states, rows, never, foreign``, the ``path`` of a single turn
    as row ids, and the ``children`` that the turns began, each ``id, table, asked, at, exit, path,
    children``."""
    taken, of = coverage(table, tally)
    value = {
        "table": table.name,
        "digest": table.digest,
        "taken": taken,
        "of": of,
        "moves": tally.moves,
        "turns": len(tally.runs),
        "states": {
            state: {
                "visits": tally.visits.get(state, 0),
                "seconds": tally.seconds.get(state),
                "taken": coverage(table, tally, state)[0],
                "of": coverage(table, tally, state)[1],
            }
            for state in table.states
        },
        "rows": dict(tally.rows),
        "never": [row.id for row in table.rows if not tally.rows[row.id]],
        "foreign": dict(tally.foreign),
        "path": [move.row for move in tally.runs[0]] if len(tally.runs) == 1 else None,
        "children": [_run_form(run) for run in tally.begun],
    }
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _states(table: Table, tally: Tally) -> Iterator[str]:
    cells = []
    for state in table.states:
        taken, rows = coverage(table, tally, state)
        seconds = tally.seconds.get(state)
        share = f"{taken} of {rows}" if state != table.final else ""
        cells.append(
            (state, f"{tally.visits.get(state, 0):,}", "" if seconds is None else duration(seconds), share)
        )
    yield from grid(("State", "Visits", "Time", "Rows taken"), cells)


def _below(outer: Sequence[Step], runs: Sequence[Run], level: str) -> Iterator[str]:
    """A part for each turn that was begun, with its moves and those that it began."""
    for run in runs:
        yield from ("", f"{level} {begun_in_words(outer, run)}", "", *_moves(run.steps))
        yield from _below(run.steps, run.children, level if len(level) == DEEPEST else f"{level}#")


def _run_form(run: Run) -> dict[str, object]:
    return {
        "id": run.id,
        "table": run.table,
        "asked": run.asked,
        "at": run.at,
        "exit": run.exit,
        "path": [step.row for step in run.steps],
        "children": [_run_form(child) for child in run.children],
    }


def _moves(run: Sequence[Step]) -> Iterator[str]:
    cells = []
    for move in run:
        guards = ", ".join(label if holds else f"not: {label}" for label, holds in move.guards)
        changes = ", ".join(f"{name} {before} → {after}" for name, before, after in move.changes)
        cells.append((str(move.seq), f"`{move.row}`", move.dest, guards, changes, duration(move.seconds)))
    yield from grid(("Move", "Row", "To", "Guards", "Changes", "Time"), cells)


def _foreign(tally: Tally) -> Iterator[str]:
    if tally.foreign:
        yield from ("", "## Rows that this table does not have", "")
        yield from grid(
            ("Row", "Times"), ((f"`{row}`", f"{count:,}") for row, count in sorted(tally.foreign.items()))
        )
