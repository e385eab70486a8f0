"""The output of ``fsm-agent verify``: checks, the ranking as the proof, properties, bounds, and a run with
very many visits."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest

from fsm_agent.fsm.proof import Proof, ending_faults, examine
from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.verify.cover import cover
from fsm_agent.fsm.verify.faults import repairs
from fsm_agent.fsm.verify.formulas import Bound, bounds
from fsm_agent.fsm.verify.properties import induct, judge, run_in_words
from fsm_agent.fsm.verify.reach import SECONDS, Scope, TimeLimit, inner_limits, limit_names, small_scopes
from fsm_agent.fsm.verify.worst_case import Known, assess_all, can_solve, visits
from fsm_agent.support.installation import install_command

LONGEST_PART = 200
"""Maximum rows of a repeating part; a call block of the turn at its default limits takes 47."""

WIDTH = 116
"""Columns of a rendered report."""
EVERY = "every configuration"
MOVES = "moves"
ALL_MOVES = "moves, those of inner turns too"


@dataclass(frozen=True, slots=True)
class FoldedPart:
    """``rows``, repeated ``times``: ids of rows, and nested parts that repeat in turn."""

    times: int
    rows: tuple[str | FoldedPart, ...]

    def __str__(self) -> str:
        return f"{self.times} × [{' → '.join(map(str, self.rows))}]"


def fold(rows: Sequence[str]) -> tuple[str | FoldedPart, ...]:
    """Fold the repeating parts of a run; at each place, the part that saves most rows."""
    rows = tuple(rows)
    found: list[str | FoldedPart] = []
    at = 0
    while at < len(rows):
        times, size = _best_repeat(rows, at)
        part = rows[at : at + size]
        found.append(part[0] if times == 1 else FoldedPart(times, fold(part)))
        at += times * size
    return tuple(found)


def _best_repeat(rows: tuple[str, ...], at: int) -> tuple[int, int]:
    """Return (times, size) of the part that starts at ``at`` and saves most rows when it is written once."""
    best = 1, 1
    for size in range(1, min(LONGEST_PART, (len(rows) - at) // 2) + 1):
        if rows[at] != rows[at + size]:
            continue
        part, end = rows[at : at + size], at + size
        while rows[end : end + size] == part:
            end += size
        times = (end - at) // size
        if (times - 1) * size > (best[0] - 1) * best[1]:
            best = times, size
    return best


@dataclass(frozen=True, slots=True)
class Check:
    """One verdict: the name of the check, its configurations, the amount of data checked, and the findings.
    ``seconds``: the time taken, if shown. ``repairs``: proved changes for each finding, the smallest
    first."""

    name: str
    scope: str
    extent: str
    findings: tuple[str, ...] = ()
    seconds: float | None = None
    repairs: tuple[tuple[str, ...], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the check found nothing."""
        return not self.findings

    def render(self) -> list[str]:
        """Return the verdict, and each finding with its repairs."""
        took = "" if self.seconds is None else f", {self.seconds:.2f} s"
        text = [f"  {'ok  ' if self.ok else 'FAIL'}  {self.name}, {self.scope}: {self.extent}{took}"]
        for finding, changes in zip_longest(self.findings, self.repairs, fillvalue=()):
            text.append(f"        - {finding}")
            if changes:
                text.append("          possible repairs, each proved:")
                text += [f"          {number}. {words}" for number, words in enumerate(changes, 1)]
        return text


