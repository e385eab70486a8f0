"""Interrupting and steering, at every place a turn can be in."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.testing import ScriptedModel, ScriptedServer, call, silence, status, text, tools
from fsm_agent.tools import cancelled
from tests.helpers.deaf_proxy import BEHIND, deaf_proxy
from tests.helpers.harness import Interrupt, play, reads, table
from tests.helpers.waiting import PATIENCE, until, until_so


@pytest.mark.behaviour("BUILD-01", "INT-02", "FIN-12")
def test_90_before_the_start() -> None:
    played = play([], before=lambda agent: agent.interrupt("stop it"))
    assert played.summary == "0 interrupted_before_call interrupted"
    assert (played.result.interrupt_message, played.roles) == ("stop it", "u a")


@pytest.mark.behaviour("CALL-02", "CALL-02b", "INT-01")
def test_91_before_the_first_token() -> None:
    interrupt = Interrupt()
    played = play([silence("connect", hook=interrupt)], before=interrupt.aim)
    assert played.summary == "1 interrupted_in_call interrupted"


def test_91_before_the_request_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never left is not counted: ``attempts`` are the requests that were really sent."""
    interrupt = Interrupt()
    agent = Agent("openai:m", base_url=BEHIND, api_key="k", toolsets=[])
    with deaf_proxy(interrupt, monkeypatch), agent:
        interrupt.aim(agent)
        result = agent.run_conversation("go")
    assert (result.turn_exit_reason, result.attempts) == ("interrupted_in_call", 0)


@pytest.mark.behaviour("SESS-02", "CALL-02b", "INT-04", "DIS-06")
def test_92_in_mid_stream_the_visible_text_is_kept() -> None:
    interrupt = Interrupt()
    listener = {"stream_delta": reads("Hello there", interrupt)}
    with table([silence("Hello there")], callbacks=listener) as (agent, server, _, _):
        interrupt.aim(agent)
        result = agent.run_conversation("go")
        assert result.final_response == "Hello there"
        assert result.messages[-1] == {
            "role": "assistant", "content": "Hello there", "finish_reason": "interrupted", "interrupted": True,
        }  # fmt: skip
        until(lambda: server.closed_early == 1, "the end of the request")


@pytest.mark.behaviour("INT-04")
def test_d37_mid_stream_without_a_consumer() -> None:
    interrupt = Interrupt()
    with Agent(ScriptedModel([silence("Hello there", hook=interrupt)]), toolsets=[]) as agent:
        interrupt.aim(agent)
        assert agent.run_conversation("go").final_response == "Hello there"


def test_in_a_wait() -> None:
    class Stuck:
        """Sleeps forever: only the interrupt ends a wait."""

        def now(self) -> float:
            return time.time()

        async def sleep(self, seconds: float) -> None:
            interrupt()
            await asyncio.Event().wait()

    interrupt = Interrupt("enough")
    with table([status(429, headers={"Retry-After": "60"})], clock=Stuck()) as (agent, *_):
        interrupt.aim(agent)
        result = agent.run_conversation("go")
    assert (result.turn_exit_reason, result.interrupt_message) == ("interrupted_in_backoff", "enough")


@pytest.mark.behaviour("INT-02", "INT-07")
def test_93_while_a_tool_runs_a_cooperative_tool_ends_at_once() -> None:
    interrupt = Interrupt()

    @tool
    async def nap() -> str:
        interrupt()
        await asyncio.Event().wait()
        return "awake"

    played = play([tools(call("nap", {}), call("nap", {}))], tools=[nap], before=interrupt.aim)
    assert (played.exit, played.outcome) == ("interrupted_in_tools", "interrupted")
    assert played.roles == "u a t t a"
    first, second = (row["content"] for row in played.result.messages if row["role"] == "tool")
    assert "unknown" in first
    assert "before it started" in second


@pytest.mark.behaviour("INT-06")
def test_93_a_result_within_the_grace_is_recorded() -> None:
    interrupt = Interrupt()

    @tool
    def steady() -> str:
        """Ends by itself, a moment after it was asked to."""
        interrupt()
        until(cancelled, "the interrupt")
        return "finished all the same"

    settings = {"tool": {"interrupt_grace": PATIENCE}}
    played = play([tools(call("steady", {}))], tools=[steady], settings=settings, before=interrupt.aim)
    assert played.result.messages[2]["content"] == "finished all the same"
    assert played.exit == "interrupted_in_tools"


def test_while_waiting_for_an_approval() -> None:
    danger = tool(approval="ask", name="danger")(lambda: "done")
    interrupt = Interrupt()

    async def never(request: Any) -> bool:
        interrupt()
        return await asyncio.Event().wait()

    options: dict[str, Any] = {"callbacks": {"approval": never}, "before": interrupt.aim}
    played = play([tools(call("danger", {}))], tools=[danger], **options)
    assert played.exit == "interrupted_in_tools"
    assert not played.heard.of("tool_start")


def test_steering_reaches_the_model_with_the_next_tool_result_and_is_in_the_store() -> None:
    with table([tools(call("echo", {"text": "a"})), text("ok"), text("again")]) as (agent, server, _, _):
        turn = agent.start("go")
        agent.steer("use metric units")
        result = turn.run()
        agent.chat("more")
    assert result.pending_steer == []
    assert "use metric units" in result.messages[2]["content"]
    for body in server.bodies[1:]:
        assert "use metric units" in body["messages"][3]["content"]


def test_steering_that_no_tool_could_carry_is_given_back() -> None:
    played = play([text("ok")], before=lambda agent: agent.steer("use metric units"))
    assert played.result.pending_steer == ["use metric units"]


async def test_a_cancelled_task_frees_the_session() -> None:
    with ScriptedServer([silence("connect"), text("ok")]) as server:
        agent = Agent("openai:m", base_url=server.url, api_key="k", toolsets=[])
        running = asyncio.ensure_future(agent.arun("one"))
        await until_so(lambda: server.completions == 1, "the request")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until_so(lambda: server.closed_early == 1, "the end of the request, with that of its task")
        assert (await agent.arun("two")).final_response == "ok"
        await agent.aclose()
