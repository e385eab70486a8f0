"""A turn, its visits of states and its requests as spans: what is in what, and what each of them tells."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from fsm_agent import Agent, ResultLater, TurnSuspended, tool
from fsm_agent.cli.insights import RECOVERIES
from fsm_agent.errors import SessionBusy
from fsm_agent.runtime.clock import SystemClock
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.insights import insights
from fsm_agent.testing import (
    FakeClock,
    ScriptedModel,
    ScriptedServer,
    call,
    overflow,
    slow,
    status,
    text,
    tools,
)
from tests.helpers.collected import Collected, collected, id_of, told, trace_of
from tests.helpers.harness import MakeAgent, talk
from tests.helpers.waiting import until_so

WIRES = ("chat_completions", "codex_responses", "anthropic_messages")


@tool(concurrency="parallel", effect="pure")
def look(city: str) -> str:
    """Look at a city."""
    return f"{city}: sunny"


@pytest.fixture
def traced(agent: MakeAgent, seen: Collected) -> MakeAgent:
    """``agent`` whose agents tell ``seen``."""
    return partial(agent, toolsets=[], telemetry=seen.given)


def looks(*cities: str) -> Any:
    return tools(*(call("look", {"city": city}) for city in cities))


@pytest.mark.behaviour("OBS-01")
def test_a_turn_is_a_tree_of_its_visits_and_what_they_asked_for(traced: MakeAgent, seen: Collected) -> None:
    result = traced(looks("Oslo", "Rome"), text("fine"), tools=[look], name="bot").run_conversation("go")
    turn = seen.one("invoke_agent bot")
    assert turn.parent is None
    visits = [visit.state for visit in result.states]
    assert seen.within(turn) == [f"state {state}" for state in visits]
    assert [span.name for span in seen.named("execute_tool")] == ["execute_tool look"] * 2
    assert seen.within(seen.one("state ExecuteTools")) == ["execute_tool look"] * 2
    assert [seen.within(one) for one in seen.named("state CallLLM")] == [["chat scripted"], ["chat scripted"]]
    assert len({trace_of(span) for span in seen.spans}) == 1
    chat = seen.named("chat")[0]
    assert chat.kind is SpanKind.CLIENT
    of_chat = {"gen_ai.operation.name": "chat"}
    of_chat |= {"gen_ai.provider.name": "scripted", "gen_ai.request.model": "scripted"}
    figures = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 5, "fsm.sent": True}
    ended = {"gen_ai.response.finish_reasons": ("tool_calls",), "fsm.turn.id": result.turn_id}
    where = {"gen_ai.conversation.id": result.session_id}
    assert (of_chat | figures | ended | where).items() <= told(chat).items()
    assert told(chat)["gen_ai.response.time_to_first_chunk"] > 0
    of_tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look", "fsm.tool.status": "ok"}
    assert (of_tool | {"gen_ai.tool.call.id": "call_1_0"}).items() <= told(
        seen.named("execute_tool")[0]
    ).items()
    of_turn = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "bot"}
    of_turn["session.id"] = result.session_id
    end = {"fsm.exit": "text_response", "fsm.outcome": "completed", "gen_ai.usage.input_tokens": 20}
    counts = dict.fromkeys(("fsm.requests", "fsm.iterations", "fsm.counter.attempts"), 2)
    assert (of_turn | end | counts).items() <= told(turn).items()


@pytest.mark.behaviour("OBS-01")
def test_a_visit_tells_its_row_the_guards_that_were_read_and_the_counters(
    traced: MakeAgent, seen: Collected
) -> None:
    traced(status(500), text("fine")).run_conversation("go")
    [recovery] = seen.named("state ClassifyError")
    row = {"fsm.row": "ClassifyError.server_error/1"}
    row |= {"fsm.state": "ClassifyError", "fsm.event": "server_error"}
    why = {"fsm.guards": ("retries left: true",), "fsm.changes": ("retries 0→1",)}
    where = {"fsm.dest": "BuildMessages", "fsm.failure.class": "server_error"}
    assert (row | why | where).items() <= told(recovery).items()
    [wait] = seen.named("wait")
    assert told(wait)["fsm.waited"] > 0
    assert seen.total("fsm.retries") == 1


def test_a_failed_request_is_an_error_of_its_span_and_a_recovered_turn_is_none(
    traced: MakeAgent, seen: Collected
) -> None:
    traced(status(429, "slow down"), text("fine")).run_conversation("go")
    failed, answered = seen.named("chat")
    assert (told(failed)["error.type"], told(failed)["http.response.status_code"]) == ("429", 429)
    assert failed.status.status_code is StatusCode.ERROR
    assert "slow down" in (failed.status.description or "")
    assert answered.status.status_code is StatusCode.UNSET
    assert seen.one("invoke_agent").status.status_code is StatusCode.UNSET
    assert [told(one)["fsm.attempt"] for one in (failed, answered)] == [1, 2]
    assert len(seen.figures("gen_ai.client.operation.duration")) == 3, "failed, answered, the turn"


def test_a_failed_turn_is_an_error_named_by_its_exit(traced: MakeAgent, seen: Collected) -> None:
    result = traced(*[status(401, "no such key")] * 9).run_conversation("go")
    turn = seen.one("invoke_agent")
    assert result.failed
    assert turn.status.status_code is StatusCode.ERROR
    assert told(turn)["error.type"] == told(turn)["fsm.exit"] == result.turn_exit_reason.value
    assert seen.total("fsm.turn.exits", fsm__exit=result.turn_exit_reason.value, fsm__outcome="failed") == 1


def test_a_fallback_is_another_model_in_the_next_span(traced: MakeAgent, seen: Collected) -> None:
    with ScriptedServer([text("from the other")]) as server:
        other = {"model": "local:other", "base_url": server.url}
        traced(status(401), fallbacks=[other]).run_conversation("go")
    assert [span.name for span in seen.named("chat")] == ["chat scripted", "chat other"]
    assert told(seen.one("invoke_agent"))["fsm.fallback"] is True
    assert told(seen.one("invoke_agent"))["gen_ai.response.model"] == "other"
    assert seen.total("fsm.fallbacks") == 1


def test_tools_are_run_in_the_context_of_their_spans(traced: MakeAgent, seen: Collected) -> None:
    tracer = seen.tracers.get_tracer("a user's")

    @tool(concurrency="parallel", effect="pure")
    def in_a_thread() -> str:
        """Work."""
        with tracer.start_as_current_span("work in a thread"):
            return "done"

    @tool(concurrency="parallel", effect="pure")
    async def in_the_loop() -> str:
        """Work."""
        with tracer.start_as_current_span("work in the loop"):
            await asyncio.sleep(0)
        raise ValueError("no luck")

    script = [tools(call("in_a_thread"), call("in_the_loop")), text("fine")]
    traced(*script, tools=[in_a_thread, in_the_loop]).run_conversation("go")
    assert seen.within(seen.one("execute_tool in_a_thread")) == ["work in a thread"]
    failed = seen.one("execute_tool in_the_loop")
    assert seen.within(failed) == ["work in the loop"]
    assert (failed.status.status_code, told(failed)["error.type"]) == (StatusCode.ERROR, "error")
    assert not get_current_span().get_span_context().is_valid


def test_a_turn_is_in_the_trace_of_whoever_runs_it(traced: MakeAgent, seen: Collected) -> None:
    tracer = seen.tracers.get_tracer("a user's")
    bot = traced(text("one"), text("two"), text("three"))
    with tracer.start_as_current_span("a request") as span:
        bot.run_conversation("in another thread, on the loop of the library")
        asyncio.run(bot.arun("in a loop of the caller's"))
    bot.chat("outside")
    first, second, third = seen.named("invoke_agent")
    assert [one.parent and one.parent.span_id for one in (first, second)] == [
        span.get_span_context().span_id
    ] * 2
    assert third.parent is None


def test_steps_from_several_tasks_are_one_turn(traced: MakeAgent, seen: Collected) -> None:
    turn = traced(text("fine")).start("go")

    async def step() -> object:
        return await turn.step_into()

    while turn.result is None:
        asyncio.run(step())
    assert len(seen.named("invoke_agent")) == 1
    assert seen.within(seen.one("invoke_agent"))[-1] == "state Finalize"


def test_a_turn_that_nobody_steps_any_further_ends_its_spans_with_the_object(
    traced: MakeAgent, seen: Collected
) -> None:
    one = traced(text("fine"))
    turn: Any = one.start("go")
    asyncio.run(turn.step())
    assert seen.named("invoke_agent") == []
    one.store.let_go(turn.id)  # as at the end of the process
    del turn
    gc.collect()
    assert seen.within(seen.one("invoke_agent")) == ["state Prepare", "state BuildMessages"]


async def test_who_is_cancelled_leaves_no_span_open_and_goes_on_in_another_that_is_linked(
    seen: Collected,
) -> None:
    model = ScriptedModel([slow("a long answer", 3600), text("fine")], SystemClock())
    turn = Agent(model, toolsets=[], telemetry=seen.given).start("go")
    running = asyncio.ensure_future(turn.arun())
    await until_so(lambda: "chat scripted" in seen.open.names.values(), "the request")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert seen.open.names == {}
    assert (await turn.arun()).completed
    cut, whole = seen.named("invoke_agent")
    assert (told(cut)["fsm.cancelled"], cut.status.status_code) == (True, StatusCode.UNSET)
    assert told(seen.named("chat")[0])["fsm.cancelled"] is True
    [link] = whole.links
    assert (link.context.span_id, link.attributes) == (id_of(cut), {"fsm.link": "continues"})


def test_an_interrupted_turn_is_no_error(traced: MakeAgent, seen: Collected) -> None:
    bot: Agent = traced(tools(call("stop")), tools=[tool(name="stop")(lambda: bot.interrupt())])
    assert bot.run_conversation("go").interrupted
    turn = seen.one("invoke_agent")
    assert (told(turn)["fsm.outcome"], turn.status.status_code) == ("interrupted", StatusCode.UNSET)


def test_a_busy_session_is_no_turn(traced: MakeAgent, seen: Collected, tmp_path: Path) -> None:
    bot = traced(text("one"), home=tmp_path, session_id="s")
    turn = bot.start("go")
    asyncio.run(turn.step())
    with pytest.raises(SessionBusy):
        bot.run_conversation("and")
    assert turn.run().completed
    assert len(seen.named("invoke_agent")) == 1


def test_an_automatic_compaction_is_a_span_with_its_figures(traced: MakeAgent, seen: Collected) -> None:
    rows = talk(14)
    bot = traced(overflow(8192), text("the summary"), text("done"), context_window=8192)
    result = bot.run_conversation("go", conversation_history=rows)
    visits = seen.named("compact")
    assert [told(one)["fsm.state"] for one in visits] == ["Compress"] * len(visits)
    [summary] = [span for span in seen.named("chat") if told(span)["fsm.purpose"] == "summary"]
    assert summary.parent is not None
    assert summary.parent.span_id in map(id_of, visits)
    [figures] = result.compressions
    assert told(visits[-1])["fsm.compaction.tokens_after"] == figures["tokens_after"]
    assert seen.total("fsm.compactions", fsm__compaction__trigger="overflow") == 1


def test_a_compaction_by_hand_is_a_span_of_its_own(traced: MakeAgent, seen: Collected) -> None:
    rows = talk(20)
    bot = traced(text("ok"), text("a summary"), context_window=65_536)
    bot.run_conversation("go", conversation_history=rows)
    assert bot.compact() is not None
    compaction = seen.one("compact")
    assert compaction.parent is None
    assert seen.within(compaction) == ["chat scripted"]
    assert told(compaction)["fsm.compaction.messages_after"] < len(rows)


def test_a_child_turn_is_in_the_call_that_it_answers(
    named: MakeAgent, traced: MakeAgent, seen: Collected, tmp_path: Path
) -> None:
    cats = named("cats", text("in the barn"), home=tmp_path / "cats")
    script = [tools(call("cats", {"task": "where?"})), text("there")]
    traced(*script, home=tmp_path, tools=[cats.as_tool()]).run_conversation("go")
    assert seen.within(seen.one("execute_tool cats")) == ["invoke_agent cats"]
    assert len({trace_of(span) for span in seen.spans}) == 1


@pytest.mark.behaviour("OBS-02")
def test_a_conversation_that_is_handed_over_is_linked(
    named: MakeAgent, traced: MakeAgent, seen: Collected, tmp_path: Path
) -> None:
    billing = named("billing", text("12 francs"), home=tmp_path / "elsewhere")
    script = [tools(call("transfer_to_billing", {"note": "invoice 5"}))]
    triage = traced(*script, home=tmp_path, name="triage", handoffs=[billing])
    assert triage.run_conversation("what did I pay?").agent == "billing"
    first, second = seen.one("invoke_agent triage"), seen.one("invoke_agent billing")
    [link] = second.links
    assert (link.context.span_id, link.attributes) == (id_of(first), {"fsm.link": "handed over"})


@pytest.mark.behaviour("OBS-02")
def test_a_suspended_turn_ends_its_span_and_what_goes_on_is_linked(
    traced: MakeAgent, seen: Collected, tmp_path: Path
) -> None:
    @tool
    def order() -> str:
        """Order something that comes later."""
        raise ResultLater("the warehouse")

    def bot(*script: Any) -> Agent:
        return traced(*script, home=tmp_path, store=Store(tmp_path), tools=[order])

    with pytest.raises(TurnSuspended) as caught:
        bot(tools(call("order"))).run_conversation("go")
    [item] = caught.value.pending
    assert told(seen.one("invoke_agent"))["fsm.unfinished"] is True
    assert told(seen.one("execute_tool"))["fsm.suspended"] is True
    later = bot(text("it is there"))
    later.answer(item.id, "a box")
    assert later.resume(caught.value.turn_id).run().completed
    waiting, whole = seen.named("invoke_agent")
    assert [link.context.span_id for link in whole.links] == [id_of(waiting)]
    assert trace_of(whole) != trace_of(waiting)
    assert seen.total("fsm.takeovers") == 1
    assert later.fork(caught.value.turn_id, at=2).run()
    assert len(seen.named("invoke_agent")[-1].links) == 1, "a fork is linked to the turn that it is of"


@pytest.mark.behaviour("OBS-01")
@pytest.mark.parametrize("wire", WIRES)
def test_spans_and_insights_agree(wire: str, tmp_path: Path) -> None:
    script = [status(500), looks("Oslo", "Rome"), text("fine"), status(401), status(401), status(401)]
    prices = {"local:m": {"input": 3, "output": 15}}
    with ScriptedServer(script) as server, collected() as seen:
        bot = Agent(
            "local:m", base_url=server.url, api_mode=wire, home=tmp_path, toolsets=[], tools=[look],
            clock=FakeClock(), telemetry=seen.given, settings={"prices": prices},
        )  # fmt: skip
        results = [bot.run_conversation("go"), bot.run_conversation("again")]
        report = insights(bot.store, 1e6, RECOVERIES)
        bot.close()
        chats = seen.named("chat")
        assert [result.completed for result in results] == [True, False]
        assert len([one for one in chats if told(one)["fsm.sent"]]) == sum(one.attempts for one in results)
        spent = report.total
        for attribute, total in (
            ("gen_ai.usage.input_tokens", spent.input + spent.cache_read + spent.cache_write),
            ("gen_ai.usage.output_tokens", spent.output),
        ):
            assert sum(told(one).get(attribute, 0) for one in chats) == total > 0
            assert sum(told(one).get(attribute, 0) for one in seen.named("invoke_agent")) == total
        assert seen.total("gen_ai.client.token.usage", gen_ai__token__type="output") == spent.output
        assert {one.name: (one.calls, one.failed) for one in report.tools} == {"look": (2, 0)}
        assert len(seen.named("execute_tool look")) == 2
        cost = sum(one.estimated_cost_usd or 0 for one in results)
        assert cost > 0
        assert seen.total("fsm.turn.cost") == pytest.approx(cost)
        exits = {(one.exit, one.outcome): one.turns for one in report.exits}
        counted = seen.figures("fsm.turn.exits")
        assert {(about["fsm.exit"], about["fsm.outcome"]): n for about, n in counted} == exits
        moves = [span for span in seen.spans if "fsm.row" in told(span)]
        assert len(moves) == report.overview.moves
        assert told(chats[0])["server.port"] == server.port