@dataclass(frozen=True, slots=True)
class Figure:
    """One bound: its formula, the ``value`` that no run exceeds under the given limits (None without limits),
    and the formula's value for them. Lower bounds: the count of a ``constructed`` run under these limits, the
    ``exact`` one when they are small enough to be searched, and the number of small scopes in which the
    search ``reached`` the formula. ``cut_after``: the seconds that were too short to find the smallest
    bound."""

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
        """Either "exact", if a run under the given limits reaches the value, or "upper"."""
        return "exact" if self.value is not None and self.value in (self.exact, self.constructed) else "upper"

    @property
    def basis(self) -> str:
        """The reason for the kind, and the source of the value if the formula gives more."""
        cut = [f"not refined in {self.cut_after:g} s"] if self.cut_after is not None else []
        if self.value is None or self.by_formula is None:
            return "; ".join(["for every configuration", *cut])
        parts = [self._reach_words(), *(cut if self.kind == "upper" else [])]
        if self.value < self.by_formula:
            how = "exact search" if self.exact is not None else "the flow of runs"
            parts.append(f"from {how}, the formula gives {self.by_formula:,}")
        return "; ".join(parts)

    def _reach_words(self) -> str:
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


@dataclass(frozen=True, slots=True)
class JudgedProperty:
    """One property of the table: its sentence and exact meaning, ``proved``, ``refuted`` or ``unknown`` and
    the reason; ``rows`` and ``maxima`` of a shortest run that breaks it; ``known`` and ``finding`` as in
    ``fsm_agent.fsm.verify.properties``."""

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

    def render(self) -> list[str]:
        """Return the verdict, its exact meaning, and a run that breaks the property."""
        known = f"; known: {self.known}" if self.known else ""
        text = [f"  {'FAIL' if self.finding else 'ok  '}  {self.verdict}: {self.says}"]
        text.append(f"        {self.label}; {self.basis}{known}")
        if self.rows or self.finding:
            text.append(f"        - {self.run if self.rows else self.finding}")
        return text


@dataclass(frozen=True, slots=True)
class Report:
    """The report of ``fsm-agent verify``. ``ok`` is false when a check found something. ``inner``: the
    reports of all tables that the states of this one run, at any depth. ``note``: why the bounds are not as
    small as possible."""

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
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether no check found anything, including properties and inner tables."""
        fine = all(check.ok for check in self.checks) and not any(one.finding for one in self.properties)
        return fine and all(report.ok for report in self.inner)

    @property
    def all_moves(self) -> Figure | None:
        """The bound on moves of a real turn: with the caps, and with the moves of inner turns."""
        return next((one for one in reversed(self.figures) if one.quantity in (MOVES, ALL_MOVES)), None)

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain JSON values."""
        checks = [{**asdict(check), "ok": check.ok} for check in self.checks]
        figures = [{**asdict(figure), "kind": figure.kind} for figure in self.figures]
        inner = [report.to_dict() for report in self.inner]
        return {**asdict(self), "ok": self.ok, "checks": checks, "figures": figures, "inner": inner}

    def render(self) -> str:
        """Return the report as text, in lines of at most ``WIDTH`` columns."""
        return "\n".join(row for line in self.render_lines() for row in _wrap(line))

    def render_lines(self) -> list[str]:
        """Return the lines of the report without wrapping; the last one is the verdict."""
        size = (
            f"{self.states} states, {self.lines} (state, event) pairs, {self.rows} rows, {self.counters}"
            " counters"
        )
        text = [f"Table {self.table} ({self.digest}): {size}", "", "Checks"]
        for check in self.checks:
            text += check.render()
        for title, lines in self._rankings():
            text += ["", title, *(f"  {line}" for line in lines)]
        text += self._render_properties()
        text += self._render_figures()
        if self.worst:
            text += ["", *self._render_worst(self.worst)]
        for report in self.inner:
            text += ["", *report.render_lines()[:-2]]
        return [*text, "", "ok" if self.ok else "FAILED"]

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
            text += one.render()
        return text

    def _render_worst(self, worst: Worst) -> list[str]:
        kind = "A longest run" if worst.proved else "A long run"
        caps = "with caps" if worst.caps else "without caps"
        text = [f"{kind}: {worst.visits:,} {worst.quantity}, {caps}, in {worst.moves:,} moves"]
        if worst.limits != self.limits:
            limits = ", ".join(f"{name} {value}" for name, value in worst.limits.items() if value)
            text.append(f"  with {limits}, all else 0")
        return [*text, "  " + " → ".join(map(str, worst.rows))]

    def _render_figures(self) -> list[str]:
        text: list[str] = ["", "Bounds"] if self.figures else []
        if self.figures and self.limits:
            text.append("  for " + ", ".join(f"{name} {value}" for name, value in self.limits.items()))
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
        text += [f"  {self.note}"] if self.note else []
        legend = dict.fromkeys(line for figure in self.figures for line in figure.legend)
        return [*text, *(f"  where {line}" for line in legend)]


