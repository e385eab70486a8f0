"""Changes between two versions of a table, row by row.

Row ids are positions in a ladder and cannot identify rows: a rung inserted at the top would change them all.
Rows of one event are aligned by what they do, and a row whose guard differs only because of the rungs before
it is distinguished from one that changed itself.
"""

# Compare rows of two versions by what they do. Ids are positions in a ladder, so one more rung renames those
# behind it. A guard that differs only because of earlier rungs is reported separately. The installed checkers
# prove both versions, so a difference is the table's. The other version's code is loaded in a separate
# process and returned as JSON.

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Literal, TypeVar

from fsm_agent.diagram.model import diagram_of
from fsm_agent.diagram.table_json import as_json
from fsm_agent.diagram.versions import Version
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Guard, Row, Table
from fsm_agent.fsm.verify import Bound, Report, bounds, check_certificate, examine, verify_table
from fsm_agent.fsm.verify.certificate import certificate
from fsm_agent.fsm.verify.polynomial import Polynomial
from fsm_agent.fsm.verify.reach import all_limit_names

Change = Literal["added", "removed", "changed", "kept"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row of either version or of both. ``fields`` are (name, before, after) of the differences in words;
    ``follows`` if its guard differs only because of the rungs before it."""

    change: Change
    old: Row | None
    new: Row | None
    fields: tuple[tuple[str, str, str], ...] = ()
    follows: bool = False

    @property
    def own(self) -> bool:
        """Whether the row itself differs, not only the rungs before it."""
        return not self.follows or any(name != "guard" for name, _, _ in self.fields)

    @property
    def row(self) -> Row:
        """Return the new row, or the old one if it was removed."""
        found = self.new or self.old
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class LineChange:
    """The rows of one event of one state, in display order."""

    state: str
    event: str
    change: Change
    rows: tuple[RowChange, ...]


@dataclass(frozen=True, slots=True)
class NameChange:
    """A state, counter, reset or the like that was added or removed, or whose meaning changed."""

    kind: str
    name: str
    change: Change
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """All differences between ``old`` and ``new``. ``lines`` are all lines of both, including unchanged
    ones."""

    old: Table
    new: Table
    lines: tuple[LineChange, ...]
    names: tuple[NameChange, ...]
    states: tuple[str, ...] = field(default=())

    @property
    def rows(self) -> tuple[RowChange, ...]:
        """Rows that were added, removed or changed."""
        return tuple(row for line in self.lines for row in line.rows if row.change != "kept")

    @property
    def changed(self) -> bool:
        """Return whether the versions differ."""
        return bool(self.rows or self.names)

    def count(self, change: Change, state: str | None = None) -> int:
        """Return the number of rows added, removed or changed, in one state or in all."""
        return sum(row.change == change and state in (None, row.row.source) for row in self.rows)


def compare(old: Table, new: Table) -> Difference:
    """Compare two tables."""
    events = merge_order(list(old.by_event), list(new.by_event))
    states = merge_order(old.states, new.states)
    events.sort(key=lambda pair: states.index(pair[0]))
    lines = tuple(_line(old, new, *pair) for pair in events)
    return Difference(old, new, lines, tuple(_names(old, new)), tuple(states))


def merge_order(old: Sequence[T], new: Sequence[T]) -> list[T]:
    """Return ``new`` with the items that only ``old`` has inserted at their old places."""
    merged = list(new)
    for number, item in enumerate(old):
        if item not in merged:
            before = next((other for other in reversed(old[:number]) if other in merged), None)
            merged.insert(0 if before is None else merged.index(before) + 1, item)
    return merged


def _line(old: Table, new: Table, state: str, event: str) -> LineChange:
    before, after = old.by_event.get((state, event), ()), new.by_event.get((state, event), ())
    rows = tuple(_row(a, b, _needs(old), _needs(new)) for a, b in _align_rows(before, after))
    change: Change = "changed" if any(row.change != "kept" for row in rows) else "kept"
    if not before or not after:
        change = "added" if after else "removed"
    return LineChange(state, event, change, rows)


def _needs(table: Table) -> Mapping[str, Guard]:
    """Return the guard of each row's own rung, without the rungs before it."""
    found = {}
    for line in table.lines:
        for rung, row in zip(line.ladder, table.by_event[line.source, line.event], strict=True):
            found[row.id] = rung.needs
    return found


def _align_rows(old: Sequence[Row], new: Sequence[Row]) -> Iterable[tuple[Row | None, Row | None]]:
    """Pair rows that are the same remedy, in the order of ``new``, with removed ones in their old places."""
    pairs: dict[int, int] = {}  # index in new → index in old
    for alike in (_does, _rung, _effect):
        left = [i for i in range(len(old)) if i not in pairs.values()]
        right = [j for j in range(len(new)) if j not in pairs]
        a, b = [alike(old[i]) for i in left], [alike(new[j]) for j in right]
        for block in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
            pairs |= {right[block.b + k]: left[block.a + k] for k in range(block.size)}
        for j in right:  # swapped rows
            moved = (
                i
                for i in left
                if j not in pairs and i not in pairs.values() and alike(old[i]) == alike(new[j])
            )
            if (i := next(moved, None)) is not None:
                pairs[j] = i
    return _in_order(old, new, pairs)


def _does(row: Row) -> Hashable:
    return row.rung, row.dest, row.exit


def _rung(row: Row) -> Hashable:
    return row.rung


def _effect(row: Row) -> Hashable:
    return row.dest, row.spends, row.exit is None


def _in_order(
    old: Sequence[Row], new: Sequence[Row], pairs: Mapping[int, int]
) -> list[tuple[Row | None, Row | None]]:
    found: list[tuple[Row | None, Row | None]] = []
    waiting = [i for i in range(len(old)) if i not in pairs.values()]
    for j, row in enumerate(new):
        i = pairs.get(j)
        while waiting and i is not None and waiting[0] < i:
            found.append((old[waiting.pop(0)], None))
        found.append((None if i is None else old[i], row))
    return [*found, *((old[i], None) for i in waiting)]


def _row(
    old: Row | None, new: Row | None, needs_before: Mapping[str, Guard], needs_after: Mapping[str, Guard]
) -> RowChange:
    if old is None or new is None:
        return RowChange("added" if new else "removed", old, new)
    fields = tuple(_fields(old, new))
    follows = old.guard != new.guard and needs_before.get(old.id) == needs_after.get(new.id)
    return RowChange("changed" if fields else "kept", old, new, fields, follows)


def _fields(old: Row, new: Row) -> Iterable[tuple[str, str, str]]:
    """Yield (name, before, after) of the differences."""
    for name, before, after in (
        ("rung", old.rung, new.rung),
        ("to", old.dest, new.dest),
        ("exit", old.exit or "", new.exit or ""),
        ("guard", _exact(old.guard), _exact(new.guard)),
        ("spends", ", ".join(old.spends), ", ".join(new.spends)),
        ("resets", ", ".join(sorted(old.resets)), ", ".join(sorted(new.resets))),
    ):
        if before != after and not (name == "rung" and old.exit != new.exit):
            yield name, before, after


def _exact(guard: Guard) -> str:
    """Return the guard in words, adding the limits that the words do not show."""
    atoms = {atom.yes: atom.limit for atom in guard.atoms()}
    limits = [
        f"{words}: {limit}" for words, limit in sorted(atoms.items()) if limit.replace("_", " ") not in words
    ]
    return f"{guard.label} [{', '.join(limits)}]" if limits else guard.label


def _names(old: Table, new: Table) -> Iterable[NameChange]:
    yield from _changes("state", dict.fromkeys(old.states, ""), dict.fromkeys(new.states, ""))
    yield from _changes("counter", *({c.name: _kind(c.flag, c.cap) for c in t.counters} for t in (old, new)))
    yield from _changes(
        "reset", *({n: ", ".join(group) for n, group in t.reset_groups.items()} for t in (old, new))
    )
    yield from _changes("inner table", _inner(old), _inner(new))
    for kind, before, after in (("name", old.name, new.name), ("first state", old.initial, new.initial)):
        if before != after:
            yield NameChange(kind, after, "changed", before, after)
    if old.final != new.final:
        yield NameChange("final state", new.final, "changed", old.final, new.final)


def _inner(table: Table) -> dict[str, str]:
    """Return what each state runs, with the digests that distinguish versions."""
    return {
        s: f"{runs.label} ({', '.join(one.digest for one in runs.tables)})" for s, runs in table.inner.items()
    }


def _kind(flag: bool, cap: bool) -> str:
    return " and ".join([*(["flag"] if flag else []), *(["cap"] if cap else [])]) or "counter"


def _changes(kind: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterable[NameChange]:
    for name in merge_order(list(old), list(new)):
        if name not in new:
            yield NameChange(kind, name, "removed", old[name])
        elif name not in old:
            yield NameChange(kind, name, "added", "", new[name])
        elif old[name] != new[name]:
            yield NameChange(kind, name, "changed", old[name], new[name])


# ----------------------------------------------------------------------------------------------------
# Differences in proofs and bounds between two versions: the same installed checkers prove both.


CERTIFIED = "check_certificate.py accepts the certificate"
KNOWN = "known: "
"""Prefix of a finding that needs no action."""


@dataclass(frozen=True, slots=True)
class BoundChange:
    """One bound in both versions: formulas, figures for the limits of each, and ``by``: the difference as a
    formula if each bound is a single one, ``+ blocks·rekeys − rekeys``. Empty if a version does not have the
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
        """Return whether the formula or its figure changed."""
        return bool(self.by) or (self.old, self.old_value) != (self.new, self.new_value)


@dataclass(frozen=True, slots=True)
class ProofChange:
    """The verdicts on both versions: (check, findings before, findings after), ``None`` for a check that was
    not made; rankings as lines; bounds."""

    old_ok: bool
    new_ok: bool
    checks: tuple[tuple[str, tuple[str, ...] | None, tuple[str, ...] | None], ...]
    old_ranking: tuple[str, ...]
    new_ranking: tuple[str, ...]
    bounds: tuple[BoundChange, ...]

    @property
    def changed(self) -> bool:
        """Return whether a check, the ranking or a bound changed."""
        found = any(before != after for _, before, after in self.checks)
        return found or self.old_ranking != self.new_ranking or any(bound.changed for bound in self.bounds)


def proofs(old: Version, new: Version, limits: Mapping[str, int] | None = None) -> ProofChange:
    """Prove both tables and compare. Figures are for the limits of each version, overridden by ``limits``.
    Raises ``ConfigError`` for a limit that neither table reads."""
    known = {atom.limit for v in (old, new) for row in v.table.rows for atom in row.guard.atoms()}
    known |= {*all_limit_names(old.table), *all_limit_names(new.table)}
    if unknown := sorted(set(limits or ()) - known):
        raise ConfigError("unknown limit", ", ".join(unknown), ", ".join(sorted(known)))
    values = tuple(_limits(version, limits or {}) for version in (old, new))
    before = verify_table(old.table, values[0], small=False)
    same = _proof_inputs(old.table) == _proof_inputs(new.table) and values[0] == values[1]
    after = before if same else verify_table(new.table, values[1], small=False)
    certified = [_check_certificate(old.table, before)]
    certified += certified if same else [_check_certificate(new.table, after)]
    return compare_reports(old.table, new.table, before, after, (certified[0], certified[1]))


Findings = dict[str, tuple[str, ...]]


def compare_reports(
    old: Table,
    new: Table,
    before: Report,
    after: Report,
    certified: tuple[Findings, Findings] = ({}, {}),
    *,
    by: bool = True,
) -> ProofChange:
    """Compare the verdicts and bounds of two reports; ``certified``: the findings about certificates.
    ``by=False`` skips the differences of formulas, which take longest."""
    was, now = (_findings(report) | found for report, found in zip((before, after), certified, strict=True))
    checks = [(name, was.get(name), now.get(name)) for name in dict.fromkeys([*was, *now])]
    return ProofChange(
        before.ok,
        after.ok,
        tuple(checks),
        before.ranking_without_caps,
        after.ranking_without_caps,
        tuple(_bounds(old, new, before, after, by)),
    )


def _proof_inputs(table: Table) -> tuple[object, ...]:
    """Return all inputs of a verdict except limits."""
    return table.digest, table.properties


def _findings(report: Report) -> Findings:
    """Return the findings of each check and each property. A known counterexample is included, because the
    property may have been proved before."""
    found = {check.name: check.findings for check in report.checks}
    for one in report.properties:
        known = f"{KNOWN}{one.run or one.basis}" if one.verdict != "proved" else ""
        found[f"property: {one.says}"] = tuple(text for text in (one.finding or known,) if text)
    return found


def _check_certificate(table: Table, report: Report) -> dict[str, tuple[str, ...]]:
    """Return the findings of ``check_certificate.py`` for the certificate of a proved table."""
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
    """Return every limit that the table reads, or ``None`` if some are unknown. Raises ``ConfigError`` if
    ``changes`` are given but do not complete them."""
    needed = all_limit_names(version.table)
    values = {**(version.limits or {}), **changes}
    missing = sorted(set(needed) - set(values))
    if missing and changes:
        raise ConfigError("limits are missing", ", ".join(missing), "a --set for each of them, or for none")
    return None if missing else values


def _bounds(old: Table, new: Table, before: Report, after: Report, by: bool) -> list[BoundChange]:
    figures = [{(f.quantity, f.caps): f for f in report.figures} for report in (before, after)]
    said = [[(f.formula, f.legend) for f in report.figures] for report in (before, after)]
    both = by and before.ok and after.ok and said[0] != said[1]
    formulas = [_formulas(old), _formulas(new)] if both else [{}, {}]
    found = []
    for key in dict.fromkeys([*figures[1], *figures[0]]):
        a, b = (each.get(key) for each in figures)
        changed = _difference(formulas[0].get(key), formulas[1].get(key))
        legend = dict.fromkeys(line for figure in (b, a) if figure for line in figure.legend)
        found.append(
            BoundChange(
                *key,
                a.formula if a else "",
                b.formula if b else "",
                a.value if a else None,
                b.value if b else None,
                changed,
                tuple(legend),
            )
        )
    return found


@lru_cache(maxsize=4)
def _formulas(table: Table) -> dict[tuple[str, bool], Bound]:
    proof = examine(table)
    return {(bound.name, bound.caps): bound for bound in bounds(proof.without_caps, proof.with_caps)}


def _difference(old: Bound | None, new: Bound | None) -> str:
    """Return the added and removed terms if both bounds are a single formula."""
    if old is None or new is None or len(old.formulas) != 1 or len(new.formulas) != 1:
        return ""
    terms = dict(new.formulas[0].terms)
    for monomial, factor in old.formulas[0].terms.items():
        terms[monomial] = terms.get(monomial, 0) - factor
    more = Polynomial({monomial: factor for monomial, factor in terms.items() if factor > 0})
    less = Polynomial({monomial: -factor for monomial, factor in terms.items() if factor < 0})
    parts = [f"+ {new.printer.text(more)}"] if more.terms else []
    parts += [f"− {_bracket(old.printer.text(less))}"] if less.terms else []
    return " ".join(parts)


def _bracket(sum_of: str) -> str:
    return f"({sum_of})" if " + " in sum_of else sum_of
