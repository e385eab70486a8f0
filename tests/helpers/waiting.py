"""Waiting for what another thread or process does: as long as it takes, however busy the machine is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds after which what is waited for is taken never to come. Only a test that fails waits so long."""


def until(holds: Callable[[], bool], what: str = "it") -> None:
    """Return as soon as ``holds()``. Raises ``AssertionError`` that says ``what`` did not come."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"{what} did not come within {PATIENCE:g} s"
        time.sleep(0.01)


async def until_so(holds: Callable[[], bool], what: str = "it") -> None:
    """``until`` for coroutines."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"{what} did not come within {PATIENCE:g} s"
        await asyncio.sleep(0.005)
