"""The language in which a transition table is written, and its expansion to plain rows.

A table is read as **decision lists**: for each (state, event) an ordered list of *rungs*; the first rung
whose budget is left is taken. A rung is defined once, with its destination, the counters that it spends and
those that it resets. ``Table`` expands each list to **rows** whose guards exclude each other, and everything
else (machine, proofs, diagrams, recorded guards, debugger) works on those rows only.

Guards are expression objects over counters and limits, never lambdas, so that the same object is evaluated,
printed as words ("no retries left"), proved and drawn. They read a turn through two methods:
``count(counter)`` and ``limit(name)``.

>>> left("retries").label, (~left("retries")).label
('retries left', 'no retries left')
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from fsm_agent.errors import TableError

if TYPE_CHECKING:
    from fsm_agent.fsm.layout import Layout
    from fsm_agent.fsm.properties import Promises, Property


class Counted(Protocol):
    """The part of a turn that guards read: its counters and their limits."""

    def count(self, counter: str) -> int: ...
    def limit(self, name: str) -> int: ...


CRASHED = "crashed"
"""The event for a bug in a state or in a handler of its requests."""

# Guard language


class Guard(ABC):
    """A boolean expression over counters and limits."""

    __slots__ = ()

    @property
    @abstractmethod
    def label(self) -> str:
        """The guard in words."""

    @abstractmethod
    def holds(self, turn: Counted) -> bool:
        """Return whether the guard is open for these counters and limits."""

    @abstractmethod
    def atoms(self) -> Iterator[Below]:
        """Yield every comparison in the expression, in reading order, repetitions included."""

    @abstractmethod
    def __invert__(self) -> Guard:
        """Return the guard that is open where this one is not."""

    def __and__(self, other: Guard) -> Guard:
        return all_of((self, other))


@dataclass(frozen=True, slots=True)
class Below(Guard):
    """``count(counter) < limit(limit)``; the only comparison of the language. ``yes`` and ``no`` are its two
    wordings."""

    counter: str
    limit: str
    yes: str
    no: str

    @property
    def label(self) -> str:
        return self.yes

    def holds(self, turn: Counted) -> bool:
        return turn.count(self.counter) < turn.limit(self.limit)

    def atoms(self) -> Iterator[Below]:
        yield self

    def __invert__(self) -> Guard:
        return Spent(self)


@dataclass(frozen=True, slots=True)
class Spent(Guard):
    """The negation of a ``Below``: the budget is used up."""

    atom: Below

    @property
    def label(self) -> str:
        return self.atom.no

    def holds(self, turn: Counted) -> bool:
        return not self.atom.holds(turn)

    def atoms(self) -> Iterator[Below]:
        yield self.atom

    def __invert__(self) -> Guard:
        return self.atom


@dataclass(frozen=True, slots=True)
class AllOf(Guard):
    """True if every part holds; always true without parts."""

    parts: tuple[Guard, ...] = ()

    @property
    def label(self) -> str:
        return " and ".join(part.label for part in self.parts) or "always"

    def holds(self, turn: Counted) -> bool:
        return all(part.holds(turn) for part in self.parts)

    def atoms(self) -> Iterator[Below]:
        for part in self.parts:
            yield from part.atoms()

    def __invert__(self) -> Guard:
        return any_of(~part for part in self.parts)


@dataclass(frozen=True, slots=True)
class AnyOf(Guard):
    """True if at least one part holds; never true without parts."""

    parts: tuple[Guard, ...] = ()

    @property
    def label(self) -> str:
        return "(" + " or ".join(part.label for part in self.parts) + ")" if self.parts else "never"

    def holds(self, turn: Counted) -> bool:
        return any(part.holds(turn) for part in self.parts)

    def atoms(self) -> Iterator[Below]:
        for part in self.parts:
            yield from part.atoms()

    def __invert__(self) -> Guard:
        return all_of(~part for part in self.parts)


ALWAYS = AllOf()
NEVER = AnyOf()


def all_of(parts: Iterable[Guard]) -> Guard:
    """Build a conjunction, flattened and without repetitions; clauses that a part already decides are
    dropped."""
    flat: list[Guard] = []
    for part in parts:
        for item in part.parts if isinstance(part, AllOf) else (part,):
            if item not in flat:
                flat.append(item)
    kept: list[Guard] = []
    for item in flat:
        if isinstance(item, AnyOf):
            options = [o for o in item.parts if ~o not in flat]
            if any(option in flat for option in options):
                continue
            item = any_of(options)
        if item == NEVER or ~item in flat:
            return NEVER
        if item not in kept:
            kept.append(item)
    return kept[0] if len(kept) == 1 else AllOf(tuple(kept))


def any_of(parts: Iterable[Guard]) -> Guard:
    """Build a disjunction, flattened and without repetitions."""
    flat: list[Guard] = []
    for part in parts:
        for item in part.parts if isinstance(part, AnyOf) else (part,):
            if item == ALWAYS:
                return ALWAYS
            if item not in flat:
                flat.append(item)
    return flat[0] if len(flat) == 1 else AnyOf(tuple(flat))


def left(counter: str, limit: str | None = None, *, yes: str | None = None, no: str | None = None) -> Below:
    """Return the guard that ``counter`` is below ``limit`` (by default the limit of the counter's own
    name)."""
    noun = counter.replace("_", " ")
    if limit is not None and limit != counter:
        noun += f" ({limit.replace('_', ' ')})"
    return Below(counter, limit or counter, yes or f"{noun} left", no or f"no {noun} left")


# Lines, rungs, rows


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter of a turn. ``flag``: its limit is 1 by definition and rows test it as spent (the proofs
    unfold it into the graph). ``cap``: a second limit above the local budgets; termination is also proved
    without it.

    ``exhaustible``: the state that a spending row led to may find the supply exhausted, and lower the limit
    to the current count. No guard was evaluated since that row, no row resets such a counter, and no other is
    compared with its limit: so the turn equals one that had the lower limit from its first move.
    The proofs hold for every limit and do not depend on this field, which is in no digest."""

    name: str
    flag: bool = False
    cap: bool = False
    exhaustible: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Rung:
    """One remedy: its destination, its guard, the counters that it spends and resets. ``exit`` is the exit
    reason of a rung that leads to the final state."""

    name: str
    to: str
    needs: Guard = ALWAYS
    spends: tuple[str, ...] = ()
    resets: tuple[str, ...] = ()
    exit: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: in ``source``, on ``event``, take the first rung that is open. Every rung of the
    line that does not end the turn applies ``resets``."""

    source: str
    event: str
    ladder: tuple[Rung, ...]
    resets: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One plain transition, as the machine runs it and the proofs read it."""

    id: str
    source: str
    event: str
    dest: str
    guard: Guard
    rung: str
    spends: tuple[str, ...]
    resets: tuple[str, ...]
    exit: str | None
    why: str

    @property
    def conjuncts(self) -> tuple[Guard, ...]:
        """The guard as a list of conditions that must all hold; empty for an unconditional row."""
        return self.guard.parts if isinstance(self.guard, AllOf) else (self.guard,)