def _wrap(line: str) -> list[str]:
    hang = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, WIDTH, subsequent_indent=hang, break_on_hyphens=False) or [""]


READABLE = 60
"""Maximum moves of a printed run of a small scope."""
SHARES = 8
"""The share of the time for formulas, and of the remaining time for small scopes: an eighth."""


def verify_table(
    table: Table,
    limits: Mapping[str, int] | None = None,
    *,
    watch: tuple[str, ...] = (),
    small: bool = True,
    within: TimeLimit | None = None,
) -> Report:
    """Check a table and the tables that its states run, each alone, and bound its turns.

    ``limits`` are the values of all limits that guards read (``all_limit_names``); without them bounds are
    formulas only. ``watch`` are the states whose visits are bounded, by default those that a cap counts.
    ``small=False`` omits all searches: small scopes, dead rows, runs that reach the bounds.

    ``within`` is the processor time for all but proofs, by default 20 seconds; bounds for which it was too
    short say so. Faults are findings of the report; ``TableError`` is raised only for a line that tests too
    many budgets."""
    within = within or TimeLimit(SECONDS)
    inner: dict[str, Report] = {}
    for number, one in enumerate(table.within.values()):
        share = within.share(len(table.within) - number + 1)
        inner[one.name] = _compose(one, inner_limits(one, limits), (), small, share, inner)
    whole = _compose(table, limits, watch, small, within, inner)
    return replace(whole, inner=tuple(inner.values()))


def _compose(
    table: Table,
    limits: Mapping[str, int] | None,
    watch: tuple[str, ...],
    small: bool,
    within: TimeLimit,
    inner: Mapping[str, Report],
) -> Report:
    """Return the report about one table, with the bound on all moves if its states run others."""
    own = limits and {name: limits[name] for name in limit_names(table)} if table.inner else limits
    report = _alone(table, own, watch, small, within)
    figure = _all_moves(table, limits, report, inner)
    whole = None if limits is None else dict(limits)
    return replace(report, limits=whole, figures=(*report.figures, *figure))


def _all_moves(
    table: Table, limits: Mapping[str, int] | None, report: Report, inner: Mapping[str, Report]
) -> tuple[Figure, ...]:
    """Bound all moves: each visit of a state that runs other tables costs at most the moves of their
    turns."""
    if not table.inner or (moves := report.all_moves) is None:
        return ()
    value, words = moves.value, [MOVES]
    for state, runs in table.inner.items():
        named = (f"visits of {state}", moves.caps)
        visits = next((one for one in report.figures if (one.quantity, one.caps) == named), None)
        known = [
            one.value if one else None for one in (visits, *(inner[t.name].all_moves for t in runs.tables))
        ]
        numbers = [number for number in known if number is not None]
        if value is not None and limits is not None and len(numbers) == len(known):
            value += numbers[0] * (limits[runs.most] if runs.most else 1) * sum(numbers[1:])
        else:
            value = None
        each = " + ".join(f"all moves of {one.name}" for one in runs.tables)
        each = f"({each})" if len(runs.tables) > 1 else each
        words.append(f"visits of {state}·{f'{runs.most}·' if runs.most else ''}{each}")
    figure = Figure(ALL_MOVES, moves.caps, " + ".join(words), (), value, value, None, None, 0, 0)
    return (figure,)


