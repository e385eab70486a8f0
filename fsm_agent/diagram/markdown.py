"""The review table: decision lists by state, rungs, counters, and the plain rows they expand to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from fsm_agent.diagram.model import Diagram, Kind, is_move, resets_in_words
from fsm_agent.fsm.table import Line, Row, Rung, Table

MARKUP: dict[Kind, str] = {"rung": "**{}**", "move": "→ {}", "exit": "⇥ *{}*"}


def as_markdown(diagram: Diagram) -> str:
    """Return everything a reviewer compares, as GitHub tables; a changed line of the table is a changed line
    here."""
    table = diagram.table
    own = len(table.lines)
    lines = [
        f"# The {table.name} table",
        "",
        f"{own} lines, {len(table.macros)} macros, {len(table.rows)} rows, {len(table.counters)} counters. "
        "`›` reads “else”: the first **rung** whose budget is left is taken. `→` is unconditional. "
        f"`⇥` ends the turn in {table.final} with this exit reason.",
        "",
        "## Decision lists",
        *(line for state in table.states if state != table.final for line in _state(table, state)),
        *_macros(table),
        *_rungs(table),
        *_counters(table),
        *_rows(table),
        *(f"\n{re.sub('^#', '##', as_markdown(one), flags=re.MULTILINE)}".rstrip() for one in diagram.nested),
    ]
    return "\n".join(lines) + "\n"


def _state(table: Table, state: str) -> Iterator[str]:
    lines = [line for line in table.lines if line.source == state]
    yield from ("", f"### {state}", *runs_in_words(table, state), "")
    yield from grid(
        ("Event", "Decision list", "Resets", "Why"),
        ((f"`{ln.event}`", _list(ln), resets_in_words(table, ln.resets), ln.why) for ln in lines),
    )


def runs_in_words(table: Table, state: str) -> tuple[str, ...]:
    """Describe what a state runs, after a blank line; nothing for most states."""
    if (inner := table.inner.get(state)) is None:
        return ()
    return (
        "",
        f"Runs {inner.label}; the exits are the events, and of several the first in this order counts.",
    )


def _list(line: Line) -> str:
    return " › ".join(MARKUP[kind].format(name) for kind, name in map(_rung_name, line.ladder))


def _rung_name(rung: Rung) -> tuple[Kind, str]:
    if rung.exit is not None:
        return "exit", rung.exit
    return ("move", rung.to) if is_move(rung) else ("rung", rung.name)


def _macros(table: Table) -> Iterator[str]:
    if not table.macros:
        return
    yield from ("", f"### Every state but {table.final}", "")
    yield from grid(
        ("Event", "State", "Exit"),
        (
            (f"`{event}`", state, f"⇥ *{exits[state]}*")
            for event, exits in table.macros
            for state in table.states
            if state in exits
        ),
    )


def _rungs(table: Table) -> Iterator[str]:
    named = (rung for line in table.lines for rung in line.ladder if rung.exit is None and not is_move(rung))
    yield from ("", "## Rungs", "")
    yield from grid(
        ("Rung", "To", "Needs", "Spends", "Resets"), (_rung(table, rung) for rung in dict.fromkeys(named))
    )


def _rung(table: Table, rung: Rung) -> tuple[str, ...]:
    resets = resets_in_words(table, rung.resets)
    return f"**{rung.name}**", rung.to, rung.needs.label, ", ".join(rung.spends), resets


def _counters(table: Table) -> Iterator[str]:
    yield from ("", "## Counters", "")
    kinds = ((c.name, "flag" if c.flag else "cap" if c.cap else "") for c in table.counters)
    yield from grid(
        ("Counter", "Kind", "Spent by", "Reset by"),
        (
            (
                name,
                kind,
                ", ".join(_rung_names(row for row in table.rows if name in row.spends)),
                ", ".join(_rung_names(row for row in table.rows if name in row.resets)) or "never",
            )
            for name, kind in kinds
        ),
    )
    if table.reset_groups:
        yield from ("", "## Resets", "")
        yield from grid(
            ("Name", "Counters"), ((name, ", ".join(group)) for name, group in table.reset_groups.items())
        )


def _rung_names(rows: Iterable[Row]) -> Iterable[str]:
    return dict.fromkeys(f"`{row.event}`" if row.rung.startswith("→") else row.rung for row in rows)


def _rows(table: Table) -> Iterator[str]:
    yield from ("", "## Rows", "", "Guards of one event exclude each other.", "")
    yield from row_grid(table, table.rows)


def row_grid(table: Table, rows: Iterable[Row]) -> Iterator[str]:
    """Return a table of rows with all their conditions and effects."""
    yield from grid(
        ("Row", "To", "Guard", "Rung", "Spends", "Resets"),
        (
            (
                f"`{row.id}`",
                row.dest,
                row.guard.label,
                rung_of(row),
                ", ".join(row.spends),
                resets_in_words(table, row.resets),
            )
            for row in rows
        ),
    )


def rung_of(row: Row) -> str:
    """Return the rung's name, or the exit."""
    return row.rung if row.exit is None else f"⇥ *{row.exit}*"


def grid(head: Sequence[str], body: Iterable[Sequence[str]]) -> Iterator[str]:
    """Return the lines of a GitHub table, with cells escaped."""
    yield _cells(head)
    yield "|" + "---|" * len(head)
    yield from map(_cells, body)


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
