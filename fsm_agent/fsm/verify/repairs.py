"""What would repair a table: small changes of its lines, each proved on the changed table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from fsm_agent.fsm.table import Line, Rung, Table, end, left
from fsm_agent.fsm.verify.proof import Fault
from fsm_agent.fsm.verify.proof.examine import Proof, examine
from fsm_agent.fsm.verify.time_limit import TimeLimit

MOST = 3
"""Repairs proposed for one finding."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One change: how large it is (parts of rungs that it touches), what to do, and the table that it
    makes."""

    size: int
    words: str
    table: Table


class _Change(NamedTuple):
    """A repair that is not proved yet. ``far``: it is in a row that the finding does not name, only in a loop
    with one that it names."""

    size: int
    far: bool
    words: str
    lines: tuple[Line, ...]


def repairs(
    table: Table, proof: Proof, fault: Fault, within: TimeLimit, most: int = MOST
) -> tuple[Repair, ...]:
    """The smallest changes that take ``fault`` away and bring no other, at ``most`` so many, the smallest
    first. ``proof`` is that of ``table``."""
    before, found = set(proof.faults), list[Repair]()
    for change in sorted(_changes(table, proof, fault), key=lambda change: change[:2]):
        if len(found) == most or within.over:
            break
        changed = replace(table, lines=change.lines)
        if set(examine.__wrapped__(changed).faults) <= before - {fault}:
            found.append(Repair(change.size, change.words, changed))
    return tuple(found)


def _changes(table: Table, proof: Proof, fault: Fault) -> Iterator[_Change]:
    """Changes that may help: of the rows that a finding names, and of those that are in a loop with them."""
    named = dict.fromkeys(fault.where)
    loops = (*proof.with_caps.loops, *proof.without_caps.loops)
    for loop in loops:
        if any(edge.row.id in named for edge in loop):
            named |= dict.fromkeys(edge.row.id for edge in loop)
    for at, line in enumerate(table.lines):
        for number, rung in enumerate(line.ladder):
            row = f"{line.source}.{line.event}" + (f"/{number + 1}" if len(line.ladder) > 1 else "")
            if row in named:
                for size, words, ladder, resets in _of_rung(table, line, number, rung):
                    change = replace(line, ladder=ladder, resets=resets)
                    far = row not in fault.where
                    yield _changed(table, at, change, size, f"{row}: {words}", far=far)
        if f"{line.source}.{line.event}" in named:
            last = end(_exit(table), table.final)
            words = f"{line.source}.{line.event}: add a last rung that ends the turn"
            yield _changed(table, at, replace(line, ladder=(*line.ladder, last)), 1, words)
    for state in table.states:
        if state in named and state != table.final:
            line = Line(state, "ended", (end(_exit(table), table.final),))
            if (state, "ended") not in table.by_event:
                words = f"{state}: add a line that ends the turn"
                yield _Change(1, False, words, (*table.lines, line))


RungChange = tuple[int, str, tuple[Rung, ...], tuple[str, ...]]
"""Its size, what to do, the ladder and the resets of the line."""


def _of_rung(table: Table, line: Line, number: int, rung: Rung) -> Iterator[RungChange]:
    def ladder(changed: Rung, *more: Rung) -> tuple[Rung, ...]:
        return (*line.ladder[:number], changed, *line.ladder[number + 1 :], *more)

    tested = {atom.counter for atom in rung.needs.atoms()}
    for counter in (item.name for item in table.counters):
        spending = replace(rung, spends=(*rung.spends, counter))
        needing = replace(rung, needs=rung.needs & left(counter))
        if counter in line.resets:
            kept = tuple(name for name in line.resets if name != counter)
            yield 1, f"let the line not reset {counter}", line.ladder, kept
        if counter in rung.resets:
            kept = tuple(name for name in rung.resets if name != counter)
            yield 1, f"do not reset {counter}", ladder(replace(rung, resets=kept)), line.resets
        if counter in rung.spends:
            if counter not in tested:
                words = f'need left("{counter}")'
                if number + 1 < len(line.ladder):
                    yield 1, words, ladder(needing), line.resets
                else:
                    ends = end(_exit(table), table.final)
                    words += "; add a last rung that ends the turn"
                    yield 2, words, ladder(needing, ends), line.resets
            continue
        if counter in {*line.resets, *rung.resets}:
            continue
        if counter in tested:
            yield 1, f"spend {counter}", ladder(spending), line.resets
            continue
        both = replace(needing, spends=spending.spends)
        if number + 1 < len(line.ladder):
            yield 2, f'need left("{counter}") and spend it', ladder(both), line.resets
        else:
            words = f'need left("{counter}") and spend it; add a last rung that ends the turn'
            yield 3, words, ladder(both, end(_exit(table), table.final)), line.resets
    if len(line.ladder) > 1:
        yield 2, "remove the rung", (*line.ladder[:number], *line.ladder[number + 1 :]), line.resets


def _changed(table: Table, at: int, line: Line, size: int, words: str, *, far: bool = False) -> _Change:
    return _Change(size, far, words, (*table.lines[:at], line, *table.lines[at + 1 :]))


def _exit(table: Table) -> str:
    """An exit that the table has; which one is for its author to say."""
    return next((row.exit for row in table.rows if row.exit), "failed")
