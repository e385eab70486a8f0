"""What a state may not change, because the proofs assume that rows alone do: counters, limits, the place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

from fsm_agent.fsm.table import Table
from fsm_agent.fsm.turn_protocol import RunnableTurn


class Standing(NamedTuple):
    """Where a turn stood as a visit of its state began."""

    state: str
    seq: int
    counters: dict[str, int]
    limits: dict[str, int]

    @classmethod
    def of(cls, turn: RunnableTurn) -> Self:
        """Return where the turn stands now."""
        return cls(turn.state, turn.seq, turn.counters(), dict(turn.limits))

    def put_back(self, turn: RunnableTurn, table: Table) -> str:
        """Undo what a state may not have changed. Returns it in words, such as ``counter tries from 2 to 0``;
        empty when there was nothing.

        Limits may be given to a turn that has none yet, and that of a ``Counter(exhaustible=True)`` may be
        lowered to what is counted by the state that the spending row led to."""
        if (turn.state, turn.seq, turn.counters(), turn.limits) == self:  # nearly always; nothing is copied
            return ""
        now = self.of(turn)
        counters = list(_differences("counter", self.counters, now.counters))
        limits = list(_differences("limit", self.limits, self._allowed(now.limits, turn, table)))
        places = {"state": (self.state, now.state), "seq": (self.seq, now.seq)}
        moved = [f"{name} from {was!r} to {found!r}" for name, (was, found) in places.items() if was != found]
        if moved or counters or limits:
            turn.state, turn.seq = self.state, self.seq
            turn.put_back(self.counters, self.limits if limits else now.limits)
        return ", ".join((*moved, *counters, *limits))

    def _allowed(self, found: dict[str, int], turn: RunnableTurn, table: Table) -> dict[str, int]:
        """The limits found, with those that may have been changed as they were."""
        if not self.limits:
            return self.limits
        spent = turn.last_transition.spends if turn.last_transition else ()
        lowered = {
            name: self.limits[name]
            for name in spent
            if name in table.exhaustible and found.get(name) == self.counters[name] <= self.limits[name]
        }
        return {**found, **lowered}


def _differences(what: str, before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[str]:
    for name in {**before, **after}:
        was, found = before.get(name, "nothing"), after.get(name, "nothing")
        if was != found:
            yield f"{what} {name} from {was} to {found}"
