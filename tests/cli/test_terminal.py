"""The chat at a real terminal, as a person sees it: screens are compared with records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from fsm_agent.testing import ScriptedServer, call, silence, text, tools
from tests.helpers.screen import Screen, recorded, screen

pytestmark = pytest.mark.slow
PROGRAM = 'def greet(name):\n    print("hello " + name)\n\n\ngreet("world")\n'
PATCH = {"path": "app.py", "old_text": "def greet(name):", "new_text": "def greet(name: str) -> None:"}
ANSWER = """\
# What changed

`greet` is **typed** now, see [the page](https://example.com/typed):

```python
def greet(name: str) -> None:
    print("hello " + name)
```

1. It says what it takes, in an item that is so long that it has to be broken between two words.
2. It says what it gives.

| file | lines |
|---|---|
| app.py | 1 |
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder whose name is as long in every run."""
    with TemporaryDirectory(prefix="fsm-", dir="/tmp") as folder:
        yield Path(folder)


@contextmanager
def chat(
    place: Path, script: list[Any], *options: str, columns: int = 80, lines: int = 40
) -> Iterator[tuple[Screen, ScriptedServer]]:
    work = place / "shop"
    work.mkdir()
    (work / "app.py").write_text(PROGRAM)
    (work / "notes.txt").write_text("buy milk\n")
    (work / "my words.txt").write_text("and bread\n")
    home = place / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").touch(0o600)
    with ScriptedServer(script) as server:
        config = f'[providers.work]\nbase_url = "{server.url}"\ncontext_window = 16384\n'
        (home / "config.toml").write_text(config, "utf-8")
        words = ("chat", "--model", "work:m", *options)
        with screen(*words, home=home, folder=work, columns=columns, lines=lines) as seen:
            seen.until("›")
            yield seen, server


@pytest.mark.parametrize("columns", [80, 120])
def test_a_change_is_seen_as_a_diff_allowed_and_answered_in_markdown(place: Path, columns: int) -> None:
    script = [tools(call("patch_file", PATCH)), text(ANSWER)]
    with chat(place, script, columns=columns) as (seen, _):
        seen.press("type it\r", until="Allow it?")
        # its keyword, and its name
        assert seen.colors("+def greet(name: str) -> None:") == {"green", "magenta", "blue"}
        assert seen.colors("-def greet(name):") == {"red", "magenta", "blue"}
        assert "def greet(name):\n" in (place / "shop" / "app.py").read_text()
        seen.press("y\r", until="· “type it”")
        assert "def greet(name: str) -> None:" in (place / "shop" / "app.py").read_text()
        recorded(f"change-{columns}", seen, place)
        seen.press("/exit\r")
        assert seen.ended() == 0


def test_tab_completes_commands_files_models_and_sessions(place: Path) -> None:
    with chat(place, [text("Milk."), text("Nothing.")]) as (seen, server):
        seen.press("/mo\t", until="› /model")
        seen.press(" off\t", until="› /model offline:demo")
        seen.press("\x15what is in @no\t", until="› what is in @notes.txt")
        seen.press(" and @my\t")
        seen.until('@"my words.txt"')
        seen.press("\r", until="notes.txt, 1 line, goes with the message")
        seen.until("completed")
        seen.press("/sessions s-\t", until="› /sessions s-")
        seen.press("\x15/\t", until="/compact [TOPIC]")
        sent = [row["content"] for row in server.bodies[0]["messages"] if row["role"] == "user"][-1]
    assert "[file notes.txt]\nbuy milk" in str(sent).replace("\\n", "\n")
    assert "[file my words.txt]\nand bread" in str(sent).replace("\\n", "\n")


def test_the_model_is_changed_in_the_middle_of_a_conversation(place: Path) -> None:
    with chat(place, [text("Hello Ada."), text("You are Ada.")]) as (seen, server):
        seen.press("I am Ada\r", until="completed")
        seen.press("/model offline:demo\r", until="offline:demo answers from now on.")
        seen.press("what is 6*7?\r", until="6*7 = 42")
        seen.press("/model nonsense:x\r", until="unknown provider 'nonsense'")
        seen.press("/model work:m\r", until="work:m answers from now on.")
        seen.press("who am I?\r", until="You are Ada.")
        said = [row["content"] for row in server.bodies[-1]["messages"] if row["role"] == "user"]
    assert said == ["I am Ada", "what is 6*7?", "who am I?"]


def test_commands_say_what_was_asked(place: Path) -> None:
    with chat(place, [text("Hello.")], lines=60) as (seen, _):
        seen.press("hi\r", until="completed")
        seen.press("/cost\r", until="1 request · 15 tokens")
        seen.press("/sessions\r", until="text_response  ")
        seen.press("/tools\r", until="write_file")
        seen.press("/new\r", until="A new session")
        seen.press("/path\r", until="There was no turn yet.")
        seen.press("/help\r", until="/interrupt TEXT")


def test_ctrl_c_interrupts_and_a_running_tool_shows_its_output(place: Path) -> None:
    command = "echo step one of two; read -t 60 < /dev/zero; sleep 60"
    script = [tools(call("terminal", {"command": command})), silence("It was a dark and ")]
    with chat(place, script, "--yes") as (seen, _):
        seen.press("go\r", until="step one of two")
        seen.until("ExecuteTools")
        seen.press("\x03", until="interrupted · ")
        seen.until("Ctrl-C interrupts", gone=True)
        seen.press("\x04")
        assert seen.ended() == 0


def test_words_are_broken_anew_when_the_window_changes(place: Path) -> None:
    words = " ".join(f"word{number}" for number in range(30))
    with chat(place, [text(words), text(words.replace("word", "more"))]) as (seen, _):
        seen.press("first\r", until="completed")
        assert words.split() == seen.shown.partition("› first")[2].partition("completed")[0].split()
        seen.resize(50, 40)
        seen.press("second\r", until="more29")
        seen.until("completed")
        begins = max(number for number, row in enumerate(seen.rows) if row.startswith("more0 "))
        answer = [row for row in seen.rows[begins:] if row.startswith("more")]
        assert " ".join(answer).split() == words.replace("word", "more").split()
        assert 40 < max(map(len, answer)) <= 50


def test_nothing_is_compacted_before_the_first_turn_which_names_the_session(place: Path) -> None:
    with chat(place, [text("Hello.")]) as (seen, _):
        seen.press("/compact\r", until="The conversation stays as it is.")
        seen.press("hi there\r", until="completed")
        seen.press("/title\r", until="The session is called “hi there”.")


def test_ctrl_c_at_a_question_begins_a_row_of_its_own(place: Path) -> None:
    with chat(place, [tools(call("terminal", {"command": "sleep 60"}))]) as (seen, _):
        seen.press("go\r", until="never:")
        seen.press("\x03", until="interrupted · ")
        assert "    · interrupted; press Ctrl-C again to leave" in seen.rows


def test_ctrl_z_at_the_prompt_is_for_the_shell_and_no_text(place: Path) -> None:
    with chat(place, [text("Hello.")]) as (seen, server):
        seen.press("dra", until="› dra")
        seen.press("\x1a")
        seen.press("ft\r", until="completed")
        assert server.bodies[0]["messages"][-1]["content"] == "draft"
