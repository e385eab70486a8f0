"""Compaction inside a turn."""

from __future__ import annotations

from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.sessions.store import store_for
from fsm_agent.testing import (
    FakeClock,
    ScriptedServer,
    blank,
    call,
    overflow,
    repeat,
    silence,
    status,
    text,
    tools,
)
from tests.helpers.harness import TOOLS, Heard, play, table

PARAGRAPH = "a paragraph of an earlier conversation, with facts in it. " * 12


def history(pairs: int, said: str = PARAGRAPH) -> list[dict[str, Any]]:
    return [{"role": role, "content": f"{n} {said}"} for n in range(pairs) for role in ("user", "assistant")]


@tool(effect="unsafe")
def flood(n: int = 1) -> str:
    """Give a lot of text."""
    return f"{n} words and more words\n" * 4_000


@pytest.mark.behaviour("ERR-12", "BACK-06", "COMP-04", "COMP-38")
def test_68_an_overflow_is_compacted_and_the_iteration_is_not_charged_again() -> None:
    script = [overflow(8192), text("the summary"), text("done")]
    played = play(script, history=history(14), context_window=8192)
    assert played.summary == "3 text_response completed: done"
    assert played.result.api_calls == 1
    assert played.waits == [2.0], "BACK-06"
    sent = played.server.bodies[2]["messages"]
    assert any("the summary" in str(row["content"]) for row in sent)
    assert sent[-1]["content"] == "go"
    (metrics,) = played.result.compressions
    assert metrics["trigger"] == "overflow"
    assert metrics["tokens_after"] < metrics["tokens_before"]
    assert metrics["model"] == "gpt-x"


@pytest.mark.behaviour("COMP-04b")
def test_69_an_overflow_for_ever_ends_after_three_compactions() -> None:
    def reply(request: Any) -> Any:
        asks_for_summary = "<conversation>" in str(request.body["messages"][0]["content"])
        return text("summary") if asks_for_summary else overflow(8192)

    played = play(repeat(reply), history=history(14), context_window=8192)
    assert played.server.completions <= 7
    assert played.summary.endswith("overflow_uncompressible failed context_overflow")


@pytest.mark.behaviour("PREP-13", "COMP-01", "COMP-01b", "COMP-21b", "COMP-19", "COMP-35")
def test_74_a_conversation_that_is_too_large_is_compacted_before_the_first_call() -> None:
    words = "please do exactly this: 17 things, in order"
    options: dict[str, Any] = {"history": history(40), "context_window": 8192}
    played = play([text("the summary"), text("done")], words, **options)
    assert played.summary == "2 text_response completed: done"
    assert [step.event for step in played.steps][:4] == ["ready", "oversized", "unsummarised", "compressed"]
    assert "tools" not in played.server.bodies[0]
    assert played.server.bodies[1]["messages"][-1]["content"] == words
    assert store_for(str(played.agent.home)).archived(played.agent.session_id), "the rows are put aside"
    assert played.result.parent_session_id is None
    off = play([text("ok")], settings={"compression": {"enabled": False}}, **options)
    assert not off.result.compressions


@pytest.mark.behaviour("COMP-03", "COMP-03b")
def test_75_a_huge_result_is_compacted_before_the_next_send() -> None:
    script = [tools(call("flood", {"n": n})) for n in range(3)]
    settings = {
        "tool": {"max_result_chars": 1_000_000, "turn_result_chars": 1_000_000, "preview_chars": 90_000}
    }
    script += [text("a summary"), text("done"), text("done")]
    played = play(script, tools=[flood], context_window=64_000, settings=settings)
    assert played.result.final_response in ("done", "a summary")
    assert played.result.compressions


@pytest.mark.behaviour("COMP-26")
def test_a_summary_that_fails_is_made_without_a_model_when_the_provider_insists() -> None:
    played = play([overflow(8192), status(500), text("done")], history=history(14), context_window=8192)
    assert played.result.final_response == "done"
    assert played.result.compressions[0]["fallback_used"]
    assert any("made without a model" in line for line in played.heard.of("status"))


@pytest.mark.behaviour("COMP-10", "COMP-26")
def test_comp_26_a_wish_is_dropped_when_the_network_is_down_and_rests() -> None:
    with table([status(429), text("one"), text("two")], context_window=8192) as (agent, server, _clock, _):
        first = agent.run_conversation("go", conversation_history=history(40))
        assert first.final_response == "one"
        assert not first.compressions
        assert agent.run_conversation("again").final_response == "two", "resting: no second summary call"
        assert server.completions == 3


@pytest.mark.behaviour("COMP-21c", "COMP-24", "FB-07d")
def test_the_auxiliary_model_writes_the_summary_and_the_main_one_when_it_fails() -> None:
    for side, main, model in (
        ([text("from the small one")], [text("done")], "small"),
        ([status(503)], [text("from the main one"), text("done")], "main"),
    ):
        heard = Heard()
        with ScriptedServer(main) as first, ScriptedServer(side) as second:
            agent = Agent(
                "openai:main", base_url=first.url, api_key="k", tools=TOOLS, toolsets=[], clock=FakeClock(), context_window=8192,
                auxiliary={"model": "openai:small", "base_url": second.url, "api_key": "k", "context_window": 4096},
                callbacks=heard.functions(),
            )  # fmt: skip
            result = agent.run_conversation("go", conversation_history=history(40))
            assert result.final_response == "done"
            assert result.compressions[0]["model"] == model
            assert result.attempts == first.completions + second.completions
            assert len(str(second.bodies[0]["messages"])) < 4096 * 4, "the small window is respected"
            agent.close()


