"""Turns of many agents at once: what each has, what they share, who waits; and a message that comes while a turn runs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, TurnResult, tool
from fsm_agent.composition.model_caller import tell_attempt
from fsm_agent.conversation.effects import CallModel, Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.errors import ConfigError, SessionBusy
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.events import Stream, running
from fsm_agent.runtime.ports import StreamSink
from fsm_agent.support.threads import in_daemon_thread
from fsm_agent.testing import ScriptedModel, ScriptedServer, call, text, tools
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
        settings = {"max_turns_at_once": self.most, **settings}
        options: dict[str, Any] = {"toolsets": [], "callbacks": {"status": self.heard[name].append}}
        self.agents[name] = Agent(self.models[name], home=self.home, settings=settings, **options)
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


def test_children_run_in_the_place_of_their_parent(agent: Callable[..., Agent]) -> None:
    script = [tools(call("delegate_task", {"goal": "look"})), text("looked"), text("done")]
    assert agent(*script, toolsets=["delegate"], settings={"max_turns_at_once": 1}).chat("go") == "done"


@crowded
async def test_any_number_runs_when_none_is_said(crowd: Crowd) -> None:
    for name in "abcdefghij":
        crowd.ask(name, max_turns_at_once=None)
    await crowd.until(*"abcdefghij")
    assert not any(crowd.heard.values())


ROOT = Path(__file__).parents[2]


@tool(concurrency="parallel", effect="pure")
async def look(n: int) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"n": n}


def test_turns_with_asynchronous_tools_have_no_threads_of_their_own(tmp_path: Path) -> None:
    started: set[threading.Thread] = set()

    async def one() -> str | None:
        script = [*(tools(call("look", {"n": number})) for number in range(5)), text("done")]
        agent = Agent(ScriptedModel(script), tools=[look], toolsets=[], home=tmp_path)
        return (await agent.arun("go")).final_response

    async def run() -> list[str | None]:
        return await asyncio.gather(*(one() for _ in range(8)))

    threading.setprofile(lambda *_: started.add(threading.current_thread()))
    try:
        assert asyncio.run(run()) == ["done"] * 8
    finally:
        threading.setprofile(None)
    assert len(started) < 20  # the writer, who reads commands, and who judges the results of 40 calls


async def test_blocking_work_uses_a_thread_again() -> None:
    assert len({await in_daemon_thread(threading.current_thread) for _ in range(20)}) < 10


def test_an_attempt_that_went_well_costs_nothing_when_nobody_listens() -> None:
    asked = CallModel(ModelRequest(b"{}"), 1, 1)
    nobody: Any = None  # no record is made of it
    with running(Stream()):  # the books of our tests hear of all others
        tell_attempt(Callbacks(), asked, nobody, ModelReply("hi"), 0.1, 1, sent=True)
        with pytest.raises(AttributeError):
            tell_attempt(Callbacks({"event": print}), asked, nobody, ModelReply("hi"), 0.1, 1, sent=True)


@pytest.mark.slow
def test_two_hundred_turns_at_once_fail_none(tmp_path: Path) -> None:
    found = tmp_path / "figures.json"
    few = ("--turns", "200", "--calls", "3")
    program = [sys.executable, "benchmarks/many_turns.py", *few, "--json", str(found)]
    subprocess.run(program, cwd=ROOT, check=True, timeout=600, stdout=subprocess.DEVNULL)
    ours = next(row for row in json.loads(found.read_text()) if row["way"] == "fsm_agent")
    assert ours["failed"] == 0
    assert ours["threads"] < 30
    assert ours["more"] < 150


class Busy:
    """An agent whose first turn is in a tool until it is let go, and a second message that came meanwhile."""

    def __init__(self, script: list[Any], how: str | None) -> None:
        self.in_tool, self.go_on = threading.Event(), threading.Event()
        settings = {} if how is None else {"interrupt": {"second_message": how}}

        @tool
        def work() -> str:
            """Work until told to stop."""
            self.in_tool.set()
            assert self.go_on.wait(PATIENCE)
            return "worked"

        self.model = ScriptedModel(script)
        self.agent = Agent(self.model, tools=[work], toolsets=[], settings=settings)
        self.results: dict[str, TurnResult] = {}

    def ask(self, words: str) -> threading.Thread:
        asking = threading.Thread(
            target=lambda: self.results.update({words: self.agent.run_conversation(words)})
        )
        asking.start()
        return asking

    def both(self, heard: Any) -> None:
        first = self.ask("first")
        assert self.in_tool.wait(PATIENCE)
        second = self.ask("second")
        until = threading.Event()
        while not heard(self.agent):
            until.wait(0.01)
        self.go_on.set()
        first.join(PATIENCE)
        second.join(PATIENCE)
        self.agent.close()


def waits(agent: Agent) -> bool:
    return len(agent._queue._queue) == 2


WORK = tools(call("work", {}))


def test_by_default_the_session_is_busy() -> None:
    busy = Busy([WORK, text("one")], None)
    first = busy.ask("first")
    assert busy.in_tool.wait(PATIENCE)
    with pytest.raises(SessionBusy, match="still running"):
        busy.agent.run_conversation("second")
    busy.go_on.set()
    first.join(PATIENCE)
    assert busy.results["first"].final_response == "one"


@pytest.mark.behaviour("INT-14")
def test_it_waits_for_the_end_of_the_turn() -> None:
    busy = Busy([WORK, text("one"), text("two")], "queue")
    busy.both(waits)
    assert [busy.results[words].final_response for words in ("first", "second")] == ["one", "two"]
    asked = [row["content"] for row in busy.results["second"].messages if row["role"] == "user"]
    assert asked == ["first", "second"]


@pytest.mark.behaviour("INT-14")
def test_it_is_told_to_the_turn_whose_answer_is_its_answer() -> None:
    busy = Busy([WORK, text("both")], "steer")
    busy.both(waits)
    assert busy.results["first"] == busy.results["second"]
    results = [row["content"] for row in busy.results["first"].messages if row["role"] == "tool"]
    assert "second" in results[0]


@pytest.mark.behaviour("INT-01b", "INT-14")
def test_it_interrupts_the_turn_and_is_answered() -> None:
    busy = Busy([WORK, text("two")], "interrupt")
    busy.both(lambda agent: agent.signals.interrupted)
    assert busy.results["first"].interrupted
    assert busy.results["first"].interrupt_message == "second"
    assert busy.results["second"].final_response == "two"


def test_words_that_came_after_the_last_tool_result_get_a_turn_of_their_own() -> None:
    agent: list[Agent] = []
    second: list[threading.Thread] = []
    results: list[TurnResult] = []

    def meanwhile(_: Any) -> None:
        second.append(threading.Thread(target=lambda: results.append(agent[0].run_conversation("second"))))
        second[0].start()
        pause = threading.Event()
        while not waits(agent[0]):
            pause.wait(0.01)

    settings = {"interrupt": {"second_message": "steer"}}
    with ScriptedServer([text("one", on_request=meanwhile), text("two")]) as server:
        agent.append(Agent("local:m", base_url=server.url, toolsets=[], settings=settings))
        assert agent[0].run_conversation("first").final_response == "one"
        second[0].join(PATIENCE)
        agent[0].close()
    assert results[0].final_response == "two"
