"""Exact search over all reachable (state, counters) pairs, for limits small enough.

It checks the formulas of ``worst_case`` and the verdict of ``ranking`` independently: it knows nothing of
locations, rankings or covers. At the default limits of a real table the pairs are far too many; then only the
formulas speak. (Why: decision 40.)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fsm_agent.fsm.table import Row, Table
from fsm_agent.fsm.verify.reachability.successors import Compiled, Pair, compile_table

MOST_PAIRS = 600_000
"""Pairs of the largest scope that the draft was searched in (563,000); a few seconds and half a gigabyte."""


class Search:
    """The pairs that a turn can reach. ``pairs`` in the order of discovery, ``onward[i]`` the indices of the
    successors of ``pairs[i]``; pairs of the final state are left out. ``taken`` are the ids of the rows that
    are open somewhere."""

    def __init__(
        self, compiled: Compiled, pairs: list[Pair], onward: list[list[int]], taken: frozenset[str]
    ) -> None:
        self.compiled, self.pairs, self.onward, self.taken = compiled, pairs, onward, taken
        self._order = _topological(onward)
        self._known: dict[frozenset[str], tuple[list[int], list[int]]] = {}

    @property
    def ends(self) -> bool:
        """No run goes on for ever."""
        return len(self._order) == len(self.pairs)

    def most_visits(self, states: Iterable[str] | None = None) -> int:
        """The largest number of visits of ``states`` in one run; of moves when ``states`` is None."""
        return self._longest(states)[0][0]

    def most_spent(self, counter: str) -> int:
        """The largest number of rows in one run that spend ``counter``."""
        if not self.ends:
            raise ValueError("a run can go on for ever; no longest run exists")
        table, most = self.compiled.table, [0] * len(self.pairs)
        index = {pair: number for number, pair in enumerate(self.pairs)}
        for here in reversed(self._order):
            pair = self.pairs[here]
            gains = (
                (counter in row.spends)
                + (0 if row.dest == table.final else most[index[self.compiled.apply(row, pair)]])
                for row in table.rows
                if row.source == table.states[pair[0]] and self.compiled.opens[row.id](pair)
            )
            most[here] = max(gains, default=0)
        return most[0]

    def worst_run(self, states: Iterable[str] | None = None) -> tuple[Row, ...]:
        """The rows of a run with that many visits, up to the row that ends it (if one is open there)."""
        best = self._longest(states)[1]
        rows: list[Row] = []
        here = 0
        while True:
            after = best[here]
            row = self._row(self.pairs[here], None if after < 0 else self.pairs[after])
            rows += [row] if row else []
            if after < 0:
                return tuple(rows)
            here = after

    def _longest(self, states: Iterable[str] | None) -> tuple[list[int], list[int]]:
        """For each pair the largest number of visits from there on, and the successor that has it (-1:
        none)."""
        if not self.ends:
            raise ValueError("a run can go on for ever; no longest run exists")
        names = self.compiled.table.states
        wanted = frozenset(names if states is None else states)
        if wanted not in self._known:
            self._known[wanted] = self._longest_of([name in wanted for name in names])
        return self._known[wanted]

    def _longest_of(self, counted: list[bool]) -> tuple[list[int], list[int]]:
        most, best = [0] * len(self.pairs), [-1] * len(self.pairs)
        for here in reversed(self._order):
            for after in self.onward[here]:
                if best[here] < 0 or most[after] > most[best[here]]:
                    best[here] = after
            if best[here] >= 0 and not most[best[here]]:
                best[here] = -1  # nothing more to be had
            most[here] = counted[self.pairs[here][0]] + (most[best[here]] if best[here] >= 0 else 0)
        return most, best

    def _row(self, pair: Pair, after: Pair | None) -> Row | None:
        table = self.compiled.table
        here = [
            row
            for row in table.rows
            if row.source == table.states[pair[0]] and self.compiled.opens[row.id](pair)
        ]
        if after is None:
            return next((row for row in here if row.dest == table.final), None)
        return next(
            row for row in here if row.dest != table.final and self.compiled.apply(row, pair) == after
        )


def search(
    table: Table, limits: Mapping[str, int], *, caps: bool = False, most_pairs: int = MOST_PAIRS
) -> Search | None:
    """Search all pairs of ``table`` under ``limits``; None when there are more than ``most_pairs``."""
    compiled = compile_table(table, limits, caps=caps)
    known, pairs = {compiled.start: 0}, [compiled.start]
    onward: list[list[int]] = []
    waiting = [[row for row in table.rows if row.source == state] for state in table.states]
    for pair in pairs:
        if waiting[pair[0]]:
            waiting[pair[0]] = [row for row in waiting[pair[0]] if not compiled.opens[row.id](pair)]
        after = []
        for successor in compiled.successors(pair):
            index = known.get(successor)
            if index is None:
                index = known[successor] = len(pairs)
                pairs.append(successor)
            after.append(index)
        onward.append(after)
        if len(pairs) > most_pairs:
            return None
    dead = {row.id for rows in waiting for row in rows}
    return Search(compiled, pairs, onward, frozenset(row.id for row in table.rows if row.id not in dead))


def _topological(onward: list[list[int]]) -> list[int]:
    """The indices so that every step leads to a later one; those on or behind a cycle are missing."""
    waiting = [0] * len(onward)
    for after in onward:
        for index in after:
            waiting[index] += 1
    order = [index for index, count in enumerate(waiting) if not count]
    for here in order:
        for index in onward[here]:
            waiting[index] -= 1
            if not waiting[index]:
                order.append(index)
    return order
