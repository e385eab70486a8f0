"""The language of properties: claims about every turn of a table, in sentences that can be proved, and
monitored while a turn runs.

A property is about **moves**. ``row``, ``event``, ``enters``, ``leaves``, ``rung``, ``exits``, ``spends``
and ``resets`` select them by their rows, ``where`` by the counters just before them; ``&``, ``|``
and ``~`` combine them. There are four kinds of sentences:

>>> never("Nothing runs after an interrupt.", enters("Ship"), after=event("cancelled")).label
'never enters Ship after event cancelled'
>>> eventually("Who paid gets it.", row("Ship.done", "Refund.done"), after=row("Charge.done")).label
'after row Charge.done, row Ship.done or Refund.done before the end'
>>> at_most("Few retries an act.", "tries", spends("tries"), since=resets("tries")).label
'at most tries spends tries since resets tries'
>>> only_if("Unpaid goods never ship.", enters("Ship"), row("Charge.done"), since=enters("Refund")).label
'enters Ship only if row Charge.done since enters Refund'

A move is judged by what was **before** it, and counts afterwards; the start of a turn is before all moves.
``fsm_agent.fsm.verify.properties`` proves properties, ``Monitor`` monitors them.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from types import MappingProxyType
from typing import Any, Literal

from fsm_agent.errors import PropertyBroken, TableError
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.table import AllOf, AnyOf, Below, Counted, Guard, Row, Spent, Table

log = logging.getLogger(__name__)

Watch = Literal["off", "warn", "stop"]
"""The reaction to a broken property: nothing, a warning in the log, or the end of the turn as ``crashed``."""
Watcher = Callable[[Row], PropertyBroken | None]
"""Called before a move; returns a reason to forbid it."""
Holds = Callable[[Below], bool]
"""Returns whether a comparison held just before a move."""

BROKEN = -1
"""The memory of a property that this turn has broken."""
WORDS = {"id": "row", "dest": "enters", "source": "leaves", "exit": "exits"}
"""Words of the language for the fields of a row whose names differ."""


# Moves


class Moves(ABC):
    """Some of the moves that a turn can make."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The description of these moves."""

    @abstractmethod
    def has(self, row: Row, holds: Holds) -> bool:
        """Return whether a move by ``row`` is one of them."""

    def parts(self) -> Iterator[Moves]:
        """Yield these moves and all their parts."""
        yield self

    def __and__(self, other: Moves) -> Moves:
        return JoinedMoves((self, other), every=True)

    def __or__(self, other: Moves) -> Moves:
        return JoinedMoves((self, other), every=False)

    def __invert__(self) -> Moves:
        return OtherMoves(self)


@dataclass(frozen=True)
class NamedMoves(Moves):
    """Moves by rows that have one of ``names`` in a ``field``."""

    field: Literal["id", "source", "event", "dest", "rung", "exit", "spends", "resets"]
    names: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{WORDS.get(self.field, self.field)} {' or '.join(self.names)}"

    def has(self, row: Row, holds: Holds) -> bool:
        value = getattr(row, self.field)
        return value in self.names if not isinstance(value, tuple) else any(n in value for n in self.names)


@dataclass(frozen=True)
class GuardedMoves(Moves):
    """Moves before which a guard was open."""

    guard: Guard

    @property
    def label(self) -> str:
        return f"where {self.guard.label}"

    def has(self, row: Row, holds: Holds) -> bool:
        return _open(self.guard, holds)


@dataclass(frozen=True)
class JoinedMoves(Moves):
    """Moves that are in every part, or in at least one."""

    members: tuple[Moves, ...]
    every: bool

    @property
    def label(self) -> str:
        word = " and " if self.every else " or "
        if not self.members:
            return "anything" if self.every else "nothing"
        return word.join(f"({m.label})" if isinstance(m, JoinedMoves) else m.label for m in self.members)

    def has(self, row: Row, holds: Holds) -> bool:
        return (all if self.every else any)(member.has(row, holds) for member in self.members)

    def parts(self) -> Iterator[Moves]:
        for member in self.members:
            yield from member.parts()


