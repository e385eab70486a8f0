"""Event loops that we start are uvloop's where it is installed; nobody else's are."""

from __future__ import annotations

import asyncio
import sys

import pytest

from fsm_agent.support.threads import LoopThread, in_a_loop
from fsm_agent.testing import ScriptedModel, text
from fsm_agent.tools import tool


async def maker() -> str:
    """Whose loop runs this."""
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def test_our_loops_are_uvloops() -> None:
    pytest.importorskip("uvloop")
    assert (LoopThread().run(maker()), in_a_loop(maker())) == ("uvloop", "uvloop")


def test_without_it_they_are_those_of_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert in_a_loop(maker()) != "uvloop"


def test_a_turn_on_somebodys_loop_stays_there() -> None:
    from fsm_agent import Agent
    from fsm_agent.testing import call, tools

    seen: list[str] = []

    @tool(effect="pure", approval="never")
    async def look() -> str:
        """Look around."""
        seen.append(await maker())
        return "looked"

    async def play() -> None:
        agent = Agent(ScriptedModel([tools(call("look", {})), text("done")]), tools=[look], toolsets=[])
        assert (await agent.arun("go")).completed
        await agent.aclose()

    asyncio.run(play())
    assert seen == ["asyncio"]
