"""Proves the properties of a table for every configuration, or finds a shortest run that breaks one, and
proves its promises.

A property is an automaton that reads moves. Its **product** with the graph of locations has a node for each
location and each memory; where no step leads to ``BROKEN``, no turn breaks the property, whatever its maxima
are. The graph knows no counts, so a step to ``BROKEN`` proves nothing: then a run is searched for, with real
counts and with each maximum as the interval that the guards of the run leave to it. A run found this way is a
run of the machine under ``Script.limits``.

A promise is about a value that turns carry. Its invariant is computed first: the least set of (place, value)
pairs that contains the starts and is closed under every row and the change declared for the visit that
reports its event. Each row is taken where its guard can be true, whatever the limits are, so the set contains
at least everything that can happen. Then every demand is checked at every pair to which it applies."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from fsm_agent.errors import TableError
from fsm_agent.fsm.proof import Edge, Fault, Graph, LineTruth, examine, line_truths, prove, reach
from fsm_agent.fsm.properties import (
    BROKEN,
    AtMostProperty,
    GuardedMoves,
    Holds,
    NamedMoves,
    NeverProperty,
    Promises,
    Property,
    VisitChange,
    results,
)
from fsm_agent.fsm.table import AllOf, AnyOf, Below, Guard, Row, Spent, Table
from fsm_agent.fsm.verify.cover import Paths, Script

MOST_NODES = 20_000
"""Maximum nodes of a product; a second."""
MOST_PLACES = 2_000
"""Maximum places of a search for a run; a second."""
MOST_TRIED = 4
"""Maximum values tried for the limit of a property, when no run is found."""
MOST_ATOMS = 8
"""Maximum comparisons of one property; each doubles the cases of an edge."""

Node = tuple[int, int, frozenset[tuple[str, str]]]
"""A location, the memory of the property, and the comparisons (counter, limit) that are known to fail."""
Seen = tuple[bool, ...]
Maxima = Mapping[str, tuple[int, int | None]]
"""The least and the largest possible value of each limit; ``None``: unbounded."""


@dataclass(frozen=True)
class PropertyVerdict:
    """The verdict on one property: ``proved`` for every configuration; ``refuted`` by ``run``, a turn whose
    first ``run.reached`` moves are a shortest run that breaks it; or ``unknown``. ``basis``: the grounds of
    the verdict. ``maxima`` are those that the run needs; all others may be 0."""

    claimed: Property
    verdict: Literal["proved", "refuted", "unknown"]
    basis: str
    run: Script | None = None
    maxima: Mapping[str, int] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[str, ...]:
        """The rows of the run up to the move that breaks the property; empty without a run."""
        return tuple(row.id for row in self.run.rows[: self.run.reached]) if self.run else ()

    @property
    def finding(self) -> str | None:
        """What is wrong with the property; ``None`` when it is proved, or not proved and ``known``. A
        property that is proved and ``known`` is a finding, too."""
        claimed = f"{self.claimed.says} ({self.claimed.label})"
        if self.verdict == "proved":
            known = f"{claimed}: is proved, and declared as known not to hold; take known= away"
            return known if self.claimed.known else None
        if self.claimed.known:
            return None
        if self.run is None:
            return f"{claimed}: neither proved nor refuted, {self.basis}; claim less, or let a guard say it"
        return f"{claimed}: {self.counterexample}"

    @property
    def counterexample(self) -> str:
        """The run and the maxima that it needs, in words; empty without a run."""
        return run_in_words(self.ids, self.maxima)


def judge(table: Table) -> tuple[PropertyVerdict, ...]:
    """Return a verdict on each property of ``table``. Raises ``TableError`` when the table is not proved, and
    for a property that is too large."""
    if not table.properties:
        return ()
    prove(table)
    product = Product(table)
    return tuple(verdict_of(product, claimed) for claimed in table.properties)


def verdict_of(product: Product, claimed: Property) -> PropertyVerdict:
    """Return the verdict on one property, by the cheapest argument that yields one."""
    if len(claimed.atoms()) > MOST_ATOMS:
        raise TableError(
            f"{product.table.name}: the property {claimed.says!r} reads {len(claimed.atoms())} comparisons,"
            f" at most {MOST_ATOMS}; split it"
        )
    if counter := paying_counter(product, claimed):
        return PropertyVerdict(
            claimed, "proved", f"each of them spends {counter}, which nothing between gives back"
        )
    steps = product.steps(claimed)
    if steps is None:
        return PropertyVerdict(claimed, "unknown", f"more than {MOST_NODES:,} places")
    if BROKEN not in steps:
        return PropertyVerdict(claimed, "proved", f"{len(steps)} places, none of them broken")
    if isinstance(claimed, AtMostProperty) and claimed.limit is not None:
        return _under_small_maxima(product, claimed, claimed.limit)
    search = _RunSearch(product, claimed, steps)
    if found := search.run():
        return _refute(claimed, found, search.limits)
    if search.complete:
        return PropertyVerdict(
            claimed, "proved", f"none of the {search.places:,} runs that there are breaks it"
        )
    steps = product.steps(claimed, exact=True)
    if steps is not None and BROKEN not in steps:
        return PropertyVerdict(
            claimed, "proved", f"{len(steps):,} places with what is spent, none of them broken"
        )
    return PropertyVerdict(claimed, "unknown", f"no run found among {search.places:,} places")


def _under_small_maxima(product: Product, claimed: AtMostProperty, limit: str) -> PropertyVerdict:
    """Try 0, 1, 2 … as the limit in the claim; a run that breaks it has more moves than that."""
    best, sure = None, True
    limits: Sequence[str] = ()
    for most in itertools.count():
        if most >= (best.reached if best else MOST_TRIED):
            break
        numbered = replace(claimed, times=most)
        steps = product.steps(numbered, spent=frozenset({limit} if not most else ()))
        if steps is not None and BROKEN in steps:
            search = _RunSearch(product, numbered, steps, {limit: most})
            found = search.run()
            sure = sure and (found is not None or search.complete)
            if found and (best is None or found.reached < best.reached):
                best, limits = found, search.limits
    if best is not None:
        return _refute(claimed, best, limits, "a shortest run" if sure else "a run")
    return PropertyVerdict(claimed, "unknown", f"no run found for {limit} below {MOST_TRIED}")


def _refute(
    claimed: Property, found: Script, limits: Iterable[str], run: str = "a shortest run"
) -> PropertyVerdict:
    maxima = {name: found.limits[name] for name in limits if found.limits[name]}
    moves = f"{found.reached} move{'' if found.reached == 1 else 's'}"
    basis = f"by {run} of {moves}" + _too_late(claimed, found.rows[found.reached - 1])
    return PropertyVerdict(claimed, "refuted", basis, found, maxima)


def _too_late(claimed: Property, last: Row) -> str:
    """Return the hint for an ``only_if`` whose condition is met by the very move that breaks it."""
    if not isinstance(claimed, NeverProperty) or any(
        isinstance(part, GuardedMoves) for part in claimed.until.parts()
    ):
        return ""
    if not claimed.until.has(last, lambda _: False):
        return ""
    moves, instead = claimed.moves, ""
    if isinstance(moves, NamedMoves) and moves.field == "dest":
        instead = f"; perhaps leaves {' or '.join(moves.names)} is meant"
    return f", the last of which ({claimed.until.label}) counts for later moves only{instead}"


def run_in_words(rows: Sequence[str], maxima: Mapping[str, int]) -> str:
    """Return the rows of a run, and the maxima that it needs; empty without rows."""
    under = ", ".join(f"{name} {most}" for name, most in maxima.items())
    return " → ".join(rows) + (f", with {under}" if under else "")


# The proof


class Product:
    """The graph of a table, and what a property can observe on its edges."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.graph: Graph = examine(table).with_caps.graph
        self.truths: dict[str, tuple[LineTruth, int]] = {
            row.id: (truth, regions) for truth in line_truths(table) for row, regions in truth.rows
        }
        self.leaving: dict[int, list[Edge]] = {}
        for edge in self.graph.edges:
            self.leaving.setdefault(edge.source, []).append(edge)

    def steps(
        self, claimed: Property, *, exact: bool = False, spent: frozenset[str] = frozenset()
    ) -> dict[int | Node, set[Node]] | None:
        """Map each reachable node to the nodes before it, and ``BROKEN`` to those from which one step breaks
        the property; return ``None`` when there are too many. ``exact``: a comparison that failed fails until
        its counter is reset. ``spent``: limits that are 0."""
        start: Node = (0, claimed.start, frozenset())
        before: dict[int | Node, set[Node]] = {start: set()}
        todo = [start]
        for node in todo:
            for edge in self.leaving.get(node[0], ()):
                for seen, fails in self._cases(edge, claimed, node[2], exact, spent):
                    memory = claimed.step(node[1], seen, edge.row.exit is not None, 0)
                    after = BROKEN if memory == BROKEN else (edge.dest, memory, fails)
                    if after not in before:
                        before[after] = set()
                        todo += [after] if isinstance(after, tuple) else []
                    before[after].add(node)
            if len(todo) > MOST_NODES:
                return None
        return before

    def observe(self, edge: Edge, claimed: Property) -> set[Seen]:
        """Return all that ``claimed`` may see of a move by ``edge``, whatever came before."""
        return {seen for seen, _ in self._cases(edge, claimed, frozenset(), False, frozenset())}

    def _cases(
        self,
        edge: Edge,
        claimed: Property,
        failing: frozenset[tuple[str, str]],
        exact: bool,
        spent: frozenset[str],
    ) -> Iterator[tuple[Seen, frozenset[tuple[str, str]]]]:
        """Yield what the property may see, and the comparisons that are known to fail afterwards."""
        truth, regions = self.truths[edge.row.id]
        flags = self.graph.locations[edge.source].flags
        atoms = claimed.atoms()

        def known(atom: Below) -> bool | None:
            if atom.counter in self.graph.flags and atom.limit == atom.counter:
                return atom.counter not in flags
            return False if atom.limit in spent or (atom.counter, atom.limit) in failing else None

        regions &= truth.where(known)
        for values in itertools.product((True, False), repeat=len(atoms)):
            case = {(a.counter, a.limit): value for a, value in zip(atoms, values, strict=True)}
            here = regions & truth.where(_predicate(case))
            if not here or any(known(a) not in (None, case[a.counter, a.limit]) for a in atoms):
                continue
            fails = failing
            if exact:
                more = {(a.counter, a.limit) for a in truth.atoms if not here & truth.where(_only(a))}
                more |= {name for name, value in case.items() if not value}
                removed = self.graph.flags.union(edge.row.resets)
                fails = frozenset(name for name in failing | more if name[0] not in removed)
            yield claimed.sees(edge.row, _holding(case)), fails