@dataclass(frozen=True)
class OtherMoves(Moves):
    """All moves except those of ``member``."""

    member: Moves

    @property
    def label(self) -> str:
        return f"not ({self.member.label})"

    def has(self, row: Row, holds: Holds) -> bool:
        return not self.member.has(row, holds)

    def parts(self) -> Iterator[Moves]:
        yield from self.member.parts()


NOTHING = JoinedMoves((), every=False)


def row(*ids: str) -> Moves:
    """Moves by these rows."""
    return NamedMoves("id", ids)


def event(*names: str) -> Moves:
    """Moves on these events, in any state."""
    return NamedMoves("event", names)


def enters(*states: str) -> Moves:
    """Moves to these states, including from themselves. Every move that ends a turn enters the final
    state."""
    return NamedMoves("dest", states)


def leaves(*states: str) -> Moves:
    """Moves from these states, including to themselves."""
    return NamedMoves("source", states)


def rung(*names: str) -> Moves:
    """Moves by rungs of these names, on any line."""
    return NamedMoves("rung", names)


def exits(*reasons: str) -> Moves:
    """Moves that end a turn with these exit reasons."""
    return NamedMoves("exit", reasons)


def spends(*counters: str) -> Moves:
    """Moves that spend at least one of these counters."""
    return NamedMoves("spends", counters)


def resets(*counters: str) -> Moves:
    """Moves that reset at least one of these counters."""
    return NamedMoves("resets", counters)


def where(guard: Guard) -> Moves:
    """Moves before which ``guard`` was open: ``where(~left("attempts"))``."""
    return GuardedMoves(guard)


# Sentences


@dataclass(frozen=True, kw_only=True)
class Property(ABC):
    """A claim about every turn: ``says`` is the sentence for people, ``label`` its exact meaning. ``known``:
    why it does not hold, if its counterexample should be shown and not fixed.

    As an automaton it remembers one number: ``start`` before the first move, then the result of ``step``."""

    says: str
    known: str = ""

    @property
    @abstractmethod
    def label(self) -> str:
        """The claim in the words of the language."""

    @property
    @abstractmethod
    def watched(self) -> tuple[Moves, ...]:
        """The selections of moves that the claim refers to."""

    @property
    @abstractmethod
    def start(self) -> int:
        """The memory before the first move."""

    @abstractmethod
    def step(self, memory: int, seen: Sequence[bool], ends: bool, most: int) -> int:
        """Return the memory after a move, or ``BROKEN``. ``seen`` says which of ``watched`` the move belongs
        to, ``ends`` whether it ends the turn; ``most`` is the value of the limit that ``limit`` names."""

    @property
    def limit(self) -> str | None:
        """The name of the limit in the claim, if any."""
        return None

    def atoms(self) -> tuple[Below, ...]:
        """Return the comparisons that the claim reads, each once."""
        guards = (
            part.guard for moves in self.watched for part in moves.parts() if isinstance(part, GuardedMoves)
        )
        return tuple({(a.counter, a.limit): a for guard in guards for a in guard.atoms()}.values())

    def sees(self, row: Row, holds: Holds) -> tuple[bool, ...]:
        """Return for each of ``watched`` whether a move by ``row`` belongs to it."""
        return tuple(moves.has(row, holds) for moves in self.watched)

    def check(self, table: Table) -> None:
        """Raise ``TableError`` for a name that is not in the table."""
        counters = [counter.name for counter in table.counters]
        limits = list(dict.fromkeys(atom.limit for one in table.rows for atom in one.guard.atoms()))
        known: dict[str, Collection[str]] = {
            "id": [one.id for one in table.rows],
            "event": dict.fromkeys(one.event for one in table.rows),
            "rung": dict.fromkeys(one.rung for one in table.rows),
            "exit": dict.fromkeys(one.exit for one in table.rows if one.exit),
            **dict.fromkeys(("source", "dest"), table.states),
            **dict.fromkeys(("spends", "resets"), counters),
        }
        named = [part for moves in self.watched for part in moves.parts() if isinstance(part, NamedMoves)]
        for part in named:
            self._refuse(table, WORDS.get(part.field, part.field), part.names, known[part.field])
        self._refuse(table, "counter", (atom.counter for atom in self.atoms()), counters)
        asked = [atom.limit for atom in self.atoms()] + ([self.limit] if self.limit else [])
        self._refuse(table, "limit", asked, limits)

    def _refuse(self, table: Table, what: str, given: Iterable[str], known: Collection[str]) -> None:
        if wrong := next((name for name in given if name not in known), None):
            raise TableError(
                f"{table.name}: the property {self.says!r} names {what} {wrong!r}, which the table does not"
                f" have; there are {', '.join(known) or 'none'}"
            )


