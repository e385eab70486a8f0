"""Diagrams of recorded turns: one run drawn over the table, and the rows taken in a whole store or test run.

Both are ordinary diagrams whose parts carry a mark, a count after each rung, and a badge beside each state's
name.
"""

# Judging diagrams have no state colors. In coverage and version diagrams, red, amber, and green are marks
# only; the arrows of a red state would look as if they were never taken.

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fsm_agent.diagram.markdown import grid, row_grid, rung_of
from fsm_agent.diagram.model import Arrow, Box, Diagram, Mark, words
from fsm_agent.diagram.runs import Run, Tally, tally_of_runs
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.journal import Step as Move
from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.verify.report import fold

PATH_PARTS = 40
"""Parts of a path that are shown; the rest is counted."""
Labeled = tuple[Mark, str]
"""The mark of an element that represents some rows, and the text after it."""
CHILDREN = 12
"""Nested turns listed in a picture; the rest are counted."""


def overlaid(diagram: Diagram, tally: Tally) -> Diagram:
    """Draw what the turns of ``tally`` did: rungs taken, with counts; time in each state; the rest faded."""
    badges = {state: _visits(tally, state) for state in diagram.states}
    if exits := _exits(tally):
        badges[diagram.table.final] = exits if len(tally.runs) == 1 else f"{len(tally.runs)} × ended"
    legend = (("×3", "taken three times"), ("faint", "not taken"))
    drawn = _draw_counts(diagram, tally, badges, "unused")
    nested = tuple(_inside(one, tally) for one in diagram.nested)
    return replace(drawn, caption=_run_caption(diagram.table, tally), legend=legend, nested=nested)


def _inside(nested: Diagram, tally: Tally) -> Diagram:
    """Draw a nested table with its recorded turns, if ``tally`` has any."""
    runs = [run for run in tally.begun if run.table == nested.table.name and run.steps]
    return overlaid(nested, tally_of_runs(nested.table, runs)) if runs else nested


def coverage_diagram(diagram: Diagram, tally: Tally) -> Diagram:
    """Draw which rows were taken, and how often; untaken ones in red."""
    badges = {}
    for state in diagram.states:
        taken, rows = coverage(diagram.table, tally, state)
        badges[state] = f"{taken} of {rows} rows"
    exits = {row.exit: False for row in diagram.table.rows if row.exit}
    exits |= {row.exit: True for row in diagram.table.rows if row.exit and tally.rows[row.id]}
    badges[diagram.table.final] = f"{sum(exits.values())} of {len(exits)} exits"
    legend = (
        ("×0", "in red: never taken; an arrow: dashed"),
        ("×5 (2/3)", "taken five times, by 2 of its 3 rows"),
    )
    drawn = _draw_counts(diagram, tally, badges, "never")
    return replace(drawn, caption=_coverage_caption(diagram.table, tally), legend=legend, judged=True)


def coverage(table: Table, tally: Tally, state: str | None = None) -> tuple[int, int]:
    """Return the number of rows taken, and of all rows, in one state or in the table."""
    rows = [row for row in table.rows if state in (None, row.source)]
    return sum(tally.rows[row.id] > 0 for row in rows), len(rows)