def _holding(case: Mapping[tuple[str, str], bool]) -> Holds:
    return lambda atom: case[atom.counter, atom.limit]


def _predicate(case: Mapping[tuple[str, str], bool]) -> Callable[[Below], bool | None]:
    return lambda atom: case.get((atom.counter, atom.limit))


def _only(wanted: Below) -> Callable[[Below], bool | None]:
    return lambda atom: True if atom == wanted else None


def paying_counter(product: Product, claimed: Property) -> str:
    """Return, for "at most LIMIT moves", a counter that each of the moves spends below that limit, and that
    no move between two of them resets; empty without such a counter.

    Such a counter is never less than the number of moves counted: both begin at 0, and each counted move adds
    one to both."""
    if not isinstance(claimed, AtMostProperty) or claimed.limit is None:
        return ""
    seen = {edge: product.observe(edge, claimed) for edge in product.graph.edges}
    counted = [edge for edge, cases in seen.items() if any(case[0] for case in cases)]
    kept = [edge for edge, cases in seen.items() if not all(case[1] for case in cases)]
    ahead: dict[int, int] = {}
    for edge in kept:
        ahead[edge.source] = ahead.get(edge.source, 0) | 1 << edge.dest

    def leads(start: int, targets: int) -> bool:
        return bool((reach(start, ahead) | 1 << start) & targets)

    sources = sum(1 << place for place in {edge.source for edge in counted})
    for counter in sorted({name for edge in counted for name, _ in edge.spends}):
        if not all((counter, claimed.limit) in _tested_counters(edge) for edge in counted):
            continue
        resetting = [edge for edge in kept if counter in edge.resets]
        if not any(
            (edge in counted or leads(edge.dest, sources))
            and any(leads(one.dest, 1 << edge.source) for one in counted)
            for edge in resetting
        ):
            return counter
    return ""