@dataclass(frozen=True, kw_only=True)
class NeverProperty(Property):
    """``moves`` are forbidden after ``after``, until ``until``; ``begins``: whether they are forbidden at the
    start."""

    moves: Moves
    after: Moves = NOTHING
    until: Moves = NOTHING
    begins: bool = True

    @property
    def label(self) -> str:
        after = "" if self.after == NOTHING else self.after.label
        if self.begins and self.until != NOTHING:
            since = f" since {after}" if after else ""
            return f"{self.moves.label} only if {self.until.label}{since}"
        until = "" if self.until == NOTHING else f" until {self.until.label}"
        return f"never {self.moves.label}{f' after {after}' if after else ''}{until}"

    @property
    def watched(self) -> tuple[Moves, ...]:
        return self.moves, self.until, self.after

    @property
    def start(self) -> int:
        return int(self.begins)

    def step(self, memory: int, seen: Sequence[bool], ends: bool, most: int) -> int:
        forbidden, lifted, imposed = seen
        return BROKEN if memory and forbidden else 1 if imposed else 0 if lifted else memory


@dataclass(frozen=True, kw_only=True)
class EventuallyProperty(Property):
    """One of ``moves`` is due after ``after``, or from the start if ``begins``, and must be made by the end
    of the turn; the move that ends it counts."""

    moves: Moves
    after: Moves = NOTHING
    begins: bool = False

    @property
    def label(self) -> str:
        return (
            f"after {self.after.label}, " if not self.begins else ""
        ) + f"{self.moves.label} before the end"

    @property
    def watched(self) -> tuple[Moves, ...]:
        return self.moves, self.after

    @property
    def start(self) -> int:
        return int(self.begins)

    def step(self, memory: int, seen: Sequence[bool], ends: bool, most: int) -> int:
        done, owed = seen
        memory = 1 if owed else 0 if done else memory
        return BROKEN if ends and memory else memory


@dataclass(frozen=True, kw_only=True)
class AtMostProperty(Property):
    """At most ``times`` of ``moves``, a number or the name of a limit, since the last of ``since``."""

    times: int | str
    moves: Moves
    since: Moves = NOTHING

    @property
    def label(self) -> str:
        since = "" if self.since == NOTHING else f" since {self.since.label}"
        return f"at most {self.times} {self.moves.label}{since}"

    @property
    def watched(self) -> tuple[Moves, ...]:
        return self.moves, self.since

    @property
    def start(self) -> int:
        return 0

    @property
    def limit(self) -> str | None:
        return self.times if isinstance(self.times, str) else None

    def step(self, memory: int, seen: Sequence[bool], ends: bool, most: int) -> int:
        counted, again = seen
        memory = (0 if again else memory) + counted
        return BROKEN if memory > (most if isinstance(self.times, str) else self.times) else memory


def never(
    says: str, moves: Moves, *, after: Moves | None = None, until: Moves | None = None, known: str = ""
) -> Property:
    """No move of ``moves`` is made: at all, or after one of ``after``; a move of ``until`` lifts the ban."""
    begins = after is None
    return NeverProperty(
        says=says, known=known, moves=moves, after=after or NOTHING, until=until or NOTHING, begins=begins
    )


