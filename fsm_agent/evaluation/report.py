"""An evaluation for people and programs: lines of a table, and Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fsm_agent.evaluation.run import FIGURES, CaseResult, Comparison, EvalRun
from fsm_agent.evaluation.scores import Figures, GateResult
from fsm_agent.support.texts import escape_markdown

MOST = 20
"""Cases that a report lists; the last line counts the others."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A case that lost points, or has no answer (``score`` is empty then)."""

    case: str
    score: str
    value: float
    why: str


def misses(run: EvalRun) -> list[Miss]:
    """Cases without an answer, then cases with less than 1 point, in the order of the cases."""
    lost = [
        Miss(one.case, name, score.value, score.why)
        for one in run.results
        for name, score in one.scores.items()
        if name not in FIGURES and score.value is not None and score.value < 1
    ]
    return [*(Miss(one.case, "", 0.0, one.problem) for one in run.unanswered), *lost]


def headline(run: EvalRun) -> str:
    """What was asked, and of whom, in one line."""
    cases = len({one.case for one in run.results})
    cached = sum(one.cached for one in run.results)
    parts = [f"{run.name}: {cases:,} cases of {run.dataset}, {run.model}"]
    parts += [f"{cached:,} answers from earlier runs"] if cached else []
    parts += [f"{len(run.unanswered):,} without an answer"] if run.unanswered else []
    parts += [f"{len(run.unscored):,} not judged"] if run.unscored else []
    return " · ".join(parts)


def figure(name: str, value: float, *, signed: bool = False) -> str:
    """One figure in the unit of its score."""
    sign = "+" if signed and value >= 0 else ""
    if name == "cost":
        return f"{'-' if value < 0 else sign}${abs(value):.{6 if abs(value) < 0.01 else 4}f}"
    return f"{value:{sign}.2f} s" if name == "latency" else f"{value:{sign}.3f}"


def row(name: str, found: Figures | None, *, signed: bool = False) -> tuple[str, ...]:
    """Score, cases, mean, and interval; dashes for a score that no case has."""
    if found is None:
        return (name, "0", "–", "–")
    low, high = (figure(name, one, signed=signed) for one in (found.low, found.high))
    return (name, f"{found.cases:,}", figure(name, found.mean, signed=signed), f"{low} to {high}")


HEADER = ("score", "cases", "mean", "95 % interval")


def as_markdown(run: EvalRun, gates: Sequence[GateResult] = ()) -> str:
    """The report for a pull request."""
    lines = [
        f"### Evaluation {escape_markdown(headline(run))}",
        "",
        *_table(HEADER, (row(*each) for each in run.figures.items())),
    ]
    lines += _gates(gates)
    if listed := misses(run):
        cells = ((one.case, one.score or "no answer", f"{one.value:g}", one.why) for one in listed[:MOST])
        lines += ["", *_table(("case", "score", "value", "why"), cells)]
        lines += [f"\n{len(listed) - MOST:,} more are not listed."] if len(listed) > MOST else []
    return "\n".join(lines) + "\n"


def comparison_as_markdown(found: Comparison, gates: Sequence[GateResult] = ()) -> str:
    """The comparison for a pull request."""
    rows = (row(name, one, signed=True) for name, one in found.differences.items())
    header = ("score", "cases", "difference", "95 % interval")
    names = map(escape_markdown, (found.before.name, found.after.name))
    lines = [f"### Evaluation {' → '.join(names)}", "", *_table(header, rows)]
    lines += _gates(gates)
    if found.changes:
        cells = ((one.case, one.score, f"{one.before:g}", f"{one.after:g}") for one in found.changes[:MOST])
        lines += ["", *_table(("case", "score", "before", "after"), cells)]
        more = len(found.changes) - MOST
        lines += [f"\n{more:,} more are not listed."] if more > 0 else []
    return "\n".join(lines) + "\n"


def _gates(gates: Sequence[GateResult]) -> list[str]:
    return ["", *(f"- {escape_markdown(str(one))}" for one in gates)] if gates else []


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    made = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return made + [f"| {' | '.join(map(escape_markdown, cells))} |" for cells in rows]


def of_case(run: EvalRun, case: str) -> list[CaseResult]:
    """The results of one case."""
    return [one for one in run.results if one.case == case]