def _tested_counters(edge: Edge) -> set[tuple[str, str]]:
    return {(counter, limit) for counter, limits in edge.spends for limit in limits}


# The counterexample


@dataclass(frozen=True, slots=True)
class _Place:
    """A position of the search: a location, these counts, and the maxima as intervals."""

    location: int
    memory: int
    counts: tuple[int, ...]
    maxima: tuple[tuple[int, int | None], ...]


class _RunSearch:
    """Searches for a shortest run that breaks a property, best first: the product never has more steps to
    ``BROKEN`` than a run."""

    def __init__(
        self,
        product: Product,
        claimed: Property,
        steps: Mapping[int | Node, set[Node]],
        fixed: Mapping[str, int] | None = None,
    ) -> None:
        self.product, self.claimed, self.table = product, claimed, product.table
        self.counters = [counter.name for counter in self.table.counters]
        atoms = (atom for row in self.table.rows for atom in row.guard.atoms())
        self.limits = list(dict.fromkeys(a.limit for a in atoms if a.limit not in product.graph.flags))
        self.far = _distances(steps)
        self.maxima = tuple(_interval((fixed or {}).get(name)) for name in self.limits)
        self.complete, self.places = False, 0

    def run(self) -> Script | None:
        """Return the run, continued to the end of the turn; ``None`` when none was found."""
        start = _Place(0, self.claimed.start, (0,) * len(self.counters), self.maxima)
        parents: dict[_Place, tuple[_Place, Row] | None] = {start: None}
        moves, order = {start: 0}, itertools.count()
        waiting = [(self.far.get(self._node(start), 0), 0, next(order), start)]
        while waiting and self.places < MOST_PLACES:
            place = heapq.heappop(waiting)[3]
            self.places += 1
            if place.memory == BROKEN:
                return self._script(parents, place)
            for row, after in self._onward(place):
                far = 0 if after.memory == BROKEN else self.far.get(self._node(after))
                depth = moves[place] + 1
                if far is not None and depth < moves.get(after, depth + 1):
                    parents[after], moves[after] = (place, row), depth
                    heapq.heappush(waiting, (depth + far, far, next(order), after))
        self.complete = not waiting
        return None

    def _node(self, place: _Place) -> Node:
        return place.location, place.memory, frozenset()

    def _onward(self, place: _Place) -> Iterator[tuple[Row, _Place]]:
        counts = dict(zip(self.counters, place.counts, strict=True))
        first = dict(zip(self.limits, place.maxima, strict=True))
        atoms = self.claimed.atoms()
        for edge in self.product.leaving.get(place.location, ()):
            row = edge.row
            after = tuple(
                (0 if name in row.resets else count) + (name in row.spends) for name, count in counts.items()
            )
            for opened in self._open_ranges(row.guard, counts, first):
                for values in itertools.product((True, False), repeat=len(atoms)):
                    case = {(a.counter, a.limit): value for a, value in zip(atoms, values, strict=True)}
                    wanted = AllOf(tuple(a if v else Spent(a) for a, v in zip(atoms, values, strict=True)))
                    seen = self.claimed.sees(row, _holding(case))
                    for maxima in self._open_ranges(wanted, counts, opened):
                        memory = self.claimed.step(place.memory, seen, row.exit is not None, 0)
                        yield row, _Place(edge.dest, memory, after, tuple(maxima.values()))

    def _open_ranges(self, guard: Guard, counts: Mapping[str, int], maxima: Maxima) -> Iterator[Maxima]:
        """Yield the maxima under which ``guard`` is open with these counts, as intervals."""
        match guard:
            case Below(counter=counter, limit=limit):
                yield from self._between(maxima, limit, counts[counter] + 1, None)
            case Spent(atom=Below(counter=counter, limit=limit)):
                yield from self._between(maxima, limit, 0, counts[counter])
            case AllOf(parts=parts):
                found = [maxima]
                for part in parts:
                    found = [one for before in found for one in self._open_ranges(part, counts, before)]
                yield from found
            case AnyOf(parts=parts):
                for part in parts:
                    yield from self._open_ranges(part, counts, maxima)

    def _between(self, maxima: Maxima, limit: str, low: int, high: int | None) -> Iterator[Maxima]:
        flag = limit in self.product.graph.flags
        least, largest = (1, 1) if flag else maxima[limit]
        least = max(least, low)
        ends = [end for end in (largest, high) if end is not None]
        if not ends or least <= min(ends):
            yield maxima if flag else {**maxima, limit: (least, min(ends) if ends else None)}

    def _script(self, parents: Mapping[_Place, tuple[_Place, Row] | None], place: _Place) -> Script:
        """Return the run up to ``place`` under the smallest maxima that it needs, continued to the end of the
        turn."""
        limits = {name: least for name, (least, _) in zip(self.limits, place.maxima, strict=True)}
        rows: list[Row] = []
        step = parents[place]
        while step is not None:
            rows.insert(0, step[1])
            step = parents[step[0]]
        numbers = {row.id: number for number, row in enumerate(self.table.rows)}
        run = tuple(numbers[row.id] for row in rows)
        paths = Paths(self.table, limits)
        ending = () if rows[-1].dest == self.table.final else paths.ending(run)
        return Script(paths.rows((*run, *ending)), paths.all_limits, (rows[-1].id,), len(run))