def only_if(
    says: str, moves: Moves, before: Moves, *, since: Moves | None = None, known: str = ""
) -> Property:
    """Before each move of ``moves`` there was one of ``before``, and no ``since`` after it. A move that is
    both ``before`` and ``since`` counts as ``since``."""
    return NeverProperty(says=says, known=known, moves=moves, after=since or NOTHING, until=before)


def eventually(says: str, moves: Moves, *, after: Moves | None = None, known: str = "") -> Property:
    """Every turn makes a move of ``moves``; with ``after``, one after each move of ``after``. The move that
    ends the turn counts."""
    return EventuallyProperty(
        says=says, known=known, moves=moves, after=after or NOTHING, begins=after is None
    )


def at_most(
    says: str, times: int | str, moves: Moves, *, since: Moves | None = None, known: str = ""
) -> Property:
    """A turn makes at most ``times`` of ``moves``; with ``since``, counted again from each of these, itself
    included. ``times``: a number from 0 to 1,000, or the name of a limit. Raises ``TableError``."""
    if not isinstance(times, str) and (isinstance(times, bool) or not 0 <= times <= MOST_TIMES):
        raise TableError(
            f"the property {says!r} is about at most {times} moves; allowed are 0 to {MOST_TIMES:,} and names"
            " of limits"
        )
    return AtMostProperty(says=says, known=known, times=times, moves=moves, since=since or NOTHING)


MOST_TIMES = 1_000


# Watching


class Monitor:
    """Monitors the properties of a table over the moves of one turn. ``broken``: the properties that the turn
    has broken, in that order; a broken property is no longer monitored."""

    def __init__(self, table: Table, turn: Counted) -> None:
        self._table, self._turn = table, turn
        self._memory = [watched.start for watched in table.properties]
        self.broken: list[Property] = []

    def sees(self, row: Row) -> tuple[Property, ...]:
        """Record the move by ``row`` that is about to be made, while the turn still has its old
        counters. Return the properties that it breaks."""
        return self._sees(row, self._turn)

    def replay(self, steps: Iterable[Step]) -> list[Property]:
        """Record moves already made, from the start of the turn. Return the properties broken so far. Rows of
        another version of the table are skipped."""
        past, rows = _Past(self._turn), {one.id: one for one in self._table.rows}
        for step in steps:
            past.counts.update((counter, before) for counter, before, _ in step.changes)
            if step.row in rows:
                self._sees(rows[step.row], past)
            past.counts.update((counter, after) for counter, _, after in step.changes)
        return self.broken

    def _sees(self, row: Row, turn: Counted) -> tuple[Property, ...]:
        broken = []
        for place, watched in enumerate(self._table.properties):
            if (memory := self._memory[place]) == BROKEN:
                continue
            most = turn.limit(watched.limit) if watched.limit else 0
            seen = watched.sees(row, lambda atom: atom.holds(turn))
            self._memory[place] = watched.step(memory, seen, row.exit is not None, most)
            broken += [watched] if self._memory[place] == BROKEN else []
        self.broken += broken
        return tuple(broken)


def watcher(table: Table, turn: Counted, watch: Watch, steps: Iterable[Step] = ()) -> Watcher | None:
    """Return the check that a runner calls before each move of ``turn``. It logs a line for each property
    that the move breaks; with ``watch="stop"`` it returns the reason to take ``crashed`` instead. ``steps``
    are the moves already made. Return ``None`` when there is nothing to watch."""
    if watch == "off" or not table.properties:
        return None
    monitor = Monitor(table, turn)
    monitor.replay(steps)

    def watching(taken: Row) -> PropertyBroken | None:
        broken = monitor.sees(taken)
        for claimed in broken:
            log.warning("%s: %s breaks a property: %s", table.name, taken.id, claimed.says)
        return PropertyBroken(broken[0].says) if broken and watch == "stop" else None

    return watching


