"""Writes the certificate of a table's proofs, which ``check_certificate.py`` checks independently.

The docstring of that file says what each part claims. Here the engine's own searches find the parts: places
by unfolding, measures by the ranking, nodes of properties by their product with the graph, multipliers by the
solver (the extra ``bounds``). The check does not depend on any of them being right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import floor
from typing import Any

from fsm_agent.errors import ConfigError
from fsm_agent.fsm.proof import Edge, Graph, Proof, Ranking, bits, examine, reach
from fsm_agent.fsm.properties import BROKEN, AtMostProperty, Holds, Promises, results
from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.verify.formulas import bounds
from fsm_agent.fsm.verify.properties import Product, PropertyVerdict, induct, judge, paying_counter
from fsm_agent.fsm.verify.reach import TimeLimit, inner_limits, limit_names
from fsm_agent.fsm.verify.worst_case import Flow, Law, assess_all, can_solve

Json = dict[str, Any]


def certificate(
    table: Table,
    limits: Mapping[str, int] | None = None,
    within: TimeLimit | None = None,
    *,
    runs: bool = True,
) -> Json:
    """Return the certificate of a proved table and of the tables that its states run. Bounds are for
    ``limits``, the values of ``all_limit_names``; there are no bounds without limits or without the extra
    ``bounds``. ``runs=False`` omits the runs that reach them. Raises ``ConfigError`` for a table that is not
    proved, and for a property that has neither a proof by induction nor a run that breaks it."""
    proof, within = examine(table), within or TimeLimit(20)
    if proof.faults:
        raise ConfigError("there is no certificate", table.name, "a table that is proved")
    rows = {row.id: number for number, row in enumerate(table.rows)}
    own = limits and {name: limits[name] for name in limit_names(table)}
    inner = {one.name: one for outer in table.inner.values() for one in outer.tables}
    return {
        "certificate": 1,
        "name": table.name,
        "digest": table.digest,
        "with caps": _places(proof.with_caps),
        "without caps": _places(proof.without_caps),
        "properties": [_property(Product(table), verdict, rows) for verdict in judge(table)],
        "promises": _promises(proof.with_caps.graph, table.promises()) if table.promises else None,
        "limits": own and dict(own),
        "bounds": [] if own is None else list(_bounds(table, proof, own, within, runs)),
        "inner": [certificate(one, inner_limits(one, limits), within, runs=runs) for one in inner.values()],
    }


def _places(ranking: Ranking) -> Json:
    graph = ranking.graph
    return {
        "places": [[location.state, sorted(location.flags)] for location in graph.locations],
        "measures": _measures(graph),
    }


def _measures(graph: Graph) -> list[list[Any]]:
    """Return the ranking as a measure of each location: the number of its strongly connected part, the
    counters that rank this part, and the same again for the edges that spend none of them."""
    order = frozenset(counter.name for counter in graph.table.counters)
    found: list[list[Any]] = [[] for _ in graph.locations]

    def descend(places: int, edges: list[Edge]) -> None:
        for number, part in enumerate(_parts(places, edges)):
            inside = [edge for edge in edges if part >> edge.source & 1 and part >> edge.dest & 1]
            reset = frozenset().union(*(edge.resets for edge in inside))
            ranked = frozenset().union(*(edge.bounded(order) for edge in inside)) - reset
            for at in bits(part):
                found[at] += [number, sorted(ranked)] if inside else [number]
            if inside:
                descend(part, [edge for edge in inside if not edge.bounded(ranked)])

    descend((1 << len(graph.locations)) - 1, list(graph.edges))
    return found


def _parts(places: int, edges: list[Edge]) -> list[int]:
    """Return the strongly connected parts, ordered so that edges lead to earlier ones, which reach fewer
    places."""
    ahead: dict[int, int] = {}
    for edge in edges:
        ahead[edge.source] = ahead.get(edge.source, 0) | 1 << edge.dest
    reached = {at: reach(at, ahead) | 1 << at for at in bits(places)}
    parts = {sum(1 << to for to in bits(here) if reached[to] >> at & 1): here for at, here in reached.items()}
    return sorted(parts, key=lambda part: (parts[part].bit_count(), part))


@dataclass(frozen=True, kw_only=True)
class _PaidProperty(AtMostProperty):
    """A property whose moves spend ``counter`` below the limit in the claim. Its memory is 0: no such move
    was made, 1: the counter is at least their number, 2: the counter was reset since."""

    counter: str

    def sees(self, row: Row, holds: Holds) -> tuple[bool, ...]:
        return (*super().sees(row, holds), self.counter in row.spends, self.counter in row.resets)

    def step(self, memory: int, seen: Iterable[bool], ends: bool, most: int) -> int:
        counted, again, spends, resets = seen
        if counted:
            return 1 if spends and (memory != 2 or again) else BROKEN
        return 0 if again else 2 if resets and memory else memory


def _property(product: Product, verdict: PropertyVerdict, rows: Mapping[str, int]) -> Json:
    claimed = verdict.claimed
    if verdict.run is not None and claimed.known:
        taken = [rows[row.id] for row in verdict.run.rows]
        return {"says": claimed.says, "run": taken, "limits": dict(verdict.run.limits)}
    counter, paid = paying_counter(product, claimed), claimed
    if counter and isinstance(claimed, AtMostProperty):
        paid = _PaidProperty(
            says=claimed.says, times=claimed.times, moves=claimed.moves, since=claimed.since, counter=counter
        )
    steps = product.steps(paid)
    if verdict.verdict != "proved" or steps is None or BROKEN in steps:
        raise ConfigError(
            "there is no certificate",
            f"{claimed.says} ({verdict.basis})",
            "properties that are proved by induction, or are known to be broken by a run",
        )
    places, final = product.graph.locations, product.table.final
    nodes = sorted({node[:2] for node in steps if isinstance(node, tuple) and places[node[0]].state != final})
    return {"says": claimed.says, "counter": counter, "nodes": nodes}


def _promises(graph: Graph, promises: Promises) -> Json:
    found = induct(graph, promises)
    values = list(dict.fromkeys([*promises.starts, *(place.value for place in found.places)]))
    number = {value: at for at, value in enumerate(values)}
    visits: dict[tuple[str, str, tuple[str, ...]], dict[int, list[int]]] = {}
    for place in found.places:
        state = graph.locations[place.location].state if place.location >= 0 else ""
        for event in (graph.table.events(state) or ("",)) if state else ():
            visit = promises.visit(place.came, state, event)
            if visit is not None:
                does = visits.setdefault((state, event, tuple(sorted(place.came))), {})
                after = {number[value] for value in results(visit, place.value) if value in number}
                does[number[place.value]] = sorted(after)
    return {
        "name": promises.name,
        "values": [str(value) for value in values],
        "starts": [number[value] for value in promises.starts],
        "words": sorted(frozenset().union(*(visit.after for visit in promises.visits))),
        "visits": [[*key, sorted(does.items())] for key, does in visits.items()],
        "demands": [
            [demand.state, demand.what, [number[value] for value in values if demand.holds(value)]]
            for demand in promises.demands
        ],
        "listed": sorted([place.location, sorted(place.came), number[place.value]] for place in found.places),
    }


def _bounds(
    table: Table, proof: Proof, limits: Mapping[str, int], within: TimeLimit, runs: bool
) -> Iterator[Json]:
    rows = {row.id: number for number, row in enumerate(table.rows)}
    found = bounds(proof.without_caps, proof.with_caps, within=within.share(8)) if can_solve() else ()
    flows = {True: Flow(proof.with_caps, limits), False: Flow(proof.without_caps, limits)}
    for bound, known in zip(found, assess_all(table, proof, found, limits, within, runs=runs), strict=True):
        priced = flows[bound.caps].most(bound.states, bound.spends)
        if priced is None or known is None:
            continue
        prices = zip(priced.prices, flows[bound.caps].laws, strict=True)
        run = known.run
        counted = [
            row for row in run if (bound.spends in row.spends if bound.spends else row.dest in bound.states)
        ]
        start = table.initial in bound.states
        yield {
            "caps": bound.caps,
            "states": list(bound.states),
            "spends": bound.spends,
            "at most": floor(priced.value),
            "multipliers": [[str(price), *_law(law)] for price, law in prices if price],
            "run": [rows[row.id] for row in run],
            "reached": start + len(counted) if bound.states or bound.spends else len(run),
        }


def _law(law: Law) -> list[Any]:
    if law.at is not None:
        return ["place", law.at]
    if law.region:
        return ["stretch", [law.counter, law.limit, sorted(law.region)]]
    return ["used up", [law.counter, law.limit]]
