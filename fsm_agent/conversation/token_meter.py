"""A meter of how full a model's window is, with the thresholds of compaction, and a guard. In tokens, unless
in characters.
"""

# Implausible token counts are ignored. The meter learns only from counts between a fifth of the estimate and
# five times as much. Some servers report nothing or a constant; believing them would disable compaction.

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fsm_agent.settings import Compression

CHARS_PER_TOKEN = 4
SMALL_WINDOW, TINY_WINDOW = 512_000, 64_000
ASSUMED_WINDOW = 128_000
"""Assumed window in tokens of a model whose window is unknown."""
LEAST_REPLY = 256
"""Tokens to leave for an answer, even in the smallest window."""
LEAST_RATIO, MOST_RATIO = 0.5, 2.5
PLAUSIBLE = (0.2, 5.0)
"""Plausible range of real tokens per estimated token; a count outside it is a server's mistake, and is
ignored."""


def tokens_of(chars: int) -> int:
    """Estimate a size in tokens: four characters each."""
    return chars // CHARS_PER_TOKEN


@dataclass(slots=True)
class ContextMeter:
    """The single source of sizes: the last real count plus an estimate of what was added since.

    ``ratio``: real tokens per estimated token, learned from readings: code and Chinese take more tokens than
    one per four characters. ``muted``: set after a compaction that gained nothing, until the next reading."""

    tokens: int = 0
    chars: int = 0
    ratio: float = 1.0
    muted: bool = False

    def estimate(self, chars: int) -> int:
        """Estimate the tokens of a request of this many characters (images at a flat rate)."""
        if not self.tokens:
            return int(chars / CHARS_PER_TOKEN * self.ratio)
        return max(0, self.tokens + int((chars - self.chars) / CHARS_PER_TOKEN * self.ratio))

    def read(self, tokens: int, chars: int) -> None:
        """Record that a provider counted ``tokens`` for a request of ``chars`` characters."""
        self.muted = False
        if plausible(tokens, chars):
            measured = tokens * CHARS_PER_TOKEN / chars
            self.tokens, self.chars = tokens, chars
            self.ratio = min(MOST_RATIO, max(LEAST_RATIO, (self.ratio + measured) / 2))

    def forget(self) -> None:
        """Drop the last count, because the history was replaced or another model counts from now on."""
        self.tokens = self.chars = 0


def plausible(tokens: int, chars: int) -> bool:
    """Return whether this many characters can make this many tokens."""
    return chars > 0 and PLAUSIBLE[0] <= tokens * CHARS_PER_TOKEN / chars <= PLAUSIBLE[1]


def threshold(window: int, settings: Compression) -> int:
    """Return the prompt tokens at which a conversation is compacted: by default half of a window of 512,000
    and more, three quarters below that, 85 % up to 64,000. At least one, because tiny ratios round down to
    zero and callers divide by it."""
    if window <= TINY_WINDOW:
        return max(1, int(window * max(settings.threshold, settings.tiny_window)))
    if window < SMALL_WINDOW:
        return max(TINY_WINDOW, int(window * max(settings.threshold, settings.small_window_floor)))
    return max(1, int(window * settings.threshold))


def fits_at_all(fixed_chars: int, window: int) -> bool:
    """Return whether a request could fit after a compaction down to prompt, tools and the newest user row
    (``fixed_chars``)."""
    return fixed_chars // CHARS_PER_TOKEN + LEAST_REPLY <= window


# When automatic compaction pauses: after failures, and when it does not help.
#
# Figures (COMP-08..10): it stops after two compactions that left the prompt over the threshold or changed
# nothing, and after two summaries without a model. After a failed summary it rests: 600 s if no provider is
# usable, 60 s after a transient fault, 30 s after a broken reply, and 60, 300, 900 s after consecutive
# timeouts.


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
    """Return the kind of fault, which determines the rest, for an error class of the summary call."""
    return _FAULTS.get(failure_class, "passing")


BY_HAND = "compact by hand (/compact), or begin a new session"
NO_ROOM = f"compactions did not make room; off until a reply shows that there is some, or {BY_HAND}"
NO_MODEL = f"summaries had to be made without a model; off in this session: {BY_HAND}"


@dataclass(slots=True)
class CompactionGuard:
    """The record of a session's compactions. ``judged`` is false between a compaction and the next real
    count."""

    done: int = 0
    ineffective: int = 0
    without_model: int = 0
    timeouts: int = 0
    resting_until: float = 0.0
    judged: bool = True

    def why_blocked(self, now: float) -> str:
        """Return why automatic compaction is paused now; empty if it is not."""
        if self.ineffective >= INEFFECTIVE:
            return f"the last {self.ineffective} {NO_ROOM}"
        if self.without_model >= FALLBACKS:
            return f"the last {self.without_model} {NO_MODEL}"
        if now < self.resting_until:
            return f"the summary call failed; resting for {self.resting_until - now:.0f} s"
        return ""

    def record_success(self, *, with_model: bool) -> None:
        """Record a compaction; ``with_model`` is false if its summary was made without one."""
        self.done += 1
        self.timeouts, self.judged = 0, False
        self.without_model = 0 if with_model else self.without_model + 1

    def record_no_gain(self) -> None:
        """Record a compaction that changed nothing."""
        self.ineffective += 1

    def record_failure(self, fault: Fault, now: float) -> None:
        """Record a failed summary, and rest. ``now`` in seconds since the epoch."""
        rest = RESTS.get(fault)
        if rest is None:
            rest = TIMEOUTS[min(self.timeouts, len(TIMEOUTS) - 1)]
            self.timeouts += 1
        self.resting_until = now + rest

    def read(self, *, over: bool) -> None:
        """Record a real count of prompt tokens: over the threshold or not."""
        if not over:
            self.ineffective = 0
        elif not self.judged:
            self.ineffective += 1
        self.judged = True

    def clear(self) -> None:
        """Clear all reasons to pause, because a person requested a compaction."""
        self.ineffective = self.without_model = self.timeouts = 0
        self.resting_until = 0.0