@dataclass(frozen=True)
class Inner:
    """The turns that a state runs and waits for: one of each of ``tables``, concurrently; with ``most``,
    turns of the only table, one per item of a list, and at most the outer turn's limit of that name."""

    tables: tuple[Table, ...]
    most: str = ""

    @property
    def exits(self) -> tuple[str, ...]:
        """The exit reasons of the tables, which are the events of the state."""
        return tuple(dict.fromkeys(row.exit for table in self.tables for row in table.rows if row.exit))

    @property
    def label(self) -> str:
        """The inner turns in words: ``review × chapters``."""
        return " and ".join(table.name for table in self.tables) + (f" × {self.most}" if self.most else "")


@dataclass(frozen=True)
class Table:
    """A whole machine: states, counters, lines, and the rows they expand to.

    ``states`` in reading order (the first is initial), ``final`` has no line. ``macros`` are (event, {state:
    exit}) pairs: lines that exist in many states and always end the turn. ``inner`` are the states that run
    other tables: the events of such a state are exactly the exits of those tables; among several
    turns, the first in the order of the lines counts, macros first. Raises ``TableError`` for unknown or
    repeated names. (Why: decision 101.)

    ``properties`` are claims about every turn (``fsm_agent.fsm.properties``). Neither they nor three other
    fields affect the digest or equality: ``layout`` places boxes and arrows in pictures,
    ``default_limits`` returns the limits used for figures in generated pages, and ``promises`` returns
    what ``fsm-agent verify`` should prove about a value that the rows do not contain."""

    name: str
    states: tuple[str, ...]
    final: str
    counters: tuple[Counter, ...]
    lines: tuple[Line, ...]
    macros: tuple[tuple[str, Mapping[str, str]], ...] = ()
    reset_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    layout: Layout | None = field(default=None, compare=False, repr=False)
    default_limits: Callable[[], Mapping[str, int]] | None = field(default=None, compare=False, repr=False)
    promises: Callable[[], Promises] | None = field(default=None, compare=False, repr=False)
    properties: tuple[Property, ...] = field(default=(), compare=False, repr=False)
    inner: Mapping[str, Inner] = field(default_factory=dict)
    rows: tuple[Row, ...] = field(init=False)
    by_event: Mapping[tuple[str, str], tuple[Row, ...]] = field(init=False)

    def __post_init__(self) -> None:
        lines = (*self.lines, *self._macro_lines())
        _check_names(self, lines)
        rows = tuple(row for line in lines for row in _expand(line))
        by_event: dict[tuple[str, str], tuple[Row, ...]] = {}
        for row in rows:
            by_event[row.source, row.event] = (*by_event.get((row.source, row.event), ()), row)
        if len({row.id for row in rows}) != len(rows):
            again = next(
                row.id for number, row in enumerate(rows) if row.id in {before.id for before in rows[:number]}
            )
            raise TableError(
                f"{self.name}: two rows have the id {again!r}; rename the event of one (ids are"
                " state.event/number)"
            )
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "by_event", by_event)
        object.__setattr__(self, "inner", dict(self.inner))
        _check_inner(self)
        for claimed in self.properties:
            claimed.check(self)
        if len({claimed.says for claimed in self.properties}) != len(self.properties):
            raise TableError(f"{self.name}: two properties say the same; let the sentence of one differ")

    @property
    def initial(self) -> str:
        """The state in which a turn begins."""
        return self.states[0]

    @property
    def is_macro(self) -> frozenset[str]:
        """The events that every state but the final one declares."""
        return frozenset(event for event, _ in self.macros)

    @property
    def exhaustible(self) -> frozenset[str]:
        """Counters whose limit a state may lower to the current count."""
        return frozenset(counter.name for counter in self.counters if counter.exhaustible)

    @property
    def within(self) -> Mapping[str, Table]:
        """The tables that its states run, at any depth, by name; inner tables precede those that run them."""
        found: dict[str, Table] = {}
        for table in (table for inner in self.inner.values() for table in inner.tables):
            found |= {**table.within, table.name: table}
        return found

    def events(self, state: str) -> tuple[str, ...]:
        """Return the events that ``state`` declares, macros last."""
        return tuple(event for source, event in self.by_event if source == state)

    def joined(self, state: str, exits: Iterable[str | None]) -> str:
        """Return the event of a state whose inner turns ended with these exits: the first in the order of
        lines, macros first; without any turn, the last line."""
        ended, possible = set(exits), self.inner[state].exits
        events = sorted(self.events(state), key=lambda event: event not in self.is_macro)
        return next((e for e in events if e in ended), [e for e in events if e in possible][-1])

    def row(self, row_id: str) -> Row:
        """Return the row with this id; raises ``KeyError`` if it does not exist."""
        for row in self.rows:
            if row.id == row_id:
                return row
        raise KeyError(row_id)

    def __hash__(self) -> int:
        """Hash fields that are cheap to compare; equal tables are equal in every field."""
        return hash((self.name, self.states, tuple(self.by_event)))

    @cached_property
    def digest(self) -> str:
        """A hash of everything that the proofs depend on; a cached verdict is valid only for the same
        digest."""
        text = repr((self.states, self.final, self.counters, self.rows))
        for state, inner in sorted(self.inner.items()):
            text += repr((state, [(table.name, table.digest) for table in inner.tables], inner.most))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def limit_names(self) -> frozenset[str]:
        """The limits that a turn of this table needs: those of guards and of inner tables."""
        inner = {one.most for one in self.inner.values() if one.most}
        return frozenset(inner.union(atom.limit for row in self.rows for atom in row.guard.atoms()))

    def _macro_lines(self) -> Iterator[Line]:
        for event, exits in self.macros:
            for state in self.states:
                if state in exits:
                    yield Line(state, event, (end(exits[state], self.final),), (), f"every state: {event}")


