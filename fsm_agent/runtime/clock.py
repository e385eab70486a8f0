"""Time: the real clock, delays between attempts, and work raced against a limit and an interrupt.

A limit is reached when either the injected clock or the machine's own says so. The race polls both a few
times a second instead of sleeping on the injected clock: a simulated clock jumps, and a sleeping watchdog
would kill work that a real server is about to finish."""

from __future__ import annotations

import asyncio
import inspect
import math
import random
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

from fsm_agent.errors import ConfigError
from fsm_agent.runtime.ports import Clock
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import one_line
from fsm_agent.support.threads import LOOP, Interrupt, in_daemon_thread

if TYPE_CHECKING:
    from tenacity.wait import wait_base


# ----------------------------------------------------------------------------------------------------
# The real clock.


class SystemClock:
    """Wall time since the epoch in seconds, and asyncio's sleep."""

    now = staticmethod(time.time)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


# How long to wait before the next attempt. The waits are tenacity's strategies; the sleeping is the turn's
# own.


Kind = Literal["exception", "invalid", "rebuild", "overflow", "empty"]


# Delays after an empty reply. 0.1, 0.2, and 0.4 seconds before the model is asked again: long enough to be
# polite, too short to be noticed.


class Backoff:
    """Seconds to wait, by kind of failure and number of the failed attempt (from 1).

    Defaults: ``exception`` min(2·2ⁿ⁻¹, 60) and ``invalid`` min(5·2ⁿ⁻¹, 120), both plus up to half of it at
    random (BACK-01..03); ``rebuild`` min(3 + n, 8) (TR-02); ``overflow`` 2 (BACK-06); ``empty`` min(0.1·2ⁿ⁻¹,
    1). A wait that the provider requests overrides all of them, up to ``retry_after_cap`` (BACK-05); 0 means
    at once. Pairs are (base, cap) in seconds. ``rng`` makes the jitter repeatable."""

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
        """The strategies, built at the first failure: most programs see none."""
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
        """Return the seconds to wait after the ``attempt``-th failure, never negative."""
        if retry_after is not None:
            return min(max(0.0, retry_after), self._cap)
        from tenacity import RetryCallState, Retrying

        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = max(1, attempt)
        seconds = self._waits[kind](state)
        random_part = self._jitter if kind in ("exception", "invalid") else 0.0
        return seconds + (self._rng.uniform(0, random_part * seconds) if random_part else 0.0)


# ----------------------------------------------------------------------------------------------------
# Races against a limit.


Finish = Literal["done", "late", "interrupted"]


_SHORTEST = 0.005
"""Minimum seconds between two polls."""


class Stopwatch:
    """Seconds since the last ``restart``, by the faster of two clocks."""

    __slots__ = ("_clock", "_machine", "_now")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Restart both the turn's clock and the machine's."""
        self._now, self._machine = self._clock.now(), time.monotonic()

    def elapsed(self) -> float:
        """Return the elapsed seconds, by the clock that advanced further."""
        return max(self._clock.now() - self._now, time.monotonic() - self._machine)


class Deadline:
    """Ends its block, by canceling the task as ``asyncio.timeout`` does, when ``left()`` returns no remaining
    seconds or ``interrupted`` is set; ``finish`` is then ``late`` or ``interrupted``.

    ``left`` is called every ``poll`` seconds and when the remaining time is up, ``tick`` at every poll. Both
    are called by a timer of the loop that wakes no task, so a waiting turn costs little, and a limit that
    moves further away needs no new timer."""

    def __init__(
        self,
        left: Callable[[], float],
        interrupted: Interrupt | None = None,
        *,
        poll: float = math.inf,
        tick: Callable[[], None] | None = None,
    ) -> None:
        self._left, self._poll, self._tick = left, poll, tick
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._interrupted = interrupted
        self._error: Exception | None = None
        self.finish: Finish = "done"

    def __enter__(self) -> Self:
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        if self._interrupted is not None:
            self._interrupted.calls.add(self._interrupt)
            if self._interrupted.is_set():
                self._interrupt()
        self._look_later()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> bool:
        self._timer.cancel()
        if self._interrupted is not None:
            self._interrupted.calls.discard(self._interrupt)
        task, self._task = self._task, None  # a callback that is already on its way must find the block ended
        if self.finish == "done":
            return False
        assert task is not None
        ours = task.uncancel() <= self._cancelling and kind is asyncio.CancelledError
        if self._error is not None:
            raise self._error
        return ours

    def look_again(self) -> None:
        """Notice that fewer seconds are left than before."""
        self._timer.cancel()
        self._look_later()

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(min(self._poll, max(_SHORTEST, self._left())), self._look)

    def _look(self) -> None:
        try:
            if self._left() <= 0:
                return self._end("late")
            if self._tick is not None:
                self._tick()
            self._look_later()
        except Exception as error:  # raised where the block ends
            self._error = error
            self._end("late")

    def _interrupt(self) -> None:
        if asyncio.current_task() is self._task:  # which cannot be canceled where it waits
            self._loop.call_soon(self._end, "interrupted")
        else:
            self._end("interrupted")

    def _end(self, finish: Finish) -> None:
        if self.finish == "done" and self._task is not None:
            self.finish = finish
            self._task.cancel()


async def wait_with_deadline(
    work: asyncio.Future[Any],
    *,
    left: Callable[[], float],
    interrupted: Interrupt | None,
    poll: float = 0.3,
    tick: Callable[[], None] | None = None,
) -> Finish:
    """Wait until ``work`` is done, or a ``Deadline`` with the other arguments ends the wait. ``work`` keeps
    running: canceling it is the caller's decision."""
    with Deadline(left, interrupted, poll=poll, tick=tick) as deadline:
        await asyncio.wait({work})
    return "done" if work.done() else deadline.finish


