"""A second message while a turn runs, and compaction by hand and before a message, at a real terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.cli.input import Keys
from fsm_agent.conversation.messages import Usage
from fsm_agent.testing import ScriptedServer, call, text, tools
from tests.helpers.terminal import Terminal, talk, terminal
from tests.helpers.waiting import PATIENCE


@pytest.mark.parametrize(
    ("keys", "messages", "draft"),
    [
        (b"hello\n", ["hello"], ""), (b"one\rtwo\rth", ["one", "two"], "th"),
        (b"helo\x7flo\n", ["hello"], ""), (b"wrong\x15right\n", ["right"], ""),
        (b"a\\\nb\x1b\rc\n", ["a\nb\nc"], ""), (b"\x1b[A\x1bOBx\x00\x04\n", ["x"], ""),
        ("grüß".encode() + b"\n  \n", ["grüß"], ""),
    ],
)  # fmt: skip
def test_keys_become_messages(keys: bytes, messages: list[str], draft: str) -> None:
    whole, single = Keys(), Keys()
    assert (whole.take(keys), whole.draft) == (messages, draft)
    one_by_one = [message for key in keys for message in single.take(bytes([key]))]
    if b"\x1b" not in keys:  # a terminal sends a sequence at once
        assert (one_by_one, single.draft) == (messages, draft)


def said(server: ScriptedServer, number: int) -> list[str]:
    return [row["content"] for row in server.bodies[number]["messages"] if row["role"] == "user"]


def typing(screen: Callable[[], Terminal], keys: str, seen: str, reply: Any) -> Callable[[Any], Any]:
    """A reply that comes when a person has typed ``keys`` and has seen what became of it. The test reads the
    screen meanwhile."""

    def answer(_: Any) -> Any:
        screen().press(keys)
        until = time.monotonic() + PATIENCE
        while seen not in screen().plain and time.monotonic() < until:
            time.sleep(0.01)
        return reply

    return answer


@pytest.mark.slow
@pytest.mark.parametrize("how", ["by the setting", "by the command"])
@pytest.mark.parametrize(
    ("what", "seen"), [("queue", "answered after this turn"), ("steer", "with its next tool result")]
)
def test_a_second_message_is_queued_or_told(tmp_path: Path, how: str, what: str, seen: str) -> None:
    setting = () if how == "by the command" else ("--set", f"interrupt.second_message={what}")
    words = f"/{what} and Bern\n" if how == "by the command" else "and Bern\n"
    screens: list[Terminal] = []
    first = typing(lambda: screens[0], words, seen, tools(call("todo", {})))
    script = [first, text("Zurich it is."), *([text("Bern it is.")] if what == "queue" else [])]
    with talk(tmp_path, script, *setting) as (screen, server):
        screens.append(screen)
        screen.press("say Zurich\r")
        screen.until("Bern it is." if what == "queue" else "Zurich it is.")
        screen.until("completed", 2 if what == "queue" else 1)
        assert said(server, -1) == ["say Zurich", *(["and Bern"] if what == "queue" else [])]
        results = [row["content"] for row in server.bodies[1]["messages"] if row["role"] == "tool"]
        assert ("and Bern" in results[-1]) is (what == "steer")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "seen", "reply", "asked"),
    [
        ("/interrupt stop, say Bern\n", "interrupted for it", "too late", ["say Zurich\n\nstop, say Bern"]),
        ("/steer and Bern\n", "next tool result", "Zurich it is.", ["say Zurich", "and Bern"]),
        ("and Be", "› and Be", "Zurich it is.", ["say Zurich", "and Bern"]),
    ],
    ids=["interrupts", "no tool result carried it", "a line without its end"],
)
def test_what_was_typed_meanwhile_is_answered_next(
    tmp_path: Path, keys: str, seen: str, reply: str, asked: list[str]
) -> None:
    screens: list[Terminal] = []
    first = typing(lambda: screens[0], keys, seen, text(reply))
    with talk(tmp_path, [first, text("Bern it is.")]) as (screen, server):
        screens.append(screen)
        screen.press("say Zurich\r")
        if not keys.endswith("\n"):
            screen.until("completed")
            screen.press("rn\r")
        screen.until("Bern it is.")
        screen.until("completed", 2 if reply == "Zurich it is." else 1)
        assert ("interrupted · " in screen.plain) is (reply == "too late")
        assert "too late" not in screen.plain
        assert said(server, 1) == asked


WORDS = "words and more words " * 200


@pytest.mark.behaviour("COMP-05b", "COMP-06")
@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
def test_compact_takes_a_topic_and_a_full_window_is_compacted_before_a_message(
    tmp_path: Path, full: bool
) -> None:
    """The sixth reply says how full the window of 16,384 tokens is; the turn itself would wait until it is."""
    replies = [text(f"{number} {WORDS}", usage=Usage(3_000, 5)) for number in range(5)]
    replies.append(text(f"5 {WORDS}", usage=Usage(14_500 if full else 3_000, 5)))
    with ScriptedServer([*replies, text("A summary."), text("The end.")]) as server:
        config = f'[providers.work]\nbase_url = "{server.url}"\ncontext_window = 16384\n'
        (tmp_path / "config.toml").write_text(config, "utf-8")
        options = ("--set", "compression.tiny_window=1", "--set", "compression.tail_floor=3")
        with terminal("chat", "--model", "work:m", *options, home=tmp_path) as screen:
            screen.until("›")
            for number in range(6):
                screen.press(f"message {number}\r")
                screen.until("completed", number + 1)
            if not full:
                screen.press("/compact the cats\r", until="Done.")
                assert "the cats" in str(server.bodies[6])
            screen.press("last\r")
            screen.until("completed", 7)
    assert ("% full: compacting before your message is sent" in screen.plain) is full
    assert "compacted: 12 → " in screen.plain
    assert said(server, 7)[-1].endswith("last")
    assert "A summary." in str(server.bodies[7])
    assert server.completions == 8
