"""Replies that are cut, blank, refused, or only reasoning."""

from __future__ import annotations

import pytest

from fsm_agent.testing import (
    blank,
    call,
    content_filter,
    cut,
    length,
    no_finish,
    reasoning,
    refusal,
    repeat,
    status,
    text,
    tools,
)
from tests.helpers.harness import play


@pytest.mark.behaviour("RESP-05")
def test_20_a_cut_answer_is_continued_and_stored_as_one() -> None:
    played = play([length("part one "), text("part two.")])
    assert played.server.completions == 2
    assert played.result.final_response == "part one part two."
    assert played.roles == "u a"
    assert played.result.messages[1]["content"] == "part one part two."
    again = played.server.bodies[1]["messages"]
    assert again[-2] == {"role": "assistant", "content": "part one"}
    assert again[-1]["role"] == "user"


@pytest.mark.behaviour("RESP-08")
def test_21_cut_for_ever_names_the_true_number() -> None:
    played = play(repeat(length("abc ")))
    assert (played.server.completions, played.exit, played.outcome) == (4, "length_exhausted", "partial")
    assert played.result.final_response == "abc " * 4
    assert "after 3 continuations" in (played.result.error or "")


@pytest.mark.behaviour("RESP-05")
def test_length_caps_grow() -> None:
    caps = [body.get("max_completion_tokens") for body in play(repeat(length("abc "))).server.bodies]
    assert caps == [None, 8192, 16384, 32768]


def test_d46_fragments_end_where_a_tool_round_starts() -> None:
    played = play([length("abc"), tools(call("echo", {})), text("done.")])
    assert played.result.final_response == "done."
    assert played.result.messages[1]["content"] == "abc"


def test_23_reasoning_that_ate_the_output_is_not_retried() -> None:
    played = play([length("<think>abc")])
    assert (played.server.completions, played.exit, played.outcome) == (
        1,
        "thinking_budget_exhausted",
        "partial",
    )
    assert "max_output_tokens" in (played.result.final_response or "")


@pytest.mark.parametrize("reply", [content_filter(), refusal("I cannot help with that")])
def test_24_a_refusal_is_never_retried(reply) -> None:  # type: ignore[no-untyped-def]
    played = play([reply])
    assert (played.server.completions, played.exit, played.outcome) == (1, "content_policy", "failed")
    assert played.result.failure_class == "content_policy"


def test_a_refusal_note_beside_real_text_is_a_normal_reply() -> None:
    assert play([content_filter("here it is")]).result.final_response == "here it is"


@pytest.mark.behaviour("EMPTY-07")
def test_27_blank_for_ever() -> None:
    played = play(repeat(blank()))
    assert (played.server.completions, played.exit, played.outcome) == (4, "empty_exhausted", "failed")
    assert "empty replies" in (played.result.final_response or "")
    assert played.roles == "u a"
    assert not played.result.messages[1]["wire"]


def test_blank_once_is_asked_again() -> None:
    assert play([blank(), text("ok")]).result.final_response == "ok"


@pytest.mark.behaviour("EMPTY-03")
def test_29_a_nudge_after_tools_leaves_no_trace() -> None:
    played = play([tools(call("echo", {"text": "a"})), blank(), text("done")])
    assert played.server.completions == 3
    assert played.roles == "u a t a"
    nudged = played.server.bodies[2]["messages"]
    assert [row["role"] for row in nudged[-2:]] == ["assistant", "user"]
    assert "tool results above" in nudged[-1]["content"]


@pytest.mark.behaviour("EMPTY-04")
def test_blank_for_ever_after_tools_keeps_the_tool_round() -> None:
    played = play([tools(call("echo", {"text": "a"})), repeat(blank())])
    assert played.server.completions == 6
    assert played.roles == "u a t a"


def test_d11_a_blank_first_reply_of_a_new_turn_is_not_told_that_it_ran_tools() -> None:
    history = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call_row("c1")]},
        {"role": "tool", "content": "r", "tool_call_id": "c1"},
    ]
    played = play([blank(), text("ok")], history=history)
    assert [step.event for step in played.steps if step.source == "EmptyRecovery"] == ["nothing"]