@pytest.mark.behaviour("FB-07")
def test_auxiliary_models_are_tried_in_their_order() -> None:
    with ScriptedServer([status(503)]) as first, ScriptedServer([text("from two")]) as second:
        chain = [
            {"model": f"openai:{n}", "base_url": s.url, "api_key": "k"}
            for n, s in (("one", first), ("two", second))
        ]
        with table([text("done")], context_window=8192, auxiliary=chain) as (agent, main, _, _):
            result = agent.run_conversation("go", conversation_history=history(40))
    assert result.compressions[0]["model"] == "two"
    assert (main.completions, first.completions, second.completions) == (1, 1, 1)


@pytest.mark.behaviour("COMP-35", "COMP-35b")
def test_comp_35_rotation_goes_on_in_a_child_session() -> None:
    settings, script = {"compression": {"mode": "rotate"}}, [text("the summary"), text("done"), text("more")]
    with table(script, context_window=8192, settings=settings) as (agent, *_):
        parent = agent.session_id
        result = agent.run_conversation("go", conversation_history=history(40))
        assert (result.parent_session_id, result.final_response) == (parent, "done")
        assert result.session_id == agent.session_id != parent
        store = store_for(str(agent.home))
        assert store.session(parent).end_reason == "compression"
        assert store.session(agent.session_id).title == "go #2"
        again = agent.run_conversation("and")
        assert again.session_id == result.session_id
        assert [row["content"] for row in again.messages[-2:]] == ["and", "more"]


@pytest.mark.behaviour("COMP-08")
def test_comp_08_compactions_that_make_no_room_stop() -> None:
    with table(repeat(text("ok")), context_window=20_000) as (agent, server, _, _):
        for _ in range(4):
            agent.run_conversation("go " + "z" * 75_000)
        calls = server.completions
        agent.run_conversation("go " + "z" * 75_000)
        assert server.completions == calls + 1, "no compaction is tried any more"


@pytest.mark.behaviour("COMP-05")
def test_comp_05_a_person_can_ask_for_a_compaction_with_a_focus() -> None:
    with table([text("ok"), text("about the database"), text("done")]) as (agent, server, _, _):
        agent.run_conversation("go", conversation_history=history(20))
        figures = agent.compact("the database")
        assert figures is not None
        assert figures["messages_after"] < figures["messages_before"]
        assert "60 to 70 % of the summary to this: the database" in str(server.bodies[1]["messages"])
        agent.chat("and now?")
        assert "about the database" in str(server.bodies[2]["messages"])
        assert len(server.bodies[2]["messages"]) < 35


def test_a_session_with_nothing_to_compact_says_so() -> None:
    with table([text("ok")]) as (agent, _, _, _):
        agent.chat("hi")
        assert agent.compact() is None
        assert agent.context_used < 0.01


def test_a_compaction_that_only_prunes_is_seen_by_the_next_turn() -> None:
    rounds: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    for n in range(8):
        calls = [{"id": f"c{n}", "function": {"name": "echo", "arguments": "{}"}}]
        rounds += [{"role": "assistant", "content": None, "tool_calls": calls}]
        rounds += [{"role": "tool", "tool_call_id": f"c{n}", "content": f"{n} " + PARAGRAPH * 4}]
    rounds += [{"role": "assistant", "content": "done"}]
    with table([text("one"), text("two")]) as (agent, server, _, _):
        agent.run_conversation("go", conversation_history=rounds)
        assert agent.compact() is not None
        agent.chat("next")
        assert server.completions == 2, "no summary was needed"
        assert len(str(server.bodies[1])) < len(str(server.bodies[0])) * 0.7


@pytest.mark.parametrize("window", [6144, pytest.param(8192, marks=pytest.mark.slow)])
def test_a_long_turn_of_many_rounds_ends(window: int) -> None:
    def reply(request: Any) -> Any:
        if "tools" not in request.body:
            return text("a summary of it")
        done = sum(row["role"] == "tool" for row in request.body["messages"])
        return text("finished") if done > 40 else tools(call("flood", {"n": done}))

    settings = {"max_iterations": 30}
    played = play(repeat(reply), tools=[flood], context_window=window, settings=settings)
    assert played.exit in ("text_response", "max_iterations_summary")
    assert played.result.compressions


@pytest.mark.parametrize("nonsense", ["silent", "blank", "reasoning"])
def test_a_summary_model_that_answers_nonsense_or_never_costs_nothing_but_the_summary(nonsense: str) -> None:
    clock = FakeClock()
    reply = {
        "silent": silence("connect", hook=lambda: clock.advance(61)),
        "blank": blank(),
        "reasoning": text("<think>hm, what a long conversation</think>"),
    }[nonsense]
    settings = {"stale": {"stream": 60}}
    options: dict[str, Any] = {
        "history": history(40),
        "context_window": 8192,
        "clock": clock,
        "settings": settings,
    }
    played = play([reply, text("done")], **options)
    assert played.summary == "2 text_response completed: done"
    assert any("gave no summary" in line for line in played.heard.of("status"))
    assert played.result.messages[-2]["content"] == "go"


@pytest.mark.behaviour("PREP-13")
def test_schemas_of_tools_fill_the_window_too() -> None:
    long = tool(note="Use it with care. " * 2_000, name="long")(lambda: "x")
    fits = {"history": history(20), "context_window": 16_384}
    assert not play([text("done")], tools=[], **fits).result.compressions
    assert play([text("the summary"), text("done")], tools=[long], **fits).result.compressions