def go(state: str) -> Rung:
    """Return an unconditional move."""
    return Rung(f"→ {state}", state)


def end(exit_reason: str, final: str = "Finalize", *, when: Guard = ALWAYS) -> Rung:
    """Return a rung that ends the turn with this exit reason."""
    return Rung(f"⇥ {exit_reason}", final, needs=when, exit=exit_reason)


def runs(*tables: Table, most: str = "") -> Inner:
    """Declare the tables that a state runs: ``inner={"Review": runs(REVIEW)}``; see ``Inner``."""
    return Inner(tables, most)


def on(
    event: str, *ladder: Rung, resets: Iterable[str] = (), why: str
) -> tuple[str, tuple[Rung, ...], tuple[str, ...], str]:
    """Return one line inside a state's part of the table; see ``lines_of``."""
    return event, ladder, tuple(resets), why


def lines_of(
    parts: Mapping[str, Iterable[tuple[str, tuple[Rung, ...], tuple[str, ...], str]]],
) -> tuple[Line, ...]:
    """Flatten ``{state: [on(...), ...]}`` to lines, in order."""
    return tuple(Line(state, *part) for state, lines in parts.items() for part in lines)


def _expand(line: Line) -> Iterator[Row]:
    passed: Guard = ALWAYS
    for number, rung in enumerate(line.ladder, 1):
        suffix = f"/{number}" if len(line.ladder) > 1 else ""
        resets = rung.resets if rung.exit else tuple(dict.fromkeys((*line.resets, *rung.resets)))
        yield Row(
            id=f"{line.source}.{line.event}{suffix}",
            source=line.source,
            event=line.event,
            dest=rung.to,
            guard=all_of((passed, rung.needs)),
            rung=rung.name,
            spends=rung.spends,
            resets=resets,
            exit=rung.exit,
            why=line.why,
        )
        passed = all_of((passed, ~rung.needs))