def call_row(call_id: str) -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": "echo", "arguments": "{}"}}


@pytest.mark.behaviour("EMPTY-02")
def test_32_text_beside_housekeeping_is_the_answer_when_nothing_follows() -> None:
    played = play([tools(call("todo", {"items": ["a"]}), text="All done, I noted the rest."), blank()])
    assert (played.server.completions, played.exit, played.outcome) == (2, "prior_content_used", "completed")
    assert played.result.final_response == "All done, I noted the rest."
    assert played.result.response_previewed


@pytest.mark.behaviour("EMPTY-02")
def test_text_beside_real_tools_is_no_answer() -> None:
    played = play([tools(call("put", {"key": "a"}), text="I will store it."), blank(), text("ok")])
    assert played.result.final_response == "ok"


def test_34_reasoning_only_is_continued_from_the_reasoning() -> None:
    played = play([reasoning("the answer is four"), text("four")])
    assert played.server.completions == 2
    again = played.server.bodies[1]["messages"]
    assert again[-2] == {"role": "assistant", "content": "the answer is four"}
    assert again[-1]["role"] == "user"
    assert played.roles == "u a"


@pytest.mark.behaviour("EMPTY-04")
def test_35_reasoning_only_for_ever() -> None:
    played = play(repeat(reasoning("hm")))
    assert (played.server.completions, played.exit, played.outcome) == (6, "empty_exhausted", "failed")


def test_63_a_stream_cut_after_text_is_joined_and_nothing_is_shown_twice() -> None:
    played = play([cut("Hello wo"), text("rld")])
    assert played.server.completions == 2
    assert played.result.final_response == "Hello world"
    assert "".join(d for d in played.heard.of("stream_delta") if d) == "Hello world"


def test_a_stream_that_ends_without_a_finish_reason_is_continued() -> None:
    assert play([no_finish("Hello wo"), text("rld")]).result.final_response == "Hello world"


def test_d14_a_budget_that_ends_among_blanks_still_asks_for_a_last_word() -> None:
    played = play([blank(), blank(), text("sorry")], settings={"max_iterations": 2})
    assert (played.exit, played.result.final_response) == ("max_iterations_summary", "sorry")


@pytest.mark.behaviour("FIN-16", "USE-02")
def test_d04_usage_of_every_reply_is_counted() -> None:
    played = play([blank(), reasoning("b"), length("a "), text("c")])
    assert played.server.completions == 4
    assert played.result.total_tokens == 4 * 15


def test_a_scratchpad_that_is_never_closed_is_asked_again() -> None:
    played = play(repeat(text("<scratchpad>thinking")))
    assert (played.server.completions, played.exit) == (3, "scratchpad_incomplete")


@pytest.mark.behaviour("RESP-14")
def test_announcements_are_told_to_act_when_switched_on() -> None:
    on = {"continuation": {"acks_enabled": True}}
    played = play([text("Let me check the files first."), tools(call("echo", {})), text("done")], settings=on)
    assert played.result.final_response == "done"
    assert played.roles == "u a t a"
    announced = [text("Let me check the files first.")]
    assert play(announced).result.final_response == "Let me check the files first."
    off = play(announced, model="openai-responses:gpt-x", settings={"continuation": {"acks_enabled": False}})
    assert off.result.final_response == "Let me check the files first."
    script = [*announced, tools(call("echo", {})), text("done")]
    assert play(script, model="openai-responses:gpt-x").result.final_response == "done"


def test_blank_then_an_error_then_text() -> None:
    played = play([tools(call("echo", {})), blank(), status(500), text("ok")])
    assert played.result.final_response == "ok"
    last_two = [body["messages"][-1]["content"] for body in played.server.bodies[2:]]
    assert last_two[0] == last_two[1], "a retry sends the nudge again"
