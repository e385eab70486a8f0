"""How full a model's window is: one meter, and its thresholds. Tokens, unless it says
characters.
"""

# Implausible token counts are ignored. The meter learns from real counts, but only from those between a fifth
# and five times the estimate. Some servers report nothing or a constant; believing them would disable
# compaction.

from __future__ import annotations

from dataclasses import dataclass

from fsm_agent.conversation.effects import Cancelled, Failure, ModelRequest
from fsm_agent.conversation.messages import NO_USAGE, ModelReply, Usage
from fsm_agent.conversation.wire import CHARS_PER_TOKEN, tokens_of
from fsm_agent.settings.model import Compression

SMALL_WINDOW, TINY_WINDOW = 512_000, 64_000
ASSUMED_WINDOW = 128_000
"""Assumed window in tokens of a model without a known one."""
LEAST_REPLY = 256
"""Tokens that must be left for an answer in the smallest of windows."""
LEAST_RATIO, MOST_RATIO = 0.5, 2.5
PLAUSIBLE = (0.2, 5.0)
"""Real tokens for each estimated one; a count outside of this is a server's mistake, and is not believed."""


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


# What a request is taken to have used when its provider did not say.


def assumed_usage(request: ModelRequest, reply: ModelReply | Failure | Cancelled) -> Usage:
    """Return the estimate of its prompt, and of what had arrived of its reply; nothing for a request that did
    not leave, and for one that a provider refused."""
    match reply:
        case Failure(kind="http") | Failure(sent=False) | Cancelled(sent=False):
            return NO_USAGE
        case ModelReply():
            calls = (call.name + call.arguments for call in reply.tool_calls)
            arrived = [reply.text, reply.reasoning, *calls]
        case Cancelled():
            arrived = [reply.text, reply.reasoning]
        case Failure():
            arrived = []
    return Usage(input=request.estimate, output=tokens_of(sum(map(len, arrived))))
