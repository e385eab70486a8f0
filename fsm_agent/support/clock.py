"""The real clock."""

from __future__ import annotations

import asyncio
import random
import time
from functools import cached_property
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tenacity.wait import wait_base


class SystemClock:
    """Wall time since the epoch in seconds, and asyncio's sleep."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


# How long to wait before the next attempt. The waits are tenacity's strategies; the sleeping is the turn's
# own.


Kind = Literal["exception", "invalid", "rebuild", "overflow", "empty"]


# Delays after an empty reply. 0.1, 0.2, and 0.4 seconds before the model is asked again: long enough to be
# polite, too short to be noticed.


class Backoff:
    """Seconds to wait, by kind of trouble and number of the attempt that failed (from 1).

    Defaults: ``exception`` min(2·2ⁿ⁻¹, 60) and ``invalid`` min(5·2ⁿ⁻¹, 120), both plus up to half of it at
    random (BACK-01..03); ``rebuild`` min(3 + n, 8) (TR-02); ``overflow`` 2 (BACK-06); ``empty`` min(0.1·2ⁿ⁻¹,
    1). A wait that the provider asks for wins over all of them, up to ``retry_after_cap``
    (BACK-05); 0 means at once. Pairs are (base, cap) in seconds. ``rng`` makes the jitter repeatable."""

    def __init__(
        self,
        *,
        exception: tuple[float, float] = (2.0, 60.0),
        invalid: tuple[float, float] = (5.0, 120.0),
        rebuild: tuple[float, float] = (3.0, 8.0),
        overflow: float = 2.0,
        empty: tuple[float, float] = (0.1, 1.0),
        jitter: float = 0.5,
        retry_after_cap: float = 600.0,
        rng: random.Random | None = None,
    ) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._cap, self._jitter = retry_after_cap, jitter
        self._exception, self._invalid, self._empty = exception, invalid, empty
        self._rebuild, self._overflow = rebuild, overflow

    @cached_property
    def _waits(self) -> dict[str, wait_base]:
        """Made at the first failure: most programs see none."""
        from tenacity.wait import wait_exponential, wait_fixed, wait_incrementing

        (first, longest), (base, cap) = self._rebuild, self._empty
        return {
            "exception": wait_exponential(multiplier=self._exception[0], max=self._exception[1]),
            "invalid": wait_exponential(multiplier=self._invalid[0], max=self._invalid[1]),
            "rebuild": wait_incrementing(start=first + 1, increment=1, max=longest),
            "overflow": wait_fixed(self._overflow),
            "empty": wait_exponential(multiplier=base, max=cap),
        }

    def seconds(self, kind: Kind, attempt: int, retry_after: float | None = None) -> float:
        """The wait after the ``attempt``-th failure, never negative."""
        if retry_after is not None:
            return min(max(0.0, retry_after), self._cap)
        from tenacity import RetryCallState, Retrying

        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = max(1, attempt)
        seconds = self._waits[kind](state)
        random_part = self._jitter if kind in ("exception", "invalid") else 0.0
        return seconds + (self._rng.uniform(0, random_part * seconds) if random_part else 0.0)
