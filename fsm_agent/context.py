"""How much of a model's window a conversation may fill: thresholds in tokens, from the figures of the catalogue 6.2."""

from __future__ import annotations

from fsm_agent.settings import Compression
from fsm_agent.wire import tokens_of

SMALL_WINDOW, TINY_WINDOW = 512_000, 64_000
LEAST_REPLY = 256
"""Tokens that must be left for an answer in the smallest of windows."""


def threshold(window: int, settings: Compression) -> int:
    """Prompt tokens from which a conversation is compacted: half of a window of 512,000 and more, three quarters below,
    85 % up to 64,000."""
    if window <= TINY_WINDOW:
        return int(window * max(settings.threshold, settings.tiny_window))
    if window < SMALL_WINDOW:
        return max(TINY_WINDOW, int(window * max(settings.threshold, settings.small_window_floor)))
    return int(window * settings.threshold)


def fits_at_all(fixed_chars: int, window: int) -> bool:
    """Could a compaction down to prompt, tools and the newest user row (``fixed_chars``) ever make the request fit?"""
    return tokens_of(fixed_chars) + LEAST_REPLY <= window
