"""The dispatcher of one process: a line for each session, and slots that all sessions share."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial

from fsm_agent.dispatch.port import HandOver, Order, RunTurn, TurnLink
from fsm_agent.errors import SessionBusy

log = logging.getLogger(__name__)
RETRIES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before a turn that could not be run is tried again; the last one from then on."""


class InProcess:
    """To be used in one event loop. What waits here is in the store as well: another process finds it
    there."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[Order]] = {}
        self._links: dict[str, TurnLink] = {}
        self._submitted = asyncio.Event()

    async def submit(self, order: Order) -> None:
        line = self._lines.setdefault(order.session, deque())
        if order not in line:
            line.append(order)
            self._submitted.set()

    async def cancel(self, order: Order) -> None:
        if (link := self._links.get(order.turn)) is not None:
            link.cancelled.set()
        elif order in (line := self._lines.get(order.session, deque())):
            line.remove(order)

    async def waiting(self, session: str) -> list[Order]:
        return list(self._lines.get(session, ()))

    async def about(self) -> str:
        return "none: workers look for queued turns in the store"

    async def serve(self, run: RunTurn, slots: int, stop: asyncio.Event) -> None:
        free, at_work = asyncio.Semaphore(slots), dict[str, asyncio.Task[None]]()
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                self._submitted.clear()
                for session, line in list(self._lines.items()):
                    if line and session not in at_work:
                        task = asyncio.create_task(self._run_line(session, line, run, free, stop))
                        at_work[session] = task
                        task.add_done_callback(partial(self._over, session, at_work))
                submitted = asyncio.ensure_future(self._submitted.wait())
                await asyncio.wait({submitted, stopping}, return_when=asyncio.FIRST_COMPLETED)
                submitted.cancel()
        finally:
            stopping.cancel()
            for link in self._links.values():
                link.leaving.set()
            await asyncio.gather(*at_work.values(), return_exceptions=True)

    def _over(self, session: str, at_work: dict[str, asyncio.Task[None]], ended: asyncio.Task[None]) -> None:
        del at_work[session]
        if not self._lines.get(session):
            self._lines.pop(session, None)
        self._submitted.set()  # something may have come while the last one ended

    async def _run_line(
        self, session: str, line: deque[Order], run: RunTurn, free: asyncio.Semaphore, stop: asyncio.Event
    ) -> None:
        failures = 0
        while line and not stop.is_set():
            order, link = line[0], TurnLink()
            async with free:
                if stop.is_set() or not line or line[0] is not order:
                    continue
                self._links[order.turn] = link
                try:
                    await run(order, None, link)
                    failed = False
                except HandOver:
                    return
                except SessionBusy as busy:
                    log.info("turn %s waits: %s", order.turn, busy)
                    failed = True
                except Exception as error:
                    log.warning("turn %s could not be run and is tried again: %s", order.turn, error)
                    failed = True
                finally:
                    del self._links[order.turn]
            failures = failures + 1 if failed else 0
            if not failed or link.cancelled.is_set():
                line.popleft()
            else:
                await _pause(RETRIES[min(failures, len(RETRIES)) - 1], stop)

    async def aclose(self) -> None:
        """Nothing is open."""


async def _pause(seconds: float, stop: asyncio.Event) -> None:
    waiting = asyncio.ensure_future(stop.wait())
    await asyncio.wait({waiting}, timeout=seconds)
    waiting.cancel()
