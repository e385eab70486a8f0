"""A turn that is nothing but its place in a table and its counters: enough to run any table without
states."""

from __future__ import annotations

from collections.abc import Mapping

from fsm_agent.fsm.table import Row, Table


class CountingTurn:
    """A ``TurnLike`` for ``table`` under ``limits`` (flags need none, theirs is 1). ``counts`` are the
    counters by name.

    It has what the runner needs too, so a turn of your own may inherit from it and add its facts.
    """

    def __init__(self, table: Table, limits: Mapping[str, int], turn_id: str = "turn") -> None:
        self.turn_id = turn_id
        self.state, self.seq = table.initial, 0
        self.counts = {counter.name: 0 for counter in table.counters}
        self.limits = dict(limits) | {counter.name: 1 for counter in table.counters if counter.flag}
        self.came: Row | None = None
        self.exit: str | None = None
        self.bug: BaseException | None = None

    def count(self, counter: str) -> int:
        return self.counts[counter]

    def limit(self, name: str) -> int:
        return self.limits[name]

    def spend(self, counter: str) -> None:
        self.counts[counter] += 1

    def reset(self, counter: str) -> None:
        self.counts[counter] = 0

    def counters(self) -> dict[str, int]:
        """Return all counters by their names."""
        return dict(self.counts)

    def arrive(self, row: Row) -> None:
        """The row that was just taken; its exit reason is the turn's."""
        self.came, self.exit = row, row.exit or self.exit

    def crash(self, error: BaseException) -> None:
        self.bug = error

    def dump(self) -> dict[str, object]:
        """Return the turn as JSON values."""
        return {
            "state": self.state,
            "seq": self.seq,
            "counters": self.counters(),
            "limits": dict(self.limits),
            "exit": self.exit,
        }
