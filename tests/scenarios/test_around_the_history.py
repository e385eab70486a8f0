"""What is sent around the history and never becomes a part of it: rows before it (BUILD-11), words behind the
prompt (BUILD-10, PROMPT-02), lines about what is in use (FB-08), hints (BUILD-12)."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.conversation.history import violations
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import store_for
from fsm_agent.testing import FakeClock, ScriptedModel, ScriptedServer, call, overflow, status, text, tools
from tests.helpers.harness import TOOLS, break_off, play, table
from tests.helpers.wire_rows import chat_rows
from tests.scenarios.test_modes import MODELS

EXAMPLE = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "EXAMPLE: four."}]
ECHO = tools(call("echo", {"text": "abc"}))
ROUND = [ECHO, text("done"), text("again")]
ROLES, BEGUN = ("user", "assistant"), [{"role": "assistant", "content": "I begin."}]


def words(row: Mapping[str, Any]) -> str:
    """The text of a row, whatever the wire."""
    content = row["content"]
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content or ())


def behind_prompt(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [row for row in chat_rows(body) if row["role"] not in ("system", "developer")]


def prompt_in(body: Mapping[str, Any]) -> str:
    return next(words(row) for row in chat_rows(body) if row["role"] in ("system", "developer"))


def stored(agent: Agent) -> str:
    """All that the session keeps: rows, also those put aside, and prompts."""
    session = store_for(str(agent.home)).session(agent.session_id)
    prompts = [prompt.text for prompt in session.prompts.values()]
    rows = [row.to_dict() for row in (*session.rows, *store_for(str(agent.home)).archived(session.id))]
    return json.dumps([rows, prompts])


def prefilled(rows: Any, **prompt: Any) -> dict[str, Any]:
    return {"prompt": {"prefill": rows, **prompt}}


# Rows before the conversation


@pytest.mark.behaviour("BUILD-11")
@pytest.mark.parametrize("mode", MODELS)
def test_rows_before_the_conversation_are_sent_with_every_request_and_never_stored(mode: str) -> None:
    with table(ROUND, model=MODELS[mode], settings=prefilled(EXAMPLE)) as (agent, server, _, _):
        first = agent.run_conversation("go")
        second = agent.run_conversation("and?")
        for body in server.bodies:
            rows = behind_prompt(body)
            assert [words(row) for row in rows[:3]] == ["2+2?", "EXAMPLE: four.", "go"]
            assert not violations(chat_rows(body))
        if mode == "chat_completions":
            for one, after in itertools.pairwise(request.raw for request in server.requests):
                assert after.startswith(one[: one.rindex(b"]")]), "one request is the beginning of the next"
        assert [row["role"] for row in behind_prompt(server.bodies[-1])[2:]] == [
            "user", "assistant", "tool", "assistant", "user",
        ]  # fmt: skip
        assert "EXAMPLE" not in stored(agent) + json.dumps([first.messages, second.messages])


@pytest.mark.parametrize(
    ("mode", "first", "last", "history"),
    [
        *itertools.product(["chat_completions"], ROLES, ROLES, [None, BEGUN]),
        *itertools.product(list(MODELS)[1:], ["assistant"], ROLES, [BEGUN]),
    ],
)
def test_speakers_take_turns_whoever_begins_and_ends_the_rows_before(
    mode: str, first: str, last: str, history: Any
) -> None:
    rows = [{"role": first, "content": "FIRST"}, {"role": last, "content": "LAST"}]
    played = play([ECHO, text("done")], history=history, model=MODELS[mode], settings=prefilled(rows))
    assert played.exit == "text_response"
    for body in played.server.bodies:
        assert not violations(chat_rows(body))
        said = "\n".join(words(row) for row in behind_prompt(body))
        assert [said.count(word) for word in ("FIRST", "LAST", "go")] == [1, 1, 1]
        assert said.index("FIRST") < said.index("LAST") < said.index("go")


def test_a_compaction_leaves_the_rows_before_the_conversation_where_they_are() -> None:
    long = [{"role": ("user", "assistant")[i % 2], "content": f"{i} " + "word " * 400} for i in range(40)]
    script = [text("SUMMARY"), text("done")]
    played = play(script, history=long, context_window=8_192, settings=prefilled(EXAMPLE))
    assert len(played.result.compressions) == 1
    asked, after = played.server.bodies
    assert "EXAMPLE" not in json.dumps(asked), "they are not summed up"
    assert words(behind_prompt(after)[1]) == "EXAMPLE: four."
    assert "EXAMPLE" not in stored(played.agent)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([{"role": "tool", "content": "x"}], "prompt.prefill.0.role is out of range; given: tool"),
        ([*EXAMPLE, {"role": "user", "content": " "}], "prompt.prefill.2.content is out of range"),
        ([{"role": "user", "content": "x", "name": "y"}], "unknown setting prompt.prefill.0.name"),
        ("hello", "prompt.prefill is out of range; given: hello"),
    ],
)
def test_what_is_no_row_before_a_conversation_is_refused_in_one_line(rows: Any, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Agent(ScriptedModel([]), settings=prefilled(rows))
    line = str(refused.value)
    assert named in line
    assert line.endswith("allowed: list of tables with role (user, assistant), content (some text)")
    assert "\n" not in line


# Words behind the prompt


@pytest.mark.behaviour("BUILD-10")
@pytest.mark.parametrize("mode", MODELS)
def test_ephemeral_words_stand_behind_the_prompt_and_are_gone_with_the_turn(
    mode: str, tmp_path: Path
) -> None:
    settings = {"prompt": {"ephemeral": "AGENT-WORDS"}, "store": {"trajectories": True}}
    with table(ROUND, model=MODELS[mode], settings=settings, home=tmp_path) as (agent, server, _, _):
        result = agent.run_conversation("go", ephemeral_prompt=" TURN-WORDS ")
        agent.run_conversation("and?")
        first, second, last = map(prompt_in, server.bodies)
        assert first == second
        assert " ".join(first.split()).endswith("AGENT-WORDS TURN-WORDS")
        assert " ".join(last.split()).endswith("AGENT-WORDS")
        assert first.startswith(last.rstrip()), "the prompt itself is the same bytes"
        trajectories = (tmp_path / "trajectories.jsonl").read_text()
        assert "done" in trajectories
        assert "-WORDS" not in stored(agent) + json.dumps(result.messages) + trajectories


@pytest.mark.parametrize("model", ["anthropic:claude-opus-5", "openrouter:anthropic/claude-opus-5"])
def test_ephemeral_words_are_behind_the_mark_of_the_cache(model: str) -> None:
    with table([text("one"), text("two"), text("three")], model=model) as (agent, server, _, _):
        agent.run_conversation("go", ephemeral_prompt="WORDS")
        asyncio.run(agent.arun("and?", ephemeral_prompt="OTHERS"))
        agent.start("then?").run()
    prompts = [body.get("system") or body["messages"][0]["content"] for body in server.bodies]
    for blocks, told in zip(prompts, ("WORDS", "OTHERS", None), strict=True):
        marked, *rest = blocks
        assert marked == prompts[0][0]
        assert marked["cache_control"] == {"type": "ephemeral"}
        assert rest == ([{"type": "text", "text": told}] if told else [])


def test_ephemeral_words_that_are_no_text_are_refused() -> None:
    agent = Agent(ScriptedModel([]), toolsets=[])
    with pytest.raises(ConfigError, match="ephemeral_prompt has the wrong type; given: 3; allowed: a text"):
        agent.start("go", ephemeral_prompt=3)  # type: ignore[arg-type]


def test_children_have_the_settings_and_not_the_words_of_one_turn() -> None:
    script = [tools(call("delegate_task", {"goal": "look"})), text("looked"), text("done")]
    settings = prefilled(EXAMPLE, ephemeral="AGENT-WORDS")
    with table(script, settings=settings, toolsets=["delegate"]) as (agent, server, _, _):
        agent.run_conversation("go", ephemeral_prompt="TURN-WORDS")
    parent, child, _ = server.bodies
    assert "TURN-WORDS" in prompt_in(parent)
    assert "TURN-WORDS" not in json.dumps(child)
    assert prompt_in(child).endswith("AGENT-WORDS")
    assert words(behind_prompt(child)[1]) == "EXAMPLE: four."


def test_a_turn_that_is_resumed_says_what_it_began_with(tmp_path: Path) -> None:
    """The agent that goes on with it has neither the words, nor the rows, nor the settings for hints."""
    settings = prefilled(EXAMPLE, ephemeral="AGENT-WORDS", model_line=True, budget_hint=0.01)
    one = Agent(ScriptedModel([text("never")]), home=tmp_path, toolsets=[], settings=settings)
    turn = one.start("go", ephemeral_prompt="TURN-WORDS")

    async def until_the_call() -> None:
        await turn.run_until(state="CallLLM")
        await break_off(one, turn, 0)

    asyncio.run(until_the_call())
    with table([text("done")], home=tmp_path, tools=[]) as (other, server, *_):
        assert other.resume(turn.id).run().final_response == "done"
    (body,) = server.bodies
    assert prompt_in(body).endswith("Model: gpt-x (openai)\n\nAGENT-WORDS\n\nTURN-WORDS")
    assert [words(row) for row in behind_prompt(body)[:2]] == ["2+2?", "EXAMPLE: four."]
    assert "this reply is number 1 of at most 90" in words(behind_prompt(body)[-1])


# What is in use


@pytest.mark.behaviour("FB-08")
def test_the_line_about_the_model_follows_a_fallback_and_nothing_else_changes(tmp_path: Path) -> None:
    """FB-08: the stored prompt names no model, so that it is the same for all of them."""
    settings = {"prompt": {"model_line": True}, "primary_cooldown": {"rate_limit": 60}}
    script = [text("hello"), status(429), text("from two"), text("from one")]
    with ScriptedServer(script) as server:
        clock = FakeClock()
        agent = Agent(
            "openai:one", base_url=server.url, api_key="k", toolsets=[], tools=TOOLS, home=tmp_path, clock=clock,
            fallbacks=[{"model": "openai:two", "base_url": server.at("two"), "api_key": "k"}], settings=settings,
        )  # fmt: skip
        agent.run_conversation("hi")
        assert agent.run_conversation("go").model == "two"
        clock.advance(120)
        assert agent.run_conversation("and?").model == "one"
        agent.close()
    prompts = [prompt_in(body) for body in server.bodies]
    assert [body["model"] for body in server.bodies] == ["one", "one", "two", "one"]
    assert [prompt.splitlines()[-1] for prompt in prompts] == [
        f"Model: {name} (openai)" for name in ("one", "one", "two", "one")
    ]
    assert len({prompt.rpartition("\n")[0] for prompt in prompts}) == 1
    assert prompts[0] == prompts[3]
    assert "Model:" not in stored(agent)


@pytest.mark.behaviour("PROMPT-18")
def test_the_line_about_the_session_follows_a_compaction_into_another_one() -> None:
    settings = {"prompt": {"session_line": True}, "compression": {"mode": "rotate"}}
    long = [{"role": ("user", "assistant")[i % 2], "content": f"{i} " + "word " * 400} for i in range(40)]
    script = [overflow(), text("SUMMARY"), text("done"), text("more")]
    with table(script, settings=settings, context_window=64_000) as (agent, server, _, _):
        began = agent.session_id
        result = agent.run_conversation("go", conversation_history=long)
        agent.run_conversation("and?")
    assert result.session_id != began
    before, _, after, later = server.bodies
    assert f"\nSession: {began}" in prompt_in(before)
    assert f"\nSession: {result.session_id}" in prompt_in(after)
    assert prompt_in(later) == prompt_in(after)


# Hints


def hinted(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [row["role"] for row in rows if "Added by this program" in words(row)]


def test_without_the_settings_nothing_is_hinted() -> None:
    played = play([ECHO, ECHO, text("done")], settings={"max_iterations": 3}, context_window=4_000)
    assert not any(hinted(behind_prompt(body)) for body in played.server.bodies)


@pytest.mark.behaviour("BUILD-12")
@pytest.mark.parametrize("mode", MODELS)
def test_a_model_is_told_of_the_iterations_that_are_left_where_it_reads_last(mode: str) -> None:
    settings = {"max_iterations": 3, "prompt": {"budget_hint": 0.6}}
    script = [ECHO, ECHO, ECHO, text("that is all")]
    played = play(script, model=MODELS[mode], settings=settings)
    assert played.exit == "max_iterations_summary"
    first, second, third, last_word = map(behind_prompt, map(dict, played.server.bodies))
    assert hinted(first) == hinted(last_word) == []
    for rows, number, left in ((second, 2, 1), (third, 3, 0)):
        assert len(hinted(rows)) == 1
        assert f"number {number} of at most 3 for this task, so {left} can follow" in words(rows[-1])
        assert rows[-1]["role"] == "tool"
    assert "Added by this program" not in stored(played.agent) + json.dumps(played.result.messages)


@pytest.mark.parametrize("window", [10_000, 1_000_000])
def test_a_threshold_that_rounds_to_no_tokens_is_one_token(window: int) -> None:
    least = 1e-7
    settings = {
        "prompt": {"context_hint": 0.5},
        "compression": {"threshold": least, "tiny_window": least, "small_window_floor": least},
    }
    with table([text("short")] * 9, settings=settings, context_window=window) as (agent, _, _, _):
        assert agent.run_conversation("go").turn_exit_reason != "local_processing_error"


@pytest.mark.behaviour("BUILD-12")
def test_a_model_is_told_how_full_the_conversation_is() -> None:
    settings = {"prompt": {"context_hint": 0.5}}
    script = [text("short"), text("noted"), text("still")]
    with table(script, settings=settings, context_window=10_000) as (agent, server, _, _):
        agent.run_conversation("go")
        agent.run_conversation("read this: " + "word " * 4_200)
        agent.run_conversation("and?")
    first, second, third = map(behind_prompt, server.bodies)
    assert hinted(first) == []
    assert hinted(second) == hinted(third) == ["user"]
    assert "older messages are replaced by a summary" in words(second[-1])
    assert "Added" not in words(third[-3]), "it is not said twice"
    with table([text("x")], settings=settings | {"compression": {"enabled": False}}, context_window=2_000) as (
        agent, server, _, _,
    ):  # fmt: skip
        agent.run_conversation("read this: " + "word " * 1_000)
    assert "it cannot go on" in words(behind_prompt(server.bodies[0])[-1])


def test_no_mark_of_the_cache_is_wasted_on_a_row_with_a_hint() -> None:
    settings = {"prompt": {"budget_hint": 0.01}}
    played = play([ECHO, text("done")], model="anthropic:claude-opus-5", settings=settings)
    rows = played.server.bodies[1]["messages"]
    marked = [any("cache_control" in block for block in row["content"]) for row in rows]
    assert marked == [True, True, False]