def _check_names(table: Table, lines: tuple[Line, ...]) -> None:
    states, counters = set(table.states), {counter.name for counter in table.counters}
    if twice := next((state for state in table.states if table.states.count(state) > 1), None):
        raise TableError(f"{table.name}: states must be distinct; given twice: {twice!r}")
    if table.final not in states:
        raise TableError(
            f"{table.name}: the final state {table.final!r} is not one of the states; there are"
            f" {', '.join(table.states)}"
        )
    if table.initial == table.final:
        raise TableError(
            f"{table.name}: the first state is where a turn begins, so it cannot be the final state"
            f" {table.final!r}"
        )
    if len(counters) != len(table.counters):
        raise TableError(
            f"{table.name}: counters must be distinct:"
            f" {', '.join(counter.name for counter in table.counters)}"
        )
    for event, exits in table.macros:
        if wrong := sorted(set(exits) - states):
            raise TableError(
                f"{table.name}: {event} has exits of states that do not exist: {', '.join(wrong)}"
            )
    seen: set[tuple[str, str]] = set()
    for line in lines:
        where = f"{table.name}: {line.source}.{line.event}"
        if line.source not in states or line.source == table.final:
            raise TableError(
                f"{where}: {line.source!r} is not a state that can be left; states: {', '.join(table.states)}"
            )
        if (line.source, line.event) in seen:
            raise TableError(f"{where}: two lines for the same event; merge their ladders")
        if not line.ladder:
            raise TableError(f"{where}: the ladder has no rung")
        seen.add((line.source, line.event))
        for rung in line.ladder:
            _check_guard(f"{where}: rung {rung.name!r}", rung.needs)
            if rung.to not in states:
                raise TableError(
                    f"{where}: rung {rung.name!r} leads to unknown state {rung.to!r}; there are"
                    f" {', '.join(table.states)}"
                )
            if (rung.to == table.final) != (rung.exit is not None):
                raise TableError(
                    f"{where}: rung {rung.name!r}: exactly the rungs to {table.final} carry an exit reason"
                )
            named = [*rung.spends, *rung.resets, *line.resets, *(atom.counter for atom in rung.needs.atoms())]
            flags = {counter.name for counter in table.counters if counter.flag}
            borrowed = sorted(
                {
                    atom.limit
                    for atom in rung.needs.atoms()
                    if atom.limit in flags and atom.counter != atom.limit
                }
            )
            if borrowed:
                raise TableError(
                    f"{where}: rung {rung.name!r} compares another counter with the flag(s)"
                    f" {', '.join(borrowed)}"
                )
            unknown = sorted(set(named) - counters)
            if unknown:
                raise TableError(
                    f"{where}: rung {rung.name!r} names unknown counter(s) {', '.join(unknown)}; there are"
                    f" {', '.join(sorted(counters)) or 'none: counters=(Counter(…), …)'}"
                )
    _check_exhaustible(table, lines)


