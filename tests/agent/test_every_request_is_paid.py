"""One request to a model, one row that paid for it: counted by the server that gets them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fsm_agent import tool
from fsm_agent.agent import Turn
from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify import verify_table
from fsm_agent.testing import Received, ScriptedServer, call, repeat, silence, status, text, tools
from fsm_agent_states.table import COMPACTION, TURN
from tests.helpers.harness import MakeAgent, talk
from tests.helpers.waiting import until_so

LONG = talk(40, "words and more words " * 60)
"""Too long for a window of 8,192 tokens."""
pytestmark = pytest.mark.agent(
    model="openai:m", api_key="sk-of-nobody", context_window=8192, toolsets=[]
)  # a server, with a window of 8,192 tokens


def auxiliaries(server: ScriptedServer, number: int) -> list[dict[str, Any]]:
    return [{"model": f"openai:small-{n}", "base_url": server.url, "api_key": "k"} for n in range(number)]


@pytest.mark.parametrize(("cap", "sent"), [(1, 1), (2, 2), (5, 5), (60, 8)])
def test_summarizers_that_fail_are_paid_for_one_by_one(agent: MakeAgent, cap: int, sent: int) -> None:
    """Five auxiliary models and the main one are asked for a summary; the turn continues without one."""
    with ScriptedServer([*[status(500)] * 6, repeat(text("ok"))]) as server:
        options = {"auxiliary": auxiliaries(server, 5), "tools": [tool(lambda: "x", name="look")]}
        one = agent(base_url=server.url, settings={"max_attempts_per_turn": cap}, **options)
        turn = one.start("go", conversation_history=LONG)
        result = turn.run()
        assert server.completions == result.attempts == min(sent, 7)
    rows = [step.row for step in turn.steps if step.row.startswith("Compress.unsummarized")]
    assert rows[: min(cap, 6)] == ["Compress.unsummarized/1"] * min(cap, 6)
    assert result.turn_exit_reason == ("text_response" if cap > 6 else "attempt_cap_reached")


def test_without_modelless_compaction_a_failed_summary_keeps_the_history(agent: MakeAgent) -> None:
    settings = {"compression": {"without_model": False}}
    with ScriptedServer([status(500), text("ok")]) as server:
        turn = agent(base_url=server.url, settings=settings).start("go", conversation_history=LONG)
        result = turn.run()
        assert len(server.bodies[1]["messages"]) == len(LONG) + 2
    assert "Compress.unsummarized/3" in [step.row for step in turn.steps]
    assert (result.final_response, result.attempts, result.compressions) == ("ok", 2, [])


async def cut_off(turn: Turn, server: ScriptedServer) -> None:
    """Break a turn off while its next request is out."""
    before = server.completions
    task = asyncio.ensure_future(turn.arun())
    await until_so(lambda: server.completions > before or task.done(), "the request")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("history", [[], LONG], ids=["request", "summary"])
@pytest.mark.parametrize("anew", [False, True], ids=["same process", "another"])
def test_a_request_that_was_out_when_the_process_ended_is_paid_for(
    agent: MakeAgent, history: list[dict[str, Any]], anew: bool
) -> None:
    """However often that happens: the server gets no more requests than the cap says."""
    with ScriptedServer(repeat(silence("headers"))) as server:
        turn = agent(base_url=server.url, settings={"max_attempts_per_turn": 2}).start(
            "go", conversation_history=history
        )
        for _ in range(6):
            if turn.result is None:
                asyncio.run(cut_off(turn, server))
            if anew and turn.result is None:
                turn = agent(base_url=server.url).resume(turn.id)
        assert turn.result is not None
        assert server.completions == turn.result.attempts == 2
    assert turn.result.turn_exit_reason == "attempt_cap_reached"


def test_too_many_lost_requests_end_the_turn(agent: MakeAgent) -> None:
    with ScriptedServer(repeat(silence("headers"))) as server:
        turn = agent(base_url=server.url, settings={"max_lost_requests": 2}).start("go")
        while turn.result is None:
            asyncio.run(cut_off(turn, server))
        assert server.completions == turn.result.attempts == 3
    assert turn.result.turn_exit_reason == "api_retries_exhausted"


def test_a_turn_stopped_before_its_request_continues_with_the_next(agent: MakeAgent) -> None:
    """Whether the request left is unknown. So it counts, and the answer still arrives."""
    with ScriptedServer([text("ok")]) as server:
        turn = agent(base_url=server.url).start("go")
        while asyncio.run(turn.step()).dest != "CallLLM":
            pass
        turn = agent(base_url=server.url).resume(turn.id)
        assert turn.run().final_response == "ok"
        assert server.completions == 1 <= turn.result.attempts == 2


@pytest.mark.parametrize(("replies", "sent"), [([text("a summary")], 1), ([status(500)] * 3, 3)])
def test_a_compaction_that_a_person_asks_for_has_a_bound(
    agent: MakeAgent, replies: list[Any], sent: int
) -> None:
    with ScriptedServer([text("ok"), *replies]) as server:
        one = agent(base_url=server.url, context_window=100_000, auxiliary=auxiliaries(server, 2))
        one.run_conversation("go", conversation_history=LONG)
        assert one.compact() is not None
        most = bound(COMPACTION, attempts=3, summarizers=3, modelless_compactions=1)
        assert server.completions == 1 + sent <= 1 + most


def bound(table: Table, **limits: int) -> int:
    """The printed bound on requests."""
    report = verify_table(table, limits, small=False)
    assert report.ok
    (most,) = [one.value for one in report.figures if one.quantity == "attempts spent"]
    assert most is not None
    return most


def test_no_more_than_the_table_says_can_be_sent() -> None:
    """What the other tests of this page count at the server, for the turn."""
    assert TURN.default_limits is not None
    assert bound(TURN, **TURN.default_limits()) == 360


def delegated(goal: str) -> Any:
    return tools(call("delegate_task", {"tasks": [{"goal": f"{goal}-{n}"} for n in "ab"]}))


@pytest.mark.behaviour("BUD-03c")
@pytest.mark.parametrize("mode", ["independent", "shared", "tree_cap"])
@pytest.mark.parametrize("most", [1, pytest.param(4, marks=pytest.mark.slow), 9])
def test_a_tree_of_turns_sends_no_more_than_its_cap(agent: MakeAgent, mode: str, most: int) -> None:
    """Children that never stop, with children that do the same."""

    def answer(request: Received) -> Any:
        asked = str(request.body["messages"][1]["content"])
        depth = asked.count("-")
        return delegated(asked.split("\n")[0][:20]) if depth < 2 else tools(call("look"))

    delegation = {"budget": mode, "max_attempts_per_tree": most, "max_depth": 2, "max_iterations": 20}
    with ScriptedServer(repeat(answer)) as server:
        options = {"tools": [tool(lambda: "seen", name="look")], "context_window": 100_000}
        one = agent(
            base_url=server.url, toolsets=["delegate"], settings={"delegation": delegation}, **options
        )
        result = one.run_conversation("go")
        assert server.completions == most
    assert result.turn_exit_reason == "attempt_cap_reached"
    assert result.attempts < most or most == 1