def _interval(fixed: int | None) -> tuple[int, int | None]:
    return (0, None) if fixed is None else (fixed, fixed)


def _distances(before: Mapping[int | Node, set[Node]]) -> dict[Node, int]:
    """Map each node from which the property can be broken to the fewest steps that break it."""
    far: dict[Node, int] = {}
    now: set[Node] = before[BROKEN]
    count = 1
    while now:
        far |= dict.fromkeys(now, count)
        now = {earlier for node in now for earlier in before[node]} - far.keys()
        count += 1
    return far


# Promises


@dataclass(frozen=True, slots=True)
class CarriedPlace:
    """A location of the graph, the words that are true of the row that led there (``Promises.words``), and
    the value on entry; the end of the turn has no location (-1)."""

    location: int
    came: frozenset[str]
    value: Any


@dataclass(frozen=True)
class Induction:
    """The ``places`` of the invariant, the number of ``obligations`` checked (a value at the start, a row
    from a place, a demand at a place), and the ``faults`` found; without faults it is a proof."""

    graph: Graph
    places: frozenset[CarriedPlace]
    obligations: int
    faults: tuple[Fault, ...]

    def values(self, state: str) -> frozenset[Any]:
        """Return the values that ``state`` can be entered with; for ``""``, those at the end of the turn."""
        locations = self.graph.locations
        return frozenset(
            place.value
            for place in self.places
            if (locations[place.location].state if place.location >= 0 else "") == state
        )


