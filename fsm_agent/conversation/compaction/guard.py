"""When automatic compaction is left alone: after failures, and when it does not help.

Figures (COMP-08..10): it stops after two compactions that left the prompt over the threshold or
changed nothing, and after two summaries that had to be made without a model; after a failed summary it rests
600 s when there is no provider, 60 s for a passing fault, 30 s for a broken reply, and 60, 300, 900 s for
timeouts in a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

INEFFECTIVE, FALLBACKS = 2, 2
RESTS = {"no_provider": 600.0, "passing": 60.0, "broken": 30.0}
TIMEOUTS = (60.0, 300.0, 900.0)

Fault = Literal["no_provider", "passing", "broken", "timeout"]
_FAULTS: dict[str, Fault] = {
    "auth": "no_provider",
    "auth_permanent": "no_provider",
    "billing": "no_provider",
    "model_not_found": "no_provider",
    "invalid_response": "broken",
    "empty": "broken",
    "timeout": "timeout",
    "stale": "timeout",
}


def fault_of(failure_class: str) -> Fault:
    """Which rest an error class of the summary call asks for."""
    return _FAULTS.get(failure_class, "passing")


BY_HAND = "compact by hand (/compact), or begin a new session"
NO_ROOM = f"compactions did not make room; off until a reply shows that there is some, or {BY_HAND}"
NO_MODEL = f"summaries had to be made without a model; off in this session: {BY_HAND}"


@dataclass(slots=True)
class CompactionGuard:
    """What a session remembers of its compactions. ``judged`` is false between a compaction and the next real
    count."""

    done: int = 0
    ineffective: int = 0
    without_model: int = 0
    timeouts: int = 0
    resting_until: float = 0.0
    judged: bool = True

    def blocked(self, now: float) -> str:
        """Why no automatic compaction should be made now; empty when it may."""
        if self.ineffective >= INEFFECTIVE:
            return f"the last {self.ineffective} {NO_ROOM}"
        if self.without_model >= FALLBACKS:
            return f"the last {self.without_model} {NO_MODEL}"
        if now < self.resting_until:
            return f"the summary call failed; resting for {self.resting_until - now:.0f} s"
        return ""

    def succeeded(self, *, with_model: bool) -> None:
        """Note a compaction; ``with_model`` is false when its summary was made without one."""
        self.done += 1
        self.timeouts, self.judged = 0, False
        self.without_model = 0 if with_model else self.without_model + 1

    def nothing_gained(self) -> None:
        """Note a compaction that changed nothing."""
        self.ineffective += 1

    def summary_failed(self, fault: Fault, now: float) -> None:
        """Note a summary that failed, and rest. ``now`` in seconds since the epoch."""
        rest = RESTS.get(fault)
        if rest is None:
            rest = TIMEOUTS[min(self.timeouts, len(TIMEOUTS) - 1)]
            self.timeouts += 1
        self.resting_until = now + rest

    def read(self, *, over: bool) -> None:
        """A real count of prompt tokens came in: over the threshold or not."""
        if not over:
            self.ineffective = 0
        elif not self.judged:
            self.ineffective += 1
        self.judged = True

    def forced(self) -> None:
        """A person asked for a compaction: what was held against it is forgotten."""
        self.ineffective = self.without_model = self.timeouts = 0
        self.resting_until = 0.0
