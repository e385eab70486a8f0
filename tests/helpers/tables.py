"""Tables and turns that tests of the proofs share."""

from __future__ import annotations

from fsm_agent.fsm.table import Counter, Rung, Table, end, go, left, lines_of, on
from fsm_agent.testing.scripts import CountingTurn as Counting
from fsm_agent_states.table import TURN

__all__ = ["DEFAULTS", "UNCOUNTED", "Counting", "chain", "courier", "nested"]
DEFAULTS = {name: most for name, most in TURN.default_limits().items() if name != "opened"}
"""Of a turn with two fallbacks, two rekeys and one auxiliary model."""
UNCOUNTED = 10**9
"""A limit for a cap that is taken away."""


def courier() -> Table:
    """A parcel: no flag, no cap, nothing about models."""
    again = Rung("drive again", "Drive", left("tries"), ("tries",))
    ring = Rung("ring", "Ring", left("rings"), ("rings",))
    repack = Rung("repack", "Pack", left("repacks"), ("repacks",))
    lines = {
        "Pack": [on("packed", go("Drive"), why="")],
        "Drive": [on("arrived", go("Ring"), why=""), on("broken", repack, end("lost", "Done"), why="")],
        "Ring": [on("open", end("delivered", "Done"), why=""),
                 on("closed", ring, again, end("returned", "Done"), why="")],
    }  # fmt: skip
    counters = tuple(Counter(name) for name in ("tries", "rings", "repacks"))
    return Table("parcel", ("Pack", "Drive", "Ring", "Done"), "Done", counters, lines_of(lines))


def nested(counters: int) -> Table:
    """One state; each counter gives all later ones back, so that budgets multiply."""
    names = [f"c{number}" for number in range(counters)]
    rungs = [Rung(name, "A", left(name), (name,), tuple(names[at + 1 :])) for at, name in enumerate(names)]
    lines = [on(f"e{at}", rung, end(f"over{at}", "Done"), why="") for at, rung in enumerate(rungs)]
    return Table("nested", ("A", "Done"), "Done", tuple(map(Counter, names)), lines_of({"A": lines}))


def chain(states: int) -> Table:
    """States one after the other, with two budgets and seven rows each, and ways back."""
    names = [f"S{number}" for number in range(states)]
    parts = {}
    for at, name in enumerate(names):
        here, back = f"a{at}", f"b{at}"
        further = Rung("on", names[at + 1], resets=(here,)) if name != names[-1] else end("ok", "Done")
        again = Rung("again", name, left(here), (here,))
        before = Rung("back", names[max(at - 1, 0)], left(back), (back,), (here,))
        half = Rung("half the way", names[at // 2], left(back), (back,))
        parts[name] = [
            on("ok", further, why=""), on("bad", again, before, end("failed", "Done"), why=""),
            on("far", half, end("far", "Done"), why=""), on("stop", end("stopped", "Done"), why=""),
        ]  # fmt: skip
    counters = tuple(Counter(f"{kind}{at}") for at in range(states) for kind in "ab")
    return Table("chain", (*names, "Done"), "Done", counters, lines_of(parts))


class Assigned:
    """Counts and limits from two dictionaries, for brute force over guards."""

    def __init__(self, counts: dict[str, int], limits: dict[str, int]) -> None:
        self.counts, self.limits = counts, limits

    def count(self, counter: str) -> int:
        return self.counts[counter]

    def limit(self, name: str) -> int:
        return self.limits[name]
