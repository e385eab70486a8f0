"""What was said before an error, an announcement or a switch of providers ends up in the answer once, and
nothing else does."""

from __future__ import annotations

from typing import Any

import pytest

from fsm_agent.conversation.messages import ModelReply
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.testing import ScriptedModel, blank, call, length, overflow, repeat, status, text, tools
from tests.helpers.harness import Played, play, table

ACKS = {"continuation": {"acks_enabled": True}}
ANNOUNCEMENT = "I'll look at the files now."


def with_fallback(script: list[Any], *backups: Any, **options: Any) -> tuple[Played, list[ScriptedModel]]:
    ports = [ScriptedModel([backup]) for backup in backups]
    with table(script, fallbacks=[{"model": port} for port in ports], **options) as (
        agent,
        server,
        clock,
        heard,
    ):
        turn = agent.start("go")
        return Played(turn.run(), server, agent, clock, heard, turn.steps), ports


def test_a_fallback_goes_on_with_an_answer_that_was_begun() -> None:
    played, (port,) = with_fallback([length("part one "), status(429)], text("part two"))
    assert played.result.final_response == "part one part two"
    assert port.requests[0]["messages"][-2]["content"] == "part one"


def test_an_announcement_is_no_part_of_the_answer_after_it() -> None:
    played = play([text(ANNOUNCEMENT), tools(call("echo")), text("Found it.")], settings=ACKS)
    assert played.result.final_response == "Found it."
    assert played.roles == "u a t a"


def test_an_announcement_in_two_pieces_is_no_part_of_the_answer_after_it() -> None:
    played = play(
        [length("I'll look at "), text("I'll look at the files now."), text("Found it.")], settings=ACKS
    )
    assert played.result.final_response == "Found it."


def test_an_announcement_is_not_the_answer_of_a_turn_that_ran_tools_since() -> None:
    settings = {**ACKS, "max_iterations": 2, "budget": {"grace_call": False}}
    played = play([text(ANNOUNCEMENT), tools(call("echo"))], settings=settings)
    assert played.exit == "budget_exhausted"
    assert ANNOUNCEMENT not in str(played.result.final_response)


def test_an_announcement_that_is_all_there_is_is_the_answer() -> None:
    played = play([text(ANNOUNCEMENT)] * 3, settings=ACKS)
    assert (played.exit, played.result.final_response) == ("text_response", ANNOUNCEMENT)


def test_incomplete_replies_keep_their_text() -> None:
    with table([]) as (agent, _, _, _):
        agent = type(agent)(
            ScriptedModel([ModelReply("half a thought", finish="incomplete")] * 4), toolsets=[]
        )
        result = agent.run_conversation("go")
    assert (result.turn_exit_reason, result.partial) == ("responses_incomplete", True)
    assert "half a thought" in str(result.final_response)


@pytest.mark.parametrize("budget", [None, 10])
def test_a_chain_that_names_one_model_twice_uses_it_once(budget: int | None) -> None:
    port, shared = ScriptedModel([blank()] * 3), None if budget is None else IterationBudget(budget)
    options: dict[str, Any] = {
        "fallbacks": [{"model": port}, {"model": port}],
        "settings": {"empty": {"retries": 0}},
    }
    with table([blank()], budget=shared, **options) as (agent, _, _, _):
        result = agent.run_conversation("go")
    assert (result.turn_exit_reason, result.attempts) == ("empty_exhausted", 2)
    assert shared is None or shared.used == 2


def test_an_output_cap_that_leaves_no_room_is_an_overflow() -> None:
    message = (
        "input length and `max_tokens` exceed context limit: 199900 + 4000 > 200000, decrease input length"
    )
    played = play([status(400, {"error": {"message": message}})])
    assert (played.exit, played.result.failure_class) == ("overflow_uncompressible", "context_overflow")


def test_what_an_overflow_taught_of_the_window_survives_a_change_of_keys() -> None:
    history = [{"role": role, "content": f"{n} " * 400} for n in range(8) for role in ("user", "assistant")]
    too_long = status(400, {"error": {"message": "Input is too long for requested model."}})
    wider = [{"model": ScriptedModel([text("ok")] * 9), "context_window": 5_000}]
    script = [overflow(3_000), status(402), *[too_long] * 9]

    def reply(request: Any) -> Any:
        return script.pop(0) if "tools" in request.body else text("a summary")

    with table(repeat(reply), api_key=["k1", "k2"], context_window=100_000, fallbacks=wider) as (
        agent,
        _,
        _,
        _,
    ):
        turn = agent.start("go", conversation_history=history)
        turn.run()
        events = [step.event for step in turn.steps if step.source == "ClassifyError"]
    assert events[:3] == ["overflow", "bad_key", "outgrown"]
