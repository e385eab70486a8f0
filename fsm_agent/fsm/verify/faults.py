"""Repairs of a table that is not proved: changes of its lines, each proved on the changed table, and a
counterexample: a run that gets stuck or repeats forever, as a program that drives the real machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pprint import pformat
from typing import NamedTuple

from fsm_agent.fsm.proof import Fault, Proof, examine
from fsm_agent.fsm.table import Line, Rung, Table, end, left
from fsm_agent.fsm.verify.reach import Moves, Pair, TimeLimit, compile_moves, limit_names

MOST = 3
"""Maximum repairs proposed for one finding."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One repair: its size (the number of parts of rungs that it touches), its description, and the repaired
    table."""

    size: int
    words: str
    table: Table


class _Change(NamedTuple):
    """A repair that is not proved yet. ``far``: it changes a row that the finding does not name but that
    shares a loop with one that it names."""

    size: int
    far: bool
    words: str
    lines: tuple[Line, ...]


def repairs(
    table: Table, proof: Proof, fault: Fault, within: TimeLimit, most: int = MOST
) -> tuple[Repair, ...]:
    """Return up to ``most`` changes that remove ``fault`` and cause no other fault, the smallest first.
    ``proof`` is the proof of ``table``."""
    before, found = set(proof.faults), list[Repair]()
    for change in sorted(_changes(table, proof, fault), key=lambda change: change[:2]):
        if len(found) == most or within.over:
            break
        changed = replace(table, lines=change.lines)
        if set(examine.__wrapped__(changed).faults) <= before - {fault}:
            found.append(Repair(change.size, change.words, changed))
    return tuple(found)


def _changes(table: Table, proof: Proof, fault: Fault) -> Iterator[_Change]:
    """Yield changes that may help: of the rows that a finding names, and of those that share a loop with
    them."""
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
                    yield _make_change(table, at, change, size, f"{row}: {words}", far=far)
        if f"{line.source}.{line.event}" in named:
            last = end(_exit(table), table.final)
            words = f"{line.source}.{line.event}: add a last rung that ends the turn"
            yield _make_change(table, at, replace(line, ladder=(*line.ladder, last)), 1, words)
    for state in table.states:
        if state in named and state != table.final:
            line = Line(state, "ended", (end(_exit(table), table.final),))
            if (state, "ended") not in table.by_event:
                words = f"{state}: add a line that ends the turn"
                yield _Change(1, False, words, (*table.lines, line))


RungChange = tuple[int, str, tuple[Rung, ...], tuple[str, ...]]
"""The size of the change, its description, and the new ladder and resets of the line."""


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


def _make_change(table: Table, at: int, line: Line, size: int, words: str, *, far: bool = False) -> _Change:
    return _Change(size, far, words, (*table.lines[:at], line, *table.lines[at + 1 :]))


def _exit(table: Table) -> str:
    """Return any exit of the table; the author must choose the right one."""
    return next((row.exit for row in table.rows if row.exit), "failed")


MOST_PAIRS = 20_000
"""Maximum pairs visited under one choice of limits; half a second."""
UNCOUNTED = 10**9
"""The limit of a cap that is taken away."""


@dataclass(frozen=True, slots=True)
class CounterExample:
    """Events from the start of a turn under ``limits``: ``start`` once, then ``loop`` repeatedly. Without a
    loop, no row is open for the last event of ``start``."""

    limits: Mapping[str, int]
    start: tuple[str, ...]
    loop: tuple[str, ...]

    def script(self, table: Table, module: str, attribute: str) -> str:
        """Return a Python program that takes ``table`` from ``module`` and shows the run."""
        values = {
            "title": f"A run of the table {table.name} that does not end well, on the real machine.",
            "module": module,
            "attribute": attribute,
        }
        parts = {"limits": dict(self.limits), "start": list(self.start), "loop": list(self.loop)}
        return SCRIPT.format(**values, **{name: pformat(part, width=100) for name, part in parts.items()})


SCRIPT = '''"""{title}

Written by fsm-agent verify --counterexample."""

import sys

sys.path.insert(0, "")

from fsm_agent.errors import StuckTurn
from fsm_agent.fsm.machine import Machine
from {module} import {attribute} as TABLE

LIMITS = {limits}
START = {start}
LOOP = {loop}


class CountedTurn:
    def __init__(self):
        self.state, self.seq = TABLE.initial, 0
        self.counts = {{counter.name: 0 for counter in TABLE.counters}}

    def count(self, counter):
        return self.counts[counter]

    def limit(self, name):
        return LIMITS[name]

    def spend(self, counter):
        self.counts[counter] += 1

    def reset(self, counter):
        self.counts[counter] = 0


machine, turn = Machine(TABLE, verified=False), CountedTurn()
try:
    for event in START + LOOP * 1000:
        move = machine.advance(turn, event)
        if turn.seq <= len(START) + len(LOOP):
            print(move.row.id, "->", turn.state)
except StuckTurn as stuck:
    print("stuck:", stuck)
else:
    print(f"still in {{turn.state}} after {{turn.seq:,}} moves")
'''


def counterexample(table: Table) -> CounterExample | None:
    """Find a run under small limits that gets stuck or never ends, with the caps if possible, else with the
    caps taken away; ``None`` when none was found."""
    flags = {counter.name: 1 for counter in table.counters if counter.flag}
    caps = {counter.name for counter in table.counters if counter.cap}
    capping = {atom.limit for row in table.rows for atom in row.guard.atoms() if atom.counter in caps}
    for capped in (True, False) if caps else (True,):
        for most in (1, 2, 0):
            limits = dict.fromkeys(limit_names(table), most)
            found = _run(table, *compile_moves(table, limits, caps=capped))
            if found:
                uncounted = {} if capped else dict.fromkeys(capping, UNCOUNTED)
                return CounterExample(limits | flags | uncounted, *found)
    return None


def _run(table: Table, start: Pair, moves: Moves) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Search depth first. Return the events to a pair in which an event has no open row, or those into a
    cycle and around it."""
    final = table.states.index(table.final)
    way: list[tuple[Pair, str]] = []
    onward, place = [_onward(table, moves, start)], {start: 0}
    seen = {start}
    while onward and len(seen) < MOST_PAIRS:
        if not onward[-1]:
            onward.pop()
            if way:
                del place[way.pop()[0]]
            continue
        event, after = onward[-1].pop()
        if after is None:
            return (*(taken for _, taken in way), event), ()
        if after in place:
            events = [*(taken for _, taken in way), event]
            return tuple(events[: place[after]]), tuple(events[place[after] :])
        if after[0] != final and after not in seen:
            seen.add(after)
            way.append((after, event))
            place[after] = len(way)
            onward.append(_onward(table, moves, after))
    return None


def _onward(table: Table, moves: Moves, pair: Pair) -> list[tuple[str, Pair | None]]:
    """Return the events of a pair and the pairs they lead to; ``None`` where no row is open."""
    open_rows = [(table.rows[number].event, after) for number, after in moves(pair)]
    known = {event for event, _ in open_rows}
    stuck = [(event, None) for event in table.events(table.states[pair[0]]) if event not in known]
    return [*open_rows, *stuck]
