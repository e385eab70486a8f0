"""A model that gives back what memory had sent with a message: it is neither shown nor stored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.conversation.thinking import ThinkScrubber
from fsm_agent.support.texts import split_reasoning, with_memory_block
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


PIECES = st.sampled_from(
    [
        "<memory-context>",
        "</memory-context>",
        "<think>",
        "</think>",
        "\n",
        "```\n",
        "a secret",
        "word",
        " <mem",
    ]
)


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
