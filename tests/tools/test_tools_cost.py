"""What is made once and used again: threads of synchronous tools, and what was read of a function."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextvars import ContextVar

import pytest

from fsm_agent.conversation.effects import RunTool
from fsm_agent.support.clock import SystemClock
from fsm_agent.support.threads import Workers
from fsm_agent.tools import ToolRunner, tool
from fsm_agent.toolsets import toolset
from tests.helpers.waiting import PATIENCE, until


def ended(thread: threading.Thread, within: float = PATIENCE) -> bool:
    thread.join(within)
    return not thread.is_alive()


def done_by(workers: Workers) -> threading.Thread:
    """The thread that did a job, when it is idle again."""
    found: list[threading.Thread] = []
    did = threading.Event()

    def job() -> None:
        found.append(threading.current_thread())
        did.set()

    workers.run(job)
    assert did.wait(PATIENCE)
    until(lambda: bool(workers._idle), "its rest")
    return found[0]


def test_a_thread_that_is_idle_does_the_next_job_until_it_ends() -> None:
    workers = Workers()
    assert done_by(workers) is done_by(workers)
    # an idle thread ends and the next job gets another
    workers = Workers(idle=0.01)
    first = done_by(workers)
    assert ended(first)
    assert done_by(workers) is not first
    # idle threads are sent home
    workers = Workers()
    first = done_by(workers)
    until(lambda: workers.rest() or not first.is_alive())  # it says that it is idle a moment after its work
    assert done_by(workers) is not first
    # jobs never wait for each other
    workers, together = Workers(), threading.Barrier(21, timeout=PATIENCE)
    for _ in range(20):
        workers.run(lambda: together.wait() and None)
    together.wait()


def test_no_job_is_lost_between_two_threads() -> None:
    """Threads that give up at the very moment in which they are chosen still do what they were given."""
    workers, did = Workers(idle=0.0005), threading.Semaphore(0)
    for _ in range(300):
        workers.run(lambda: did.release())
        time.sleep(0.0005)
    for _ in range(300):
        assert did.acquire(timeout=PATIENCE)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks on this system")
def test_a_fork_starts_threads_of_its_own() -> None:
    workers = Workers()
    done_by(workers)
    workers.forget()  # what a fork does first
    done_by(workers)


def test_calls_in_one_thread_do_not_see_each_others_context() -> None:
    mark: ContextVar[str] = ContextVar("mark", default="nothing")
    threads: list[str] = []

    @tool
    def leave(word: str) -> str:
        """Say what is there, and leave something."""
        threads.append(threading.current_thread().name)
        before = mark.get()
        mark.set(word)
        return before

    async def calls() -> list[str]:
        runner, interrupted = ToolRunner([leave], clock=SystemClock()), asyncio.Event()
        requests = [RunTool(str(n), "leave", {"word": str(n)}, 5.0) for n in range(5)]
        return [(await runner.run(request, interrupted)).text for request in requests]

    assert asyncio.run(calls()) == ["nothing"] * 5
    assert set(threads) == {"tool-leave"}


def test_built_in_tools_are_read_once_a_process() -> None:
    first, second = toolset("core"), toolset("core")
    assert [one.spec.name for one in first] == [one.spec.name for one in second]
    assert all(one.spec is other.spec for one, other in zip(first, second, strict=True))

    # what was read belongs to the function as it is and to the options
    def look(path: str) -> str:
        """Look."""
        return path

    assert tool(look).spec is tool(look).spec
    assert tool(effect="pure")(look).spec.effect == "pure"
    assert tool(path_arguments=("path",))(look).spec.path_arguments == ("path",)
    look.__doc__ = "Look again."
    assert tool(look).spec.description == "Look again."
    assert tool(name="other")(look).signature.tool == "other"
