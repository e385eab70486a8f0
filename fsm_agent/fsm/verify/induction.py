"""Promises about a value that a table's turns carry, proved by induction over the unfolded graph.

The invariant is found first: the least set of (place, value) pairs that holds the starts and is closed under
every row with what is declared of the visit that reports its event. Each row is taken where its guard can be
true, whatever the limits are, so the set is at least all that can happen. Then every demand is looked at in
every pair where it is made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fsm_agent.fsm.properties import Promises, VisitChange, results
from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.verify.graph import Edge, Graph
from fsm_agent.fsm.verify.proof import Fault


@dataclass(frozen=True, slots=True)
class CarriedPlace:
    """A location of the graph, what is true of the row that led there (``Promises.words``), and the value on
    entry; the end of the turn has no location (-1)."""

    location: int
    came: frozenset[str]
    value: Any


@dataclass(frozen=True)
class Induction:
    """The ``places`` of the invariant, how many ``obligations`` were looked at (a value at the start, a row
    from a place, a demand at a place), and the ``faults`` found; it is a proof when there are none."""

    graph: Graph
    places: frozenset[CarriedPlace]
    obligations: int
    faults: tuple[Fault, ...]

    def values(self, state: str) -> frozenset[Any]:
        """Return the values that ``state`` can be entered with; of ``""``, those at the end of the turn."""
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
    """Breadth first, so that the first way to a place is a shortest one."""

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
                    self._faults[demand] = self._broken(place, demand.what)
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

    def _broken(self, place: CarriedPlace, what: str) -> Fault:
        """What is wrong: the last visit that changed the value, and the shortest run to the place."""
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
    """Names in the promises that the table, or the value, does not have."""
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