def induct(graph: Graph, promises: Promises) -> Induction:
    """Prove promises on the graph of their table, with caps."""
    return _Fixpoint(graph, promises).run()


Step = tuple[CarriedPlace, Row | None]


class _Fixpoint:
    """Breadth-first search, so that the first way to a place is a shortest one."""

    def __init__(self, graph: Graph, promises: Promises) -> None:
        self.graph, self.promises, self.table = graph, promises, graph.table
        self._words = {row.id: promises.words(row) for row in self.table.rows}
        self._leaving: dict[int, list[Edge]] = {}
        for edge in graph.edges:
            self._leaving.setdefault(edge.source, []).append(edge)
        self._came: dict[CarriedPlace, Step | None] = {}
        self._visits: dict[tuple[frozenset[str], str, str], VisitChange | None] = {}
        self._left: dict[tuple[int, Any], tuple[Any, ...]] = {}
        self._faults: dict[object, Fault] = {}
        self._obligations = 0

    def run(self) -> Induction:
        wrong = tuple(_names(self.promises, self.table))
        if wrong:
            return Induction(self.graph, frozenset(), 0, wrong)
        todo: deque[CarriedPlace] = deque()
        for value in self.promises.starts:
            self._obligations += 1
            self._note(CarriedPlace(0, frozenset(), value), None, todo)
        while todo:
            self._leave(todo.popleft(), todo)
        return Induction(self.graph, frozenset(self._came), self._obligations, tuple(self._faults.values()))

    def _leave(self, place: CarriedPlace, todo: deque[CarriedPlace]) -> None:
        state = self._state(place)
        for demand in self.promises.demands:
            if demand.state == state:
                self._obligations += 1
                if demand not in self._faults and not demand.holds(place.value):
                    self._faults[demand] = self._fault(place, demand.what)
        if place.location < 0:
            return
        if state == self.table.final:
            self._obligations += 1
            for value in self._after(place, state, ""):
                self._note(CarriedPlace(-1, place.came, value), (place, None), todo)
        for edge in self._leaving.get(place.location, ()):
            self._obligations += 1
            for value in self._after(place, state, edge.row.event):
                self._note(CarriedPlace(edge.dest, self._words[edge.row.id], value), (place, edge.row), todo)

    def _note(self, place: CarriedPlace, step: Step | None, todo: deque[CarriedPlace]) -> None:
        if place not in self._came:
            self._came[place] = step
            todo.append(place)

    def _state(self, place: CarriedPlace) -> str:
        return self.graph.locations[place.location].state if place.location >= 0 else ""

    def _after(self, place: CarriedPlace, state: str, event: str) -> tuple[Any, ...]:
        asked = (place.came, state, event)
        if asked not in self._visits:
            self._visits[asked] = self.promises.visit(*asked)
        visit = self._visits[asked]
        if visit is None:
            where = f"{state}.{event}" if event else state
            what = f"nothing is declared of what this visit does ({self.promises.name})"
            self._faults.setdefault(where, Fault((where,), what, "add a VisitChange to the promises"))
            return ()
        key = (id(visit), place.value)
        if key not in self._left:
            self._left[key] = tuple(dict.fromkeys(results(visit, place.value)))
        return self._left[key]

    def _fault(self, place: CarriedPlace, what: str) -> Fault:
        """Build the fault: the last visit that changed the value, and the shortest run to the place."""
        run, at, changed = list[str](), place, None
        while (step := self._came[at]) is not None:
            before, row = step
            if changed is None and before.value != at.value:
                changed = (row.id if row else self.table.final, before.value)
            run += [row.id] if row else []
            at = before
        name, found = changed or (self.table.initial, "nothing else")
        where = f"on entry to {self._state(place)}" if place.location >= 0 else "at the end"
        return Fault(
            (name,),
            f"leaves {place.value} where it found {found}; {where} it must be that {what} (shortest run:"
            f" {' → '.join(reversed(run)) or 'none'})",
            "change what this visit leaves, or where the row leads",
        )


def _names(promises: Promises, table: Table) -> Iterator[Fault]:
    """Report names in the promises that are not in the table or in the value."""
    lines = {f"{source}.{event}" for source, event in table.by_event}
    after = lines | {row.exit for row in table.rows} | {counter.name for counter in table.counters}
    known = {field.name for value in promises.starts for field in fields(value)}
    for visit in promises.visits:
        if visit.state not in table.states:
            yield _unknown(visit.state, "no state has this name", table.states)
            continue
        events = table.events(visit.state) or ("",)
        for event in visit.events:
            if event not in events:
                yield _unknown(f"{visit.state}.{event}", "the state does not declare this event", events)
        for word in visit.after - after:
            yield _unknown(word, f"no counter, line or exit of the table {table.name}", sorted(lines))
        for name in {name for change in visit.changes for name in change} - known:
            yield _unknown(name, f"the values of {visit.state} have no such field", sorted(known))
    for demand in promises.demands:
        if demand.state and demand.state not in table.states:
            yield _unknown(demand.state, "no state has this name", table.states)


def _unknown(name: str, what: str, allowed: Sequence[str]) -> Fault:
    return Fault((name,), what, f"allowed: {', '.join(allowed)}")
