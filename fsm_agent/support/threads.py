"""Threads that never keep the process alive, and a loop of our own for the synchronous face.
(Why: decision 11.)"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fsm_agent.support.workers import WORKERS

T = TypeVar("T")


async def in_daemon_thread(function: Callable[..., T], *values: Any) -> T:
    """Run a blocking function beside the loop, in a thread that is kept for the next one. Unlike an
    executor's, it does not block the end of the process."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        nonlocal function, values, context
        threading.current_thread().name = f"fsm-agent-{getattr(function, '__name__', 'call')}"
        value, error = None, None
        try:
            value = context.run(function, *values)
        except BaseException as caught:
            error = caught if isinstance(caught, Exception) else RuntimeError(repr(caught))
        del function, values, context  # nobody who hears of the end finds what it worked with still held here
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, value, error)

    WORKERS.run(work)
    return await future


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop for work that we start: uvloop's where it is installed, which costs less a packet. A loop
    that is somebody else's stays what it is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def in_a_loop(main: Coroutine[Any, Any, T]) -> T:
    """Do as ``asyncio.run`` does, in such a loop."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


class LoopThread:
    """One event loop in a daemon thread, shared by every synchronous call, so that connections outlive a
    single call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for the coroutine's result. Safe inside a running loop of another thread, a notebook's for
        instance."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start the coroutine on this loop, from any thread, without waiting."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started())

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                self._loop = new_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True, name="fsm-agent-loop").start()
            return self._loop


def warn_if_blocking(name: str, instead: str) -> None:
    """Warn whoever called into this package, by a function called ``name``, that an event loop runs in this
    thread, which stands still until the function returns."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    caller, level = sys._getframe(1), 2
    while caller.f_back is not None and caller.f_globals.get("__name__", "").startswith("fsm_agent."):
        caller, level = caller.f_back, level + 1
    warnings.warn(
        f"{name} blocks the event loop that it is called in until the turn has ended; use {instead} there",
        RuntimeWarning,
        stacklevel=level,
    )


LOOP = LoopThread()
