"""Loops that we start are uvloop's where it is installed; a thread holds nothing of what it worked with before."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.sessions.store import fence
from fsm_agent.support import threads
from fsm_agent.support.threads import LoopThread, in_a_loop, in_daemon_thread
from fsm_agent.testing import ScriptedModel, call, text, tools
from fsm_agent.tools import runner


class Thing:
    """Something that can be watched."""


LET_GO = threading.Event()
"""Set once the test itself holds the thing no more."""


def look_at(thing: Any) -> str:
    """Look at a thing."""
    LET_GO.wait()
    return "seen"


async def in_thread(thing: Thing) -> None:
    work = asyncio.ensure_future(in_daemon_thread(look_at, thing))
    await asyncio.sleep(0)  # the thread begins
    del thing
    LET_GO.set()
    assert await work == "seen"


async def in_tool(thing: Thing) -> None:
    context = contextvars.copy_context()
    work = runner.start(tool(look_at), {"thing": thing}, context)
    del thing, context
    LET_GO.set()
    assert await work == runner.Returned("seen")


@pytest.mark.parametrize("way", [in_thread, in_tool])
def test_what_was_worked_with_is_let_go_before_the_end_is_told(way: Callable[[Thing], Any]) -> None:
    held: list[bool] = []

    async def watching() -> None:
        loop, thing = asyncio.get_running_loop(), Thing()
        watched, tell = weakref.ref(thing), loop.call_soon_threadsafe

        def told(*values: Any, **more: Any) -> Any:
            held.append(watched() is not None)
            return tell(*values, **more)

        loop.call_soon_threadsafe = told
        LET_GO.clear()
        work = way(thing)
        del thing
        await work

    for _ in range(20):
        asyncio.run(watching())
    assert held == [False] * 20


async def maker() -> str:
    """Whose loop runs this."""
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def test_our_loops_are_uvloops() -> None:
    pytest.importorskip("uvloop")
    assert (LoopThread().run(maker()), in_a_loop(maker())) == ("uvloop", "uvloop")


def test_without_it_they_are_those_of_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert in_a_loop(maker()) != "uvloop"


@pytest.mark.parametrize("ends", [SystemExit, KeyboardInterrupt])
def test_a_task_that_wants_to_end_the_process_does_not_end_the_loop_of_the_others(
    ends: type[BaseException],
) -> None:
    """An ``async`` callback may call ``sys.exit()``; who calls next must not wait for a loop that does not run."""

    async def leave() -> None:
        raise ends

    loop = LoopThread()
    with pytest.raises(ends):
        loop.run(leave())
    assert loop.submit(maker()).result(30)


async def test_a_turn_on_somebodys_loop_stays_there() -> None:
    seen: list[str] = []

    @tool(effect="pure", approval="never")
    async def look_around() -> str:
        """Look around."""
        seen.append(await maker())
        return "looked"

    agent = Agent(
        ScriptedModel([tools(call("look_around", {})), text("done")]), tools=[look_around], toolsets=[]
    )
    assert (await agent.arun("go")).completed
    await agent.aclose()
    assert seen == ["asyncio"]


class Abandoned:
    """Calls this when the garbage collector finds it: it is part of a cycle."""

    def __init__(self, called: Callable[[], object]) -> None:
        self.called, self.cycle = called, self

    def __del__(self) -> None:
        self.called()


def collects(monkeypatch: pytest.MonkeyPatch, where: object, name: str) -> None:
    """Let the garbage collector run in this function."""
    function = getattr(where, name)

    def collecting(*values: Any) -> Any:
        gc.collect()
        return function(*values)

    monkeypatch.setattr(where, name, collecting)


def in_thirty_seconds(function: Callable[[], object]) -> list[object]:
    """What it returns; nothing when it blocks."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    thread.start()
    thread.join(30)
    return found


def test_what_the_collector_finalizes_may_use_the_loop_that_is_being_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Servers of an agent that was never closed are closed there."""
    loop = LoopThread()
    closed: list[concurrent.futures.Future[str]] = []
    collects(monkeypatch, threads, "new_loop")
    Abandoned(lambda: closed.append(loop.submit(maker())))
    assert in_thirty_seconds(lambda: loop.run(maker())) == [closed[0].result(30)]


def test_the_collector_may_leave_a_turn_while_fences_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    fences = fence.Fences()
    ours = fence.Fence("turn")
    fences.hold(ours, "session")
    collects(monkeypatch, fence, "Fence")
    Abandoned(lambda: fences.leaving(ours))
    assert in_thirty_seconds(lambda: fences.refuse_if_held("other", "another turn")) == [None]
    assert fences.left("session") is not None
