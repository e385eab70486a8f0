"""Compiles a table, for given limits, to a Python function that gives the successors of a (state, counters)
pair.

A pair is a tuple of ints: the index of the state, then one count for each counter. Rows that do the same
(same destination, same counters) are one branch, rows to the final state are left out. A count stays at the
largest limit it is compared with: above it no guard can tell the difference, and a table whose counters run
away still has finitely many pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fsm_agent.fsm.table import AllOf, AnyOf, Below, Guard, Row, Spent, Table

Pair = tuple[int, ...]
PYTHON = ("not ", "and", "or", "True", "False")


@dataclass(frozen=True)
class Compiled:
    """``successors(pair)`` and, for each row, ``opens[row.id](pair)``. ``start`` is the first pair of a turn,
    ``largest`` the largest limit that each counter is compared with."""

    table: Table
    largest: Mapping[str, int]
    start: Pair
    successors: Callable[[Pair], list[Pair]]
    opens: Mapping[str, Callable[[Pair], bool]]

    def apply(self, row: Row, pair: Pair) -> Pair:
        """The pair to which ``row`` leads."""
        counts = dict(zip(self.largest, pair[1:], strict=True))
        counts |= {counter: 0 for counter in row.resets if counter in counts}
        counts |= {
            counter: min(counts[counter] + 1, self.largest[counter])
            for counter in row.spends
            if counter in counts
        }
        return (self.table.states.index(row.dest), *counts.values())


def compile_table(table: Table, limits: Mapping[str, int], *, caps: bool = False) -> Compiled:
    """Compile ``table`` for ``limits`` (flags need none, theirs is 1). With ``caps=False`` the caps are taken
    away: their guards are open and they are not counted. Raises ``KeyError`` for a limit that is not
    given."""
    counters = tuple(counter.name for counter in table.counters if caps or not counter.cap)
    numbers = dict(limits) | {counter.name: 1 for counter in table.counters if counter.flag}
    writer = _Writer(table, counters, numbers)
    unpack = f"    s{''.join(f', {writer.name(counter)}' for counter in counters)}, = pair"
    lines = ["def successors(pair):", unpack, "    out = []"]
    for number, state in enumerate(table.states):
        lines += [f"    {'el' if number else ''}if s == {number}:", *writer.branches(state), "        pass"]
    lines += ["    return out"]
    for number, row in enumerate(table.rows):
        lines += [f"def row_{number}(pair):", unpack, f"    return {writer.test(row.guard)}"]
    space = _run(table, lines)
    opens = {row.id: space[f"row_{number}"] for number, row in enumerate(table.rows)}
    return Compiled(table, writer.largest, (0,) * (1 + len(counters)), space["successors"], opens)


Moves = Callable[[Pair], list[tuple[int, Pair]]]


def compile_moves(table: Table, limits: Mapping[str, int], *, caps: bool = True) -> tuple[Pair, Moves]:
    """The first pair of a turn, and a function that gives for a pair the rows that are open in it: their
    numbers in ``table.rows`` and the pairs they lead to. As ``compile_table``, but rows are kept apart, final
    ones are included and caps have a place in the pair; with ``caps=False`` their guards are open."""
    counters = tuple(counter.name for counter in table.counters)
    writer = _Writer(
        table, counters, dict(limits) | {counter.name: 1 for counter in table.counters if counter.flag}
    )
    writer.tested = frozenset(counter.name for counter in table.counters if caps or not counter.cap)
    writer.largest |= {
        counter.name: 1 for counter in table.counters if counter.flag
    }  # a location tells all flags apart
    lines = [
        "def moves(pair):",
        f"    s{''.join(f', {writer.name(counter)}' for counter in counters)}, = pair",
        "    out = []",
    ]
    for number, state in enumerate(table.states):
        lines.append(f"    {'el' if number else ''}if s == {number}:")
        for at, row in enumerate(table.rows):
            if row.source == state:
                lines.append(f"        if {writer.test(row.guard)}: out.append(({at}, {writer.target(row)}))")
        lines.append("        pass")
    moves: Moves = _run(table, [*lines, "    return out"])["moves"]
    return (0,) * (1 + len(counters)), moves


def largest_limits(table: Table, limits: Mapping[str, int]) -> dict[str, int]:
    """The largest limit that each counter is compared with; 0 for one that is not. A flag's limit is 1."""
    numbers = dict(limits) | {counter.name: 1 for counter in table.counters if counter.flag}
    largest = {counter.name: 0 for counter in table.counters}
    for row in table.rows:
        for atom in row.guard.atoms():
            largest[atom.counter] = max(largest[atom.counter], numbers[atom.limit])
    return largest


def _run(table: Table, lines: list[str]) -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(compile("\n".join(lines), f"<{table.name} successors>", "exec"), {}, space)  # noqa: S102 - our own text
    return space


def guard_source(guard: Guard, atom: Callable[[Below], str], words: tuple[str, str, str, str, str]) -> str:
    """Return a guard as an expression of another language. ``atom`` writes a comparison, ``words`` are that
    language's not, and, or, true, false."""
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


class _Writer:
    """Writes guards and rows as Python source; the counter number i is the variable ``ci``."""

    def __init__(self, table: Table, counters: tuple[str, ...], limits: Mapping[str, int]) -> None:
        self.table, self.counters, self.limits = table, counters, limits
        self.tested = frozenset(counters)
        every = largest_limits(table, limits)
        self.largest = {counter: every[counter] for counter in counters}

    def name(self, counter: str) -> str:
        return f"c{self.counters.index(counter)}"

    def test(self, guard: Guard) -> str:
        def atom(at: Below) -> str:
            return (
                f"{self.name(at.counter)} < {self.limits[at.limit]}" if at.counter in self.tested else "True"
            )

        return guard_source(guard, atom, PYTHON)

    def branches(self, state: str) -> list[str]:
        tests: dict[str, list[str]] = {}
        for row in self.table.rows:
            if row.source == state and row.dest != self.table.final:
                tests.setdefault(self.target(row), []).append(f"({self.test(row.guard)})")
        return [
            f"        if {' or '.join(dict.fromkeys(guards))}: out.append({to})"
            for to, guards in tests.items()
        ]

    def target(self, row: Row) -> str:
        counts = [str(self.table.states.index(row.dest))]
        for counter in self.counters:
            name, largest = self.name(counter), self.largest[counter]
            before = "0" if counter in row.resets else name
            counts.append(f"min({before} + 1, {largest})" if counter in row.spends else before)
        return f"({', '.join(counts)},)"
