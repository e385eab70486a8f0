"""One HTML file about a table, without a server: map, table, proofs, coverage, words, and a player of
recorded turns.

Its policy blocks everything except its own script and styles, identified by their hashes. Recorded turns
are included as JSON."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import chain

from fsm_agent.diagram import written
from fsm_agent.diagram.layout import map_of
from fsm_agent.diagram.model import diagram_of
from fsm_agent.diagram.page.parts import coverage_part, glossary_part, proofs_part, table_part
from fsm_agent.diagram.runs import Run, Tally
from fsm_agent.diagram.svg import style_sheet, without_style
from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify import Report, verify_table


def as_page(
    table: Table,
    *,
    runs: Sequence[Run] = (),
    tally: Tally | None = None,
    limits: Mapping[str, int] | None = None,
) -> str:
    """The page of ``table``. ``runs`` are what the player shows, with the turns that they began; ``tally`` is
    the coverage, by default that of ``runs``; figures are for ``limits``."""
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
    """The table, and those that its states run, each once."""
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
    """What the player reads of a run; one whose file does not say its table is of ``table``."""
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
    """JSON that cannot end a script element, whatever it contains."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
