"""The strategies give what they say, and the engine takes all of it; cancelling works at every await."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsm_agent import Agent, tool
from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.history import violations
from fsm_agent.conversation.messages import Message, ModelReply, Usage
from fsm_agent.settings import Settings
from fsm_agent.testing import (
    Call,
    FakeClock,
    Reply,
    ScriptedModel,
    call,
    cancelled_at,
    repeat,
    status,
    text,
    tools,
)
from fsm_agent.testing import strategies as given_by
from fsm_agent.testing.strategies import KINDS

QUICK = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@tool(concurrency="parallel", effect="pure")
def lookup(city: str, days: int = 1, units: Literal["C", "F"] = "C", tags: list[str] | None = None) -> str:
    return f"{city}: {days}{units}"


@tool(effect="unsafe")
async def put(key: str) -> str:
    await asyncio.sleep(0)
    return f"stored {key}"


@QUICK
@given(made=given_by.tool_calls([lookup, put]))
def test_made_calls_fit_the_schema_of_their_tool(made: Call) -> None:
    schema = {tool.spec.name: tool.spec.parameters for tool in (lookup, put)}[made.name]
    jsonschema.validate(json.loads(made.arguments), dict(schema))


def test_malformed_calls_come_in_every_shape() -> None:
    found = set()

    @settings(QUICK, max_examples=200)
    @given(made=given_by.malformed_calls([lookup]))
    def collect(made: Call) -> None:
        assert isinstance(made, Call)
        try:
            value: Any = json.loads(made.arguments)
            found.add("object" if isinstance(value, dict) else "no object")
        except ValueError:
            found.add("no json")
        found.update({"unknown"} if made.name != "lookup" else set(), {"no id"} if made.id == "" else set())

    collect()
    assert found >= {"no json", "no object", "unknown", "no id"}


@QUICK
@given(
    given_by.histories(valid=True), given_by.usages(), given_by.windows(), given_by.small_settings(),
    given_by.moments(),
)  # fmt: skip
def test_histories_are_valid_and_the_small_ones_what_they_say(
    rows: list[dict[str, Any]],
    usage: Usage | None,
    window: int | None,
    values: dict[str, Any],
    moment: given_by.Moment,
) -> None:
    assert violations(rows) == []
    assert usage is None or usage.total >= 0
    assert window is None or window > 0
    assert Settings.of(values).max_iterations == values["max_iterations"]
    assert moment.what in ("interrupt", "steer")


@settings(QUICK, max_examples=25)
@given(
    script=st.lists(given_by.replies([lookup, put]), max_size=6), history=given_by.histories(),
    values=given_by.small_settings(), window=given_by.windows(),
)  # fmt: skip
def test_a_turn_takes_whatever_they_give(
    script: list[Any],
    history: list[dict[str, Any]],
    values: dict[str, Any],
    window: int | None,
    tmp_path: Path,
) -> None:
    assert all(isinstance(entry, Reply | ModelReply | Failure) for entry in script)
    model = ScriptedModel([*script, repeat(text("the end."))])
    options: dict[str, Any] = {"home": tmp_path, "settings": values, "context_window": window}
    with Agent(model, tools=[lookup, put], clock=FakeClock(), **options) as agent:
        result = agent.run_conversation("go", conversation_history=list(map(dict, history)))
    assert sum((result.completed, result.failed, result.partial, result.interrupted)) == 1
    for body in model.requests:
        assert violations(body["messages"]) == []
    assert [Message.from_dict(row) for row in result.messages]


def test_every_kind_of_answer_ends_a_turn(tmp_path: Path) -> None:
    waiting: list[Any] = []
    model = ScriptedModel(repeat(lambda request: waiting.pop() if waiting else text("done.")))
    with Agent(model, tools=[lookup], toolsets=[], home=tmp_path, clock=FakeClock()) as agent:
        for name, answer in KINDS.items():
            waiting.append(answer)
            result = agent.run_conversation("go", conversation_history=[])
            assert not waiting
            assert result.turn_exit_reason, name


# Cancelling


async def steps(done: list[int]) -> str:
    for number in range(3):
        await asyncio.sleep(0)
        done.append(number)
    return "whole"


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_coroutine_is_cancelled_at_its_nth_await(nth: int) -> None:
    done: list[int] = []
    with pytest.raises(asyncio.CancelledError, match=f"cancelled at await {nth}"):
        asyncio.run(_awaited(cancelled_at(nth, steps(done))))
    assert done == list(range(nth - 1))


def test_one_that_waits_less_often_gives_its_result_and_one_may_catch_it_and_clean_up() -> None:
    work = cancelled_at(4, steps([]))
    assert asyncio.run(_awaited(work)) == "whole"
    assert not work.reached

    async def careful() -> str:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "cleaned up"
        return "not cancelled"

    assert asyncio.run(_awaited(cancelled_at(1, careful()))) == "cleaned up"
    with pytest.raises(ValueError, match="counted from 1; given: 0"):
        cancelled_at(0, steps([]))


async def _awaited(work: cancelled_at[str]) -> str:
    return await work


@pytest.mark.slow
def test_a_turn_that_is_cancelled_at_any_await_bricks_nothing(tmp_path: Path) -> None:
    """Cancelled from outside at each of its awaits in turn, the session takes the next message, and every
    request is valid."""

    plain = Settings.of({})

    async def cancelled(nth: int) -> bool:
        calls = tools(call("lookup", {"city": "Oslo"}), call("put", {"key": "k"}))
        model = ScriptedModel([status(500), calls, text("done."), repeat(text("and on."))])
        options: dict[str, Any] = {"home": tmp_path / str(nth), "settings": plain}
        with Agent(model, tools=[lookup, put], clock=FakeClock(), **options) as agent:
            work = cancelled_at(nth, agent.arun("go"))
            try:
                await work
            except asyncio.CancelledError:
                turn = asyncio.current_task()
                assert turn is not None
                turn.uncancel()
            result = await agent.arun("and now?")
            assert result.completed
            for body in model.requests:
                assert violations(body["messages"]) == []
        return work.reached

    nth = 1
    while asyncio.run(cancelled(nth)):
        nth += 1
        assert nth < 300
    assert nth > 10
