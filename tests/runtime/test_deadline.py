"""Racing work against a time limit and an interrupt, and which turn runs here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import copy_context
from functools import partial
from typing import Any

import pytest

from fsm_agent.fsm.pause_point import TurnInbox
from fsm_agent.runtime.clock import Deadline, Finish, wait_with_deadline
from fsm_agent.runtime.events import EVERYWHERE, TURN, Stream, running
from fsm_agent.support.threads import Interrupt


class Resumed:
    """Awaits what it is given, and counts how often that was resumed."""

    def __init__(self, awaited: Any) -> None:
        self._awaited, self.times = awaited, 0

    def __await__(self) -> Generator[Any, Any, Finish]:
        steps = self._awaited.__await__()
        resume = partial(next, steps)
        while True:
            self.times += 1
            try:
                pending = resume()
            except StopIteration as stop:
                return stop.value
            try:
                yield pending
                resume = partial(next, steps)
            except BaseException as error:
                resume = partial(steps.throw, error)


def raced(
    work: float, left: Callable[[], float], *, stop: float = 9, tick: Callable[[], None] | None = None
) -> tuple[Finish, int]:
    """How a race ended, and how often the waiting task was resumed. ``work`` and ``stop``: seconds until the
    work is done and until the interrupt."""

    async def race() -> tuple[Finish, int]:
        interrupted, loop = Interrupt(), asyncio.get_running_loop()
        stopping = loop.call_later(stop, interrupted.set)
        working = asyncio.ensure_future(asyncio.sleep(work))
        resumed = Resumed(
            wait_with_deadline(working, left=left, interrupted=interrupted, poll=0.001, tick=tick)
        )
        try:
            return await resumed, resumed.times
        finally:
            stopping.cancel()
            working.cancel()

    return asyncio.run(race())


def test_reading_the_clock_wakes_no_task() -> None:
    looks: list[int] = []
    finish, resumed = raced(0.1, lambda: 9, tick=lambda: looks.append(1))
    assert finish == "done"
    assert len(looks) > 5
    assert resumed <= 3


def test_the_first_of_the_three_ends_it() -> None:
    assert raced(0, lambda: 0)[0] == "done"
    assert raced(9, lambda: 0)[0] == "late"
    assert raced(9, lambda: 9, stop=0.01)[0] == "interrupted"


def test_an_error_while_polling_reaches_the_waiting_task() -> None:
    def fails() -> None:
        raise LookupError("a bug")

    with pytest.raises(LookupError, match="a bug"):
        raced(9, lambda: 9, tick=fails)


async def test_a_deadline_ends_its_block_and_a_cancellation_goes_through_it() -> None:
    now = asyncio.get_running_loop().time
    until = now() + 0.01
    with Deadline(lambda: until - now()) as deadline:
        await asyncio.sleep(9)
    assert deadline.finish == "late"

    async def guarded() -> None:
        with Deadline(lambda: 9.0):
            await asyncio.sleep(9)

    task = asyncio.ensure_future(guarded())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_deadline_that_comes_nearer_is_noticed() -> None:
    left = 9.0
    with Deadline(lambda: left) as deadline:
        left = 0.0
        deadline.look_again()
        await asyncio.sleep(9)
    assert deadline.finish == "late"


async def test_an_interrupt_while_the_block_ends_does_not_cancel_what_follows() -> None:
    interrupt = TurnInbox().event()
    interrupt.set()
    with Deadline(lambda: 9.0, interrupt) as deadline:
        pass
    await asyncio.sleep(0.001)
    assert deadline.finish == "done"


async def test_an_interrupt_comes_before_what_arrives_in_the_same_pass_of_the_loop() -> None:
    """Otherwise a person reads that the turn is interrupted, and then the whole answer."""
    loop = asyncio.get_running_loop()
    interrupt, arrived = TurnInbox().event(), loop.create_future()

    async def read() -> Finish:
        with Deadline(lambda: 9.0, interrupt) as deadline:
            await arrived
        return deadline.finish

    reading = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    loop.call_soon(interrupt.set)
    arrived.set_result("an answer")
    assert await reading == "interrupted"


async def test_a_block_may_interrupt_itself() -> None:
    interrupt = TurnInbox().event()
    with Deadline(lambda: 9.0, interrupt) as deadline:
        interrupt.set()
        await asyncio.sleep(9)
    assert deadline.finish == "interrupted"
    with Deadline(lambda: 9.0, interrupt):
        pass
    await asyncio.sleep(0.001)


async def test_every_wait_for_an_interrupt_ends_with_it() -> None:
    interrupt = TurnInbox().event()
    waits = [asyncio.ensure_future(interrupt.wait()) for _ in range(3)]
    waits[0].cancel()
    interrupt.set()
    assert await asyncio.gather(*waits[1:], interrupt.wait()) == [True] * 3


def test_a_turn_that_was_left_is_closed_in_another_context_without_a_word() -> None:
    """The garbage collector does that; an error there was taken for a bug of the state."""

    stream = Stream("t-1")

    def turn() -> Generator[Stream, None, None]:
        with running(stream):
            yield TURN.get()

    left = turn()
    assert copy_context().run(next, left) is stream
    left.close()
    assert TURN.get() is EVERYWHERE