def _alone(
    table: Table,
    limits: Mapping[str, int] | None,
    watch: tuple[str, ...],
    small: bool,
    within: TimeLimit,
) -> Report:
    proof = examine(table)
    checks = _proof_checks(proof, table)
    if not all(check.ok for check in checks):
        if small:
            within.tell("repairs")
            checks = tuple(_repair_check(check, proof, table, within) for check in checks)
        return _report(table, proof, checks, (), None, limits)
    checks += _promise_checks(proof, table)
    within.tell("bounds as formulas")
    found = bounds(proof.without_caps, proof.with_caps, watch, within.share(SHARES))
    scopes: tuple[Scope, ...] = ()
    if small:
        within.tell("small scopes")
        scopes, missed = small_scopes(table, within=within.share(SHARES))
    known = assess_all(table, proof, found, limits, within, runs=small)
    if small:
        within.tell("dead rows")
        checks += (_alive(table, scopes, missed, within), _sound(found, scopes))
    pairs = zip(found, known, strict=True)
    sums: dict[str, str] = {}
    figures = tuple(_figure(bound, limits, below, scopes, within.seconds, sums) for bound, below in pairs)
    return _report(table, proof, checks, figures, _worst(table, found, known, limits, scopes), limits)


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
        properties=tuple(_properties(table)) if all(check.ok for check in checks) else (),
        note=_no_solver() if limits and any(one.kind == "upper" for one in figures) else "",
    )


def _no_solver() -> str:
    """Return the note that bounds come from formulas only; empty if the solver is installed."""
    if can_solve():
        return ""
    missing = "no bound is made smaller by the flow of runs, and no run is constructed"
    return f"without the extra bounds {missing}: {install_command('bounds')}"


def _properties(table: Table) -> Iterator[JudgedProperty]:
    for one in judge(table):
        claimed = one.claimed
        yield JudgedProperty(
            claimed.says,
            claimed.label,
            one.verdict,
            one.basis,
            one.ids,
            dict(one.maxima),
            claimed.known,
            one.finding,
        )


def _proof_checks(proof: Proof, table: Table) -> tuple[Check, ...]:
    graph = proof.with_caps.graph
    shape = f"{len(graph.locations)} locations, {len(graph.edges)} edges"
    checks = [
        (
            "exactly one row is open",
            f"{proof.regions} regions of {len(table.by_event)} pairs",
            proof.partition,
        ),
        ("no state is stuck or out of reach", shape, proof.structure),
        ("no counter passes its maximum", f"{len(table.counters)} counters", proof.counters),
        ("every turn ends", shape, ending_faults(proof.with_caps)),
    ]
    if any(counter.cap for counter in table.counters):
        free = proof.without_caps.graph
        extent = f"{len(free.locations)} locations, {len(free.edges)} edges"
        checks.append(("every turn ends, caps taken away", extent, ending_faults(proof.without_caps)))
    return tuple(Check(name, EVERY, extent, tuple(map(str, faults))) for name, extent, faults in checks)


def _promise_checks(proof: Proof, table: Table) -> tuple[Check, ...]:
    """Check the table's promises about a value that its rows do not contain."""
    if table.promises is None:
        return ()
    promises, began = table.promises(), time.perf_counter()
    found = induct(proof.with_caps.graph, promises)
    extent = f"{len(found.places):,} places, {found.obligations:,} obligations"
    seconds = time.perf_counter() - began
    return (Check(promises.name, EVERY, extent, tuple(map(str, found.faults)), seconds),)


def _repair_check(check: Check, proof: Proof, table: Table, within: TimeLimit) -> Check:
    faults = {str(fault): fault for fault in proof.faults}
    named = (faults.get(finding) for finding in check.findings)
    known = [repairs(table, proof, fault, within) if fault else () for fault in named]
    return replace(check, repairs=tuple(tuple(one.words for one in each) for each in known))


