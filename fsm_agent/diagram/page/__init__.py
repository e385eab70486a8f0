"""One HTML file about a table, without a server: map, table, proofs, coverage, words, and a player of
recorded turns.

Its policy blocks everything except its own script and styles, identified by their hashes. Recorded turns
are included as JSON."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import chain

from fsm_agent.diagram import written
from fsm_agent.diagram.counts import coverage
from fsm_agent.diagram.layout import map_of
from fsm_agent.diagram.model import MARKS, diagram_of, is_move, resets_in_words, words
from fsm_agent.diagram.proof import sentence_of
from fsm_agent.diagram.runs import Run, Tally
from fsm_agent.diagram.svg import style_sheet, without_style
from fsm_agent.fsm.table import Line, Row, Rung, Table
from fsm_agent.fsm.verify import Report, verify_table


def as_page(
    table: Table,
    *,
    runs: Sequence[Run] = (),
    tally: Tally | None = None,
    limits: Mapping[str, int] | None = None,
) -> str:
    """Build the page of ``table``. ``runs`` are played, with the turns that they began; ``tally`` is the
    coverage, without which that part is omitted; figures are for ``limits``."""
    report = verify_table(table, limits)
    parts = [
        ("map", "Map", _map_part(table, runs)),
        ("table", "Table", table_part(table, _draw(table))),
        ("proofs", "Proofs", proofs_part(report)),
        *([("coverage", "Coverage", coverage_part(table, tally))] if tally else []),
        ("words", "Words", glossary_part(table)),
    ]
    style = (files(__name__) / "page.css").read_text("utf-8") + style_sheet()
    script = (files(__name__) / "player.js").read_text("utf-8") if runs else ""
    policy = "; ".join((
        "default-src 'none'", f"style-src '{_hash(style)}'", f"script-src '{_hash(script)}'",
        "base-uri 'none'", "form-action 'none'",
    ))  # fmt: skip
    return "\n".join([
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(table.name)}: a transition table</title>", f"<style>{style}</style>", "</head>",
        "<body>",
        "<header>", f"<h1>{escape(table.name)}</h1>", _summary(report),
        '<nav aria-label="parts of the page">', *(f'<a href="#{id}">{title}</a>' for id, title, _ in parts),
        "</nav>", "</header>", "<main>",
        *(f'<section id="{id}" aria-labelledby="h-{id}"><h2 id="h-{id}">{title}</h2>\n{body}\n</section>'
          for id, title, body in parts),
        "</main>", *(_data(table, runs, script) if runs else ()), "</body>", "</html>",
    ]) + "\n"  # fmt: skip


def _summary(report: Report) -> str:
    verdict = ("good", "Every turn ends.") if report.ok else ("bad", "Not proved.")
    return (
        f"<p>{report.states} states, {report.lines} (state, event) pairs, {report.rows} rows,"
        f" {report.counters} counters; digest <code>{report.digest}</code>."
        f' <span class="{verdict[0]}">{verdict[1]}</span></p>'
    )


def _tables(table: Table) -> list[Table]:
    """Return the table and those that its states run, each once."""
    below = chain.from_iterable(_tables(one) for runs in table.inner.values() for one in runs.tables)
    return list({one.name: one for one in (table, *below)}.values())


def _map_part(table: Table, runs: Sequence[Run]) -> str:
    player = PLAYER if runs else '<p class="quiet">An arrow names the first rungs that take it.</p>'
    return "\n".join([player, *map(_figure, _tables(table)), *([AFTER] if runs else [])])


PLAYER = """\
<p><label>Run <select id="run"></select></label></p>
<div class="player" role="group" aria-label="player">
<button id="first" type="button">First</button>
<button id="back" type="button">Back</button>
<button id="play" type="button">Play</button>
<button id="next" type="button">Next</button>
<button id="last" type="button">Last</button>
<input id="place" type="range" min="0" max="0" value="0" aria-label="move">
</div>
<p class="quiet">The keys ← and → go through the moves, Home and End to the first and the last.</p>"""
AFTER = """\
<div class="move" id="move" aria-live="polite"></div>
<details open><summary>Moves around it</summary><ol class="moves" id="moves"></ol></details>"""


def _figure(table: Table) -> str:
    small, layout = map_of(table)
    svg = without_style(written(small, "svg", layout))
    name = escape(table.name)
    return (
        f'<figure class="map" data-map="{name}"><div class="wide" tabindex="0" role="group"'
        f' aria-label="map of {name}">{svg}</div></figure>'
    )


def _draw(table: Table) -> str:
    layout = table.layout
    whole = diagram_of(table, layout.get("ways_out") if layout else None)
    return without_style(written(whole, "svg", layout))


def _data(table: Table, runs: Sequence[Run], script: str) -> list[str]:
    rows = {
        one.name: {row.id: {"rung": row.rung, "guard": row.guard.label, "why": row.why} for row in one.rows}
        for one in _tables(table)
    }
    forms = [_form(run, table.name) for run in runs]
    return [
        f'<script type="application/json" id="rows">{_json(rows)}</script>',
        f'<script type="application/json" id="runs">{_json(forms)}</script>',
        f"<script>{script}</script>",
    ]


def _form(run: Run, table: str) -> dict[str, object]:
    """Return a run for the player; without a table name in its file, it belongs to ``table``."""
    steps = [
        {
            "source": step.source, "event": step.event, "dest": step.dest, "row": step.row,
            "guards": step.guards, "changes": step.changes, "seconds": step.seconds, "exit": step.exit,
        }
        for step in run.steps
    ]  # fmt: skip
    children = [_form(child, table) for child in run.children if child.steps]
    return {
        "id": run.id, "table": run.table or table, "asked": run.asked, "at": run.at, "exit": run.exit,
        "steps": steps, "children": children,
    }  # fmt: skip


def _json(value: object) -> str:
    """Encode JSON that cannot end a script element, whatever it contains."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# ----------------------------------------------------------------------------------------------------
