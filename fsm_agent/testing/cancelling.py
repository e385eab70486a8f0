"""Cancelling a coroutine at its n-th await, the way asyncio does it: for tests that try every one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class cancelled_at(Generic[T]):  # noqa: N801 - reads as a phrase: await cancelled_at(3, turn.arun())
    """Await ``work``, and cancel the running task when ``work`` waits for the ``nth`` time (from 1).

    ``reached`` tells whether it waited so often; when it did not, its result is returned. Awaits that find
    their answer at once suspend nothing and cannot be cancelled."""

    def __init__(self, nth: int, work: Coroutine[Any, Any, T]) -> None:
        if nth < 1:
            work.close()
            raise ValueError(f"awaits are counted from 1; given: {nth}")
        self.reached = False
        self._nth, self._work = nth, work

    def __await__(self) -> Generator[Any, Any, T]:
        waits = 0
        inner = self._work.__await__()
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                waiting = inner.throw(error) if error is not None else inner.send(answer)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            waits += 1
            if waits == self._nth:
                task = asyncio.current_task()
                assert task is not None
                self.reached = True
                task.cancel(f"cancelled at await {waits}")
            answer, error = None, None
            try:
                answer = yield waiting
            except BaseException as thrown:
                error = thrown
