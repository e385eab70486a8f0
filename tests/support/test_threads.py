"""Loops that we start are uvloop's where it is installed; a thread holds nothing of what it worked with before."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from fsm_agent import Agent, tool
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
