"""What both languages share: names that an engine accepts, limits with a value, and the way from transitions
back to a table."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from fsm_agent.errors import ConfigError, TableError
from fsm_agent.fsm.table import Below, Counter, Line, Row, Rung, Table

LIMIT = 1
"""The value of a limit without a known one."""
LONGEST = 2_000_000
"""Characters of a file that is read."""


def identifiers(names: Iterable[str]) -> dict[str, str]:
    """A distinct identifier of ASCII letters, digits, and ``_`` for each name; a name that is one is kept."""
    names = list(names)
    taken = {name for name in names if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)}
    found = {}
    for name in names:
        free = name
        if name not in taken:
            plain = re.sub(r"\W", "_", name, flags=re.ASCII)
            plain = plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}"
            free = next(one for one in _number_names(plain) if one not in taken)
        taken.add(free)
        found[name] = free
    return found


def _number_names(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}_{number}"
        number += 1


def limits_of(table: Table, limits: Mapping[str, int] | None) -> dict[str, int]:
    """A value for each limit of the table: of ``limits``, else its default, else 1. Raises ``ConfigError``
    for a name that is no limit."""
    flags = {counter.name for counter in table.counters if counter.flag}
    names = dict.fromkeys(atom.limit for atom in atoms_of(table) if atom.limit not in flags)
    given = limits or {}
    if unknown := sorted(set(given) - names.keys()):
        raise ConfigError("the table has no such limit", unknown[0], ", ".join(names))
    known = {**(table.default_limits() if table.default_limits else {}), **given}
    return {name: known.get(name, LIMIT) for name in names}


def atoms_of(table: Table) -> Iterable[Below]:
    """Each comparison in the decision lists, once. A row has fewer: those that its rungs before decide are
    left out of it."""
    rungs = (rung for line in table.lines for rung in line.ladder)
    return dict.fromkeys(atom for rung in rungs for atom in rung.needs.atoms())


def steps(table: Table) -> Iterator[tuple[Row, Rung, bool]]:
    """Each row of the table with its rung, and whether it is one of a macro; states in order, and the rungs
    of a decision list."""
    lines = {(line.source, line.event): line for line in table.lines}
    for state in table.states:
        for event in table.events(state):
            rows = table.by_event[state, event]
            line = lines.get((state, event))
            rungs = line.ladder if line else [Rung(row.rung, row.dest, exit=row.exit) for row in rows]
            yield from ((row, rung, line is None) for row, rung in zip(rows, rungs, strict=True))


@dataclass
class Chart:
    """A machine that is read: states and final states in order, rungs by (state, event), and what a table
    does not have. ``finals`` are exit reasons by final state."""

    name: str
    origin: str
    states: list[str] = field(default_factory=list)
    finals: dict[str, str] = field(default_factory=dict)
    counters: dict[str, Counter] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    rungs: dict[tuple[str, str], list[Rung]] = field(default_factory=lambda: defaultdict(list))
    why: dict[tuple[str, str], str] = field(default_factory=dict)
    macros: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    more: dict[str, None] = field(default_factory=dict)

    def has_more(self, what: str) -> None:
        """Note something that a table cannot express."""
        self.more[what] = None

    def table(self, initial: str) -> Table:
        """The table of it. Raises ``ConfigError`` that names all that a table does not have."""
        if self.more:
            raise ConfigError(f"the machine has what a table does not: {', '.join(self.more)}", self.origin)
        if not self.finals:
            raise ConfigError("the machine has no final state", self.origin, "one that every turn ends in")
        final = next(iter(self.finals))
        if len(self.finals) > 1:
            final = next(one for one in _number_names("Final") if one not in self.states)
        working = [initial, *(state for state in self.states if state != initial)]
        lines = [
            Line(
                source,
                event,
                tuple(self._ending(rung, final) for rung in ladder),
                why=self.why[source, event],
            )
            for source, event in sorted(self.rungs, key=lambda place: working.index(place[0]))
            for ladder in (self.rungs[source, event],)
        ]
        limits = dict(self.limits)
        try:
            return Table(
                self.name, (*working, final), final, tuple(self.counters.values()), tuple(lines),
                tuple(self.macros.items()), default_limits=lambda: limits,
            )  # fmt: skip
        except TableError as error:
            raise ConfigError(f"the table is wrong ({error})", self.origin) from None

    def _ending(self, rung: Rung, final: str) -> Rung:
        if rung.to not in self.finals:
            return replace(rung, exit=None)
        return replace(rung, to=final, exit=rung.exit or self.finals[rung.to])
