"""What ``fsm-agent verify`` prints: checks, the ranking as the proof, bounds, and a run with very many
visits."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest

from fsm_agent.fsm.verify.folding import FoldedPart

EVERY = "every configuration"
MOVES = "moves"
ALL_MOVES = "moves, those of inner turns too"


@dataclass(frozen=True, slots=True)
class Check:
    """One verdict: what was checked, for which configurations, on how much, and what was found wrong.
    ``seconds`` that it took, where it is told; ``repairs`` are proved changes for each finding, the smallest
    first."""

    name: str
    scope: str
    extent: str
    findings: tuple[str, ...] = ()
    seconds: float | None = None
    repairs: tuple[tuple[str, ...], ...] = ()

    @property
    def ok(self) -> bool:
        """Say whether the check found nothing."""
        return not self.findings


@dataclass(frozen=True, slots=True)
class Figure:
    """One bound: its formula, the ``value`` that no run exceeds under the limits asked about (None without
    limits) and what the formula says for them, and what is known from below: the number that a
    ``constructed`` run has under these limits, the ``exact`` one when they are small enough to be searched,
    and in how many of the small scopes the search ``reached`` the formula. ``cut_after``: so many seconds
    were too short to make the bound as small as it can be made."""

    quantity: str
    caps: bool
    formula: str
    legend: tuple[str, ...]
    value: int | None
    by_formula: int | None
    constructed: int | None
    exact: int | None
    reached: int
    scopes: int
    cut_after: float | None = None

    @property
    def kind(self) -> str:
        """ "exact" when a run under the limits asked about reaches the value, else "upper"."""
        return "exact" if self.value is not None and self.value in (self.exact, self.constructed) else "upper"

    @property
    def basis(self) -> str:
        """Why it is of its kind, and where it comes from when the formula says more."""
        cut = [f"not refined in {self.cut_after:g} s"] if self.cut_after is not None else []
        if self.value is None or self.by_formula is None:
            return "; ".join(["for every configuration", *cut])
        said = [self._reached(), *(cut if self.kind == "upper" else [])]
        if self.value < self.by_formula:
            how = "exact search" if self.exact is not None else "the flow of runs"
            said.append(f"from {how}, the formula gives {self.by_formula:,}")
        return "; ".join(said)

    def _reached(self) -> str:
        if self.kind == "exact":
            return "found by exact search" if self.exact is not None else "reached by a constructed run"
        return (
            "no run was looked for"
            if self.constructed is None
            else f"no run is known that has more than {self.constructed:,}"
        )


@dataclass(frozen=True, slots=True)
class Worst:
    """A run with very many visits under ``limits``, as parts of row ids; a longest one when ``proved``."""

    quantity: str
    caps: bool
    limits: dict[str, int]
    visits: int
    moves: int
    proved: bool
    rows: tuple[str | FoldedPart, ...]


def run_in_words(rows: Sequence[str], maxima: Mapping[str, int]) -> str:
    """Return the rows of a run, and the maxima that it needs; empty without rows."""
    under = ", ".join(f"{name} {most}" for name, most in maxima.items())
    return " → ".join(rows) + (f", with {under}" if under else "")


@dataclass(frozen=True, slots=True)
class JudgedProperty:
    """One property of the table: its sentence and exact meaning, ``proved``, ``refuted`` or ``unknown`` and
    on what that stands; ``rows`` and ``maxima`` of a shortest run that breaks it; ``known`` and ``finding``
    as in ``fsm_agent.fsm.verify.properties``."""

    says: str
    label: str
    verdict: str
    basis: str
    rows: tuple[str, ...]
    maxima: dict[str, int]
    known: str
    finding: str | None

    @property
    def run(self) -> str:
        """The run in words; empty when none is known."""
        return run_in_words(self.rows, self.maxima)


@dataclass(frozen=True, slots=True)
class Report:
    """What ``fsm-agent verify`` prints. ``ok`` is false when a check found something. ``inner``: the same of
    each table that the states of this one run, and theirs run."""

    table: str
    digest: str
    states: int
    lines: int
    rows: int
    counters: int
    checks: tuple[Check, ...]
    ranking_with_caps: tuple[str, ...]
    ranking_without_caps: tuple[str, ...]
    figures: tuple[Figure, ...]
    worst: Worst | None
    limits: dict[str, int] | None
    properties: tuple[JudgedProperty, ...] = ()
    inner: tuple[Report, ...] = ()

    @property
    def ok(self) -> bool:
        """Say whether no check found anything, also not about a property, or about an inner table."""
        fine = all(check.ok for check in self.checks) and not any(one.finding for one in self.properties)
        return fine and all(report.ok for report in self.inner)

    @property
    def all_moves(self) -> Figure | None:
        """The bound on moves as a turn runs: with the caps, and with the moves of inner turns."""
        return next((one for one in reversed(self.figures) if one.quantity in (MOVES, ALL_MOVES)), None)

    def to_dict(self) -> dict[str, object]:
        """The report as plain JSON values."""
        checks = [{**asdict(check), "ok": check.ok} for check in self.checks]
        figures = [{**asdict(figure), "kind": figure.kind} for figure in self.figures]
        inner = [report.to_dict() for report in self.inner]
        return {**asdict(self), "ok": self.ok, "checks": checks, "figures": figures, "inner": inner}

    def render(self) -> str:
        """The report as text."""
        size = (
            f"{self.states} states, {self.lines} (state, event) pairs, {self.rows} rows, {self.counters}"
            " counters"
        )
        text = [f"Table {self.table} ({self.digest}): {size}", "", "Checks"]
        for check in self.checks:
            took = "" if check.seconds is None else f", {check.seconds:.2f} s"
            text.append(
                f"  {'ok  ' if check.ok else 'FAIL'}  {check.name}, {check.scope}: {check.extent}{took}"
            )
            for finding, repairs in zip_longest(check.findings, check.repairs, fillvalue=()):
                text.append(f"        - {finding}")
                if repairs:
                    text.append("          possible repairs, each proved:")
                    text += [f"          {number}. {words}" for number, words in enumerate(repairs, 1)]
        for title, lines in self._rankings():
            text += ["", title, *(f"  {line}" for line in lines)]
        text += self._render_properties()
        text += self._render_figures()
        if self.worst:
            text += ["", *self._render_worst(self.worst)]
        for report in self.inner:
            text += ["", *report.render().splitlines()[:-2]]
        text += ["", "ok" if self.ok else "FAILED"]
        return "\n".join(text)

    def _rankings(self) -> list[tuple[str, tuple[str, ...]]]:
        if not self.ranking_without_caps:
            return []
        title = "Ranking (the proof that every turn ends; a primed state has its flag set)"
        if self.ranking_with_caps == self.ranking_without_caps:
            return [(title, self.ranking_with_caps)]
        return [
            (f"{title}, caps taken away", self.ranking_without_caps),
            ("The same with the caps", self.ranking_with_caps),
        ]

    def _render_properties(self) -> list[str]:
        text: list[str] = ["", f"Properties, {EVERY}"] if self.properties else []
        for one in self.properties:
            known = f"; known: {one.known}" if one.known else ""
            text.append(f"  {'FAIL' if one.finding else 'ok  '}  {one.verdict}: {one.says}")
            text += _wrapped(f"{one.label}; {one.basis}{known}", 8)
            text += _wrapped(f"- {one.run}", 8) if one.rows else []
            text += _wrapped(f"- {one.finding}", 8) if one.finding and not one.rows else []
        return text

    def _render_worst(self, worst: Worst) -> list[str]:
        kind = "A longest run" if worst.proved else "A long run"
        caps = "with caps" if worst.caps else "without caps"
        text = [f"{kind}: {worst.visits:,} {worst.quantity}, {caps}, in {worst.moves:,} moves"]
        if worst.limits != self.limits:
            limits = ", ".join(f"{name} {value}" for name, value in worst.limits.items() if value)
            text += _wrapped(f"with {limits}, all else 0")
        return [*text, *_wrapped(" → ".join(map(str, worst.rows)))]

    def _render_figures(self) -> list[str]:
        text: list[str] = ["", "Bounds"] if self.figures else []
        if self.figures and self.limits:
            text += _wrapped("for " + ", ".join(f"{name} {value}" for name, value in self.limits.items()))
        for figure in self.figures:
            caps = "with caps" if figure.caps else "without caps"
            value = "" if figure.value is None else f": at most {figure.value:,}"
            text += [
                f"  {figure.quantity}, {caps}{value} ({figure.kind}: {figure.basis})",
                f"      {figure.formula}",
            ]
            if figure.scopes:
                text.append(
                    f"      equal to exact search in {figure.reached} of {figure.scopes} small scopes"
                )
        legend = dict.fromkeys(line for figure in self.figures for line in figure.legend)
        return [*text, *(f"  where {line}" for line in legend)]


def _wrapped(text: str, indent: int = 2) -> list[str]:
    first, other = " " * indent, " " * (indent + 2)
    return textwrap.wrap(text, 116, initial_indent=first, subsequent_indent=other, break_on_hyphens=False)
