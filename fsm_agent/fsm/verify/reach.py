"""The (state, counters) pairs that turns reach under given limits: exact search, small limits under which it
is possible, and a model for spin.

A pair is a tuple of ints: the index of the state, then one count for each counter. A count stops at the
largest limit it is compared with: above it no guard can tell the difference, and even a table whose counters
grow without bound has finitely many pairs. Exact search checks formulas and rankings independently: it knows
nothing of locations or covers. At the default limits of a real table there are far too many pairs; then only
the formulas apply."""

# A bound is exact only if a run reaches it. Exact search cannot handle the default limits. So a run is
# constructed step by step from the value of each remaining budget, and a test drives the real machine along
# it. A bound that no run reaches prints as `upper`. A row that small scopes miss is searched for in larger
# ones before it is reported dead.

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import AllOf, AnyOf, Below, Guard, Row, Spent, Table

SECONDS = 20.0
"""The default time limit of a report; the turn's takes two seconds."""
MOST_PAIRS = 600_000
"""Maximum pairs of an exact search; a few seconds and a quarter of a gigabyte."""
SMALL = 5_000
"""Maximum pairs of one small scope; 20 ms."""
MOST_TRIES = 80
MOST_TOO_LARGE = 12
"""Number of consecutive scopes with too many pairs after which no more are tried."""
CAP, KEPT = 24, 6
"""Roomy limits of caps, and of counters that no row resets."""

Pair = tuple[int, ...]
Moves = Callable[[Pair], list[tuple[int, Pair]]]
GuardWords = tuple[str, str, str, str, str]
"""Not, and, or, true, false in another language."""
PYTHON: GuardWords = ("not ", "and", "or", "True", "False")
PROMELA: GuardWords = ("!", "&&", "||", "true", "false")


