"""The proofs of a table: as a few lines for a picture, and as a page for reviewers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fsm_agent.diagram.markdown import grid
from fsm_agent.diagram.model import words
from fsm_agent.fsm.properties import SAME, Change
from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify import Report, verify_table
from fsm_agent.fsm.verify.reach import TimeLimit
from fsm_agent.fsm.verify.report import EVERY

ROOM = 200  # letters of the longest formula shown; `fsm-agent verify` prints them all
SECONDS = 60.0
"""Processor seconds for the searches of a page. Those of the turn took 6.2 on a slow core."""

WHY_UPPER = (
    (
        "An upper figure is true, but perhaps no run gets there. What is between it and the longest run that"
        " is known is not"
    ),
    (
        "decided: the flow that it comes from may take a row two thirds of a time, may spend in one stretch"
        " what another one has"
    ),
    (
        "left, and knows no order. Exact search would decide it, but at these limits there are far too many"
        " (state, counters) pairs."
    ),
)


SENTENCES: Mapping[str, str] = {
    "exactly one row is open": (
        "Whatever happened before, an event finds one row that may be taken: never none, never two."
    ),
    "no state is stuck or out of reach": (
        "Every state can be reached from the first one, and the end can be reached from every state."
    ),
    "no counter passes its maximum": (
        "A row that spends a counter can only be taken while some of it is left, and gives none of it back."
    ),
    "every turn ends": "No loop can be taken without end: each spends something that it does not give back.",
    "every turn ends, caps taken away": (
        "The same without the counters that are there only as a cap: they are a second line of defense, not"
        " the reason."
    ),
    "every request and every end has a transcript that all wires take": (
        "No way through the table leads to a request that a provider would refuse for its form, or to an end"
        " after which the conversation could not continue."
    ),
    "no row is dead": "Each row was taken in some run that was searched for; none is there in vain.",
    "no bound is below the exact search": (
        "Small tables were tried out completely; no run was longer than the bound that is printed for it."
    ),
}
"""The meaning of each check, for a reader new to them. A check defined by a table has the sentence of its
promises."""
PROMISES = "On every way through the table what it promises there holds: the demands are listed below."


def sentence_of(check: str) -> str:
    """Return the plain sentence for the check of that name."""
    return SENTENCES.get(check, PROMISES)


def proof_lines(table: Table) -> tuple[str, ...]:
    """Return what holds for every setting: the checks, and bounds without the caps. Empty if a check
    fails."""
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


def proof_page(table: Table, limits: Mapping[str, int] | None = None) -> str:
    """Return checks, ranking and bounds as Markdown; figures are for ``limits``."""
    report = verify_table(table, limits, within=TimeLimit(SECONDS))
    lines = [
        f"# What is proved of the {table.name} table",
        "",
        (
            f"{report.states} states, {report.lines} (state, event) pairs, {report.rows} rows,"
            f" {report.counters} counters; digest `{report.digest}`."
            f" **{'Every turn ends.' if report.ok else 'Not proved.'}**"
        ),
        "",
        "## Checks",
        "",
        *_checks(report),
        *_properties(report),
        *_promises(table),
        *_rankings(report),
        *_bounds(report),
    ]
    return "\n".join(lines) + "\n"


def _checks(report: Report) -> Iterator[str]:
    cells = [
        (check.name, check.scope, check.extent, "holds" if check.ok else "**fails**")
        for check in report.checks
    ]
    yield from grid(("Check", "For", "Looked at", ""), cells)
    yield ""
    yield from (f"- **{_capital(check.name)}.** {sentence_of(check.name)}" for check in report.checks)
    findings = [finding for check in report.checks for finding in check.findings]
    if findings:
        yield from ("", *(f"- {finding}" for finding in findings))


def _promises(table: Table) -> Iterator[str]:
    """Yield the table's demands by state, and the declared effects of each visit."""
    if table.promises is None:
        return
    promises = table.promises()
    yield from ("", f"## {_capital(promises.name)}", "")
    for state in dict.fromkeys(demand.state for demand in promises.demands):
        what = "; ".join(demand.what for demand in promises.demands if demand.state == state)
        yield f"- {f'On entry to {state}' if state else 'At the end'}: {what}."
    yield from ("", "What a visit may do; of the lines that fit a visit the first counts.", "")
    cells = [
        (
            visit.state,
            ", ".join(filter(None, visit.events)) or "any",
            ", ".join(sorted(visit.after)),
            "; or ".join(map(_change, visit.changes)),
        )
        for visit in promises.visits
    ]
    yield from grid(("State", "Events", "Entered by", "May become"), cells)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _change(change: Change) -> str:
    parts = (f"{name} {' or '.join(map(_value, values))}" for name, values in change.items())
    return ", ".join(parts) or "what it was"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "as before" if value is SAME else str(value) or "none"


def _properties(report: Report) -> Iterator[str]:
    if not report.properties:
        return
    yield from ("", "## Properties", "")
    yield f"What is claimed of every turn, for {EVERY}; a monitor can watch for it while a turn runs."
    yield ""
    cells = [
        (
            one.says,
            f"`{one.label}`",
            f"**{one.verdict}**" if one.finding else one.verdict,
            one.basis + (f"; known: {one.known}" if one.known else ""),
        )
        for one in report.properties
    ]
    yield from grid(("Property", "In the language", "", "By"), cells)
    runs = [f"- {one.says} {one.run}" for one in report.properties if one.rows]
    if runs:
        yield from ("", "Runs that break one:", "", *runs)


def _rankings(report: Report) -> Iterator[str]:
    if not report.ranking_without_caps:
        return
    yield from ("", "## Ranking", "")
    yield (
        "The proof that every turn ends: nothing in a part gives back the counters that rank it, so the rows"
        " that spend them"
    )
    yield (
        "are taken a limited number of times; without them the part falls apart. A primed state has its flag"
        " set."
    )
    yield from ("", *report.ranking_without_caps)
    if report.ranking_with_caps != report.ranking_without_caps:
        yield from ("", "That is with the caps taken away. With them:", "", *report.ranking_with_caps)


def _bounds(report: Report) -> Iterator[str]:
    if not report.figures:
        return
    yield from ("", "## Bounds", "")
    if report.limits:
        yield from (
            f"Figures are for {', '.join(f'{name} {value}' for name, value in report.limits.items())}.",
            "",
        )
    cells = []
    for figure in report.figures:
        value = "" if figure.value is None else f"{figure.value:,}"
        kind = f"{figure.kind}: {figure.basis}"
        cells.append(
            (figure.quantity, "with" if figure.caps else "without", value, kind, f"`{figure.formula}`")
        )
    yield from grid(("At most", "Caps", "Figure", "It is", "Formula"), cells)
    legend = dict.fromkeys(line for figure in report.figures for line in figure.legend)
    if legend:
        yield from ("", *(f"- `{line}`" for line in legend))
    if any(figure.kind == "upper" and figure.value is not None for figure in report.figures):
        yield from ("", *WHY_UPPER)
