"""``BaseTurn``: what every turn of a table of your own begins with. Inherit from it as a dataclass and add
what your turn knows.

>>> @dataclass
... class Parcel(BaseTurn):
...     what: str
...     usual_limits: ClassVar = {"tries": 3}
>>> parcel = Parcel("a vase")
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from fsm_agent.errors import ConfigError
from fsm_agent.fsm.codec import STORED
from fsm_agent.fsm.table import Row, Table

OutcomeName = Literal["completed", "failed", "partial", "interrupted"]


@dataclass(kw_only=True, slots=True)
class BaseTurn:
    """Where a turn is in its table, and what it has counted. Its own fields are positional, these are
    keywords.

    ``limits`` are the maxima of the counters by the name of the limit, ``usual_limits`` those of a turn that
    is given none. A field that cannot be stored, or must not be, says ``metadata={"stored": False}`` and has
    a default. A turn that people may talk to while it runs has a method ``interrupt(message)``,
    ``steer(text)``, or both."""

    usual_limits: ClassVar[Mapping[str, int]] = {}
    outcomes: ClassVar[Mapping[str, OutcomeName]] = {}

    turn_id: str = field(default_factory=lambda: f"t-{uuid.uuid4().hex[:12]}")
    state: str = ""
    seq: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    exit: str | None = None
    bug: str = ""
    last_transition: Row | None = field(default=None, metadata={STORED: False}, repr=False)

    def enter(self, table: Table) -> None:
        """Start in the first state of ``table`` with all counters at 0, or keep the position of a turn
        under way. Raises ``ConfigError`` for a missing limit, and for a state that the table does not
        have."""
        self.state = self.state or table.initial
        if self.state not in table.states:
            raise ConfigError("the table has no such state", self.state, ", ".join(table.states))
        self.counts = {counter.name: self.counts.get(counter.name, 0) for counter in table.counters}
        flags = {counter.name: 1 for counter in table.counters if counter.flag}
        self.limits = {**flags, **self.usual_limits, **self.limits}
        needed = {atom.limit for row in table.rows for atom in row.guard.atoms()}
        needed |= {inner.most for inner in table.inner.values() if inner.most}
        if missing := sorted(needed - self.limits.keys()):
            raise ConfigError(
                f"{type(self).__name__} has no limit for this", missing[0], "limits={name: maximum}"
            )

    def count(self, counter: str) -> int:
        return self.counts[counter]

    def limit(self, name: str) -> int:
        return self.limits[name]

    def spend(self, counter: str) -> None:
        self.counts[counter] += 1

    def reset(self, counter: str) -> None:
        self.counts[counter] = 0

    def counters(self) -> dict[str, int]:
        """Every counter by its name; a copy."""
        return dict(self.counts)

    def put_back(self, counters: Mapping[str, int], limits: Mapping[str, int]) -> None:
        """Have these counters and limits again: a state changed them, which only rows may do."""
        self.counts, self.limits = dict(counters), dict(limits)

    def arrive(self, row: Row) -> None:
        """Note the row that was just taken; its exit reason is the turn's."""
        self.last_transition, self.exit = row, row.exit or self.exit

    def crash(self, error: BaseException) -> None:
        """Note a bug in a state or in what performs its requests; the state's row ``crashed`` ends the turn.
        A state without one cannot continue: then the bug is raised, and the turn stays where it is."""
        self.bug = f"{type(error).__name__}: {error}"

    def dump(self) -> dict[str, Any]:
        """Where the turn is and what it counted, as plain values."""
        return {
            "state": self.state,
            "seq": self.seq,
            "counters": self.counters(),
            "limits": dict(self.limits),
            "exit": self.exit,
        }

    @property
    def spent(self) -> frozenset[str]:
        """Counters that the row which led here spent: what is to be done first in this state."""
        return frozenset(self.last_transition.spends) if self.last_transition else frozenset()

    @property
    def outcome(self) -> OutcomeName | None:
        """How well the turn ended: what ``outcomes`` says of its exit reason; ``failed`` for one that is not
        in it, and for a bug. ``None`` for a class without ``outcomes``: only its owner can tell."""
        if self.bug:
            return "failed"
        return self.outcomes.get(self.exit or "", "failed") if self.outcomes else None


def with_counters(counts: Mapping[str, int], changes: Mapping[str, Any]) -> dict[str, int]:
    """``counts`` with a person's changes. Raises ``ConfigError`` for a counter that is not there, or a value
    that none can have."""
    for name, count in changes.items():
        if name not in counts:
            raise ConfigError("no such counter", name, ", ".join(sorted(counts)))
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ConfigError(f"counter {name} cannot be set so", count, "a whole number from 0")
    return {**counts, **changes}
