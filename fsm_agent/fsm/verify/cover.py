"""Scripts that cover a table: runs from the start of a turn to its end that take every row, or every pair of
rows.

A random walk over a table hardly leaves the neighborhood of its start: rows behind spent budgets are never
taken. Therefore these scripts are searched for. Breadth-first search finds the shortest runs and, if it
visits all pairs of state and counters, also proves which rows no run takes. Behind budgets of many units
there are far too many pairs; there a best-first search looks for one goal at a time. A script is a value:
drive a ``Machine`` with its events, or let a scripted model make the real states report them.

>>> from fsm_agent.fsm.table import Table, end, go, lines_of, on
>>> parts = {"A": [on("on", go("B"), why=""), on("stop", end("no", "C"), why="")]}
>>> parts |= {"B": [on("stop", end("yes", "C"), why="")]}
>>> [script.events for script in row_scripts(Table("t", ("A", "B", "C"), "C", (), lines_of(parts)))]
[('on', 'stop'), ('stop',)]"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fsm_agent.fsm.proof import line_truths, unfold
from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.verify.goals import Aim, Box, Goal, Heuristic, Needs, meets, pair_goals, ranges, row_goals
from fsm_agent.fsm.verify.reach import Pair, TimeLimit, compile_moves, endless, random_limits, roomy_limits

NEAR = 4_000
"""Maximum pairs of the search near the start; half a second."""
FAR = 4_000
"""Maximum pairs of the search for one goal. The turn's attempts (360) are spent after 750."""
PRICE = 1_000
"""Cost of a whole budget. It makes a unit of a small budget more expensive than one of a large budget."""

Run = tuple[int, ...]
"""Numbers of rows, from the start of a turn."""
Came = dict[Pair, tuple[Pair, int] | None]


