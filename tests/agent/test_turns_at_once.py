"""Turns that wait until so few others run that they may."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, TurnResult
from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.errors import ConfigError, SessionBusy
from fsm_agent.runtime.ports import StreamSink
from fsm_agent.testing import ScriptedModel, call, text, tools
from tests.helpers.waiting import PATIENCE, until_so


class Held(ScriptedModel):
    """Answers when it is let go; ``asked`` once the model is called."""

    def __init__(self, name: str, began: list[str]) -> None:
        super().__init__([text(name)])
        self.name, self.began = name, began
        self.let_go = asyncio.Event()

    async def call(self, request: ModelRequest, sink: StreamSink) -> ModelReply | Failure:
        self.began.append(self.name)
        await self.let_go.wait()
        return await super().call(request, sink)


class Crowd:
    """Agents of one home, each with a model that is held."""

    def __init__(self, home: Path, most: int | None) -> None:
        self.home, self.most, self.began = home, most, list[str]()
        self.models: dict[str, Held] = {}
        self.agents: dict[str, Agent] = {}
        self.heard: dict[str, list[str]] = {}
        self.work: dict[str, asyncio.Task[TurnResult]] = {}

    def ask(self, name: str, **settings: Any) -> None:
        self.models[name], self.heard[name] = Held(name, self.began), []
        self.agents[name] = Agent(
            self.models[name],
            toolsets=[],
            home=self.home,
            settings={"max_turns_at_once": self.most, **settings},
            callbacks={"status": self.heard[name].append},
        )
        self.work[name] = asyncio.ensure_future(self.agents[name].arun("go"))

    async def until(self, *began: str) -> None:
        await until_so(lambda: sorted(self.began) == sorted(began), f"{began}")

    async def told(self, name: str) -> None:
        await until_so(lambda: bool(self.heard[name]), f"a word of {name}")

    async def ended(self, name: str) -> TurnResult:
        self.models[name].let_go.set()
        async with asyncio.timeout(PATIENCE):
            return await self.work[name]


def crowded(scene: Callable[[Crowd], Awaitable[None]]) -> Callable[[Path], None]:
    """A test with a crowd of which two turns may run at once."""

    async def played(home: Path) -> None:
        crowd = Crowd(home, 2)
        try:
            await scene(crowd)
        finally:
            for work in crowd.work.values():
                work.cancel()
            await asyncio.gather(*crowd.work.values(), return_exceptions=True)

    def test(tmp_path: Path) -> None:
        asyncio.run(played(tmp_path))

    return test


@crowded
async def test_who_comes_first_runs_first_and_who_waits_says_so(crowd: Crowd) -> None:
    for name in "abcd":
        crowd.ask(name)
    await crowd.until("a", "b")
    await crowd.told("d")
    assert crowd.heard["c"] == ["the turn waits: 2 run already, of at most 2"]
    assert crowd.heard["d"] == ["the turn waits: 2 run already, of at most 2; 1 wait before it"]
    assert (await crowd.ended("b")).final_response == "b"
    await crowd.until("a", "b", "c")
    await crowd.ended("c")
    await crowd.until("a", "b", "c", "d")
    assert [(await crowd.ended(name)).final_response for name in "ad"] == ["a", "d"]
    assert not crowd.heard["a"]


@crowded
async def test_a_smaller_limit_lets_nobody_overtake(crowd: Crowd) -> None:
    crowd.ask("a")
    crowd.ask("b", max_turns_at_once=1)
    crowd.ask("c")
    await crowd.until("a")
    await crowd.told("c")
    crowd.ask("d", max_turns_at_once=None)
    await crowd.until("a", "d")
    await crowd.ended("a")
    await crowd.ended("d")
    await crowd.until("a", "d", "b", "c")


@crowded
async def test_an_interrupt_ends_a_turn_that_waits_without_a_request(crowd: Crowd) -> None:
    for name in "abc":
        crowd.ask(name)
    await crowd.until("a", "b")
    await crowd.told("c")
    crowd.agents["c"].interrupt("stop")
    async with asyncio.timeout(PATIENCE):
        ended = await crowd.work["c"]
    assert ended.interrupted
    assert ended.attempts == 0
    assert crowd.began == ["a", "b"]


@crowded
async def test_a_turn_that_is_cancelled_leaves_the_line_and_its_session(crowd: Crowd) -> None:
    for name in "abcd":
        crowd.ask(name)
    await crowd.told("d")
    with pytest.raises(SessionBusy):
        await crowd.agents["c"].arun("another")
    crowd.work["c"].cancel()
    await asyncio.gather(crowd.work["c"], return_exceptions=True)
    await crowd.ended("a")
    await crowd.until("a", "b", "d")
    await crowd.ended("b")
    crowd.models["c"].let_go.set()
    assert (await crowd.agents["c"].arun("again")).final_response == "c"


@crowded
async def test_an_agent_that_is_closed_leaves_nobody_waiting(crowd: Crowd) -> None:
    for name in "abcd":
        crowd.ask(name)
    await crowd.told("d")
    await crowd.agents["c"].aclose()
    with pytest.raises(ConfigError, match="was closed while a turn of it waited"):
        await crowd.work["c"]
    await crowd.ended("a")
    await crowd.until("a", "b", "d")


@crowded
async def test_a_turn_that_fails_gives_its_place_back(crowd: Crowd) -> None:
    for name in "ab":
        crowd.ask(name)
    await crowd.until("a", "b")
    for name in "ab":
        crowd.work[name].cancel()
    crowd.ask("c")
    await crowd.until("a", "b", "c")


def test_children_run_in_the_place_of_their_parent(tmp_path: Path) -> None:
    script = [tools(call("delegate_task", {"goal": "look"})), text("looked"), text("done")]
    agent = Agent(
        ScriptedModel(script), toolsets=["delegate"], home=tmp_path, settings={"max_turns_at_once": 1}
    )
    assert agent.chat("go") == "done"
    agent.close()


@crowded
async def test_any_number_runs_when_none_is_said(crowd: Crowd) -> None:
    for name in "abcdefghij":
        crowd.ask(name, max_turns_at_once=None)
    await crowd.until(*"abcdefghij")
    assert not any(crowd.heard.values())
