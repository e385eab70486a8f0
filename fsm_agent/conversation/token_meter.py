"""How full a model's window is, and whether a compaction should make room: a meter with its thresholds, and
a guard. Tokens, unless it says characters.
"""

# Implausible token counts are ignored. The meter learns from real counts, but only from those between a fifth
# and five times the estimate. Some servers report nothing or a constant; believing them would disable
# compaction.

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fsm_agent.settings import Compression

CHARS_PER_TOKEN = 4
SMALL_WINDOW, TINY_WINDOW = 512_000, 64_000
ASSUMED_WINDOW = 128_000
"""Assumed window in tokens of a model without a known one."""
LEAST_REPLY = 256
"""Tokens that must be left for an answer in the smallest of windows."""
LEAST_RATIO, MOST_RATIO = 0.5, 2.5
PLAUSIBLE = (0.2, 5.0)
"""Real tokens for each estimated one; a count outside of this is a server's mistake, and is not believed."""


def tokens_of(chars: int) -> int:
    """A rough size in tokens: four characters each."""
    return chars // CHARS_PER_TOKEN


@dataclass(slots=True)
class ContextMeter:
    """The one source for every question about size: the last real count plus an estimate of what was added
    since.

    ``ratio`` is real tokens for each estimated one, learned from readings: code and Chinese cost more than
    four characters a token say. ``muted`` after a compaction that gained nothing, until the next reading."""

    tokens: int = 0
    chars: int = 0
    ratio: float = 1.0
    muted: bool = False

    def estimate(self, chars: int) -> int:
        """Tokens of a request of this many characters (images counted flat)."""
        if not self.tokens:
            return int(chars / CHARS_PER_TOKEN * self.ratio)
        return max(0, self.tokens + int((chars - self.chars) / CHARS_PER_TOKEN * self.ratio))

    def read(self, tokens: int, chars: int) -> None:
        """A provider counted ``tokens`` for a request of ``chars`` characters."""
        self.muted = False
        if plausible(tokens, chars):
            measured = tokens * CHARS_PER_TOKEN / chars
            self.tokens, self.chars = tokens, chars
            self.ratio = min(MOST_RATIO, max(LEAST_RATIO, (self.ratio + measured) / 2))

    def forget(self) -> None:
        """The history was replaced, or another model counts from here on: estimate afresh."""
        self.tokens = self.chars = 0


def plausible(tokens: int, chars: int) -> bool:
    """Whether this number of characters can make this number of tokens."""
    return chars > 0 and PLAUSIBLE[0] <= tokens * CHARS_PER_TOKEN / chars <= PLAUSIBLE[1]


def threshold(window: int, settings: Compression) -> int:
    """Prompt tokens from which a conversation is compacted: half of a window of 512,000 and more, three
    quarters below, 85 % up to 64,000. At least one, because tiny ratios round down to none and callers
    divide by it."""
    if window <= TINY_WINDOW:
        return max(1, int(window * max(settings.threshold, settings.tiny_window)))
    if window < SMALL_WINDOW:
        return max(TINY_WINDOW, int(window * max(settings.threshold, settings.small_window_floor)))
    return max(1, int(window * settings.threshold))


def fits_at_all(fixed_chars: int, window: int) -> bool:
    """Could a compaction down to prompt, tools and the newest user row (``fixed_chars``) ever make the
    request fit?"""
    return fixed_chars // CHARS_PER_TOKEN + LEAST_REPLY <= window


# When automatic compaction is left alone: after failures, and when it does not help.
#
# Figures (COMP-08..10): it stops after two compactions that left the prompt over the threshold or changed
# nothing, and after two summaries that had to be made without a model; after a failed summary it rests 600
# s when there is no provider, 60 s for a passing fault, 30 s for a broken reply, and 60, 300, 900 s for
# timeouts in a row.


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
