"""How much slower the machine is at the moment than the one for which limits in seconds are said."""

from __future__ import annotations

import time

QUIET = 0.034
"""Seconds that the loop takes on that machine with nothing beside it."""


def slowness() -> float:
    """1 on the machine for which limits are said, more where a loop takes longer, because the machine is
    another or has other things to do."""
    began = time.perf_counter()
    for _ in range(3_000_000):
        pass
    return max(1.0, (time.perf_counter() - began) / QUIET)
