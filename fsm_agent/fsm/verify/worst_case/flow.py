"""A bound for given limits by linear programming: a run as a flow through the graph of locations.

How often each edge is taken is a variable. Every run keeps these laws, and each of them is linear:

* a location is left at most as often as it is entered, and the turn begins once;
* in a region, between two resets of a counter, the edges that find the counter below a limit before they
  spend it are taken at most as often as that limit. A stretch begins where the region is entered and where
  the counter is reset inside it;
* an edge that finds a counter used up, and gives it back, is taken at most once for so many edges that spend
it.

So no run has more than the largest sum under these laws. It is often less than the value of a formula, which
adds up what every state can cost as if all of it were paid in one run. (Why: decision 65.)"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fsm_agent.fsm.table import Spent
from fsm_agent.fsm.verify.proof.graph import Edge
from fsm_agent.fsm.verify.proof.ranking import Ranking
from fsm_agent.fsm.verify.time_limit import TimeLimit
from fsm_agent.fsm.verify.worst_case.simplex import Constraint, Priced, most

BEGIN = 0
"""The variable of the turn's begin; the others are kinds of edges, counted from 1."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Edges that are alike for all laws: from where to where, the limit of each tested spend, all that is
    spent and reset, and how much must have been spent of what is reset."""

    source: int
    dest: int
    tested: tuple[tuple[str, int], ...]
    spends: frozenset[str]
    resets: frozenset[str]
    needs: tuple[tuple[str, int], ...]

    def tests(self, counter: str, limit: int) -> bool:
        """It finds ``counter`` below ``limit`` and spends it."""
        return any(name == counter and tested <= limit for name, tested in self.tested)


@dataclass(frozen=True, slots=True)
class Law:
    """A constraint, and of what: passing through the location ``at``, or a stretch in a ``region`` under a
    counter's limit."""

    constraint: Constraint
    at: int | None = None
    region: frozenset[int] = frozenset()
    counter: str = ""
    limit: int = 0


class Flow:
    """The laws of the graph of ``ranking`` under ``limits``."""

    def __init__(self, ranking: Ranking, limits: Mapping[str, int]) -> None:
        self.graph = ranking.graph
        kinds = [_kind(edge, limits) for edge in self.graph.edges]
        self.kinds = tuple(dict.fromkeys(kinds))
        number = {kind: place for place, kind in enumerate(self.kinds, 1)}
        self.variable = {
            (e.source, e.row.id): number[kind] for e, kind in zip(self.graph.edges, kinds, strict=True)
        }
        self.laws = (*self._passing(), *self._stretches(_regions(ranking)), *self._using_up())

    def most(self, states: Sequence[str] = (), within: TimeLimit | None = None) -> Priced | None:
        """The most visits of ``states`` together, or moves when there are none; ``None`` when no limit was
        found in time."""
        names = [location.state for location in self.graph.locations]
        gain = {
            number: 1 for number, kind in enumerate(self.kinds, 1) if not states or names[kind.dest] in states
        }
        gain |= {BEGIN: int(self.graph.table.initial in states)}
        return most(gain, [law.constraint for law in self.laws], within)

    def _passing(self) -> list[Law]:
        laws = [Law(Constraint({BEGIN: 1}, 1))]
        for here, location in enumerate(self.graph.locations):
            if location.state != self.graph.table.final:
                laws.append(Law(self._through(here), at=here))
        return laws

    def _through(self, here: int) -> Constraint:
        return self._sum(lambda kind: (kind.source == here) - (kind.dest == here), -(here == 0))

    def _stretches(self, regions: Sequence[frozenset[int]]) -> list[Law]:
        laws: dict[frozenset[tuple[int, int]], Law] = {}
        budgets = dict.fromkeys(budget for kind in self.kinds for budget in kind.tested)
        for region in regions:
            for counter, limit in budgets:
                if any(kind.source in region and kind.tests(counter, limit) for kind in self.kinds):
                    stretch = self._stretch(region, counter, limit)
                    laws.setdefault(
                        frozenset(stretch.terms.items()), Law(stretch, None, region, counter, limit)
                    )
        return list(laws.values())

    def _stretch(self, region: frozenset[int], counter: str, limit: int) -> Constraint:
        def factor(kind: Kind) -> int:
            begins = kind.dest in region and (kind.source not in region or counter in kind.resets)
            return (kind.source in region and kind.tests(counter, limit)) - limit * begins

        return self._sum(factor, -limit if 0 in region else 0)

    def _using_up(self) -> list[Law]:
        laws = []
        for counter, least in dict.fromkeys(need for kind in self.kinds for need in kind.needs):

            def factor(kind: Kind, counter: str = counter, least: int = least) -> int:
                used_up = any(name == counter and amount >= least for name, amount in kind.needs)
                return least * used_up - (counter in kind.spends)

            laws.append(Law(self._sum(factor, 0)))
        return laws

    def _sum(self, factor: Callable[[Kind], int], begin: int) -> Constraint:
        terms = {number: factor(kind) for number, kind in enumerate(self.kinds, 1)} | {BEGIN: begin}
        return Constraint({variable: value for variable, value in terms.items() if value})


def _kind(edge: Edge, limits: Mapping[str, int]) -> Kind:
    tested = tuple(
        sorted((counter, min(limits[name] for name in names)) for counter, names in edge.spends if names)
    )
    spent = [part.atom for part in edge.row.conjuncts if isinstance(part, Spent)]
    needs = tuple(sorted((atom.counter, limits[atom.limit]) for atom in spent if atom.counter in edge.resets))
    return Kind(
        edge.source, edge.dest, tested, frozenset(counter for counter, _ in edge.spends), edge.resets, needs
    )


def _regions(ranking: Ranking) -> list[frozenset[int]]:
    """Everything, the parts of the ranking, the locations with and without each flag, each location alone;
    and the smaller ones of these without one location, since a budget may only be of use in what is behind
    it."""
    locations = ranking.graph.locations
    everywhere = frozenset(range(len(locations)))
    flagged = [
        frozenset(i for i in everywhere if flag in locations[i].flags) for flag in sorted(ranking.graph.flags)
    ]
    small = [*flagged, *(layer.locations for layer in ranking.layers if layer.depth > 1)]
    large = [
        everywhere,
        *(layer.locations for layer in ranking.layers),
        *flagged,
        *(everywhere - some for some in flagged),
    ]
    less = [region - {one} for region in small for one in sorted(region)]
    alone = [frozenset((one,)) for one in sorted(everywhere)]
    return [region for region in dict.fromkeys([*large, *less, *alone]) if region]
