"""``ReviewTurn``: everything that one review knows. The engine asks for its first half, the states for the second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fsm_agent.fsm.table import Row

LIMITS = {"rounds": 3, "retries": 2, "unclears": 1}


@dataclass
class ReviewTurn:
    """``counts`` are the counters of the table, ``limits`` their maxima; ``cancelled`` is set by whoever wants it to stop."""

    turn_id: str
    task: str
    limits: Mapping[str, int] = field(default_factory=lambda: dict(LIMITS))
    state: str = "Draft"
    seq: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LIMITS, 0))
    came: Row | None = None
    exit: str | None = None

    text: str = ""
    objections: str = ""
    problem: str = ""
    cancelled: bool = False

    # What the engine knows

    def count(self, counter: str) -> int:
        return self.counts[counter]

    def limit(self, name: str) -> int:
        return self.limits[name]

    def spend(self, counter: str) -> None:
        self.counts[counter] += 1

    def reset(self, counter: str) -> None:
        self.counts[counter] = 0

    def counters(self) -> dict[str, int]:
        return dict(self.counts)

    def arrive(self, row: Row) -> None:
        self.came, self.exit = row, row.exit

    def crash(self, error: BaseException) -> None:
        self.problem = f"{type(error).__name__}: {error}"

    def dump(self) -> dict[str, Any]:
        """Plain values, for whoever looks at the turn."""
        return {**asdict(self), "came": self.came.id if self.came else None}

    # What a debugger may say and ask besides

    def interrupt(self, message: str | None) -> None:
        self.cancelled = True

    @property
    def outcome(self) -> str:
        return {"accepted": "completed", "cancelled": "interrupted"}.get(self.exit or "", "failed")

    # What the states ask

    @property
    def ordered(self) -> frozenset[str]:
        """What the row that led here spent: the recovery to perform first."""
        return frozenset(self.came.spends) if self.came else frozenset()
