"""An event loop that waits for another thread is woken once for all that is done, and can go away at any
time."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from fsm_agent.sessions.store.async_commit import Landing
from tests.helpers.waiting import PATIENCE


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often another thread woke it."""

    woken = 0

    def call_soon_threadsafe(self, callback, *arguments, context=None):  # type: ignore[no-untyped-def]
        self.woken += 1
        return super().call_soon_threadsafe(callback, *arguments, context=context)


def test_one_wake_up_for_all_that_is_done() -> None:
    landing, futures = Landing(), [Future[int]() for _ in range(50)]

    async def waiting() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        waiters = [asyncio.ensure_future(landing.landed(future)) for future in futures]
        await asyncio.sleep(0)
        done = threading.Event()

        def finish() -> None:
            for number, future in enumerate(futures):
                future.set_result(number)
            done.set()

        threading.Thread(target=finish).start()
        done.wait(PATIENCE)  # the loop looks only when everything is done
        await asyncio.gather(*waiters)
        return loop.woken

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        assert runner.run(waiting()) == 1


def test_what_failed_or_is_done_already_has_landed_too() -> None:
    landing, failed, done = Landing(), Future[None](), Future[None]()
    failed.set_exception(ValueError("no"))
    done.set_result(None)

    async def waiting() -> None:
        await asyncio.wait_for(landing.landed(failed), PATIENCE)
        await asyncio.wait_for(landing.landed(done), PATIENCE)

    asyncio.run(waiting())
    with pytest.raises(ValueError, match="no"):
        failed.result()


def test_who_stops_waiting_does_not_stop_what_is_waited_for() -> None:
    landing, future = Landing(), Future[None]()

    async def waiting() -> None:
        waiter = asyncio.ensure_future(landing.landed(future))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait({waiter})

    asyncio.run(waiting())
    assert not future.cancelled()
    future.set_result(None)  # its loop is closed: nobody is told, and nothing is raised


def test_each_loop_is_told_of_its_own() -> None:
    landing, futures = Landing(), [Future[None]() for _ in range(3)]
    started = threading.Barrier(4)
    ended: list[int] = []

    def serve(number: int) -> None:
        async def waiting() -> None:
            waiter = asyncio.ensure_future(landing.landed(futures[number]))
            await asyncio.sleep(0)
            await asyncio.to_thread(started.wait, 5)
            await asyncio.wait_for(waiter, PATIENCE)

        asyncio.run(waiting())
        ended.append(number)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    started.wait(PATIENCE)
    for future in futures:
        future.set_result(None)
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(ended) == [0, 1, 2]
