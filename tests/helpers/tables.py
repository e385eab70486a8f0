"""Tables and turns that tests of the proofs share."""

from __future__ import annotations

from collections.abc import Mapping

from fsm_agent.fsm.table import Counter, Rung, Table, end, go, left, lines_of, on

DEFAULTS = {
    "iterations": 90, "free_rounds": 90, "graces": 2, "fallbacks": 2, "rekeys": 2, "retries": 2, "patience": 1,
    "rebuilds": 1, "compactions": 3, "overflows": 3, "repairs": 10, "continuations": 3, "cut_calls": 4,
    "incompletes": 3, "scratchpads": 2, "acks": 2, "verifies": 1, "strikes": 2, "recalls": 3, "nudges": 1,
    "prefills": 2, "empties": 3, "attempts": 360, "sends": 12,
}  # fmt: skip
"""Of a turn with two fallbacks and two rekeys; see table.md, section 3."""

UNCOUNTED = 10**9
"""A limit for a cap that is taken away."""


class Counting:
    """A turn that is nothing but its place in a table and its counters."""

    def __init__(self, table: Table, limits: Mapping[str, int]) -> None:
        self.state, self.seq = table.initial, 0
        self.counts = {counter.name: 0 for counter in table.counters}
        self.limits = dict(limits) | {counter.name: 1 for counter in table.counters if counter.flag}

    def count(self, counter: str) -> int:
        return self.counts[counter]

    def limit(self, name: str) -> int:
        return self.limits[name]

    def spend(self, counter: str) -> None:
        self.counts[counter] += 1

    def reset(self, counter: str) -> None:
        self.counts[counter] = 0

    def dump(self) -> dict[str, object]:
        return {"state": self.state, **self.counts}


def courier() -> Table:
    """A parcel: no flag, no cap, nothing about models."""
    again = Rung("drive again", "Drive", left("tries"), ("tries",))
    ring = Rung("ring", "Ring", left("rings"), ("rings",))
    repack = Rung("repack", "Pack", left("repacks"), ("repacks",))
    lines = {
        "Pack": [on("packed", go("Drive"), why="")],
        "Drive": [on("arrived", go("Ring"), why=""), on("broken", repack, end("lost", "Done"), why="")],
        "Ring": [
            on("open", end("delivered", "Done"), why=""),
            on("closed", ring, again, end("returned", "Done"), why=""),
        ],
    }
    counters = tuple(Counter(name) for name in ("tries", "rings", "repacks"))
    return Table("parcel", ("Pack", "Drive", "Ring", "Done"), "Done", counters, lines_of(lines))