def _check_inner(table: Table) -> None:
    known: dict[str, Table] = {table.name: table}
    for state, inner in table.inner.items():
        where = f"{table.name}: {state}"
        if state not in table.states or state == table.final:
            allowed = ", ".join(one for one in table.states if one != table.final)
            raise TableError(f"{where} cannot run tables; given: {state}; allowed: {allowed}")
        if not inner.tables or (inner.most and len(inner.tables) > 1):
            given = ", ".join(one.name for one in inner.tables) or "none"
            raise TableError(f"{where} runs tables; given: {given}; allowed: some, or one with most=LIMIT")
        for one in (one for outer in inner.tables for one in (outer, *outer.within.values())):
            if known.setdefault(one.name, one) is not one and known[one.name] != one:
                allowed = f"a name that no other table in {table.name} has, nor it itself"
                raise TableError(
                    f"{where} runs a table of a name that is taken; given: {one.name}; allowed: {allowed}"
                )
        events, own = set(table.events(state)), table.is_macro | {CRASHED}
        for what, names in (
            ("has no line for an exit of what it runs", set(inner.exits) - events),
            ("has a line for what no table that it runs ends with", events - own - set(inner.exits)),
        ):
            if names:
                raise TableError(
                    f"{where} {what}; given: {', '.join(sorted(names))}; allowed: {', '.join(inner.exits)}"
                )


def _check_guard(where: str, guard: Guard) -> None:
    """Refuse objects that only look like guards: the proofs read a guard's parts, and the machine evaluates
    it."""
    if type(guard) not in (Below, Spent, AllOf, AnyOf):
        raise TableError(
            f"{where}: a guard of type {type(guard).__name__} cannot be proved; build it from left(), ~,"
            " all_of, any_of"
        )
    for part in guard.parts if isinstance(guard, AllOf | AnyOf) else ():
        _check_guard(where, part)
    if isinstance(guard, Spent):
        _check_guard(where, guard.atom)


def _check_exhaustible(table: Table, lines: Iterable[Line]) -> None:
    rungs = [(line, rung) for line in lines for rung in line.ladder]
    reset = {counter for line, rung in rungs for counter in (*line.resets, *rung.resets)}
    compared = {(atom.counter, atom.limit) for _, rung in rungs for atom in rung.needs.atoms()}
    for name in table.exhaustible:
        shared = any((counter == name) != (limit == name) for counter, limit in compared)
        flag = any(counter.name == name and counter.flag for counter in table.counters)
        if name in reset or shared or flag:
            raise TableError(
                f"{table.name}: counter {name!r} is exhaustible, so it must be no flag, no row may reset it,"
                " and it and the limit of its name may be compared only with each other"
            )
