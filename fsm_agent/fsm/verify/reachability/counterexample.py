"""A run that shows that a table gets stuck or goes on for ever, as a program that drives the real machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pprint import pformat

from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify.reachability.small_scopes import limit_names
from fsm_agent.fsm.verify.reachability.successors import Moves, Pair, compile_moves

MOST_PAIRS = 20_000
"""Pairs that are looked at under one choice of limits; half a second."""
UNCOUNTED = 10**9
"""The limit of a cap that is taken away."""


@dataclass(frozen=True, slots=True)
class CounterExample:
    """Events from the start of a turn under ``limits``: ``start`` once, then ``loop`` again and again; when
    there is no loop, no row is open for the last event of ``start``."""

    limits: Mapping[str, int]
    start: tuple[str, ...]
    loop: tuple[str, ...]

    def script(self, table: Table, module: str, attribute: str) -> str:
        """A Python program that takes ``table`` from ``module`` and shows the run."""
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
    """A run under small limits that gets stuck or goes on for ever, with the caps if there is one, else with
    the caps taken away; ``None`` when none was found."""
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
    """Depth first: the events to a pair in which an event has no open row, or into a circle and around it."""
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
    """The events of a pair and where they lead; ``None``: nowhere."""
    open_rows = [(table.rows[number].event, after) for number, after in moves(pair)]
    known = {event for event, _ in open_rows}
    stuck = [(event, None) for event in table.events(table.states[pair[0]]) if event not in known]
    return [*open_rows, *stuck]
