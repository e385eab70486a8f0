"""The whole verdict about a table: checks, the ranking as the proof, bounds, and the comparison with exact search."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from fsm_agent.table import Row, Table
from fsm_agent.verify.bound import Bound, bounds
from fsm_agent.verify.exact import search
from fsm_agent.verify.folding import Part, fold
from fsm_agent.verify.longest import long_run, visits
from fsm_agent.verify.proof import Proof, examine
from fsm_agent.verify.ranking import ending_faults
from fsm_agent.verify.scopes import SMALL, Scope, small_scopes

EVERY = "every configuration"
READABLE = 60
"""Moves of a run that is printed."""


@dataclass(frozen=True, slots=True)
class Check:
    """One verdict: what was checked, for which configurations, on how much, and what was found wrong."""

    name: str
    scope: str
    extent: str
    findings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.findings


@dataclass(frozen=True, slots=True)
class Figure:
    """One bound: its formula, its value for the limits asked about (None without limits), and what is known from below: the
    number that a ``constructed`` run has under these limits, the ``exact`` one when they are small enough to be searched, and
    in how many of the small scopes the search ``reached`` the formula."""

    quantity: str
    caps: bool
    formula: str
    legend: tuple[str, ...]
    value: int | None
    constructed: int | None
    exact: int | None
    reached: int
    scopes: int

    @property
    def kind(self) -> str:
        """ "exact" when a run under the limits asked about reaches the value, else "upper"."""
        return "exact" if self.value is not None and self.value in (self.exact, self.constructed) else "upper"

    @property
    def basis(self) -> str:
        """Why it is of its kind."""
        if self.value is None:
            return "for every configuration"
        if self.kind == "exact":
            return "reached by a constructed run" if self.constructed == self.value else "found by exact search"
        known = [number for number in (self.exact, self.constructed) if number is not None]
        return f"no run is known that has more than {max(known):,}" if known else "no run was looked for"


@dataclass(frozen=True, slots=True)
class Worst:
    """A run with very many visits under ``limits``, as parts of row ids; a longest one when ``proved``."""

    quantity: str
    caps: bool
    limits: dict[str, int]
    visits: int
    moves: int
    proved: bool
    rows: tuple[str | Part, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What ``fsm-agent verify`` prints. ``ok`` is false when a check found something."""

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

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def to_dict(self) -> dict[str, object]:
        """The report as plain JSON values."""
        checks = [{**asdict(check), "ok": check.ok} for check in self.checks]
        figures = [{**asdict(figure), "kind": figure.kind} for figure in self.figures]
        return {**asdict(self), "ok": self.ok, "checks": checks, "figures": figures}

    def render(self) -> str:
        """The report as text."""
        size = f"{self.states} states, {self.lines} (state, event) pairs, {self.rows} rows, {self.counters} counters"
        text = [f"Table {self.table} ({self.digest}): {size}", "", "Checks"]
        for check in self.checks:
            text.append(f"  {'ok  ' if check.ok else 'FAIL'}  {check.name}, {check.scope}: {check.extent}")
            text += [f"        - {finding}" for finding in check.findings]
        for title, lines in self._rankings():
            text += ["", title, *(f"  {line}" for line in lines)]
        text += self._render_figures()
        if self.worst:
            text += ["", *self._render_worst(self.worst)]
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
            text += [f"  {figure.quantity}, {caps}{value} ({figure.kind}: {figure.basis})", f"      {figure.formula}"]
            if figure.scopes:
                text.append(f"      equal to exact search in {figure.reached} of {figure.scopes} small scopes")
        legend = dict.fromkeys(line for figure in self.figures for line in figure.legend)
        return [*text, *(f"  where {line}" for line in legend)]


def verify_table(
    table: Table, limits: Mapping[str, int] | None = None, *, watch: tuple[str, ...] = (), small: bool = True
) -> Report:
    """Check a table and bound its turns.

    ``limits`` are the values of all limits that guards read; without them bounds are formulas only. ``watch`` are the
    states whose visits are bounded, by default those that a cap counts. ``small=False`` leaves the exact search of
    small scopes out. Faults are findings of the report; ``TableError`` is raised only for guards outside the guard
    language.
    """
    proof = examine(table)
    checks = _proved(proof, table)
    if not all(check.ok for check in checks):
        return _report(table, proof, checks, (), None, limits)
    found = bounds(proof.without_caps, proof.with_caps, watch)
    scopes, missed = small_scopes(table) if small else ((), ())
    if scopes:
        dead = tuple(f"{row.id}: no run takes it in any of the scopes; remove the rung" for row in missed)
        checks += (
            Check("no row is dead", f"{len(scopes)} small scopes", f"{len(table.rows)} rows", dead),
            _sound(found, scopes),
        )
    figures, runs = [], []
    for bound in found:
        known = _Known.of(table, bound, limits if small else None)
        figures.append(_figure(bound, limits, known, scopes))
        runs.append(known)
    return _report(table, proof, checks, tuple(figures), _worst(table, found, runs, limits, scopes), limits)


