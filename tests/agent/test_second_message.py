"""A message that comes while another turn of the same agent runs."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fsm_agent import Agent, TurnResult, tool
from fsm_agent.errors import SessionBusy
from fsm_agent.testing import ScriptedModel, ScriptedServer, call, text, tools
from tests.helpers.waiting import PATIENCE


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
    return len(agent._line._line) == 2


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
