"""A long run that follows a flow: the lower bound beside the one of ``flow``.

The flow says how often each edge should be taken, and its prices what a location and each unit of a budget
are worth. The walk takes, of the rows that are open, one that the flow still has left and that loses least,
and goes back a few steps where only the end of the turn is left. What it finds is a run of the machine,
whatever the flow was."""

from __future__ import annotations

from collections.abc import Mapping

from fsm_agent.fsm.table import Row
from fsm_agent.fsm.verify.reachability.successors import Pair, compile_moves
from fsm_agent.fsm.verify.time_limit import TimeLimit, endless
from fsm_agent.fsm.verify.worst_case.flow import Flow
from fsm_agent.fsm.verify.worst_case.simplex import Priced

ANY = 1e-3
"""A flow that takes an edge less often does not take it."""
Choice = tuple[bool, float, float, int, int, Pair, float]
"""How good it is, in three respects; the row, the variable of its edge, the pair it leads to and what that is
worth."""


def greedy_run(
    flow: Flow, priced: Priced, limits: Mapping[str, int], most_steps: int, within: TimeLimit | None = None
) -> tuple[Row, ...]:
    """The rows of a run from the start of a turn to its end; none when no end was found in ``most_steps``, or
    in time."""
    walk = _GreedyWalk(flow, priced, limits)
    return tuple(flow.graph.table.rows[number] for number in walk.run(most_steps, within or endless()))


class _GreedyWalk:
    def __init__(self, flow: Flow, priced: Priced, limits: Mapping[str, int]) -> None:
        table, graph = flow.graph.table, flow.graph
        self.flow, self.amounts = flow, priced.amounts
        self.used = dict.fromkeys(priced.amounts, 0)
        self.start, self.moves = compile_moves(table, limits, caps=graph.caps)
        self.ids = [row.id for row in table.rows]
        self.final = table.states.index(table.final)
        place = {counter.name: number for number, counter in enumerate(table.counters, 1)}
        self.flags = [(place[name], name) for name in sorted(graph.flags)]
        self.number = {
            (table.states.index(at.state), *(name in at.flags for _, name in self.flags)): number
            for number, at in enumerate(graph.locations)
        }
        self.worth_of = [0.0] * len(graph.locations)
        prices: list[dict[tuple[int, int], float]] = [{} for _ in graph.locations]
        for law, price in zip(flow.laws, priced.prices, strict=True):
            if law.at is not None:
                self.worth_of[law.at] += float(price)
            for at in law.region if price else ():
                budget = place[law.counter], law.limit
                prices[at][budget] = prices[at].get(budget, 0.0) + float(price)
        self.budgets = [[(*budget, price) for budget, price in here.items()] for here in prices]

    def run(self, most_steps: int, within: TimeLimit) -> list[int]:
        """Depth first. The longest way that was gone, up to a place where the turn can end."""
        way, taken, onward, endings = [0], [0], [], []

        def enter(pair: Pair, worth: float) -> None:
            choices, ending = self._choices(pair, worth)
            onward.append(choices)
            endings.append(ending)

        enter(self.start, 0.0)
        best: list[int] = []
        for _ in range(most_steps):
            if within.over:
                break
            if onward[-1]:
                *_, row, variable, pair, worth = onward[-1].pop()
                self.used[variable] += 1
                way.append(row)
                taken.append(variable)
                enter(pair, worth)
                continue
            best = _longer(best, way, endings)
            self.used[taken.pop()] -= 1
            for stack in (way, onward, endings):
                stack.pop()
            if not way:
                return best
        return _longer(best, way, endings)

    def _choices(self, pair: Pair, worth: float) -> tuple[list[Choice], int | None]:
        """Where to go from here, the best last, and a row that ends the turn here."""
        here = self._location(pair)
        onward: list[Choice] = []
        ending = None
        for number, after in self.moves(pair):
            taken = self.flow.variable.get((here, self.ids[number]))
            if after[0] == self.final:
                ending = number
            elif taken is not None:
                then = self._worth(after)
                amount = self.amounts[taken]
                left = 1 - self.used[taken] / amount if amount > ANY else -1.0
                onward.append((left > 0, round(then - worth, 3), left, number, taken, after, then))
        return sorted(onward), ending

    def _worth(self, pair: Pair) -> float:
        """What the flow's prices make of a place and of the budgets that are left there."""
        here = self._location(pair)
        worth = self.worth_of[here]
        for at, limit, price in self.budgets[here]:
            if pair[at] < limit:
                worth += (limit - pair[at]) * price
        return worth

    def _location(self, pair: Pair) -> int:
        return self.number[(pair[0], *[pair[at] > 0 for at, _ in self.flags])]


def _longer(best: list[int], way: list[int], endings: list[int | None]) -> list[int]:
    """``best``, or the rows of ``way`` up to the last place where the turn can end, and its end."""
    last = len(way) - 1
    while last >= 0 and last + 1 > len(best):
        ending = endings[last]
        if ending is not None:
            return [*way[1 : last + 1], ending]
        last -= 1
    return best
