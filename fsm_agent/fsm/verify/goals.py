"""The goals of searches for runs, and the distance of a (state, counters) pair from a goal.

A goal is a row or two consecutive rows, as ranges of counts in one state. An interval analysis of the graph
proves that no run reaches many of the goals; the intervals may be too wide, never too narrow. For the rest
the heuristic estimates the distance: the units missing from the goal's counts, then the steps to the next row
that spends one of them. A counter that cannot be spent without a reset of another one has to be spent first;
until then the other one counts as untouched. The estimate decides how fast a run is found, never which runs
exist; only "cannot be reached any more" (None) is a fact, read off the graph of locations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fsm_agent.fsm.proof import Edge, Graph, bits, reach
from fsm_agent.fsm.table import AllOf, AnyOf, Below, Guard, Row, Spent, Table
from fsm_agent.fsm.verify.reach import Pair

Box = Mapping[str, tuple[int, int | None]]
"""(at least, below) for some counters; below None means no upper limit. Other counters may have any count."""

Aim = tuple[str, ...]
"""The ids of one row, or of two consecutive rows."""


@dataclass(frozen=True, slots=True)
class Goal:
    """To take ``rows``, one after the other. That is possible in the source of the first one wherever the
    counts are in one of ``boxes``; without a box it never is."""

    rows: tuple[Row, ...]
    boxes: tuple[Box, ...]

    @property
    def state(self) -> str:
        """The state in which the rows begin."""
        return self.rows[0].source

    @property
    def aim(self) -> Aim:
        """The ids of the rows."""
        return tuple(row.id for row in self.rows)


def row_goals(table: Table, limits: Mapping[str, int]) -> Iterator[Goal]:
    """Yield a goal for each row of a table."""
    for row in table.rows:
        yield _goal(table, (row,), limits)


def pair_goals(graph: Graph, limits: Mapping[str, int]) -> Iterator[Goal]:
    """Yield a goal for each two consecutive rows in some location of ``graph`` (unfolded with caps)."""
    leaving: dict[int, list[Row]] = {}
    for edge in graph.edges:
        leaving.setdefault(edge.source, []).append(edge.row)
    seen: set[tuple[str, str]] = set()
    for edge in graph.edges:
        for row in leaving.get(edge.dest, ()):
            if (edge.row.id, row.id) not in seen:
                seen.add((edge.row.id, row.id))
                yield _goal(graph.table, (edge.row, row), limits)


def _goal(table: Table, rows: tuple[Row, ...], limits: Mapping[str, int]) -> Goal:
    limits = dict(limits) | {counter.name: 1 for counter in table.counters if counter.flag}
    wanted: list[Box] = [{}]
    for row in reversed(rows):
        after = [box for box in (_before(box, row) for box in wanted) if box is not None]
        wanted = list(intersect(after, boxes(row.guard, limits)))
    return Goal(rows, tuple(wanted))


def boxes(guard: Guard, limits: Mapping[str, int]) -> list[Box]:
    """Return the counts for which ``guard`` holds."""
    match guard:
        case Below(counter=counter, limit=limit):
            return [{counter: (0, limits[limit])}] if limits[limit] > 0 else []
        case Spent(atom=atom):
            return [{atom.counter: (limits[atom.limit], None)}]
        case AllOf(parts=parts):
            found: list[Box] = [{}]
            for part in parts:
                found = list(intersect(found, boxes(part, limits)))
            return found
        case AnyOf(parts=parts):
            return [box for part in parts for box in boxes(part, limits)]
    raise AssertionError(f"{guard!r}: a table takes no such guard")


def intersect(some: Iterable[Box], others: Iterable[Box]) -> Iterator[Box]:
    """Yield the nonempty intersections of a box of each."""
    others = tuple(others)
    for one in some:
        for other in others:
            both = dict(one)
            for counter, (least, below) in other.items():
                least_too, below_too = both.get(counter, (0, None))
                ends = [end for end in (below, below_too) if end is not None]
                both[counter] = (max(least, least_too), min(ends) if ends else None)
            if all(below is None or least < below for least, below in both.values()):
                yield both


def _before(box: Box, row: Row) -> Box | None:
    """Return the counts from which ``row`` leads into ``box``; None when there are none."""
    earlier: dict[str, tuple[int, int | None]] = {}
    for counter, (least, below) in box.items():
        spent = counter in row.spends
        if counter in row.resets:
            if not (least <= spent and (below is None or spent < below)):
                return None
            continue
        if spent:
            least, below = max(0, least - 1), None if below is None else below - 1
        if below is not None and below <= least:
            return None
        earlier[counter] = (least, below)
    return earlier


Ranges = Mapping[str, tuple[int, int]]
"""The least and the largest count of each counter."""
STEADY = 3
"""Times that a range may grow before it is widened to its maximum."""


def ranges(graph: Graph, limits: Mapping[str, int]) -> list[Ranges | None]:
    """Return the ranges of each location of ``graph`` (unfolded with caps), in a turn that starts with all
    counters at 0; ``None`` for an unreachable location.

    Counts stop at the largest limit that their counter is compared with, as in ``compile_moves``.
    """
    limits = dict(limits) | dict.fromkeys(graph.flags, 1)
    most = {counter.name: 0 for counter in graph.table.counters}
    for row in graph.table.rows:
        for atom in row.guard.atoms():
            most[atom.counter] = max(most[atom.counter], limits[atom.limit])
    leaving: dict[int, list[tuple[Row, int]]] = {}
    for edge in graph.edges:
        leaving.setdefault(edge.source, []).append((edge.row, edge.dest))
    wanted = {row.id: boxes(row.guard, limits) for row in graph.table.rows}
    found: list[Ranges | None] = [None for _ in graph.locations]
    found[0] = dict.fromkeys(most, (0, 0))
    grown = [0] * len(graph.locations)
    todo = [0]
    while todo:
        here = todo.pop()
        now = found[here]
        assert now is not None, "only locations that were reached are gone through"
        for row, dest in leaving.get(here, ()):
            for box in wanted[row.id]:
                after = _after(now, box, row, most)
                if after is None:
                    continue
                wider = _wider(found[dest], after, most, steady=grown[dest] >= STEADY)
                if wider != found[dest]:
                    found[dest] = wider
                    grown[dest] += 1
                    todo.append(dest)
    return found


def meets(box: Box, here: Ranges | None) -> bool:
    """Return whether the counts of a location can be in ``box``. Without counters, boxes are
    unconstrained."""
    return here is not None and next(intersect([box], [as_box(here)]), None) is not None


def as_box(here: Ranges) -> Box:
    """Convert ranges, which include their ends, to a box, which excludes its upper ends."""
    return {counter: (least, largest + 1) for counter, (least, largest) in here.items()}


def _after(before: Ranges, box: Box, row: Row, most: Mapping[str, int]) -> Ranges | None:
    """Return the ranges that ``row`` leads to when the counts are in ``box``; None when they cannot be."""
    open_at = next(intersect([box], [as_box(before)]), None)
    if open_at is None:
        return None
    after = {}
    for counter, (least, below) in open_at.items():
        assert below is not None
        low, high = (0, 0) if counter in row.resets else (least, below - 1)
        step = counter in row.spends
        after[counter] = (min(low + step, most[counter]), min(high + step, most[counter]))
    return after


def _wider(known: Ranges | None, more: Ranges, most: Mapping[str, int], *, steady: bool) -> Ranges:
    """Return ranges that contain both; with ``steady``, a range that still grows is widened to its
    maximum."""
    if known is None:
        return more
    both = {}
    for counter, (least, largest) in known.items():
        low, high = more[counter]
        both[counter] = (
            least if low >= least else 0 if steady else low,
            largest if high <= largest else most[counter] if steady else high,
        )
    return both


Distances = list[int | None]


@dataclass(frozen=True, slots=True)
class Way:
    """Rows that spend a counter: the steps to them from each location, and the budgets that they also spend,
    as (place in a pair, limit, steps to a row that resets it)."""

    steps: Distances
    budgets: tuple[tuple[int, int, Distances], ...]

    def length(self, pair: Pair, here: int) -> int | None:
        """Return the steps to these rows, or to the resets that must come before they are open; None when
        nothing helps."""
        away = self.steps[here]
        for place, limit, back in self.budgets:
            if pair[place] >= limit:
                steps = back[here]
                if steps is None or away is None:
                    return None
                away = max(away, steps + 1)
        return away


@dataclass(frozen=True, slots=True)
class Need:
    """One counter of a box: its place in a pair, the wanted range, the ways to spend it, and the steps to a
    row that resets it. ``first`` are the (place, least) of the counters to be spent before it, ``kept`` the
    locations from which the goal can be reached without a reset of it: elsewhere its count is worthless."""

    place: int
    least: int
    below: int | None
    ways: tuple[Way, ...]
    reset: Distances
    first: tuple[tuple[int, int], ...]
    kept: int

    def missing(self, pair: Pair, here: int) -> tuple[int, int | None]:
        """Return the missing units, and the steps to the next row that helps: -1 when this counter has to
        wait, None when nothing helps."""
        if self.below is not None and pair[self.place] >= self.below:
            return 1, self.reset[here]
        if not self.least:
            return 0, -1
        if any(pair[place] < least for place, least in self.first):
            return self.least, -1 if any(way.steps[here] is not None for way in self.ways) else None
        count = pair[self.place] if self.kept >> here & 1 else 0
        if count >= self.least:
            return 0, -1
        lengths = (way.length(pair, here) for way in self.ways)
        return self.least - count, min((length for length in lengths if length is not None), default=None)


Needs = tuple[Distances, list[Need]]
"""The steps to the locations of a box, and the needs of its counters."""


class Heuristic:
    """Estimates for one graph, unfolded with caps, under ``limits``."""

    def __init__(self, graph: Graph, limits: Mapping[str, int]) -> None:
        self.graph, self.limits = graph, limits
        counters = [counter.name for counter in graph.table.counters]
        self._place = {name: number for number, name in enumerate(counters, 1)}
        self._flags = [(self._place[name], name) for name in counters if name in graph.flags]
        self._number = {(loc.state, loc.flags): number for number, loc in enumerate(graph.locations)}
        self._spending = {
            name: [e for e in graph.edges if any(name == c for c, _ in e.spends)] for name in counters
        }
        self._orders: dict[tuple[str, str, int], tuple[bool, bool]] = {}
        self._keeping: dict[tuple[str, int], int] = {}
        self._without_reset: dict[str, dict[int, int]] = {}
        self._known: dict[int, Distances] = {}
        self._behind: dict[int, int] = {}
        for edge in graph.edges:
            self._behind[edge.dest] = self._behind.get(edge.dest, 0) | 1 << edge.source
        self._far = len(graph.locations) + 1

    def location(self, pair: Pair) -> int:
        """Return the number of the location that a pair is in."""
        flags = frozenset(name for place, name in self._flags if pair[place])
        return self._number[self.graph.table.states[pair[0]], flags]

    def needs(self, state: str, box: Box) -> Needs:
        """Return the steps to a location of ``state`` that fits ``box``, and the counters to be brought into
        range."""
        there = self._fitting(state, box)
        return self._steps(there), self._box_needs(box, there)

    def guess(self, pair: Pair, needs: Needs) -> int | None:
        """Estimate the distance of ``pair`` from the box; None when the box cannot be reached from there."""
        here = self.location(pair)
        steps = needs[0][here]
        if steps is None:
            return None
        missing, near = 0, -1
        for need in needs[1]:
            lacks, way = need.missing(pair, here)
            if way is None:
                return None
            missing += lacks
            near = way if near < 0 else near if way < 0 else min(near, way)
        return missing * self._far + (steps if near < 0 else near)

    def _box_needs(self, box: Box, there: int) -> list[Need]:
        wanted = {
            c: ends
            for c, ends in box.items()
            if c not in self.graph.flags and (ends[0] or ends[1] is not None)
        }
        needs = []
        for counter, (least, below) in wanted.items():
            kept = self._reachable_without_reset(counter, there)
            edges = [edge for edge in self._spending[counter] if kept >> edge.dest & 1]
            ways = self._ways(counter, edges)
            others = [other for other, ends in wanted.items() if other != counter and ends[0]]
            first = tuple(
                (self._place[o], wanted[o][0]) for o in others if self._before(o, counter, there, wanted)
            )
            needs.append(Need(self._place[counter], least, below, ways, self._resets(counter), first, kept))
        return needs

    def _ways(self, counter: str, edges: Iterable[Edge]) -> tuple[Way, ...]:
        sources: dict[tuple[tuple[str, int], ...], int] = {}
        for edge in edges:
            budgets = tuple((c, self.limits[tested[0]]) for c, tested in edge.spends if tested)
            sources[budgets] = sources.get(budgets, 0) | 1 << edge.source
        return tuple(
            Way(self._steps(places), tuple((self._place[c], limit, self._resets(c)) for c, limit in budgets))
            for budgets, places in sources.items()
        )

    def _resets(self, counter: str) -> Distances:
        return self._steps(_bit_set(edge.source for edge in self.graph.edges if counter in edge.resets))

    def _before(self, counter: str, other: str, there: int, wanted: Box) -> bool:
        """Return whether ``counter`` must be spent before ``other``, because the rows that spend it reset
        ``other``."""
        return self._gives_back(counter, other, there, wanted) and not self._gives_back(
            other, counter, there, wanted
        )

    def _gives_back(self, counter: str, other: str, there: int, wanted: Box) -> bool:
        """Return whether ``other`` is reset between two rows that spend ``counter``, or between the last one
        and ``there``."""
        if (counter, other, there) not in self._orders:
            kept = self._reachable_without_reset(other, there)
            spending = [edge for edge in self._spending[counter] if other not in edge.resets]
            ahead = self._ahead(other)
            again = any((reach(edge.dest, ahead) | 1 << edge.dest) >> edge.source & 1 for edge in spending)
            self._orders[counter, other, there] = again, any(kept >> edge.dest & 1 for edge in spending)
        again, last = self._orders[counter, other, there]
        return not last or (not again and wanted[counter][0] > 1)

    def _reachable_without_reset(self, counter: str, there: int) -> int:
        """Return the locations from which ``there`` can be reached without a reset of ``counter``."""
        if (counter, there) not in self._keeping:
            ahead = self._ahead(counter)
            places = range(len(self.graph.locations))
            self._keeping[counter, there] = _bit_set(i for i in places if (reach(i, ahead) | 1 << i) & there)
        return self._keeping[counter, there]

    def _ahead(self, counter: str) -> dict[int, int]:
        """Return the successors of each location by edges that do not reset ``counter``."""
        if counter not in self._without_reset:
            ahead = self._without_reset[counter] = {}
            for edge in self.graph.edges:
                if counter not in edge.resets:
                    ahead[edge.source] = ahead.get(edge.source, 0) | 1 << edge.dest
        return self._without_reset[counter]

    def _fitting(self, state: str, box: Box) -> int:
        found = 0
        for number, location in enumerate(self.graph.locations):
            counts = {flag: int(flag in location.flags) for flag in self.graph.flags & box.keys()}
            if location.state == state and all(_inside(count, box[flag]) for flag, count in counts.items()):
                found |= 1 << number
        return found

    def _steps(self, targets: int) -> Distances:
        """Return the fewest steps from each location to one of ``targets``."""
        if targets not in self._known:
            steps: Distances = [None] * len(self.graph.locations)
            now, seen, count = targets, 0, 0
            while now:
                seen |= now
                before = 0
                for number in bits(now):
                    steps[number] = count
                    before |= self._behind.get(number, 0)
                now, count = before & ~seen, count + 1
            self._known[targets] = steps
        return self._known[targets]


def _bit_set(numbers: Iterable[int]) -> int:
    found = 0
    for number in numbers:
        found |= 1 << number
    return found


def _inside(count: int, ends: tuple[int, int | None]) -> bool:
    return ends[0] <= count and (ends[1] is None or count < ends[1])
