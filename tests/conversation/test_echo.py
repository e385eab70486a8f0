"""Replies: what is shown and stored of one that repeats what it was given, and what one is taken to have
used when its provider did not say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.conversation.effects import Cancelled, Failure, ModelRequest
from fsm_agent.conversation.messages import NO_USAGE, ModelReply, ToolCall, Usage
from fsm_agent.conversation.result import estimate_usage
from fsm_agent.support.texts import ThinkScrubber, split_reasoning, with_memory_block
from fsm_agent.testing import call, text, tools
from tests.helpers.harness import play

ECHOED = with_memory_block("", "The user's door code is blue heron.").strip()
IN_CODE = "```\n<memory-context>\nx\n</memory-context>\n```"


@pytest.mark.behaviour("CALL-05")
@pytest.mark.parametrize(
    ("said", "left"),
    [
        (f"{ECHOED}\n\nGood morning.", "Good morning."),
        (f"Good morning.\n\n{ECHOED}\nHow are you?", "Good morning.\n\nHow are you?"),
        (f"Good morning.\n{ECHOED.removesuffix('</memory-context>')}", "Good morning.\n"),
        (f"<think>hm</think>\n{ECHOED.upper()}\nGood morning.", "Good morning."),
        ("The tag <memory-context> is ours.", "The tag <memory-context> is ours."),
        (IN_CODE, IN_CODE),
    ],
)
def test_an_echo_is_neither_shown_nor_stored(said: str, left: str) -> None:
    for script in ([text(said)], [tools(call("echo", {}), text=said), text("done")]):
        played = play(script)
        row = played.result.messages[1]
        assert row["content"].rstrip() == left.rstrip()
        assert "".join(delta for delta in played.heard.of("stream_delta") if delta).startswith(left.rstrip())
        assert "blue heron" not in repr((played.result, played.heard.calls))
        assert (row.get("reasoning") or "") == ("hm" if "think" in said else "")


TAGS = "<memory-context> </memory-context> <think> </think>"
PIECES = st.sampled_from([*TAGS.split(), "\n", "```\n", "a secret", "word", " <mem"])


@given(st.lists(PIECES, max_size=8), st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_what_is_shown_in_pieces_is_what_is_stored(parts: list[str], cuts: list[int]) -> None:
    whole, scrubber, shown, at, turn = "".join(parts), ThinkScrubber(), "", 0, 0
    while at < len(whole):
        size = cuts[turn % len(cuts)]
        shown += scrubber.feed(whole[at : at + size])[0]
        at, turn = at + size, turn + 1
    shown += scrubber.flush()[0]
    visible, _, _ = split_reasoning(whole)
    assert "".join(shown.split()) == "".join(visible.split())


REQUEST = ModelRequest(estimate=1_000)


@pytest.mark.parametrize(
    ("reply", "usage"),
    [
        (ModelReply("x" * 400, "y" * 40), Usage(1_000, 110)),
        (ModelReply(tool_calls=(ToolCall("1", "look", "z" * 36),)), Usage(1_000, 10)),
        (Cancelled("x" * 40), Usage(1_000, 10)), (Cancelled(sent=False), NO_USAGE),
        (Failure("transport", "broken"), Usage(1_000)), (Failure("lost", "its process ended"), Usage(1_000)),
        (Failure("transport", "refused", sent=False), NO_USAGE),
        (Failure("http", "too many", status=429), NO_USAGE),
    ],
)  # fmt: skip
def test_a_request_that_left_counts_with_what_had_arrived(reply: Any, usage: Usage) -> None:
    assert estimate_usage(REQUEST, reply) == usage
