"""What a tool can know of its turn: what it was started with, where it is, and how to say how far it has come."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, RunContext, tool
from fsm_agent.errors import ConfigError
from fsm_agent.testing import ScriptedModel, call, text, tools
from tests.helpers.processes import ran

MakeAgent = Callable[..., Agent]


@dataclass
class Bank:
    """Never stored: it could not be."""

    lock: Any
    paid: list[str]


@tool(effect="idempotent")
def pay(ctx: RunContext[Bank], invoice: str, idempotency_key: str = "") -> str:
    """Pay an invoice."""
    ctx.deps.paid.append(f"{invoice} {ctx.idempotency_key == idempotency_key != ''}")
    ctx.progress("half\nway")
    ctx.log.warning("paying")
    return f"{ctx.session_id} {ctx.turn_id} {ctx.task_id} {ctx.call_id} {ctx.tool} {ctx.iterations_left} {ctx.tools}"


@tool
async def look(ctx: RunContext) -> str:
    """Look around."""
    ctx.progress("looking")
    return repr(ctx.deps)


def bank() -> Bank:
    return Bank(threading.Lock(), [])


@pytest.mark.behaviour("EXEC-19f", "EXEC-19g")
def test_a_tool_gets_what_the_turn_was_started_with_and_where_it_is(
    agent: MakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fsm_agent.tool.pay")  # whatever a test before has set
    said: list[tuple[str, ...]] = []
    model = ScriptedModel([tools(call("pay", {"invoice": "7"}, "c1"), call("look", {}, "c2")), text("done")])
    one = agent(
        model=model, tools=[pay, look], callbacks={"tool_progress": lambda *values: said.append(values)}
    )
    deps = bank()
    result = one.run_conversation("pay it", task_id="t-1", deps=deps)
    assert deps.paid == ["7 True"]
    paid, looked = (str(row["content"]) for row in result.messages if row["role"] == "tool")
    assert paid.startswith(f"{result.session_id} {result.turn_id} t-1 c1 pay ")
    assert paid.endswith("('pay', 'look')")
    assert "Bank(" in looked
    expected = [("said", "pay", "half way"), ("said", "look", "looking")]
    assert [values for values in said if values[0] == "said"] == expected
    [record] = [record for record in caplog.records if record.name == "fsm_agent.tool.pay"]
    assert vars(record)["turn_id"] == result.turn_id
    schemas = {one["function"]["name"]: one["function"]["parameters"] for one in model.requests[0]["tools"]}
    assert [sorted(schema["properties"]) for schema in schemas.values()] == [["invoice"], []]


def test_deps_are_in_no_file(agent: MakeAgent, home: Path) -> None:
    secret = Bank("a-secret-of-the-host", [])
    agent(tools(call("look")), text("done"), tools=[quiet_look]).run_conversation("go", deps=secret)
    assert secret.paid == ["seen"]
    files = [path for path in home.rglob("*") if path.is_file()]
    assert files
    assert not any(b"a-secret-of-the-host" in path.read_bytes() for path in files)
    # children work with the deps of their parent
    script = [tools(call("delegate_task", {"goal": "pay"})), tools(call("pay", {"invoice": "8"}))]
    script += [text("paid"), text("done")]
    deps = bank()
    assert agent(*script, tools=[pay], toolsets=["delegate"]).run_conversation("pay it", deps=deps).completed
    assert deps.paid == ["8 True"]


@tool(name="look")
def quiet_look(ctx: RunContext[Bank]) -> str:
    """Look."""
    ctx.deps.paid.append("seen")
    return "nothing"


def test_a_turn_that_is_resumed_or_forked_asks_for_them_again(agent: MakeAgent) -> None:
    async def begun() -> str:
        one = agent(tools(call("pay", {"invoice": "7"})), text("done"), tools=[pay])
        turn = one.start("pay it", deps=bank())
        for _ in range(3):
            await turn.step()
        await one.aclose()
        return turn.id

    turn_id = asyncio.run(begun())
    ways: list[Callable[..., Any]] = [
        lambda who, **given: who.fork(turn_id, 3, **given),
        lambda who, **given: who.resume(turn_id, **given),
    ]
    for again in ways:
        with pytest.raises(ConfigError, match=r"tool 'pay' needs deps; .*deps= of type Bank"):
            again(agent(tools=[pay]))
        deps = bank()
        assert again(agent(text("done"), tools=[pay]), deps=deps).run().completed
        assert deps.paid == ["7 True"]


def test_tools_that_need_deps_are_not_started_without(agent: MakeAgent) -> None:
    with pytest.raises(ConfigError, match=r"tool 'pay' needs deps"):
        agent(text("never"), tools=[pay]).run_conversation("pay it")

    # the context is the first parameter or none
    def wrong(invoice: str, ctx: RunContext[Bank]) -> str:
        """Pay."""
        return invoice

    with pytest.raises(ConfigError, match="RunContext in the wrong place"):
        tool(wrong)
    # a tool that is called directly takes its context as any function
    logging.getLogger("fsm_agent.tool").setLevel(logging.ERROR)
    deps = bank()
    assert "pay" not in pay(RunContext(deps, "s", "t", "task"), "9", "k").split()[:3]
    assert deps.paid == ["9 False"]


@pytest.mark.parametrize(
    "annotation", [RunContext, RunContext[Any], RunContext[None], RunContext[Bank | None]]
)
def test_tools_that_can_do_without_are(annotation: Any, agent: MakeAgent) -> None:
    def look_at(ctx: Any) -> str:
        """Look."""
        return str(ctx.deps)

    look_at.__annotations__["ctx"] = annotation
    one = agent(tools(call("look_at")), text("done"), tools=[look_at])
    assert "None" in str(one.run_conversation("go").messages)


KILLED = """
import os, sys
from fsm_agent import Agent, RunContext, tool
from fsm_agent.testing import ScriptedModel, call, tools

@tool(effect="idempotent")
def book(ctx: RunContext, seat: str) -> str:
    assert ctx.attempt == 1
    os.kill(os.getpid(), 9)

Agent(ScriptedModel([tools(call("book", {"seat": "4"}))]), tools=[book], toolsets=[], home=sys.argv[1]).chat("go")
"""


@pytest.mark.slow
def test_a_call_whose_process_ended_knows_that_it_is_made_again(agent: MakeAgent, home: Path) -> None:
    assert ran("-c", KILLED, home).returncode == -9
    seen = []

    @tool(effect="idempotent")
    def book(ctx: RunContext, seat: str) -> str:
        seen.append(ctx.attempt)
        return "booked"

    one = agent(tools(call("book", {"seat": "5"})), text("done"), tools=[book])
    assert one.resume(one.journal.recent(1)[0].id).run().completed
    assert seen == [2, 1]