@dataclass
class _Past:
    """The counters of a turn at an earlier move."""

    turn: Counted
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, counter: str) -> int:
        return self.counts.get(counter, 0)

    def limit(self, name: str) -> int:
        return self.turn.limit(name)


def _open(guard: Guard, holds: Holds) -> bool:
    match guard:
        case Below():
            return holds(guard)
        case Spent(atom=atom):
            return not holds(atom)
        case AllOf(parts=parts):
            return all(_open(part, holds) for part in parts)
        case AnyOf(parts=parts):
            return any(_open(part, holds) for part in parts)
    raise TableError(
        f"a guard of type {type(guard).__name__} cannot be watched; build it from left(), ~, all_of, any_of"
    )


# ----------------------------------------------------------------------------------------------------
# Promises about a value that the turns of a table carry and its rows do not contain, as data.
#
# A table counts; it does not see a transcript, a basket or a lock. ``Promises`` describe such a value in
# small abstract terms: its state at the start of a turn, what a visit of a state may do to it, and what must
# hold where. A ``Table`` takes them as ``promises``, and ``fsm-agent verify`` proves them by induction over
# the table, for every setting (``fsm_agent.fsm.verify.properties``). Tests have to show that the states do
# what is declared: ``Promises.allowed`` returns the permitted results.


SAME: Any = ...
"""In a change: the field may keep its value."""

Change = Mapping[str, tuple[Any, ...]]
"""All values that each changed field may have afterwards; a field without an entry keeps its value."""


def may(**fields: tuple[Any, ...]) -> Change:
    """Make a change: ``may(tail=(SAME, "user"), open=(False,))``; ``may()`` changes nothing."""
    return MappingProxyType(fields)


@dataclass(frozen=True, slots=True)
class VisitChange:
    """What a visit of ``state`` that ends with one of ``events`` may do: one of ``changes``.

    ``events``: empty means all events of the state; the visit of the final state ends with ``""``. ``after``:
    applies only when the row that led to the state spent one of these counters, is of one of these lines
    (``"State.event"``), or ends the turn with one of these reasons."""

    state: str
    changes: tuple[Change, ...]
    events: tuple[str, ...] = ()
    after: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Demand:
    """What must hold of every value with which ``state`` is entered, or, for the state ``""``, after the
    visit of the final state. ``what`` describes it, as the end of "it must be that …"."""

    state: str
    what: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class Promises:
    """All promises about one value. ``name``: the claim, as a line among the checks. ``starts``: the values
    with which a turn can begin, frozen dataclasses of one class. The first matching entry of ``visits``
    applies."""

    name: str
    starts: tuple[Any, ...]
    visits: tuple[VisitChange, ...]
    demands: tuple[Demand, ...]

    def visit(self, came: frozenset[str], state: str, event: str) -> VisitChange | None:
        """Return the declaration of a visit, or ``None``. ``came``: see ``words``."""
        return next(
            (
                one
                for one in self.visits
                if one.state == state
                and (not one.events or event in one.events)
                and (not one.after or one.after & came)
            ),
            None,
        )

    def words(self, row: Row | None) -> frozenset[str]:
        """Return the words of ``after`` that are true of a row; empty before the first row."""
        if row is None:
            return frozenset()
        known = frozenset[str]().union(*(one.after for one in self.visits))
        return known & {*row.spends, f"{row.source}.{row.event}", row.exit or ""}

    def allowed(self, came: Row | None, state: str, event: str, value: Any) -> frozenset[Any]:
        """Return the values that a visit may leave; empty without a declaration. ``came``: the row that led
        to the state."""
        found = self.visit(self.words(came), state, event)
        return frozenset(results(found, value)) if found else frozenset()


def results(visit: VisitChange, value: Any) -> Iterator[Any]:
    """Yield the values that a visit may turn a value into, possibly with repetitions."""
    for change in visit.changes:
        for chosen in product(*change.values()):
            fields = {name: to for name, to in zip(change, chosen, strict=True) if to is not SAME}
            yield replace(value, **fields) if fields else value
