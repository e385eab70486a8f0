"""How long a turn works, apart from the time in which nothing is done for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fsm_agent.runtime.deadline import Stopwatch
from fsm_agent.runtime.ports import Clock


class WorkTime:
    """Seconds in which anything was done for a turn: in this process, and ``before`` in others. Requests that
    are performed at once count once."""

    def __init__(self, clock: Clock) -> None:
        self.before, self._done, self._busy = 0.0, 0.0, 0
        self._watch = Stopwatch(clock)

    @property
    def seconds(self) -> float:
        """Return them all until now."""
        return self.before + self._done + (self._watch.elapsed() if self._busy else 0.0)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Count what is done meanwhile."""
        if not self._busy:
            self._watch.restart()
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self._done += self._watch.elapsed()
