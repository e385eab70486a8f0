"""How long a report may take: its parts are worked out in the order of what they cost, until time is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

from fsm_agent.errors import ConfigError

SECONDS = 20.0
"""What a report may take unless told; the turn's takes two."""


def _nobody(what: str) -> None:
    """Nobody is told what is being done."""


class TimeLimit:
    """``seconds`` from now on. ``tell`` is called with what is being done, in a few words; ``clock`` gives
    seconds. Raises ``ConfigError`` for less than no time."""

    def __init__(
        self,
        seconds: float,
        tell: Callable[[str], None] = _nobody,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not seconds >= 0:
            raise ConfigError("the time for a report is out of range", seconds, "0 seconds or more")
        self.seconds, self.tell, self._clock = seconds, tell, clock
        self._ends = clock() + seconds

    @property
    def over(self) -> bool:
        """Say whether the time is over."""
        return self._clock() >= self._ends

    def share(self, of: float) -> TimeLimit:
        """Give one part of the time that is left, a half for ``of=2``, to a part of the work."""
        left = max(self._ends - self._clock(), 0.0)
        return TimeLimit(left / of, self.tell, self._clock)


def endless() -> TimeLimit:
    """All the time that is needed."""
    return TimeLimit(inf)
