"""``BaseTurn``: the base class for turns of your own tables. Inherit from it as a dataclass and add the
fields of your turn.

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

from fsm_agent.errors import ConfigError, expect
from fsm_agent.fsm.codec import STORED
from fsm_agent.fsm.table import Row, Table

OutcomeName = Literal["completed", "failed", "partial", "interrupted"]


def expect_numbers(name: str, given: object) -> None:
    """Raise ``ConfigError`` unless these are whole numbers by name, as counters and limits are."""
    expect(name, given, Mapping, "{name: whole number}")
    assert isinstance(given, Mapping)
    for one, number in given.items():
        expect(f"{name}[{one!r}]", number, int, "a whole number")


@dataclass(kw_only=True, slots=True)
class BaseTurn:
    """The position of a turn in its table, and its counters. Fields of this class are keyword-only; those of
    a subclass may be positional.

    ``limits`` maps the name of each limit to its value; ``usual_limits`` are the defaults. A field that must
    not or cannot be stored has ``metadata={"stored": False}`` and a default. A turn that accepts messages
    while it runs has a method ``interrupt(message)``, ``steer(text)``, or both."""

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
        """Start in the first state of ``table`` with all counters at 0, or keep the position of a turn under
        way. Raises ``ConfigError`` for a missing limit and for a state that is not in the table."""
        self.state = self.state or table.initial
        if self.state not in table.states:
            raise ConfigError("the table has no such state", self.state, ", ".join(table.states))
        self.counts = {counter.name: self.counts.get(counter.name, 0) for counter in table.counters}
        flags = {counter.name: 1 for counter in table.counters if counter.flag}
        self.limits = {**flags, **self.usual_limits, **self.limits}
        if missing := sorted(table.limit_names - self.limits.keys()):
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
        """Return a copy of all counters by name."""
        return dict(self.counts)

    def put_back(self, counters: Mapping[str, int], limits: Mapping[str, int]) -> None:
        """Restore counters and limits after a state changed them, which only rows may do."""
        self.counts, self.limits = dict(counters), dict(limits)

    def arrive(self, row: Row) -> None:
        """Record the row just taken; its exit reason becomes the turn's."""
        self.last_transition, self.exit = row, row.exit or self.exit

    def crash(self, error: BaseException) -> None:
        """Record a bug in a state or in a handler of its requests; the state's ``crashed`` row ends the turn.
        If the state has no such row, the bug is raised and the turn stays where it is."""
        self.bug = f"{type(error).__name__}: {error}"

    def dump(self) -> dict[str, Any]:
        """Return the position, counters and limits as plain values."""
        return {
            "state": self.state,
            "seq": self.seq,
            "counters": self.counters(),
            "limits": dict(self.limits),
            "exit": self.exit,
        }

    @property
    def spent(self) -> frozenset[str]:
        """The counters spent by the row that led here: what this state must do first."""
        return frozenset(self.last_transition.spends) if self.last_transition else frozenset()

    @property
    def outcome(self) -> OutcomeName | None:
        """The entry of ``outcomes`` for the exit reason; ``failed`` for a bug and for a reason without an
        entry. ``None`` if the class has no ``outcomes``: only its owner can tell."""
        if self.bug:
            return "failed"
        return self.outcomes.get(self.exit or "", "failed") if self.outcomes else None


def with_counters(counts: Mapping[str, int], changes: Mapping[str, Any]) -> dict[str, int]:
    """Return ``counts`` with a person's changes. Raises ``ConfigError`` for an unknown counter or an invalid
    value."""
    for name, count in changes.items():
        if name not in counts:
            raise ConfigError("no such counter", name, ", ".join(sorted(counts)))
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ConfigError(f"counter {name} cannot be set so", count, "a whole number from 0")
    return {**counts, **changes}