def _report(
    table: Table,
    proof: Proof,
    checks: tuple[Check, ...],
    figures: tuple[Figure, ...],
    worst: Worst | None,
    limits: Mapping[str, int] | None,
) -> Report:
    return Report(
        table=table.name,
        digest=table.digest,
        states=len(table.states),
        lines=len(table.by_event),
        rows=len(table.rows),
        counters=len(table.counters),
        checks=checks,
        ranking_with_caps=tuple(proof.with_caps.lines()) if proof.with_caps.ends else (),
        ranking_without_caps=tuple(proof.without_caps.lines()) if proof.without_caps.ends else (),
        figures=figures,
        worst=worst,
        limits=None if limits is None else dict(limits),
    )


def _proved(proof: Proof, table: Table) -> tuple[Check, ...]:
    graph = proof.with_caps.graph
    shape = f"{len(graph.locations)} locations, {len(graph.edges)} edges"
    checks = [
        ("exactly one row is open", f"{proof.regions} regions of {len(table.by_event)} pairs", proof.partition),
        ("no state is stuck or out of reach", shape, proof.structure),
        ("no counter passes its maximum", f"{len(table.counters)} counters", proof.counters),
        ("every turn ends", shape, ending_faults(proof.with_caps)),
    ]
    if any(counter.cap for counter in table.counters):
        free = proof.without_caps.graph
        extent = f"{len(free.locations)} locations, {len(free.edges)} edges"
        checks.append(("every turn ends, caps taken away", extent, ending_faults(proof.without_caps)))
    return tuple(Check(name, EVERY, extent, tuple(map(str, faults))) for name, extent, faults in checks)


def _sound(found: tuple[Bound, ...], scopes: tuple[Scope, ...]) -> Check:
    """Every formula against the exact search: never below it."""
    findings = []
    for bound in found:
        for scope, exact in _exact(bound, scopes):
            if bound.value(scope.limits) < exact:
                findings.append(f"{bound.name}: {bound.text} is below {exact}, reached with {scope.limits}")
    pairs = sum(len(scope.found.pairs) for scope in scopes)
    return Check("no bound is below the exact search", f"{len(scopes)} small scopes", f"{pairs:,} pairs", tuple(findings))


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known from below of one bound under the limits asked about: the number of a run, the number of exact search."""

    run: tuple[Row, ...]
    constructed: int | None
    exact: int | None

    @classmethod
    def of(cls, table: Table, bound: Bound, limits: Mapping[str, int] | None) -> _Known:
        if limits is None or not bound.states:
            return cls((), None, None)
        value = bound.value(limits)
        run = long_run(table, limits, bound.states, caps=bound.caps, enough=value)
        constructed = visits(table, run, bound.states)
        found = search(table, limits, caps=bound.caps, most_pairs=SMALL) if constructed < value else None
        if found is None:
            return cls(run, constructed, None)
        return cls(found.worst_run(bound.states or None), constructed, found.most_visits(bound.states or None))


def _figure(bound: Bound, limits: Mapping[str, int] | None, known: _Known, scopes: tuple[Scope, ...]) -> Figure:
    compared = [(bound.value(scope.limits), exact) for scope, exact in _exact(bound, scopes)]
    return Figure(
        quantity=bound.name,
        caps=bound.caps,
        formula=bound.text,
        legend=tuple(bound.legend),
        value=None if limits is None else bound.value(limits),
        constructed=known.constructed,
        exact=known.exact,
        reached=sum(value == exact for value, exact in compared),
        scopes=len(compared),
    )


def _exact(bound: Bound, scopes: tuple[Scope, ...]) -> list[tuple[Scope, int]]:
    fitting = [scope for scope in scopes if scope.caps == bound.caps]
    return [(scope, scope.found.most_visits(bound.states or None)) for scope in fitting]


def _worst(
    table: Table, found: tuple[Bound, ...], known: list[_Known], limits: Mapping[str, int] | None, scopes: tuple[Scope, ...]
) -> Worst | None:
    """A run for the first quantity: under the limits asked about and with the caps, as a turn runs; without limits the
    longest of the small scopes that is short enough to be read."""
    first = found[0].states
    if limits is None:
        runs = [(scope, scope.found.worst_run(first)) for scope in scopes if not scope.caps]
        readable = [run for run in runs if len(run[1]) <= READABLE]
        if not readable:
            return None
        scope, rows = max(readable, key=lambda run: len(run[1]))
        return _a_worst(table, found[0], scope.limits, rows, scope.found.most_visits(first))
    asked = [(bound, below) for bound, below in zip(found, known, strict=True) if bound.states == first and below.run]
    if not asked:
        return None
    bound, below = asked[-1]
    return _a_worst(table, bound, limits, below.run, bound.value(limits) if below.exact is None else below.exact)


def _a_worst(table: Table, bound: Bound, limits: Mapping[str, int], rows: tuple[Row, ...], most: int) -> Worst:
    count = visits(table, rows, bound.states)
    folded = fold([row.id for row in rows])
    return Worst(bound.name, bound.caps, dict(limits), count, len(rows), count == most, folded)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 116, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
