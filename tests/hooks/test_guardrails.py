"""Guardrails on what comes in and what goes out, before a request or beside it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, Block, Guardrail, Retry, Rewrite, RunContext, TurnResult
from fsm_agent.errors import ConfigError
from fsm_agent.testing import Reply, ScriptedModel, blank, call, length, text, tools

ROOT = Path(__file__).parents[2]


def no_keys(context: RunContext[Any], words: str) -> Block | None:
    return Block("that looks like a key") if "sk-" in words else None


async def tidy(context: RunContext[Any], words: str) -> Rewrite:
    return Rewrite(words.replace("damn", "very"))


def short(context: RunContext[Any], words: str) -> Retry | None:
    return Retry("longer than ten letters") if len(words) > 10 else None


def run(
    home: Path, replies: list[Reply], message: str = "go", **given: Any
) -> tuple[TurnResult, Agent, ScriptedModel]:
    model = ScriptedModel(replies)
    agent = Agent(model, toolsets=[], home=home, **given)
    return agent.run_conversation(message), agent, model


def test_a_refused_message_is_not_sent_now_or_later(tmp_path: Path) -> None:
    result, agent, model = run(tmp_path, [text("fine")], "my key is sk-1", input_guardrails=[no_keys])
    assert (result.turn_exit_reason, result.failed, result.attempts) == ("guardrail_blocked", True, 0)
    assert result.guardrail == {"by": "no_keys", "reason": "that looks like a key", "what": "message"}
    assert result.error == "A guardrail stopped the turn: that looks like a key."
    assert agent.chat("hello") == "fine"
    assert "sk-1" not in str(model.requests)
    assert result.messages[0]["content"] == "my key is sk-1", "people see it"


def test_a_message_is_rewritten_before_it_is_stored(tmp_path: Path) -> None:
    result, _, model = run(tmp_path, [text("ok")], "a damn good day", input_guardrails=[tidy, no_keys])
    assert result.messages[0]["content"] == "a very good day"
    assert model.requests[0]["messages"][-1]["content"] == "a very good day"


@pytest.mark.parametrize("answer", ["the key is sk-2", "a damn sk-3"])
def test_a_refused_answer_is_neither_delivered_nor_sent_again(tmp_path: Path, answer: str) -> None:
    result, agent, model = run(tmp_path, [text(answer), text("fine")], output_guardrails=[tidy, no_keys])
    assert result.turn_exit_reason == "guardrail_blocked"
    assert result.guardrail is not None
    assert result.guardrail["what"] == "answer"
    assert "sk-" not in (result.final_response or "")
    assert agent.chat("again") == "fine"
    assert "sk-" not in str(model.requests[-1])


def test_an_answer_is_rewritten(tmp_path: Path) -> None:
    result, *_ = run(tmp_path, [text("damn good")], output_guardrails=[tidy])
    assert (result.final_response, result.messages[-1]["content"]) == ("very good", "very good")
    # an answer is sent back with the reason as often as it may
    result, _, model = run(tmp_path / "2", [text("a long answer"), text("short")], output_guardrails=[short])
    assert (result.final_response, result.api_calls) == ("short", 2)
    said, mend = model.requests[1]["messages"][-2:]
    assert (said["content"], "longer than ten letters" in mend["content"]) == ("a long answer", True)
    assert [row["content"] for row in result.messages] == ["go", "short"]
    # an answer that stays wrong ends the turn by a reason of its own
    replies = [text(f"a long answer {number}") for number in range(3)]
    result, _, model = run(tmp_path / "3", replies, output_guardrails=[short], settings={"output_retries": 2})
    assert (result.turn_exit_reason, result.error) == (
        "output_invalid",
        "The model gave no answer of the type that was asked for: longer than ten letters.",
    )
    assert len(model.requests) == 3
    # a fallback is asked when a model cannot mend its answer
    other = ScriptedModel([text("short")])
    result, *_ = run(tmp_path / "4", [text("a long answer")], output_guardrails=[short],
                     settings={"output_retries": 0}, fallbacks=[{"model": other}])  # fmt: skip
    assert (result.final_response, result.fallback_activated) == ("short", True)


def test_a_text_that_was_cut_is_looked_at_before_it_goes_out(tmp_path: Path) -> None:
    result, *_ = run(tmp_path, [length("the key is sk-4")], output_guardrails=[no_keys],
                     settings={"length": {"max_continuations": 0}})  # fmt: skip
    assert result.turn_exit_reason == "length_exhausted"
    assert "sk-4" not in (result.final_response or "")
    assert "sk-4" not in str(result.messages)
    # a text that cannot be sent back any more is not delivered
    result, *_ = run(tmp_path / "2", [length("far too long")], output_guardrails=[short],
                     settings={"length": {"max_continuations": 0}})  # fmt: skip
    assert result.turn_exit_reason == "length_exhausted"
    assert (result.error or "").endswith("Before that: longer than ten letters.")
    assert "far too long" not in str((result.final_response, result.messages))


@pytest.mark.parametrize(("guards", "exit"), [([no_keys], "text_response"), ([], "prior_content_used")])
def test_words_beside_calls_are_no_answer_where_answers_are_looked_at(
    tmp_path: Path, guards: list[Any], exit: str
) -> None:
    beside = tools(call("todo", {"items": []}), text="the key is sk-6")
    model = ScriptedModel([beside, blank(), text("fine")])
    agent = Agent(model, toolsets=["todo"], home=tmp_path, output_guardrails=guards)
    result = agent.run_conversation("go")
    assert result.turn_exit_reason == exit
    assert ("sk-6" in (result.final_response or "")) == (not guards)


def test_a_guardrail_beside_the_request_wins_over_its_reply_and_is_asked_once(tmp_path: Path) -> None:
    begun, replied = asyncio.Event(), asyncio.Event()

    async def slow(context: RunContext[Any], words: str) -> Block:
        begun.set()
        await replied.wait()
        return Block("no")

    class Model(ScriptedModel):
        async def call(self, request: Any, sink: Any) -> Any:
            await begun.wait()  # both are under way at the same time, or this never ends
            reply = await super().call(request, sink)
            replied.set()
            return reply

    model = Model([text("an answer"), text("fine")])
    agent = Agent(model, toolsets=[], home=tmp_path, input_guardrails=[Guardrail(slow, beside=True)])
    result = agent.run_conversation("go")
    assert (result.turn_exit_reason, result.attempts) == ("guardrail_blocked", 1)
    assert "an answer" not in str(result.messages)
    assert "an answer" not in str(result.final_response)
    # a guardrail beside the request is asked once
    asked = []

    def count(context: RunContext[Any], words: str) -> None:
        asked.append(words)

    run(tmp_path / "2", [length("a, "), text("b")], input_guardrails=[Guardrail(count, beside=True)])
    assert asked == ["go"]


@pytest.mark.parametrize("side", ["input_guardrails", "output_guardrails"])
def test_a_guardrail_that_fails_refuses(tmp_path: Path, side: str) -> None:
    def broken(context: RunContext[Any], words: str) -> None:
        raise ZeroDivisionError

    result, *_ = run(tmp_path, [text("fine")], **{side: [broken]})
    assert (result.turn_exit_reason, result.error) == (
        "guardrail_blocked",
        "A guardrail stopped the turn: guardrail broken failed: ZeroDivisionError().",
    )


def test_a_guardrail_that_says_something_else_refuses(tmp_path: Path) -> None:
    result, *_ = run(tmp_path, [text("fine")], input_guardrails=[lambda context, words: Retry("no")])
    wrong = "guardrail <lambda> answered with Retry: None or Block or Rewrite is allowed"
    assert result.error == f"A guardrail stopped the turn: {wrong}."


def test_what_is_no_guardrail_is_refused_when_the_agent_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a guardrail"):
        Agent(ScriptedModel([]), toolsets=[], home=tmp_path, input_guardrails=["no"])  # type: ignore[list-item]

    # a guardrail that takes other values is refused when the agent is made
    def short(words: str) -> None: ...

    for option in ("input_guardrails", "output_guardrails"):
        with pytest.raises(
            ConfigError, match=r"guardrail short takes other values; .*allowed: \(context, text\)"
        ):
            Agent(ScriptedModel([]), toolsets=[], home=tmp_path, **{option: [short]})


def test_the_programs_of_the_page_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FSM_AGENT_HOME", str(tmp_path))
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "hooks.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        names: dict[str, Any] = {}
        exec(block, names)
        assert "42" in names["agent"].chat("What is 6 * 7?")


def test_a_turn_that_goes_on_is_looked_at_by_the_agent_that_goes_on(tmp_path: Path) -> None:
    """What another agent let through, and the journal says so, is no authority."""
    first = Agent(ScriptedModel([text("the key is sk-5")]), toolsets=[], home=tmp_path)
    turn = first.start("go")

    async def until_the_reply() -> None:
        kind = None
        while kind != "CallModel":
            kind = type(getattr(await turn.step_into(), "request", None)).__name__

    asyncio.run(until_the_reply())
    first.close()
    again = Agent(ScriptedModel([]), toolsets=[], home=tmp_path, output_guardrails=[no_keys])
    result = again.resume(again.journal.recent(1)[0].id).run()
    assert result.turn_exit_reason == "guardrail_blocked"
