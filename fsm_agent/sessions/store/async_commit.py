"""Waiting in an event loop for what the writer's thread does: one wake-up of the loop for all that is done
when it looks.

Waking a loop costs a system call in the writer's thread and two in the loop's. A commit of fifty turns wakes
their loop once. (Why: decision 29.)"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from typing import Any


class Landing:
    """Lets tasks of any number of event loops wait for futures of a thread. A loop that was closed
    meanwhile is passed over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._landed: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    async def landed(self, future: Future[Any]) -> None:
        """Wait until ``future`` is done, however it ended. Who stops waiting does not stop what is waited
        for."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        future.add_done_callback(lambda done: self._note(loop, waiter))
        await waiter

    def _note(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
        with self._lock:
            waiting = self._landed.get(loop)
            if waiting is not None:
                waiting.append(waiter)
                return
            self._landed = {one: waiters for one, waiters in self._landed.items() if not one.is_closed()} | {
                loop: [waiter]
            }
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._tell, loop)

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            waiting = self._landed.pop(loop, [])
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
