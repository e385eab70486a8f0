"""The parts of the page that are plain HTML: decision lists, proofs, coverage, words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from fsm_agent.diagram.counts import coverage
from fsm_agent.diagram.model import MARKS, is_move, resets_in_words, words
from fsm_agent.diagram.proof import sentence_of
from fsm_agent.diagram.runs import Tally
from fsm_agent.fsm.table import Line, Row, Rung, Table
from fsm_agent.fsm.verify import Report

WORDS = (
    ("state", "a place of the machine; it does its work and reports one event"),
    ("event", "the one word that a state reports when its work is done"),
    ("rung", "one remedy: where it leads, what it needs, spends and gives back"),
    ("decision list", "the rungs of an event in order; the first one that has budget left is taken"),
    ("row", "what a rung of an event is expanded to: exactly one row may be taken at a time"),
    ("guard", "when a row may be taken: a comparison of counters with their limits"),
    ("counter", "how often something was done; it has a limit, and only rows change it"),
    ("exit", "why it ended"),
    ("bound", "the most that can happen of something, whatever comes"),
)
"""Words of the language of tables."""


def grid(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """An HTML table of cells that are HTML; on a phone its rows are stacked."""
    cells = "".join(f'<th scope="col">{one}</th>' for one in head)
    rows = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in body)
    return f'<table class="stack"><thead><tr>{cells}</tr></thead><tbody>\n{rows}\n</tbody></table>'


def table_part(table: Table, svg: str) -> str:
    """The whole picture, then every state's decision lists and rows as text."""
    told = [f'<div class="wide" tabindex="0" role="group" aria-label="the whole table">{svg}</div>']
    for state in table.states:
        if state == table.final:
            continue
        lines = [line for line in table.lines if line.source == state]
        rows = [row for row in table.rows if row.source == state]
        told.append(f"<details><summary>{escape(state)}: {len(lines)} events, {len(rows)} rows</summary>")
        if state in table.inner:
            told.append(f"<p>Runs {escape(words(table.inner[state].label))}.</p>")
        told.append(grid(("Event", "Decision list", "Why"), map(_line, lines)))
        told.append("<h3>Rows</h3>")
        told.append(grid(("Row", "To", "Guard", "Spends", "Gives back"), (_row(table, row) for row in rows)))
        told.append("</details>")
    return "\n".join(told)


def _line(line: Line) -> tuple[str, ...]:
    ladder = " › ".join(escape(_rung(rung)) for rung in line.ladder)
    return f"<code>{escape(line.event)}</code>", ladder, escape(line.why)


def _rung(rung: Rung) -> str:
    if rung.exit is not None:
        return MARKS["exit"] + words(rung.exit)
    return MARKS["move"] + rung.to if is_move(rung) else rung.name


def _row(table: Table, row: Row) -> tuple[str, ...]:
    spends, resets = ", ".join(row.spends), resets_in_words(table, row.resets)
    to = f"{row.dest} ⇥ {words(row.exit)}" if row.exit else row.dest
    return f"<code>{escape(row.id)}</code>", *map(escape, (to, row.guard.label, spends, resets))


def proofs_part(report: Report) -> str:
    """Each check with its plain sentence, properties, bounds, and the ranking."""
    told = ["<dl>"]
    for check in report.checks:
        verdict = '<span class="good">holds</span>' if check.ok else '<span class="bad">fails</span>'
        told.append(f"<dt>{escape(check.name)}: {verdict}</dt><dd>{escape(sentence_of(check.name))}")
        told.append(f'<br><span class="quiet">For {escape(check.scope)}; {escape(check.extent)}.</span>')
        told += [f"<br>{escape(finding)}" for finding in check.findings]
        told.append("</dd>")
    told.append("</dl>")
    if report.properties:
        cells = [(escape(one.says), escape(one.verdict), escape(one.basis)) for one in report.properties]
        told += ["<h3>What is claimed of every turn</h3>", grid(("Property", "", "By"), cells)]
    if report.figures:
        told += ["<h3>Bounds</h3>", grid(("At most", "Caps", "Figure", "Formula"), _figures(report))]
    if report.ranking_without_caps:
        lines = "\n".join(f"<li>{escape(line)}</li>" for line in report.ranking_without_caps)
        told.append(f"<details><summary>Why every turn ends: the ranking</summary><ol>{lines}</ol></details>")
    return "\n".join(told)


def _figures(report: Report) -> Iterator[tuple[str, ...]]:
    for one in report.figures:
        value = "" if one.value is None else f"{one.value:,}"
        caps = "with" if one.caps else "without"
        yield escape(one.quantity), caps, value, f"<code>{escape(one.formula)}</code>"


def coverage_part(table: Table, tally: Tally) -> str:
    """How many rows of each state were taken, and those that never were."""
    taken, of = coverage(table, tally)
    moves = f"{tally.moves:,} move{'s' * (tally.moves != 1)}"
    told = [f"<p>{taken} of {of} rows ({100 * taken // of} %) taken by {moves}.</p>"]
    cells = []
    for state in table.states:
        some, all_ = coverage(table, tally, state)
        if all_:
            bar = f'<progress value="{some}" max="{all_}" aria-label="{escape(state)}"></progress>'
            cells.append((escape(state), f"{tally.visits.get(state, 0):,}", f"{bar} {some} of {all_}"))
    told.append(grid(("State", "Visits", "Rows taken"), cells))
    never = [row for row in table.rows if not tally.rows[row.id]]
    if never:
        told.append(f"<details><summary>{len(never)} rows that were never taken</summary>")
        told.append(grid(("Row", "To", "Guard", "Spends", "Gives back"), (_row(table, row) for row in never)))
        told.append("</details>")
    return "\n".join(told)


def glossary_part(table: Table) -> str:
    """The words of the language, then the counters, rungs and exits of the table."""
    told = ["<dl>", *(f"<dt>{word}</dt><dd>{means}</dd>" for word, means in WORDS), "</dl>"]
    if table.counters:
        told.append("<h3>Counters</h3>")
        told.append(
            grid(("Counter", "Spent by", "Given back by"), (_counter(table, c.name) for c in table.counters))
        )
    named = dict.fromkeys(r for line in table.lines for r in line.ladder if r.exit is None and not is_move(r))
    if named:
        told.append("<h3>Rungs</h3>")
        told.append(grid(("Rung", "To", "Needs", "Spends"), map(_remedy, named)))
    exits: dict[str, dict[str, None]] = {}
    for row in table.rows:
        if row.exit is not None:
            exits.setdefault(row.exit, {})[f"{row.source} {words(row.event)}"] = None
    cells = ((escape(words(reason)), escape("; ".join(where))) for reason, where in exits.items())
    return "\n".join([*told, "<h3>Exits</h3>", grid(("It ends with", "After"), cells)])


def _counter(table: Table, name: str) -> tuple[str, ...]:
    spent = dict.fromkeys(row.rung for row in table.rows if name in row.spends)
    back = dict.fromkeys(row.rung for row in table.rows if name in row.resets)
    return f"<code>{escape(name)}</code>", escape(", ".join(spent)), escape(", ".join(back) or "never")


def _remedy(rung: Rung) -> tuple[str, ...]:
    return tuple(map(escape, (rung.name, rung.to, rung.needs.label, ", ".join(rung.spends))))
