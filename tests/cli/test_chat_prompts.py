"""Prompts and resources of a real MCP server in a chat, at a real terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fsm_agent.cli.input import offers
from fsm_agent.errors import ConfigError
from fsm_agent.testing import text
from fsm_agent.toolsets.mcp.offer import ServerPrompt
from tests.helpers.terminal import talk

SERVER = Path(__file__).parents[1] / "helpers" / "mcp_prompt_server.py"
REVIEW = ServerPrompt("desk", "review", "Review a change", {"file": True, "focus": False})


@pytest.mark.parametrize(
    ("words", "filled"),
    [
        ("app.py", {"file": "app.py"}),
        ("app.py speed and size", {"file": "app.py", "focus": "speed and size"}),
        ("focus=speed 'my app.py'", {"file": "my app.py", "focus": "speed"}),
        ("file=a=b", {"file": "a=b"}),
    ],
)
def test_words_fill_the_arguments_of_a_prompt(words: str, filled: dict[str, str]) -> None:
    assert REVIEW.fill(words) == filled


@pytest.mark.parametrize(
    ("prompt", "words", "why"),
    [
        (REVIEW, "", "lacks file; allowed: FILE \\[FOCUS\\]"),
        (REVIEW, "focus=x", "lacks file"),
        (REVIEW, "'a", "cannot be read"),
        (ServerPrompt("desk", "now", "", {}), "x", "takes no arguments; given: x"),
    ],
)
def test_words_that_do_not_fill_it_are_one_line(prompt: ServerPrompt, words: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        prompt.fill(words)


def test_tab_completes_prompts(tmp_path: Path) -> None:
    more = {REVIEW.command: (REVIEW.words, REVIEW.description)}
    [one] = offers("/desk:r", tmp_path, more)
    assert (one.text, one.shown, one.meaning) == (
        "/desk:review", "/desk:review FILE [FOCUS]", "Review a change",
    )  # fmt: skip
    assert "/desk:review" in {one.text for one in offers("/", tmp_path, more)}


@pytest.mark.slow
def test_a_prompt_is_listed_completed_filled_in_and_sent(home: Path) -> None:
    home.mkdir(mode=0o700)
    config = f"command = {json.dumps(sys.executable)}\nargs = {json.dumps([str(SERVER)])}\n"
    (home / "config.toml").write_text(f"[mcp.servers.desk]\n{config}", "utf-8")
    with talk(home, [text("It looks fine."), text("You buy milk.")]) as (screen, server):
        screen.say("/desk:review", until="lacks file")
        screen.say("/help", until="/desk:review FILE [FOCUS]")
        shown = screen.screen.count("eview")
        screen.press("/desk:r\t")
        screen.until("eview", shown + 1)
        screen.say(" app.py speed", until="It looks fine.")
        screen.say("/desk:nothing", until="no such prompt")
        screen.say("what is in @desk:notes://none ?", until="refused the call")
        screen.say("what is in @desk:notes://today ?", until="You buy milk.")
    first, second = ([row for row in body["messages"] if row["role"] == "user"] for body in server.bodies)
    assert first[-1]["content"] == "Please review app.py for speed."
    said = json.dumps(second[-1]["content"])
    assert "what is in @desk:notes://today ?" in said
    assert "buy milk" in said
    assert "<external-content source=" in said
