"""The whole verdict about a table: the proofs, bounds, and their comparison with exact search and with
constructed runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.verify.proof.examine import Proof, examine
from fsm_agent.fsm.verify.proof.induction import induct
from fsm_agent.fsm.verify.proof.ranking import ending_faults
from fsm_agent.fsm.verify.properties import judge
from fsm_agent.fsm.verify.reachability.cover import cover
from fsm_agent.fsm.verify.reachability.small_scopes import Scope, all_limit_names, limit_names, small_scopes
from fsm_agent.fsm.verify.repairs import repairs
from fsm_agent.fsm.verify.report import ALL_MOVES, EVERY, MOVES, Check, Figure, JudgedProperty, Report, Worst
from fsm_agent.fsm.verify.time_limit import SECONDS, TimeLimit
from fsm_agent.fsm.verify.worst_case.formulas import Bound, bounds
from fsm_agent.fsm.verify.worst_case.lower_bounds import Known, all_known, worst

SHARES = 8
"""A part of the time that formulas may take, and small scopes of what is left: an eighth."""


def verify_table(
    table: Table,
    limits: Mapping[str, int] | None = None,
    *,
    watch: tuple[str, ...] = (),
    small: bool = True,
    within: TimeLimit | None = None,
) -> Report:
    """Check a table, and those that its states run, each alone; bound its turns.

    ``limits`` are the values of all limits that guards read (``all_limit_names``); without them bounds are
    formulas only. ``watch``
    are the states whose visits are bounded, by default those that a cap counts. ``small=False`` leaves out
    all that searches: small scopes, dead rows, runs that reach the bounds.

    ``within`` is the time for all that is no proof, 20 seconds unless told; bounds for which it was too short
    say so. Faults are findings of the report;
    ``TableError`` is raised only for a line that tests too many budgets."""
    within = within or TimeLimit(SECONDS)
    inner: dict[str, Report] = {}
    for number, one in enumerate(table.within.values()):
        share = within.share(len(table.within) - number + 1)
        inner[one.name] = _composed(one, _limits(one, limits, f"{one.name}."), (), small, share, inner)
    whole = _composed(table, limits, watch, small, within, inner)
    return replace(whole, inner=tuple(inner.values()))


def _limits(table: Table, limits: Mapping[str, int] | None, prefix: str) -> Mapping[str, int] | None:
    """Those of an inner table, under its own names."""
    names = all_limit_names(table)
    return limits and {name: limits[name if "." in name else prefix + name] for name in names}


def _composed(
    table: Table,
    limits: Mapping[str, int] | None,
    watch: tuple[str, ...],
    small: bool,
    within: TimeLimit,
    inner: Mapping[str, Report],
) -> Report:
    """The report about one table, with the bound on all moves where its states run others."""
    own = limits and {name: limits[name] for name in limit_names(table)} if table.inner else limits
    report = _alone(table, own, watch, small, within)
    figure = _all_moves(table, limits, report, inner)
    whole = None if limits is None else dict(limits)
    return replace(report, limits=whole, figures=(*report.figures, *figure))


def _all_moves(
    table: Table, limits: Mapping[str, int] | None, report: Report, inner: Mapping[str, Report]
) -> tuple[Figure, ...]:
    """Each visit of a state that runs other tables costs at most what these can make of moves."""
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
    checks = _proved(proof, table)
    if not all(check.ok for check in checks):
        if small:
            within.tell("repairs")
            checks = tuple(_repaired(check, proof, table, within) for check in checks)
        return _report(table, proof, checks, (), None, limits)
    checks += _promised(proof, table)
    within.tell("bounds as formulas")
    found = bounds(proof.without_caps, proof.with_caps, watch, within.share(SHARES))
    scopes: tuple[Scope, ...] = ()
    if small:
        within.tell("small scopes")
        scopes, missed = small_scopes(table, within=within.share(SHARES))
    known = all_known(table, proof, found, limits, within, runs=small)
    if small:
        within.tell("dead rows")
        checks += (_alive(table, scopes, missed, within), _sound(found, scopes))
    pairs = zip(found, known, strict=True)
    sums: dict[str, str] = {}
    figures = tuple(_figure(bound, limits, below, scopes, within.seconds, sums) for bound, below in pairs)
    return _report(table, proof, checks, figures, worst(table, found, known, limits, scopes), limits)


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
    )


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


def _proved(proof: Proof, table: Table) -> tuple[Check, ...]:
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


def _promised(proof: Proof, table: Table) -> tuple[Check, ...]:
    """What the table promises of a value that its rows do not know."""
    if table.promises is None:
        return ()
    promises, began = table.promises(), time.perf_counter()
    found = induct(proof.with_caps.graph, promises)
    extent = f"{len(found.places):,} places, {found.obligations:,} obligations"
    seconds = time.perf_counter() - began
    return (Check(promises.name, EVERY, extent, tuple(map(str, found.faults)), seconds),)


def _repaired(check: Check, proof: Proof, table: Table, within: TimeLimit) -> Check:
    faults = {str(fault): fault for fault in proof.faults}
    named = (faults.get(finding) for finding in check.findings)
    known = [repairs(table, proof, fault, within) if fault else () for fault in named]
    return replace(check, repairs=tuple(tuple(one.words for one in each) for each in known))


def _alive(table: Table, scopes: tuple[Scope, ...], missed: tuple[Row, ...], within: TimeLimit) -> Check:
    """Rows that no scope takes are searched for again under larger limits, where exact search has too many
    pairs. A search that was cut short finds no row dead."""
    scripts = cover(table, pairs=False, within=within).scripts if missed and not within.over else ()
    taken = {row.id for script in scripts for row in script.rows}
    dead = [row.id for row in missed if row.id not in taken]
    extent = f"{len(table.rows)} rows"
    if dead and within.over:
        extent, dead = f"{extent}, {len(dead)} of them not searched for to the end: time was over", []
    findings = tuple(f"{row}: no run takes it in any of the scopes; remove the rung" for row in dead)
    return Check("no row is dead", f"{len(scopes)} small scopes", extent, findings)


def _sound(found: tuple[Bound, ...], scopes: tuple[Scope, ...]) -> Check:
    """Every formula against the exact search: never below it."""
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
    """``sums`` are the names of sums in the formulas of one report."""
    formula, legend = bound.written(sums)
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
