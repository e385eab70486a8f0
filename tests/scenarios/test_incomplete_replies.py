"""RESP-11, FMT-09 and FMT-10: replies of the Responses API that are not answers yet."""

from __future__ import annotations

from typing import Any

import pytest

from fsm_agent.testing import Reply, call, json_reply, status, text, tools
from tests.helpers.harness import Played, play, table

RESPONSES = {"model": "openai-responses:gpt-5"}


def said(words: str, phase: str | None = None) -> dict[str, Any]:
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "phase": phase}
    return {**message, "content": [{"type": "output_text", "text": words, "annotations": []}]}


def response(*output: dict[str, Any]) -> Reply:
    return json_reply({"status": "completed", "model": "gpt-5", "output": list(output)})


def played(script: Any) -> Played:
    return play(script, **RESPONSES)


def inputs(one: Played, number: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = one.server.bodies[number]["input"]
    return rows


@pytest.mark.behaviour("RESP-11")
def test_an_incomplete_reply_is_kept_and_an_answer_asked_for() -> None:
    one = played([Reply(text="Looking at it.", finish="incomplete"), text("It is 4.")])
    assert (one.result.final_response, one.exit, one.roles) == ("It is 4.", "text_response", "u a")
    kept, nudge = inputs(one, 1)[-2:]
    assert (kept["role"], kept["content"]) == ("assistant", "Looking at it.")
    assert "incomplete" in nudge["content"]
    assert "".join(delta for delta in one.heard.of("stream_delta") if delta) == "Looking at it.\n\nIt is 4."

    one = played([Reply(finish="incomplete"), text("It is 4.")])
    (nudge,) = inputs(one, 1)
    assert nudge["role"] == "user", "with nothing to keep there is only the nudge"
    assert "incomplete" in nudge["content"]


def test_incomplete_for_ever_is_a_partial_result_with_the_last_text() -> None:
    one = played([Reply(text="Some of it.", finish="incomplete"), *[Reply(finish="incomplete")] * 3])
    assert (one.summary, one.result.final_response) == ("4 responses_incomplete partial", "Some of it.")


@pytest.mark.behaviour("FMT-09")
def test_narration_is_never_the_answer() -> None:
    answer = response(said("Still looking.", "commentary"), said("Four."))
    one = played([response(said("I look into it.", "commentary")), answer])
    assert (one.server.completions, one.result.final_response) == (2, "Four.")
    assert one.result.messages[-1]["content"] == "Four."


def test_narration_beside_calls_is_told_and_its_phase_goes_back() -> None:
    function = {
        "type": "function_call",
        "call_id": "c",
        "name": "echo",
        "arguments": "{}",
        "status": "completed",
    }
    one = played([response(said("I look into it.", "commentary"), function), text("Four.")])
    assert one.heard.of("interim_assistant") == ["I look into it."]
    sent = {"type": "message", "role": "assistant", "content": "I look into it.", "phase": "commentary"}
    assert inputs(one, 1)[1] == sent


@pytest.mark.behaviour("FMT-10")
def test_a_call_that_was_leaked_as_text_is_neither_run_nor_shown_as_an_answer() -> None:
    one = played([text('to=functions.echo {"text": "x"}'), tools(call("echo", {"text": "x"})), text("Done.")])
    assert (one.server.completions, one.result.final_response, one.roles) == (3, "Done.", "u a t a")
    assert "to=functions" not in str(inputs(one, 1))


def test_reasoning_that_ate_the_output_ends_the_turn_at_once() -> None:
    thought = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "sealed"}
    reason = {"reason": "max_output_tokens"}
    one = played([json_reply({"status": "incomplete", "incomplete_details": reason, "output": [thought]})])
    assert one.summary == "1 thinking_budget_exhausted partial"


@pytest.mark.behaviour("BUILD-09e")
def test_encrypted_reasoning_goes_back_in_this_turn_and_the_next() -> None:
    script = [tools(call("echo", {}), reasoning="a"), Reply(text="Four.", reasoning="b"), text("Bye.")]
    with table(script, **RESPONSES) as (agent, server, _, _):
        agent.run_conversation("go")
        agent.run_conversation("thanks")
        sent = [(item["type"], item.get("encrypted_content")) for item in server.bodies[2]["input"]]
    assert [kind for kind, _ in sent] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "reasoning",
        "message",
        "message",
    ]
    sealed = [content for kind, content in sent if kind == "reasoning"]
    assert sealed == ["sealed-1", "sealed-2"]


def test_rejected_encrypted_reasoning_is_left_out_of_the_wire_only() -> None:
    error = {"message": "The encrypted content could not be verified.", "code": "invalid_encrypted_content"}
    refused = status(400, {"error": error})
    one = played([tools(call("echo", {}), reasoning="a"), refused, text("Four.")])
    assert "reasoning" in [item["type"] for item in inputs(one, 1)]
    assert "reasoning" not in [item["type"] for item in inputs(one, 2)]
    assert one.result.messages[1]["blocks"][0]["encrypted_content"] == "sealed-1"