class TimeLimit:
    """``seconds`` from now: of processor time, so that a busy machine finds as much, or of another ``clock``.
    ``tell`` is called with the current step in a few words. Raises ``ConfigError`` for a negative time."""

    def __init__(
        self,
        seconds: float,
        tell: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not seconds >= 0:
            raise ConfigError("the time for a report is out of range", seconds, "0 seconds or more")
        self.seconds, self.tell, self._clock = seconds, tell, clock or time.process_time
        self._ends = self._clock() + seconds

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return self._clock() >= self._ends

    def share(self, of: float) -> TimeLimit:
        """Return a limit of a part of the remaining time: a half for ``of=2``."""
        left = max(self._ends - self._clock(), 0.0)
        return TimeLimit(left / of, self.tell, self._clock)


def endless() -> TimeLimit:
    """Return a time limit that never ends."""
    return TimeLimit(inf)


# The names of limits


def limit_names(table: Table) -> tuple[str, ...]:
    """Return the limits that the guards of a table read, in reading order, without flags: their limit is 1 by
    definition."""
    flags = {counter.name for counter in table.counters if counter.flag}
    atoms = (atom for row in table.rows for atom in row.guard.atoms())
    return tuple(dict.fromkeys(atom.limit for atom in atoms if atom.counter not in flags))


def all_limit_names(table: Table) -> tuple[str, ...]:
    """Return ``limit_names``, the limits on how many inner turns a state runs at once, and the limits of
    inner tables as ``table.limit``."""
    names = [*limit_names(table), *(inner.most for inner in table.inner.values() if inner.most)]
    for one in table.within.values():
        names += [name if "." in name else f"{one.name}.{name}" for name in all_limit_names(one)]
    return tuple(dict.fromkeys(names))


def inner_limits(table: Table, limits: Mapping[str, int] | None) -> Mapping[str, int] | None:
    """Select the limits of an inner table from those of the outer one, under its own names."""
    names = all_limit_names(table)
    return limits and {name: limits[name if "." in name else f"{table.name}.{name}"] for name in names}


def with_flags(table: Table, limits: Mapping[str, int]) -> dict[str, int]:
    """Return the limits with those of flags, which are 1."""
    return dict(limits) | {counter.name: 1 for counter in table.counters if counter.flag}


def largest_limits(table: Table, limits: Mapping[str, int]) -> dict[str, int]:
    """Return the largest limit that each counter is compared with: 0 for one without a comparison, 1 for a
    flag."""
    numbers = with_flags(table, limits)
    largest = {counter.name: int(counter.flag) for counter in table.counters}
    for row in table.rows:
        for atom in row.guard.atoms():
            largest[atom.counter] = max(largest[atom.counter], numbers[atom.limit])
    return largest


# Moves from a pair


def compile_moves(table: Table, limits: Mapping[str, int], *, caps: bool = True) -> tuple[Pair, Moves]:
    """Return the first pair of a turn, and a function that returns the rows open in a pair: their numbers in
    ``table.rows`` and the pairs they lead to. With ``caps=False`` guards on caps are open and caps stay 0.
    Raises ``KeyError`` for a missing limit; flags need none."""
    numbers, largest = with_flags(table, limits), largest_limits(table, limits)
    names = {counter.name: f"c{number}" for number, counter in enumerate(table.counters)}
    ignored = {counter.name for counter in table.counters if counter.cap and not caps}

    def atom(at: Below) -> str:
        return "True" if at.counter in ignored else f"{names[at.counter]} < {numbers[at.limit]}"

    def target(row: Row) -> str:
        counts = [str(table.states.index(row.dest))]
        for counter, name in names.items():
            before = "0" if counter in row.resets or counter in ignored else name
            spent = counter in row.spends and counter not in ignored
            counts.append(f"min({before} + 1, {largest[counter]})" if spent else before)
        return f"({', '.join(counts)},)"

    lines = ["def moves(pair):", f"    s{''.join(f', {name}' for name in names.values())}, = pair"]
    lines.append("    out = []")
    for number, state in enumerate(table.states):
        lines.append(f"    {'el' if number else ''}if s == {number}:")
        for at, row in enumerate(table.rows):
            if row.source == state:
                test = guard_source(row.guard, atom, PYTHON)
                lines.append(f"        if {test}: out.append(({at}, {target(row)}))")
        lines.append("        pass")
    source = "\n".join([*lines, "    return out"])
    space: dict[str, Any] = {}
    exec(compile(source, f"<{table.name} moves>", "exec"), {}, space)  # noqa: S102 - our own text
    return (0,) * (1 + len(names)), space["moves"]


def guard_source(guard: Guard, atom: Callable[[Below], str], words: GuardWords) -> str:
    """Return a guard as an expression of another language. ``atom`` writes a comparison."""
    negation, conjunction, disjunction, always, never = words
    match guard:
        case Below():
            return atom(guard)
        case Spent(atom=inner):
            return f"{negation}({atom(inner)})"
        case AllOf(parts=parts) | AnyOf(parts=parts):
            every = isinstance(guard, AllOf)
            inside = [f"({guard_source(part, atom, words)})" for part in parts]
            return f" {conjunction if every else disjunction} ".join(inside) or (always if every else never)
    raise AssertionError(f"{guard!r}: a table takes no such guard")


# Exact search


class Search:
    """The result of an exact search: the reachable ``pairs`` in the order of discovery, without those of the
    final state, and the ids of the rows ``taken`` somewhere. The moves from ``pairs[i]`` are those from
    ``starts[i]`` to ``starts[i + 1]``: for each the number of its row in ``rows``, and in ``after`` the index
    of the pair it leads to, -1 for the end of the turn."""

    def __init__(
        self, table: Table, pairs: list[Pair], starts: array[int], rows: array[int], after: array[int]
    ) -> None:
        self.table, self.pairs = table, pairs
        self.taken = frozenset(table.rows[number].id for number in set(rows))
        self._starts, self._rows, self._after = starts, rows, after
        self._order = self._topological()
        self._known: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}

    @property
    def ends(self) -> bool:
        """Whether every run ends."""
        return len(self._order) == len(self.pairs)

    def moves(self, here: int) -> Iterator[tuple[Row, int]]:
        """Yield the rows that are open in ``pairs[here]``, and the indices of the pairs they lead to (-1: the
        end)."""
        for move in range(self._starts[here], self._starts[here + 1]):
            yield self.table.rows[self._rows[move]], self._after[move]

    def most_visits(self, states: Iterable[str] | None = None) -> int:
        """Return the largest number of visits of ``states`` in one run; of moves when ``states`` is None."""
        start = states is not None and self.table.initial in (states := tuple(states))
        return start + self._most(self._visits(states))[0][0]

    def most_spent(self, counter: str) -> int:
        """Return the largest number of rows in one run that spend ``counter``."""
        return self._most(tuple(int(counter in row.spends) for row in self.table.rows))[0][0]

    def worst_run(self, states: Iterable[str] | None = None) -> tuple[Row, ...]:
        """Return the rows of a run that has ``most_visits``, to the end of the turn."""
        best = self._most(self._visits(states))[1]
        run: list[Row] = []
        here = 0
        while here >= 0 and best[here] >= 0:
            run.append(self.table.rows[self._rows[best[here]]])
            here = self._after[best[here]]
        return tuple(run)

    def _visits(self, states: Iterable[str] | None) -> tuple[int, ...]:
        wanted = None if states is None else set(states) - {self.table.final}
        return tuple(int(wanted is None or row.dest in wanted) for row in self.table.rows)

    def _most(self, gains: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """Return for each pair the largest sum of ``gains`` from there on, and the first move of such a run
        (-1: none is open); a move that ends the turn wins ties."""
        if not self.ends:
            raise ValueError("a run can be endless; no longest run exists")
        if gains not in self._known:
            most, best = [0] * len(self.pairs), [-1] * len(self.pairs)
            for here in reversed(self._order):
                key = -1, False
                for move in range(self._starts[here], self._starts[here + 1]):
                    after = self._after[move]
                    found = gains[self._rows[move]] + (most[after] if after >= 0 else 0), after < 0
                    if found > key:
                        key, best[here] = found, move
                most[here] = max(key[0], 0)
            self._known[gains] = most, best
        return self._known[gains]

    def _topological(self) -> list[int]:
        """Return the indices of pairs so that every move leads to a later one; pairs on or behind a cycle are
        missing."""
        waiting = [0] * len(self.pairs)
        for after in self._after:
            if after >= 0:
                waiting[after] += 1
        order = [index for index, count in enumerate(waiting) if not count]
        for here in order:
            for after in self._after[self._starts[here] : self._starts[here + 1]]:
                if after >= 0:
                    waiting[after] -= 1
                    if not waiting[after]:
                        order.append(after)
        return order


def search(
    table: Table, limits: Mapping[str, int], *, caps: bool = False, most_pairs: int = MOST_PAIRS
) -> Search | None:
    """Search all pairs of ``table`` under ``limits``; None when there are more than ``most_pairs``."""
    start, moves = compile_moves(table, limits, caps=caps)
    known, pairs, final = {start: 0}, [start], table.states.index(table.final)
    starts, rows, onward = array("l", [0]), array("l"), array("l")
    for pair in pairs:
        for row, after in moves(pair):
            rows.append(row)
            if after[0] == final:
                onward.append(-1)
                continue
            index = known.get(after)
            if index is None:
                index = known[after] = len(pairs)
                pairs.append(after)
            onward.append(index)
        starts.append(len(rows))
        if len(pairs) > most_pairs:
            return None
    return Search(table, pairs, starts, rows, onward)


# Small scopes


@dataclass(frozen=True, slots=True)
class Scope:
    """One configuration and the result of its exact search."""

    limits: dict[str, int]
    caps: bool
    found: Search


def small_scopes(
    table: Table, most_pairs: int = SMALL, within: TimeLimit | None = None
) -> tuple[tuple[Scope, ...], tuple[Row, ...]]:
    """Return the scopes searched, and the rows that none of them takes. The same table yields the same
    scopes, unless time is over.

    Each scope aims at one row that is not yet taken: a limit that its guard needs spent is 0 (or 1 at times,
    so that it has to be spent first), one that it needs left is 1 or 2, the rest is random. Scopes with too
    many pairs are skipped."""
    chance = random.Random(0)  # noqa: S311 - reproducible, not secret
    scopes: list[Scope] = []
    waiting = list(table.rows)
    too_large, within = 0, within or endless()
    for _ in range(MOST_TRIES):
        if not waiting or too_large == MOST_TOO_LARGE or within.over:
            break
        limits, caps = _aim_at(waiting[0], table, chance)
        found = search(table, limits, caps=caps, most_pairs=most_pairs)
        waiting.append(waiting.pop(0))
        too_large += 1
        if found is not None:
            too_large = 0
            scopes.append(Scope(limits, caps, found))
            waiting = [row for row in waiting if row.id not in found.taken]
    missed = {row.id for row in waiting}
    return tuple(scopes), tuple(row for row in table.rows if row.id in missed)


def roomy_limits(table: Table) -> dict[str, int]:
    """Return limits that leave most rows in reach of a short run: a few units of what is never reset, one or
    two of the rest. Several limits of one counter differ."""
    reset = {counter for row in table.rows for counter in row.resets}
    caps = {counter.name for counter in table.counters if counter.cap}
    limits: dict[str, int] = {}
    used: dict[str, int] = {}
    for atom in (atom for row in table.rows for atom in row.guard.atoms()):
        if atom.limit in limit_names(table) and atom.limit not in limits:
            used[atom.counter] = used.get(atom.counter, 0) + 1
            base = CAP if atom.counter in caps else 2 if atom.counter in reset else KEPT
            limits[atom.limit] = base + used[atom.counter] - 1
    return limits


def random_limits(table: Table, row: Row, seed: int) -> dict[str, int]:
    """Return random small limits under which ``row`` should be reachable and open; the same seed yields the
    same limits."""
    limits, caps = _aim_at(row, table, random.Random(seed))  # noqa: S311 - reproducible, not secret
    return limits if caps else limits | {counter.name: CAP for counter in table.counters if counter.cap}


def _aim_at(row: Row, table: Table, chance: random.Random) -> tuple[dict[str, int], bool]:
    names = limit_names(table)
    caps = {counter.name for counter in table.counters if counter.cap}
    limits = {name: chance.choice((0, 0, 1, 1, 2)) for name in names}
    with_caps = any(atom.counter in caps for atom in _spent_demands(row.guard)) or chance.random() < 0.25
    limits |= {atom.limit: 1 + chance.randrange(2) for atom in row.guard.atoms() if atom.limit in limits}
    limits |= {
        atom.limit: chance.choice((0, 0, 1)) for atom in _spent_demands(row.guard) if atom.limit in limits
    }
    return limits, with_caps


def _spent_demands(guard: Guard) -> Iterator[Below]:
    """Yield the budgets that ``guard`` requires to be spent."""
    if isinstance(guard, Spent):
        yield guard.atom
    elif isinstance(guard, AllOf | AnyOf):
        for part in guard.parts:
            yield from _spent_demands(part)


# A model for spin

STATES_OF_THE_END = 2
"""Promela's states of a process behind its loop, and of one that has exited."""
BYTE, SHORT = 255, 32_767
"""The largest numbers of Promela's unsigned byte and signed short."""


def promela(table: Table, limits: Mapping[str, int], *, caps: bool = True) -> str:
    """Return the model of ``table`` under ``limits`` (flags need none), as Promela text. With ``caps=False``
    the caps are taken away, as in exact search. Raises ``KeyError`` for a limit that is not given.

    One process, one loop, one option for each row. An option is one indivisible step, so spin stores one
    state for each (state, counters) pair, and ``STATES_OF_THE_END`` more: all turns end with the same
    counters. A pair in which no row is open is an invalid end state, an endless turn a non-progress cycle.

        spin -a turn.pml && gcc -O2 -o pan pan.c && ./pan -m10000000            # states, stuck pairs
        spin -a turn.pml && gcc -O2 -DNP -o pan pan.c && ./pan -l -m10000000    # cycles
    """
    return _PromelaModel(table, limits, caps).text()


class _PromelaModel:
    def __init__(self, table: Table, limits: Mapping[str, int], caps: bool) -> None:
        self.table = table
        self.limits = dict(limits) | {counter.name: 1 for counter in table.counters if counter.flag}
        self.counters = [counter.name for counter in table.counters if caps or not counter.cap]
        largest = largest_limits(table, limits)
        self.largest = {counter: largest[counter] for counter in self.counters}

    def text(self) -> str:
        return "\n".join(
            [*self._head(), "active proctype turn() {", "  do", *self._options(), "  od", "}", ""]
        )

    def _head(self) -> Iterator[str]:
        yield f"/* table {self.table.name} ({self.table.digest}), written by fsm-agent verify --promela"
        yield f"   limits: {', '.join(f'{name} {value}' for name, value in self.limits.items())} */"
        yield ""
        for number, state in enumerate(self.table.states):
            yield f"#define {_state(state)} {number}"
        yield ""
        yield f"byte state = {_state(self.table.initial)};"
        for counter in self.counters:
            largest = self.largest[counter]
            kind = "byte" if largest <= BYTE else "short" if largest <= SHORT else "int"
            yield f"{kind} {_count(counter)} = 0;"
        yield ""

    def _options(self) -> Iterator[str]:
        for row in self.table.rows:
            kind, after = ("atomic", "; break") if row.dest == self.table.final else ("d_step", "")
            test = f"state == {_state(row.source)} && {self._test(row.guard)}"
            yield f"  :: {kind} {{ {test} -> {'; '.join(self._does(row))}{after} }}"

    def _does(self, row: Row) -> Iterator[str]:
        """Return the effect of a row; at the end all counters are 0, so that all turns share one end
        state."""
        ends = row.dest == self.table.final
        for counter in self.counters:
            name, largest = _count(counter), self.largest[counter]
            if ends:
                yield f"{name} = 0"
            elif counter in row.spends:
                before = "0" if counter in row.resets else name
                yield f"{name} = ({before} < {largest} -> {before} + 1 : {largest})"
            elif counter in row.resets:
                yield f"{name} = 0"
        yield f"state = {_state(row.dest)}"

    def _test(self, guard: Guard) -> str:
        def atom(at: Below) -> str:
            return f"{_count(at.counter)} < {self.limits[at.limit]}" if at.counter in self.largest else "true"

        text = guard_source(guard, atom, PROMELA)
        return f"({text})" if isinstance(guard, AnyOf) else text


def _state(name: str) -> str:
    return f"AT_{name}"


def _count(counter: str) -> str:
    return f"n_{counter}"