def _alive(table: Table, scopes: tuple[Scope, ...], missed: tuple[Row, ...], within: TimeLimit) -> Check:
    """Search again, under larger limits, for rows that no scope takes; exact search has too many pairs there.
    An interrupted search never calls a row dead."""
    scripts = cover(table, pairs=False, within=within).scripts if missed and not within.over else ()
    taken = {row.id for script in scripts for row in script.rows}
    dead = [row.id for row in missed if row.id not in taken]
    extent = f"{len(table.rows)} rows"
    if dead and within.over:
        extent, dead = f"{extent}, {len(dead)} of them not searched for to the end: time was over", []
    findings = tuple(f"{row}: no run takes it in any of the scopes; remove the rung" for row in dead)
    return Check("no row is dead", f"{len(scopes)} small scopes", extent, findings)


def _sound(found: tuple[Bound, ...], scopes: tuple[Scope, ...]) -> Check:
    """Check that no formula is below the exact search."""
    findings = []
    for bound in found:
        for scope, exact in _exact(bound, scopes):
            if bound.value(scope.limits) < exact:
                findings.append(f"{bound.name}: {bound.text} is below {exact}, reached with {scope.limits}")
    pairs = sum(len(scope.found.pairs) for scope in scopes)
    return Check(
        "no bound is below the exact search",
        f"{len(scopes)} small scopes",
        f"{pairs:,} pairs",
        tuple(findings),
    )


def _figure(
    bound: Bound,
    limits: Mapping[str, int] | None,
    known: Known | None,
    scopes: tuple[Scope, ...],
    seconds: float,
    sums: dict[str, str],
) -> Figure:
    """``sums`` contains the names of sums in the formulas of one report."""
    formula, legend = bound.write(sums)
    cut = known.cut or (known.exact is None and not bound.refined) if known else not bound.refined
    compared = [(bound.value(scope.limits), exact) for scope, exact in _exact(bound, scopes)]
    return Figure(
        quantity=bound.name,
        caps=bound.caps,
        formula=formula,
        legend=tuple(legend),
        value=known.most if known else None,
        by_formula=None if limits is None else bound.value(limits),
        constructed=known.constructed if known else None,
        exact=known.exact if known else None,
        reached=sum(value == exact for value, exact in compared),
        scopes=len(compared),
        cut_after=seconds if cut else None,
    )


def _exact(bound: Bound, scopes: tuple[Scope, ...]) -> list[tuple[Scope, int]]:
    fitting = [scope for scope in scopes if scope.caps == bound.caps]
    return [(scope, bound.exact(scope.found)) for scope in fitting]


def _worst(
    table: Table,
    found: tuple[Bound, ...],
    known: Sequence[Known | None],
    limits: Mapping[str, int] | None,
    scopes: tuple[Scope, ...],
) -> Worst | None:
    """Return a run for the first quantity: under the given limits and with the caps, as in a real turn;
    without limits, the longest run of a small scope that is short enough to read."""
    first = found[0].states
    if limits is None:
        runs = [(scope, scope.found.worst_run(first)) for scope in scopes if not scope.caps]
        readable = [run for run in runs if len(run[1]) <= READABLE]
        if not readable:
            return None
        scope, rows = max(readable, key=lambda run: len(run[1]))
        return _worst_of(table, found[0], scope.limits, rows, scope.found.most_visits(first))
    asked = [
        (b, below) for b, below in zip(found, known, strict=True) if b.states == first and below and below.run
    ]
    if not asked:
        return None
    bound, below = asked[-1]
    return _worst_of(table, bound, limits, below.run, below.most)


def _worst_of(
    table: Table, bound: Bound, limits: Mapping[str, int], rows: tuple[Row, ...], most: int
) -> Worst:
    count = visits(table, rows, bound.states)
    folded = fold([row.id for row in rows])
    caps = {counter.name for counter in table.counters if counter.cap and not bound.caps}
    shown = {name: limit for name, limit in limits.items() if name not in caps}
    return Worst(bound.name, bound.caps, shown, count, len(rows), count == most, folded)