class UsersCode:
    """Calls user code that a turn waits for, within a time limit and until an interrupt, and reports failures
    as text. ``what``: its name in messages. The code runs on the engine's own loop, whichever loop a turn
    runs on, so that it can keep a connection; or with ``here``, on the turn's loop. ``then``: the consequence
    of a timeout, in words."""

    def __init__(
        self, what: str, clock: Clock, poll: float, *, then: str = "; continuing without it"
    ) -> None:
        self._what, self._clock, self._poll, self._then = what, clock, poll, then

    async def within(
        self,
        work: Coroutine[Any, Any, Any],
        seconds: float,
        interrupted: Interrupt | None = None,
        *,
        here: bool = False,
    ) -> tuple[Any, str]:
        """Return the result of ``work`` and an empty text; or ``None`` and a problem, which is empty after an
        interrupt."""
        if interrupted is not None and interrupted.is_set():
            work.close()
            return None, ""
        watch = Stopwatch(self._clock)
        future = asyncio.ensure_future(work) if here else asyncio.wrap_future(LOOP.submit(work))
        finish = await wait_with_deadline(
            future, left=lambda: seconds - watch.elapsed(), interrupted=interrupted, poll=self._poll
        )
        if finish != "done":
            future.cancel()
            late = f"{self._what} took longer than {seconds:g} s{self._then}"
            return None, late if finish == "late" else ""
        if future.cancelled():
            return None, f"{self._what} was cancelled"
        if (error := future.exception()) is not None:
            return None, f"{self._what} failed: {one_line(mask(repr(error)), 300)}"
        return future.result(), ""


async def answer_of(function: Callable[..., Any], *values: Any) -> Any:
    """Call a function that is asynchronous or may block."""
    if inspect.iscoroutinefunction(function):
        return await function(*values)
    value = await in_daemon_thread(function, *values)
    return await value if inspect.isawaitable(value) else value


def require_method(thing: object, what: str, methods: Sequence[str], allowed: str) -> None:
    """Raise ``ConfigError`` if ``thing`` lacks a method that ``what`` needs."""
    if missing := [name for name in methods if not callable(getattr(thing, name, None))]:
        raise ConfigError(f"not {what}: {', '.join(missing)} missing", thing, allowed)


# How long a turn works, excluding the time in which it is idle.


class WorkTime:
    """Seconds of work on a turn: in this process, and ``before`` in others. Concurrent requests count
    once."""

    def __init__(self, clock: Clock) -> None:
        self.before, self._done, self._busy = 0.0, 0.0, 0
        self._watch = Stopwatch(clock)

    @property
    def seconds(self) -> float:
        """Return the total so far."""
        return self.before + self._done + (self._watch.elapsed() if self._busy else 0.0)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Count the time spent in this block."""
        if not self._busy:
            self._watch.restart()
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self._done += self._watch.elapsed()
