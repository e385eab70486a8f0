"""How the proofs and the bounds of two versions differ: both are proved here, by the same checkers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from fsm_agent.diagram.jsonform import as_json
from fsm_agent.diagram.model import diagram_of
from fsm_agent.diagram.versions.load import Version
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify import Bound, Report, bounds, check_certificate, examine, verify_table
from fsm_agent.fsm.verify.certificate import certificate
from fsm_agent.fsm.verify.polynomial import Polynomial
from fsm_agent.fsm.verify.reach import all_limit_names

CERTIFIED = "check_certificate.py accepts the certificate"
KNOWN = "known: "
"""How a finding begins about which nothing is to be done."""


@dataclass(frozen=True, slots=True)
class BoundChange:
    """One bound of both versions: formulas, figures for the limits of each, and ``by``: the difference as a
    formula where both bounds are one, ``+ blocks·rekeys − rekeys``. Empty where a version does not have the
    bound."""

    quantity: str
    caps: bool
    old: str
    new: str
    old_value: int | None
    new_value: int | None
    by: str
    legend: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """Say whether the formula or its figure changed."""
        return bool(self.by) or (self.old, self.old_value) != (self.new, self.new_value)


@dataclass(frozen=True, slots=True)
class ProofChange:
    """The verdicts about both versions: (check, findings before, findings after), ``None`` where a check was
    not made; rankings as lines; bounds."""

    old_ok: bool
    new_ok: bool
    checks: tuple[tuple[str, tuple[str, ...] | None, tuple[str, ...] | None], ...]
    old_ranking: tuple[str, ...]
    new_ranking: tuple[str, ...]
    bounds: tuple[BoundChange, ...]

    @property
    def changed(self) -> bool:
        """Say whether a check, the ranking or a bound changed."""
        found = any(before != after for _, before, after in self.checks)
        return found or self.old_ranking != self.new_ranking or any(bound.changed for bound in self.bounds)


def proofs(old: Version, new: Version, limits: Mapping[str, int] | None = None) -> ProofChange:
    """Prove both tables and compare. Figures are for the limits of each version, changed by ``limits``.
    Raises ``ConfigError`` for a limit that neither table reads."""
    known = {atom.limit for v in (old, new) for row in v.table.rows for atom in row.guard.atoms()}
    known |= {*all_limit_names(old.table), *all_limit_names(new.table)}
    if unknown := sorted(set(limits or ()) - known):
        raise ConfigError("unknown limit", ", ".join(unknown), ", ".join(sorted(known)))
    values = tuple(_limits(version, limits or {}) for version in (old, new))
    before = verify_table(old.table, values[0], small=False)
    same = _proved_alike(old.table) == _proved_alike(new.table) and values[0] == values[1]
    after = before if same else verify_table(new.table, values[1], small=False)
    findings = [_findings(before) | _certified(old.table, before)]
    findings += findings if same else [_findings(after) | _certified(new.table, after)]
    checks = [
        (name, findings[0].get(name), findings[1].get(name))
        for name in dict.fromkeys([*findings[0], *findings[1]])
    ]
    return ProofChange(
        before.ok,
        after.ok,
        tuple(checks),
        before.ranking_without_caps,
        after.ranking_without_caps,
        tuple(_bounds(old.table, new.table, before, after)),
    )


def _proved_alike(table: Table) -> tuple[object, ...]:
    """All that a verdict depends on, but for limits."""
    return table.digest, table.properties


def _findings(report: Report) -> dict[str, tuple[str, ...]]:
    """What was found about each check and each property. A known counterexample is told too, since a property
    that was proved may have become one."""
    found = {check.name: check.findings for check in report.checks}
    for one in report.properties:
        known = f"{KNOWN}{one.run or one.basis}" if one.verdict != "proved" else ""
        found[f"property: {one.says}"] = tuple(text for text in (one.finding or known,) if text)
    return found


def _certified(table: Table, report: Report) -> dict[str, tuple[str, ...]]:
    """What ``check_certificate.py`` says of the certificate of a table that is proved."""
    if not report.ok:
        return {}
    form = json.loads(as_json(diagram_of(table)))
    try:
        made = certificate(table, report.limits, runs=False)
        check_certificate.check(form, json.loads(json.dumps(made)))
    except (ConfigError, check_certificate.Refused) as refusal:
        return {CERTIFIED: (str(refusal),)}
    return {CERTIFIED: ()}


def _limits(version: Version, changes: Mapping[str, int]) -> Mapping[str, int] | None:
    """Every limit that the table reads, or ``None`` when none is known. Raises ``ConfigError`` when only some
    are."""
    needed = all_limit_names(version.table)
    values = {**(version.limits or {}), **changes}
    missing = sorted(set(needed) - set(values))
    if missing and changes:
        raise ConfigError("limits are missing", ", ".join(missing), "a --set for each of them, or for none")
    return None if missing else values


def _bounds(old: Table, new: Table, before: Report, after: Report) -> list[BoundChange]:
    figures = [{(f.quantity, f.caps): f for f in report.figures} for report in (before, after)]
    said = [[(f.formula, f.legend) for f in report.figures] for report in (before, after)]
    both = before.ok and after.ok and said[0] != said[1]
    formulas = [_formulas(old), _formulas(new)] if both else [{}, {}]
    found = []
    for key in dict.fromkeys([*figures[1], *figures[0]]):
        a, b = (each.get(key) for each in figures)
        by = _difference(formulas[0].get(key), formulas[1].get(key))
        legend = dict.fromkeys(line for figure in (b, a) if figure for line in figure.legend)
        found.append(
            BoundChange(
                *key,
                a.formula if a else "",
                b.formula if b else "",
                a.value if a else None,
                b.value if b else None,
                by,
                tuple(legend),
            )
        )
    return found


def _formulas(table: Table) -> dict[tuple[str, bool], Bound]:
    proof = examine(table)
    return {(bound.name, bound.caps): bound for bound in bounds(proof.without_caps, proof.with_caps)}


def _difference(old: Bound | None, new: Bound | None) -> str:
    """What was added and taken away, where both bounds are a single formula."""
    if old is None or new is None or len(old.formulas) != 1 or len(new.formulas) != 1:
        return ""
    terms = dict(new.formulas[0].terms)
    for monomial, factor in old.formulas[0].terms.items():
        terms[monomial] = terms.get(monomial, 0) - factor
    more = Polynomial({monomial: factor for monomial, factor in terms.items() if factor > 0})
    less = Polynomial({monomial: -factor for monomial, factor in terms.items() if factor < 0})
    told = [f"+ {new.printer.text(more)}"] if more.terms else []
    told += [f"− {_bracketed(old.printer.text(less))}"] if less.terms else []
    return " ".join(told)


def _bracketed(sum_of: str) -> str:
    return f"({sum_of})" if " + " in sum_of else sum_of