class Paths:
    """Runs of one table under ``limits``; results for one goal are reused for the others. Searches stop
    when time is over."""

    def __init__(self, table: Table, limits: Mapping[str, int], within: TimeLimit | None = None) -> None:
        self.table, self.limits, self._within = table, limits, within or endless()
        self.all_limits = dict(limits) | {counter.name: 1 for counter in table.counters if counter.flag}
        self.graph = unfold(table, line_truths(table), caps=True)
        self.complete = False
        self._start, moves = compile_moves(table, limits)
        self._final = table.states.index(table.final)
        self._known: dict[Pair, list[tuple[int, Pair]]] = {}
        self._moves_of = moves
        self._names = [counter.name for counter in table.counters]
        self._heuristic = Heuristic(self.graph, limits)
        self._ranges = ranges(self.graph, limits)
        self._endings: dict[Pair, Run] = {}
        self._macro = {number for number, row in enumerate(table.rows) if row.event in table.is_macro}

    def moves(self, pair: Pair) -> list[tuple[int, Pair]]:
        """Return the moves that are open at a pair: the row's number, and the pair that it leads to."""
        found = self._known.get(pair)
        if found is None:
            found = self._known[pair] = self._moves_of(pair)
        return found

    def find(self, goals: Iterable[Goal]) -> dict[Aim, Run]:
        """Return a run up to and including the goal for each goal that was found, by the ids of the goal's
        rows."""
        number = {row.id: at for at, row in enumerate(self.table.rows)}
        wanted = {tuple(number[row.id] for row in goal.rows): goal for goal in goals if self.possible(goal)}
        found = self._near(wanted.keys())
        for rows, goal in wanted.items():
            if rows not in found and not self.complete and not self._within.over:
                self._far(rows, goal, found, wanted.keys())
        return {goal.aim: found[rows] for rows, goal in wanted.items() if rows in found}

    def ending(self, run: Run) -> Run:
        """Return the fewest rows from the end of ``run`` to the end of the turn; macro rows only if there is
        no other way."""
        pair = self._start
        for row in run:
            pair = dict(self.moves(pair))[row]
        if pair not in self._endings:
            found = self._shortest_end(pair, self._macro)
            self._endings[pair] = self._shortest_end(pair, set()) or () if found is None else found
        return self._endings[pair]

    def possible(self, goal: Goal) -> list[Box]:
        """Return the boxes of a goal that the ranges of counts do not exclude."""
        places = zip(self.graph.locations, self._ranges, strict=True)
        here = [counts for location, counts in places if location.state == goal.state]
        return [box for box in goal.boxes if any(meets(box, counts) for counts in here)]

    def _near(self, wanted: Iterable[Run]) -> dict[Run, Run]:
        wanted, found = set(wanted), dict[Run, Run]()
        prev: Came = {self._start: None}
        pairs = [self._start]
        for pair in pairs:
            if len(pairs) > NEAR or not wanted - found.keys():
                break
            self._take(pair, prev, pairs, wanted, found)
        else:
            self.complete = True
        return found

    def _far(self, rows: Run, goal: Goal, found: dict[Run, Run], wanted: Iterable[Run]) -> None:
        """Search best first for ``goal``; other goals met on the way are kept too.

        Of the pairs that differ only in counters that the goal does not name, the search continues with the
        one that has spent least: of these counters, then of all. When both fail, which is rare, it takes all
        pairs."""
        wanted = set(wanted) - found.keys()
        needs = [self._heuristic.needs(goal.state, box) for box in self.possible(goal)]
        named = {counter for box in goal.boxes for counter in box} | self.graph.flags
        named_places = [0, *(place for place, name in enumerate(self._names, 1) if name in named)]
        prices = [
            (at, PRICE // self.limits[name])
            for at, name in enumerate(self._names, 1)
            if self.limits.get(name)
        ]
        unnamed = [price for price in prices if price[0] not in named_places]
        every = range(1 + len(self._names))
        for kept, saved in ((named_places, unnamed), (named_places, prices), (every, unnamed)):
            if rows not in found:
                self._best_first(rows, needs, kept, saved, found, wanted)

    def _best_first(
        self,
        rows: Run,
        needs: list[Needs],
        kept: Sequence[int],
        prices: list[tuple[int, int]],
        found: dict[Run, Run],
        wanted: set[Run],
    ) -> None:
        """``kept``: the places of a pair that distinguish it from others; ``prices``: (place, price) of the
        counters to save."""
        prev: Came = {self._start: None}
        new, cheapest = [self._start], dict[tuple[int, ...], int]()
        waiting: list[tuple[int, int, int, Pair]] = []
        for count in range(FAR):
            for pair in new:
                same = tuple([pair[place] for place in kept])
                cost = sum(pair[place] * price for place, price in prices)
                if cost < cheapest.get(same, cost + 1):
                    cheapest[same] = cost
                    guesses = [
                        guess
                        for guess in (self._heuristic.guess(pair, box) for box in needs)
                        if guess is not None
                    ]
                    if guesses:
                        heapq.heappush(waiting, (min(guesses), cost, -count, pair))
            if not waiting or rows in found or self._within.over:
                return
            new = []
            self._take(heapq.heappop(waiting)[3], prev, new, wanted, found)

    def _take(self, pair: Pair, prev: Came, new: list[Pair], wanted: set[Run], found: dict[Run, Run]) -> None:
        """Record the goals that start in ``pair``, and add the pairs that it leads to."""
        for row, after in self.moves(pair):
            goals = (
                [(row,), *((row, second) for second, _ in self.moves(after))]
                if after[0] != self._final
                else [(row,)]
            )
            for goal in goals:
                if goal in wanted and goal not in found:
                    found[goal] = (*_way(prev, pair), *goal)
            if after not in prev and after[0] != self._final:
                prev[after] = (pair, row)
                new.append(after)

    def _shortest_end(self, pair: Pair, without: set[int]) -> Run | None:
        prev: Came = {pair: None}
        pairs = [pair]
        for here in pairs:
            if len(pairs) > NEAR:
                break
            if here[0] == self._final:
                return _way(prev, here)
            for row, after in self.moves(here):
                if row not in without and after not in prev:
                    prev[after] = (here, row)
                    pairs.append(after)
        return None

    def rows(self, run: Run) -> tuple[Row, ...]:
        return tuple(self.table.rows[number] for number in run)


def _way(prev: Came, pair: Pair) -> Run:
    rows = []
    step = prev[pair]
    while step is not None:
        pair, row = step
        rows.append(row)
        step = prev[pair]
    return tuple(reversed(rows))


MOST_DRAWN = 12
"""Maximum configurations tried for rows that the roomy one does not reach."""


@dataclass(frozen=True)
class Script:
    """One run of a table under ``limits``, from its initial state to its final one.

    ``rows`` in the order in which they are taken; the same events from the start take the same rows.
    ``limits`` has a number for every limit that a guard reads, flags included. ``aim`` are the ids of the one
    row or two consecutive rows that the run is for; the first ``reached`` rows end with them, the others only
    bring the turn to its end."""

    rows: tuple[Row, ...]
    limits: Mapping[str, int]
    aim: tuple[str, ...]
    reached: int

    @property
    def name(self) -> str:
        """The aim in words; distinct for each script of one call, so that it can name a test."""
        return " then ".join(self.aim)

    @property
    def events(self) -> tuple[str, ...]:
        return tuple(row.event for row in self.rows)

    @property
    def states(self) -> tuple[str, ...]:
        """The states visited, the initial one first."""
        return (self.rows[0].source, *(row.dest for row in self.rows))

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The ids of every two consecutive rows."""
        return tuple(pairwise(row.id for row in self.rows))


@dataclass(frozen=True)
class Cover:
    """The result of a search for scripts. ``missed`` are the aims (ids of rows) without a script, although
    nothing proves that no run takes them: the search gave up. Aims that are proved unreachable are in neither
    field."""

    scripts: tuple[Script, ...]
    missed: tuple[Aim, ...]


def row_scripts(table: Table, limits: Mapping[str, int] | None = None) -> list[Script]:
    """Return a few short scripts that together take every row that can be taken under ``limits``.

    Without ``limits`` small ones are chosen, several if one configuration does not reach every row; each
    script contains the limits that it needs. Raises ``KeyError`` for a limit that is not given (flags need
    none)."""
    return list(cover(table, limits, pairs=False).scripts)


def pair_scripts(table: Table, limits: Mapping[str, int] | None = None) -> list[Script]:
    """Return scripts that together take every two rows that can follow each other under ``limits``; otherwise
    as ``row_scripts``."""
    return list(cover(table, limits, pairs=True).scripts)


def cover(
    table: Table, limits: Mapping[str, int] | None = None, *, pairs: bool, within: TimeLimit | None = None
) -> Cover:
    """Return the scripts of ``row_scripts`` or ``pair_scripts``, and the aims that were missed or for which
    there was no time."""
    within = within or endless()
    scripts: list[Script] = []
    covered: set[Aim] = set()
    missed: dict[Aim, None] = {}
    for chosen in [limits] if limits is not None else _configurations(table, covered):
        paths = Paths(table, chosen, within)
        runs = _runs(paths, pairs, covered)
        for script in _few(paths, runs):
            if within.over:
                break
            scripts.append(script)
            covered |= _aims_of(script)
        if not paths.complete or within.over:
            missed |= dict.fromkeys(goal.aim for goal in _goals(paths, pairs) if paths.possible(goal))
    return Cover(tuple(scripts), tuple(aim for aim in missed if aim not in covered))


def _runs(paths: Paths, pairs: bool, covered: set[Aim]) -> dict[Aim, Run]:
    """Return a run for each aim that is not ``covered`` and was found; for pairs also for rows that are in no
    pair."""
    if not pairs:
        return paths.find(goal for goal in _goals(paths, False) if goal.aim not in covered)
    rows = paths.find(_goals(paths, False))
    known = (
        goal
        for goal in _goals(paths, True)
        if goal.aim not in covered and all((row.id,) in rows for row in goal.rows)
    )
    runs = paths.find(known)
    paired = {row for aim in runs for row in aim}
    return runs | {aim: run for aim, run in rows.items() if aim[0] not in paired and aim not in covered}


def _goals(paths: Paths, pairs: bool) -> Iterable[Goal]:
    return pair_goals(paths.graph, paths.limits) if pairs else row_goals(paths.table, paths.limits)


def _aims_of(script: Script) -> set[Aim]:
    return {(row.id,) for row in script.rows} | set(script.pairs)


def _few(paths: Paths, runs: Mapping[Aim, Run]) -> Iterator[Script]:
    """Yield scripts for ``runs``, without those whose aim another one covers. Runs that end the turn are
    needed anyway, so they come first, the longest before the others, because they cover most."""
    final = paths.table.final
    covered: set[Aim] = set()
    for aim, run in sorted(
        runs.items(), key=lambda item: (paths.table.row(item[0][-1]).dest != final, -len(item[1]))
    ):
        if aim not in covered:
            script = Script(paths.rows((*run, *paths.ending(run))), paths.all_limits, aim, len(run))
            covered |= _aims_of(script)
            yield script


def _configurations(table: Table, covered: set[Aim]) -> Iterator[Mapping[str, int]]:
    """Yield limits to try: roomy ones, then some in which a row that is still missing should be open."""
    yield roomy_limits(table)
    for number in range(MOST_DRAWN):
        missing = [row for row in table.rows if (row.id,) not in covered]
        if not missing:
            return
        yield random_limits(table, missing[number % len(missing)], number)