def duration(seconds: float) -> str:
    """Format a duration: ``350 ms``, ``4.12 s``, ``2 min 5 s``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def child_words(outer: Sequence[Move], run: Run) -> str:
    """Describe a turn: ``ExecuteTools began "find the file" after move 3: 5 moves, 1.2 s, text response``.
    ``outer`` are the moves of its parent turn."""
    state = outer[min(run.at, len(outer) - 1)].source if outer else ""
    name = f"“{_short(run.asked)}”" if run.asked else run.table or run.id
    moves = f"{len(run.steps)} move{'s' * (len(run.steps) != 1)}"
    time, end = duration(sum(step.seconds for step in run.steps)), words(run.exit or "not at its end")
    return f"{state} began {name} after move {run.at}: {moves}, {time}, ⇥ {end}"


def _short(asked: str) -> str:
    line = " ".join(asked.split())
    return line if len(line) <= 60 else f"{line[:59]}…"


def path_in_words(table: Table, run: tuple[Move, ...]) -> tuple[str, ...]:
    """Describe the path of a turn, ``BuildMessages send``, with repetitions folded."""
    rungs = {row.id: row.rung for row in table.rows}
    moves = []
    for move in run:
        rung = rungs.get(move.row, move.row)
        moves.append(f"{move.source} {words(move.event) if rung.startswith(('→', '⇥')) else rung}")
    return tuple(str(part).replace("[", "(").replace("]", ")") for part in fold(moves))


def _draw_counts(diagram: Diagram, tally: Tally, badges: Mapping[str, str], none: Mark) -> Diagram:
    def count(rows: Sequence[str]) -> Labeled:
        return _how_often(rows, tally, none)

    boxes = tuple(
        _label_box(
            box,
            badges[box.state],
            tally.visits.get(box.state, 0) > 0
            or any(tally.rows[row] for one in box.entries for row in one.rows),
            count,
            none,
        )
        for box in diagram.boxes
    )
    return replace(diagram, boxes=boxes, arrows=tuple(_arrow(arrow, tally, none) for arrow in diagram.arrows))


def _label_box(
    box: Box, badge: str, seen: bool, label: Callable[[Sequence[str]], Labeled], none: Mark
) -> Box:
    """Add the result of ``label`` for the rows of each rung. ``none``: the mark of untaken elements."""
    entries = []
    for entry in box.entries:
        marked = [(step, label(step.rows)) for step in entry.steps]
        steps = tuple(
            step if step.kind == "note" else replace(step, mark=mark, tail=tail)
            for step, (mark, tail) in marked
        )
        mark: Mark = none if label(entry.rows)[0] == none else ""
        entries.append(replace(entry, steps=steps, short=steps, mark=mark))
    return replace(box, entries=tuple(entries), badge=badge, mark="" if seen else none)


def _arrow(arrow: Arrow, tally: Tally, none: Mark) -> Arrow:
    count = sum(tally.rows[row] for row in arrow.rows)
    found = [
        (label, *_how_often(rows, tally, none))
        for label, rows in zip(arrow.labels, arrow.by_label, strict=True)
    ]
    if none == "unused" and count:  # of a run that took this arrow only the rungs taken
        found = [(label, mark, tail) for label, mark, tail in found if mark != none]
    if none == "never" and not count:  # the whole arrow is dashed and red
        return replace(arrow, mark=none)
    labels = tuple(f"{label} {tail}".rstrip() for label, _, tail in found)
    marks = tuple(mark for _, mark, _ in found)
    return replace(
        arrow, labels=labels, marks=marks if count else (), mark="" if count else none, count=count
    )


def _how_often(rows: Sequence[str], tally: Tally, none: Mark) -> Labeled:
    """Return the mark of an element that represents ``rows``, and the text of its count."""
    counts = [tally.rows[row] for row in rows]
    count, taken = sum(counts), sum(map(bool, counts))
    if none == "unused":
        return ("taken", f"×{count}") if count else (none, "")
    if 0 < taken < len(rows):
        return "partly", f"×{count:,} ({taken}/{len(rows)})"
    return ("taken" if count else none), f"×{count:,}"


def _visits(tally: Tally, state: str) -> str:
    visits = tally.visits.get(state, 0)
    if not visits:
        return ""
    number = "1 visit" if visits == 1 else f"{visits:,} visits"
    return f"{number}, {duration(tally.seconds[state])}" if state in tally.seconds else number


def _exits(tally: Tally) -> str:
    return ", ".join(dict.fromkeys(words(run[-1].exit) for run in tally.runs if run[-1].exit))


def _run_caption(table: Table, tally: Tally) -> tuple[str, tuple[tuple[str, str], ...]]:
    seconds = sum(tally.seconds.values())
    size = [f"{tally.moves:,} move{'s' * (tally.moves != 1)}", duration(seconds)]
    title = "This turn" if len(tally.runs) == 1 else f"{len(tally.runs)} turns"
    lines = [("", ", ".join([*size, f"⇥ {exits}" if (exits := _exits(tally)) else "not at its end"]) + ".")]
    if len(tally.runs) == 1:
        path = path_in_words(table, tally.runs[0])
        more = [f"… {len(path) - PATH_PARTS} more"] if len(path) > PATH_PARTS else []
        lines.append(("", " → ".join([*path[:PATH_PARTS], *more])))
    outer = tally.runs[0] if len(tally.runs) == 1 else ()
    lines += [("", line) for line in _child_lines(outer, tally.begun)]
    return title, (*lines, *_foreign(tally))


def _child_lines(outer: Sequence[Move], runs: Sequence[Run]) -> list[str]:
    """Return a line for each nested turn, followed by its own nested turns."""
    found = [
        line for run in runs for line in (child_words(outer, run), *_child_lines(run.steps, run.children))
    ]
    return found if len(found) <= CHILDREN else [*found[:CHILDREN], f"… {len(found) - CHILDREN} more turns"]


def _coverage_caption(table: Table, tally: Tally) -> tuple[str, tuple[tuple[str, str], ...]]:
    taken, rows = coverage(table, tally)
    turns = f" in {len(tally.runs):,} turn{'s' * (len(tally.runs) != 1)}" if tally.runs else ""
    lines = (
        ("", f"{taken} of {rows} rows ({100 * taken // rows} %) taken by {tally.moves:,} moves{turns}."),
    )
    return "Row coverage", (*lines, *_foreign(tally))


def _foreign(tally: Tally) -> tuple[tuple[str, str], ...]:
    if not tally.foreign:
        return ()
    rows = sorted(tally.foreign)
    ids = ", ".join(rows[:5]) + (" …" if len(rows) > 5 else "")
    return (("", f"Moves by rows that this table does not have: {sum(tally.foreign.values()):,} ({ids})."),)


# ----------------------------------------------------------------------------------------------------
# The record of turns, as Markdown for people and as JSON for programs.


DEEPEST = 6
"""Maximum level of headings in Markdown."""


def run_markdown(table: Table, tally: Tally) -> str:
    """Return the path of each turn in words, time by state, and every move of a single turn."""
    seconds = sum(tally.seconds.values())
    lines = [f"# {len(tally.runs)} turn{'s' * (len(tally.runs) != 1)} of the {table.name} table", ""]
    lines += [f"{tally.moves:,} moves, {duration(seconds)}."]
    for run in tally.runs:
        lines += ["", f"{' → '.join(path_in_words(table, run))} ⇥ *{run[-1].exit or 'not at its end'}*"]
    lines += ["", "## States", "", *_states(table, tally), *_foreign_lines(tally)]
    if len(tally.runs) == 1:
        lines += ["", "## Moves", "", *_moves(tally.runs[0])]
    lines += _below(tally.runs[0] if len(tally.runs) == 1 else (), tally.begun, "##")
    return "\n".join(lines) + "\n"


def coverage_markdown(table: Table, tally: Tally) -> str:
    """Return coverage by state, the rows that were never taken, and the counts of the others, as Markdown."""
    taken, rows = coverage(table, tally)
    never = [row for row in table.rows if not tally.rows[row.id]]
    lines = [f"# Row coverage of the {table.name} table", ""]
    lines += [f"**{taken} of {rows} rows** ({100 * taken // rows} %) taken by {tally.moves:,} moves.", ""]
    lines += [*_states(table, tally), *_foreign_lines(tally)]
    if never:
        lines += ["", "## Never taken", "", *row_grid(table, never)]
    counts = [
        (f"`{row.id}`", rung_of(row), f"{tally.rows[row.id]:,}") for row in table.rows if tally.rows[row.id]
    ]
    lines += ["", "## Taken", "", *grid(("Row", "Rung", "Times"), counts)]
    return "\n".join(lines) + "\n"


def counts_json(table: Table, tally: Tally) -> str:
    """Return JSON: ``table, digest, taken, of, moves, turns, states, rows, never, foreign``, the ``path`` of
    a single turn as row ids, and the ``children`` that the turns began, each
    ``id, table, asked, at, exit, path, children``."""
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
    """Yield a section for each nested turn, with its moves and its own nested turns."""
    for run in runs:
        yield from ("", f"{level} {child_words(outer, run)}", "", *_moves(run.steps))
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


def _foreign_lines(tally: Tally) -> Iterator[str]:
    if tally.foreign:
        yield from ("", "## Rows that this table does not have", "")
        yield from grid(
            ("Row", "Times"), ((f"`{row}`", f"{count:,}") for row, count in sorted(tally.foreign.items()))
        )


# ----------------------------------------------------------------------------------------------------
# Diagrams of expected behavior: the share of turns that take each row, in words and in color.
#
# The turns are an input: ``fsm_agent.backtest.predict`` samples them from recordings.

LIKELY, POSSIBLE = 0.5, 0.05
"""Minimum share of turns for a likely row, and for a possible one; less is seldom."""
LEGEND = (
    ("62 %", "of turns take it: half of them or more"),
    ("12 %", "one in twenty or more"),
    ("<1 %", "fewer"),
    ("faint", "not expected"),
)


@dataclass(frozen=True)
class Paths:
    """Turns as the rows that they take. ``title`` and ``words`` describe the turns."""

    turns: Sequence[Sequence[Row]]
    title: str
    words: Sequence[str] = ()

    def share(self, rows: Sequence[str]) -> float:
        """Return the share of turns that take at least one of these rows."""
        return sum(any(row.id in rows for row in turn) for turn in self.turns) / len(self.turns)

    def visits(self, state: str) -> float:
        """Return how often a turn leaves this state, on average."""
        return sum(row.source == state for turn in self.turns for row in turn) / len(self.turns)


def predict_diagram(diagram: Diagram, paths: Paths) -> Diagram:
    """Draw the share of turns at each rung and arrow."""

    def expect(rows: Sequence[str]) -> Labeled:
        share = paths.share(rows)
        return _mark(share), percent(share)

    visits = {box.state: paths.visits(box.state) for box in diagram.boxes}
    badges = {state: f"{mean:.2g} visit{'s' * (mean != 1)}" if mean else "" for state, mean in visits.items()}
    boxes = tuple(
        _label_box(box, badges[box.state], bool(visits[box.state]) or box.final, expect, "unused")
        for box in diagram.boxes
    )
    arrows = tuple(_predict_arrow(arrow, expect) for arrow in diagram.arrows)
    caption = paths.title, tuple(("", line) for line in paths.words)
    return replace(diagram, boxes=boxes, arrows=arrows, caption=caption, legend=LEGEND, judged=True)


def percent(share: float) -> str:
    """Format a share: ``62 %``; ``<1 %`` for less, ``>99 %`` for almost all, empty for zero."""
    if not share:
        return ""
    if share < 0.01:
        return "<1 %"
    return ">99 %" if 0.99 < share < 1 else f"{share:.0%}".replace("%", " %")


def _mark(share: float) -> Mark:
    return (
        "likely" if share >= LIKELY else "possible" if share >= POSSIBLE else "seldom" if share else "unused"
    )


def _predict_arrow(arrow: Arrow, expect: Callable[[Sequence[str]], Labeled]) -> Arrow:
    found = [(label, *expect(rows)) for label, rows in zip(arrow.labels, arrow.by_label, strict=True)]
    found = [one for one in found if one[1] != "unused"]
    if not found:
        return replace(arrow, mark="unused")
    labels = tuple(f"{label} {share}" for label, _, share in found)
    marks = tuple(mark for _, mark, _ in found)
    return replace(arrow, labels=labels, marks=marks, mark=expect(arrow.rows)[0])


def forecast_markdown(table: Table, paths: Paths) -> str:
    """Return the expected rows as Markdown, the most frequent first."""
    found = sorted(((paths.share([row.id]), row) for row in table.rows), key=lambda one: -one[0])
    lines = [f"# Predicted rows of the {table.name} table", "", *paths.words, ""]
    taken = [(f"`{row.id}`", rung_of(row), percent(share)) for share, row in found if share]
    lines += [*grid(("Row", "Rung", "Turns that take it"), taken), ""]
    lines.append(f"{len(table.rows) - len(taken)} other rows are not expected.")
    return "\n".join(lines) + "\n"


def forecast_json(table: Table, paths: Paths) -> str:
    """Return JSON: ``table, digest, turns, rows`` (share of turns), ``visits`` (by state), and ``exits``."""
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
