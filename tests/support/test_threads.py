"""Work beside the loop: when its end is told, nothing of what it worked with is held by its thread, so that a
lock which goes with an object is free by then."""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from fsm_agent import tool
from fsm_agent.support.threads import in_daemon_thread
from fsm_agent.tools import handler


class Thing:
    """Something that can be watched."""


@tool
def look(thing: Any) -> str:
    """Look at a thing."""
    return "seen"


async def in_thread(thing: Thing) -> weakref.ref[Thing]:
    watched = weakref.ref(thing)
    work = asyncio.ensure_future(in_daemon_thread(str, thing))
    del thing
    assert "Thing" in await work
    return watched


async def in_tool(thing: Thing) -> weakref.ref[Thing]:
    watched = weakref.ref(thing)
    context = contextvars.copy_context()
    work = handler.start(look, {"thing": thing}, context)
    del thing, context
    assert await work == handler.Returned("seen")
    return watched


@pytest.mark.parametrize("way", [in_thread, in_tool])
def test_what_was_worked_with_is_let_go_before_the_end_is_told(way: Callable[[Thing], Any]) -> None:
    held: list[bool] = []

    async def watching() -> None:
        loop, thing = asyncio.get_running_loop(), Thing()
        watched, tell = weakref.ref(thing), loop.call_soon_threadsafe

        def told(*values: Any, **more: Any) -> Any:
            held.append(watched() is not None)
            return tell(*values, **more)

        loop.call_soon_threadsafe = told  # type: ignore[method-assign]
        work = way(thing)
        del thing
        await work

    for _ in range(20):
        asyncio.run(watching())
    assert held == [False] * 20
