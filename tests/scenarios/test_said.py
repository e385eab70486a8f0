"""What a person reads while a turn recovers: one plain line for each thing, with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from fsm_agent.testing import blank, call, cut, cut_tool_call, length, overflow, repeat, status, text, tools
from tests.helpers.harness import Played, play, table, talk

HALF_JSON = tools(call("echo", '{"text": nope]}'))
REFUSED = {"error": {"message": "max_tokens is too large. This model supports at most 4096 output tokens"}}
RAISE = "raise the output cap: max_output_tokens"
BATCH = tools(call("echo", {"text": "a"}), call("echo", {"text": "b"}), call("put", {"key": "k"}))
IN_A_ROW = tools(call("put", {"key": "a"}), call("put", {"key": "b"}))
SETTINGS: dict[str, dict[str, Any]] = {
    "a cut reply": {"max_output_tokens": 500},
    "the last iteration": {"max_iterations": 1},
    "arguments that are no JSON": {"invalid_json_retries": 1},
    "an output cap that is too large": {"max_output_tokens": 99_999},
}
TODO, ONE_CALL = tools(call("todo", {}), text="All is done."), tools(call("echo", {"text": "a"}))
UNKNOWN = tools(call("nothing_like_it", {}))
SAID: dict[str, tuple[list[Any], str]] = {
    "a batch": ([BATCH, text("ok")], "3 tool calls, up to 2 at the same time"),
    "a batch in a row": ([IN_A_ROW, text("ok")], "2 tool calls, one after the other"),
    "a cut reply": (
        [length("half"), text(" rest")],
        f"the reply was cut off: continued (1 of 3) with 1,000 tokens; {RAISE}, now 500",
    ),
    "a cut call": (
        [cut_tool_call(), text("ok")],
        f"a tool call was cut off and not run: asked again (1 of 4) with 8,192 tokens; {RAISE}",
    ),
    "a reply that broke off": ([cut("half"), text(" rest")], "the reply was cut off: continued (1 of 3)"),
    "a blank reply": ([blank(), text("ok")], "an empty reply: asked again (1 of 3)"),
    "text before a blank": (
        [TODO, blank()],
        "an empty reply: the text beside the last tool calls is the answer",
    ),
    "text that was streamed before a blank": (
        [length("half"), blank()],
        f"the reply was cut off: continued (1 of 3) with 8,192 tokens; {RAISE}\n"
        "an empty reply: the text that was shown before is the answer",
    ),
    "the last iteration": (
        [ONE_CALL, text("so far")],
        "the limit of 1 iterations is reached: a summary is asked for; raise max_iterations for longer tasks\n"
        "the summary came: the task may be unfinished, another message goes on with it",
    ),
    "arguments that are no JSON": (
        [HALF_JSON, HALF_JSON, text("ok")],
        "the arguments of a call are no JSON: asked again (1 of 1)\n"
        "the arguments of a call are still no JSON: the model is told why",
    ),
    "an unknown tool": ([UNKNOWN, text("ok")], "the model's calls cannot be run: it is told why (1 of 2)"),
    "an output cap that is too large": (
        [status(400, REFUSED), text("ok")],
        "sent again with at most 4,032 output tokens; lower max_output_tokens to be spared this",
    ),
}


def recoveries(played: Played) -> list[str]:
    """The lines, without those of attempts and waits."""
    lines = played.heard.of("status")
    assert not any("\n" in line for line in lines)
    return [line for line in lines if "failed after" not in line and not line.startswith("waiting")]


@pytest.mark.behaviour("FIN-02", "ERR-29", "RESP-08b", "EMPTY-01", "EMPTY-01b", "EMPTY-02b", "EXEC-17b")
@pytest.mark.parametrize("what", SAID)
def test_each_recovery_has_one_plain_line(what: str) -> None:
    script, lines = SAID[what]
    assert recoveries(play(script, settings=SETTINGS.get(what, {}))) == lines.split("\n")


@pytest.mark.behaviour("COMP-38b")
def test_a_compaction_says_what_it_gained() -> None:
    played = play([text("a summary"), text("done")], history=talk(60), context_window=16_384)
    begun, gained = recoveries(played)
    (metrics,) = played.result.compressions
    assert begun.startswith("the window fills up: ")
    assert gained == (
        f"compacted: {metrics['messages_before']} → {metrics['messages_after']} messages, about"
        f" {metrics['tokens_before']:,} → {metrics['tokens_after']:,} tokens"
    )


@pytest.mark.behaviour("COMP-38b")
def test_a_compaction_that_gains_nothing_says_so() -> None:
    played = play([overflow(8192)], history=[], context_window=8192)
    assert recoveries(played)[0] == "compacting gained nothing: what is left must stay as it is"


@pytest.mark.behaviour("COMP-08b")
def test_after_two_compactions_without_gain_it_is_said_until_when_there_are_no_more() -> None:
    with table(repeat(overflow(8192)), context_window=8192) as (agent, _server, _clock, heard):
        for _ in range(3):
            agent.run_conversation("go")
    off = [line for line in heard.of("status") if line.startswith("automatic compaction is off")]
    assert off == [
        "automatic compaction is off: the last 2 compactions did not make room; off until a reply shows that there"
        " is some, or compact by hand (/compact), or begin a new session"
    ]


@pytest.mark.behaviour("RESP-08b")
def test_a_cut_call_that_ends_the_turn_says_what_to_raise() -> None:
    played = play(repeat(cut_tool_call()))
    assert (played.result.final_response or "").endswith("Raise the output cap: max_output_tokens.")
