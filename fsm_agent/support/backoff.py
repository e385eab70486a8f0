"""How long to wait before the next attempt. The waits are tenacity's strategies; the sleeping is the turn's
own."""

from __future__ import annotations

import random
from typing import Literal

from tenacity import RetryCallState, Retrying
from tenacity.wait import wait_base, wait_exponential, wait_fixed, wait_incrementing

Kind = Literal["exception", "invalid", "rebuild", "overflow", "empty"]


class Jittered(wait_base):
    """Another strategy's wait plus a random part of it, ``U(0, share · wait)``: clients must not come in
    step."""

    def __init__(self, wait: wait_base, share: float, rng: random.Random) -> None:
        self._wait, self._share, self._rng = wait, share, rng

    def __call__(self, retry_state: RetryCallState) -> float:
        seconds = self._wait(retry_state)
        return seconds + self._rng.uniform(0, self._share * seconds)


class Backoff:
    """Seconds to wait, by kind of trouble and number of the attempt that failed (from 1).

    Defaults: ``exception`` min(2·2ⁿ⁻¹, 60) and ``invalid`` min(5·2ⁿ⁻¹, 120), both plus up to half of it at
    random (BACK-01..03); ``rebuild`` min(3 + n, 8) (TR-02); ``overflow`` 2 (BACK-06); ``empty`` min(0.1·2ⁿ⁻¹,
    1) (decision 10). A wait that the provider asks for wins over all of them, up to ``retry_after_cap``
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
        rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._cap = retry_after_cap
        self._waits: dict[str, wait_base] = {
            "exception": Jittered(_doubling(*exception), jitter, rng),
            "invalid": Jittered(_doubling(*invalid), jitter, rng),
            "rebuild": wait_incrementing(start=rebuild[0] + 1, increment=1, max=rebuild[1]),
            "overflow": wait_fixed(overflow),
            "empty": _doubling(*empty),
        }

    def seconds(self, kind: Kind, attempt: int, retry_after: float | None = None) -> float:
        """The wait after the ``attempt``-th failure, never negative."""
        if retry_after is not None:
            return min(max(0.0, retry_after), self._cap)
        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = max(1, attempt)
        return self._waits[kind](state)


def _doubling(base: float, cap: float) -> wait_base:
    return wait_exponential(multiplier=base, max=cap)