# The parts of the page that are plain HTML: decision lists, proofs, coverage, words.

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
"""Terms of the table language."""


def grid(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Build an HTML table from cells of HTML; on a phone its rows are stacked."""
    cells = "".join(f'<th scope="col">{one}</th>' for one in head)
    rows = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in body)
    return f'<table class="stack"><thead><tr>{cells}</tr></thead><tbody>\n{rows}\n</tbody></table>'


def table_part(table: Table, svg: str) -> str:
    """Return the whole picture, then every state's decision lists and rows as text."""
    html = [f'<div class="wide" tabindex="0" role="group" aria-label="the whole table">{svg}</div>']
    for state in table.states:
        if state == table.final:
            continue
        lines = [line for line in table.lines if line.source == state]
        rows = [row for row in table.rows if row.source == state]
        html.append(f"<details><summary>{escape(state)}: {len(lines)} events, {len(rows)} rows</summary>")
        if state in table.inner:
            html.append(f"<p>Runs {escape(words(table.inner[state].label))}.</p>")
        html.append(grid(("Event", "Decision list", "Why"), map(_line, lines)))
        html.append("<h3>Rows</h3>")
        html.append(grid(("Row", "To", "Guard", "Spends", "Gives back"), (_row(table, row) for row in rows)))
        html.append("</details>")
    return "\n".join(html)


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
    """Return each check with its plain sentence, properties, bounds, and the ranking."""
    html = ["<dl>"]
    for check in report.checks:
        verdict = '<span class="good">holds</span>' if check.ok else '<span class="bad">fails</span>'
        html.append(f"<dt>{escape(check.name)}: {verdict}</dt><dd>{escape(sentence_of(check.name))}")
        html.append(f'<br><span class="quiet">For {escape(check.scope)}; {escape(check.extent)}.</span>')
        html += [f"<br>{escape(finding)}" for finding in check.findings]
        html.append("</dd>")
    html.append("</dl>")
    if report.properties:
        cells = [(escape(one.says), escape(one.verdict), escape(one.basis)) for one in report.properties]
        html += ["<h3>What is claimed of every turn</h3>", grid(("Property", "", "By"), cells)]
    if report.figures:
        html += ["<h3>Bounds</h3>", grid(("At most", "Caps", "Figure", "Formula"), _figures(report))]
    if report.ranking_without_caps:
        lines = "\n".join(f"<li>{escape(line)}</li>" for line in report.ranking_without_caps)
        html.append(f"<details><summary>Why every turn ends: the ranking</summary><ol>{lines}</ol></details>")
    return "\n".join(html)


def _figures(report: Report) -> Iterator[tuple[str, ...]]:
    for one in report.figures:
        value = "" if one.value is None else f"{one.value:,}"
        caps = "with" if one.caps else "without"
        yield escape(one.quantity), caps, value, f"<code>{escape(one.formula)}</code>"


def coverage_part(table: Table, tally: Tally) -> str:
    """Return how many rows of each state were taken, and the rows that never were."""
    taken, of = coverage(table, tally)
    moves = f"{tally.moves:,} move{'s' * (tally.moves != 1)}"
    html = [f"<p>{taken} of {of} rows ({100 * taken // of} %) taken by {moves}.</p>"]
    cells = []
    for state in table.states:
        some, all_ = coverage(table, tally, state)
        if all_:
            bar = f'<progress value="{some}" max="{all_}" aria-label="{escape(state)}"></progress>'
            cells.append((escape(state), f"{tally.visits.get(state, 0):,}", f"{bar} {some} of {all_}"))
    html.append(grid(("State", "Visits", "Rows taken"), cells))
    never = [row for row in table.rows if not tally.rows[row.id]]
    if never:
        html.append(f"<details><summary>{len(never)} rows that were never taken</summary>")
        html.append(grid(("Row", "To", "Guard", "Spends", "Gives back"), (_row(table, row) for row in never)))
        html.append("</details>")
    return "\n".join(html)


def glossary_part(table: Table) -> str:
    """Return the terms of the language, then the counters, rungs and exits of the table."""
    html = ["<dl>", *(f"<dt>{word}</dt><dd>{means}</dd>" for word, means in WORDS), "</dl>"]
    if table.counters:
        html.append("<h3>Counters</h3>")
        html.append(
            grid(("Counter", "Spent by", "Given back by"), (_counter(table, c.name) for c in table.counters))
        )
    named = dict.fromkeys(r for line in table.lines for r in line.ladder if r.exit is None and not is_move(r))
    if named:
        html.append("<h3>Rungs</h3>")
        html.append(grid(("Rung", "To", "Needs", "Spends"), map(_remedy, named)))
    exits: dict[str, dict[str, None]] = {}
    for row in table.rows:
        if row.exit is not None:
            exits.setdefault(row.exit, {})[f"{row.source} {words(row.event)}"] = None
    cells = ((escape(words(reason)), escape("; ".join(where))) for reason, where in exits.items())
    return "\n".join([*html, "<h3>Exits</h3>", grid(("It ends with", "After"), cells)])


def _counter(table: Table, name: str) -> tuple[str, ...]:
    spent = dict.fromkeys(row.rung for row in table.rows if name in row.spends)
    back = dict.fromkeys(row.rung for row in table.rows if name in row.resets)
    return f"<code>{escape(name)}</code>", escape(", ".join(spent)), escape(", ".join(back) or "never")


def _remedy(rung: Rung) -> tuple[str, ...]:
    return tuple(map(escape, (rung.name, rung.to, rung.needs.label, ", ".join(rung.spends))))
