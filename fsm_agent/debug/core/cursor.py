"""Where a person looks, which is not where the engine is. Going back only looks; nothing runs again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from fsm_agent.debug.core.breakpoints import BreakpointHit, Breakpoints
from fsm_agent.debug.core.move_facts import MoveFacts
from fsm_agent.debug.core.record import WINDOW, Record
from fsm_agent.fsm.journal import Step


@dataclass(slots=True)
class Cursor:
    """``at`` is the position looked at; while ``following`` it is the newest one."""

    record: Record
    counters: tuple[str, ...]
    _at: int = 0
    following: bool = True

    @property
    def at(self) -> int:
        """Return the position: the newest one while it follows."""
        return self.record.count if self.following else self._at

    def to(self, at: int) -> int:
        """Look at a position; one outside of the turn is the nearest in it. The newest one is followed from
        then on."""
        count = self.record.count
        self._at = max(0, min(at, count))
        self.following = self._at == count
        return self._at

    def back(self) -> int:
        """Go one move back; returns the position."""
        return self.to(self.at - 1)

    def forward(self) -> int:
        """Go one move on; returns the position."""
        return self.to(self.at + 1)

    def back_to(self, breakpoints: Breakpoints) -> tuple[int, list[BreakpointHit]]:
        """The last position before this one at which a breakpoint would have stopped; the start when there is
        none."""
        return self._seek(list(self._hits(breakpoints, self.at - 1))[-1:])

    def forward_to(self, breakpoints: Breakpoints) -> tuple[int, list[BreakpointHit]] | None:
        """The next position at which a breakpoint would have stopped; ``None`` when there is none in what is
        recorded."""
        found = [(seq, hits) for seq, hits in self._hits(breakpoints, self.record.count) if seq > self.at][:1]
        return self._seek(found) if found else None

    def _seek(self, found: list[tuple[int, list[BreakpointHit]]]) -> tuple[int, list[BreakpointHit]]:
        at, hits = found[0] if found else (0, [])
        return self.to(at), hits

    def _hits(self, breakpoints: Breakpoints, last: int) -> list[tuple[int, list[BreakpointHit]]]:
        fresh, counters = breakpoints.fresh(), self.record.counters(0, self.counters)
        visit, spent = self.record.visit, self.record.spent
        found = []
        for first in range(1, last + 1, WINDOW):
            for step in self.record.steps(first, min(last, first + WINDOW - 1)):
                counters = after(counters, step)
                facts = MoveFacts(step, counters, partial(visit, step.seq - 1), partial(spent, step.seq))
                if hits := [hit for hit in fresh.met(facts) if hit.stops]:
                    found.append((step.seq, hits))
        return found


def after(counters: Mapping[str, int], step: Step) -> dict[str, int]:
    """The counters after a move, from those before it."""
    return {**counters, **{name: value for name, _, value in step.changes}}
