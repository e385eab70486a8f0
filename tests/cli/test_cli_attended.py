"""A person at the terminal: asked for approval and by the model; what they said for good can be listed and
taken back."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from fsm_agent import tool
from fsm_agent.approvals.question import original
from fsm_agent.testing import ScriptedServer, call, text, tools
from tests.helpers.terminal import Terminal, talk, terminal


@pytest.mark.slow
def test_a_question_a_delegated_task_and_an_approval_for_good(tmp_path: Path, cli: Any) -> None:
    shell = tools(call("terminal", {"command": "echo hello"}))
    asks = tools(call("clarify", {"question": "Which greeting?", "choices": ["short", "long"]}))
    child = [
        tools(call("delegate_task", {"goal": "greet the world"})), shell, text("I may not run commands."),
    ]  # fmt: skip
    script = [asks, *child, shell, text("Greeted.")]
    with (
        ScriptedServer(script) as server,
        terminal("run", "greet", "--model", "local:m", "--base-url", server.url, home=tmp_path) as screen,
    ):
        screen.until("Your answer (a number, or in your own words): ")
        screen.say("2", until="Allow it?")
        screen.say("always")
        assert screen.ended() == 0
    bodies = [json.dumps(body) for body in server.bodies]
    assert '\\"answer\\": \\"long\\"' in bodies[1]
    assert "a child turn may not ask for approval" in bodies[3]
    assert "hello" in bodies[5]
    assert "↳ greet the world" in screen.screen
    assert screen.screen.count("Allow it?") == 1
    assert "s, a or never would remember │ terminal(echo hello)" in screen.plain
    assert screen.plain.index("would remember") < screen.plain.index("Allow it?")

    home = ("--home", str(tmp_path))
    listed = cli("approvals", "list", *home)[1]
    assert "allow" in listed
    assert "terminal(echo hello)" in listed
    (row,) = cli.json("approvals", "list", *home)
    assert (row["pattern"], row["verdict"]) == ("terminal(echo hello)", "allow")
    assert cli("approvals", "remove", row["pattern"], *home)[0] == 0
    assert "Nothing" in cli("approvals", "list", *home)[2]
    code, _, err = cli("approvals", "remove", row["pattern"], *home)
    assert (code, "no such approval" in err) == (2, True)


@pytest.mark.slow
def test_a_turn_killed_at_the_question_asks_the_person_again_when_it_is_resumed(tmp_path: Path) -> None:
    script = [tools(call("terminal", {"command": "echo hello"})), text("Greeted.")]
    with ScriptedServer(script) as server:
        options = ("--model", "local:m", "--base-url", server.url)
        with terminal("run", "greet", *options, home=tmp_path) as screen:
            screen.until("Allow it?")
        with terminal("sessions", "resume", *options, home=tmp_path) as screen:
            screen.until("Allow it?")
            screen.say("y")
            assert screen.ended() == 0
    assert "Greeted." in screen.screen
    assert server.completions == 2


def test_what_was_answered_for_a_session_is_listed_and_taken_back(cli: Any, agent: Any) -> None:
    @tool(approval="ask")
    def drop(name: str) -> str:
        """Drop a table."""
        return "dropped"

    script, said = [tools(call("drop", {"name": "users"})), text("ok")], {"approval": lambda _: "session"}
    agent(*script, session_id="s-1", tools=[drop], toolsets=[], callbacks=said).run_conversation("go")
    assert f'drop({{"name":"users"}})  (session s-1, in {Path.cwd()})' in cli("approvals", "list")[1]
    (row,) = cli.json("approvals", "list")
    assert (row["session"], row["verdict"], row["workdir"]) == ("s-1", "allow", str(Path.cwd()))
    code, _, err = cli("approvals", "remove", row["pattern"], "--session", "s-2")
    assert (code, "no such approval" in err) == (2, True)
    assert cli("approvals", "remove", row["pattern"], "--session", "s-1")[0] == 0
    assert "Nothing" in cli("approvals", "list")[2]


# What is shown, and what answers


@contextmanager
def asked(
    home: Path, command: str, *options: str, **files: IO[bytes]
) -> Iterator[tuple[Terminal, ScriptedServer]]:
    """A turn whose model calls ``terminal`` with this command, at a terminal of 80 columns."""
    script = [tools(call("terminal", {"command": command})), text("Done.")]
    with ScriptedServer(script) as server:
        run = ("run", "go", "--model", "local:m", "--base-url", server.url, *options)
        with terminal(*run, home=home, columns=80, **files) as screen:
            yield screen, server


def shown(screen: Terminal) -> str:
    """The command as the rows beside ``command`` spell it."""
    whole, begun = "", False
    for row in screen.plain.split("\n"):
        if found := re.fullmatch(r"    (command|       ) ([│┆]) (.*)", row):
            whole += ("\n" if begun and found[2] == "│" else "") + found[3]
            begun = True
        elif begun:
            break
    return original(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "ls -la # \x1b]0;\ntouch OWNED\n: \x07",
        "\n".join(["true"] * 25 + ["touch OWNED"] + ["true"] * 25),
        "echo " + "a" * 2_500 + "; touch OWNED; echo " + "b" * 2_500,
        "ls" + " " * 3_000 + "; touch OWNED \u202e \\x1b \ttrailing  ",
    ],
    ids=["a terminal sequence", "51 lines", "5,000 characters", "blanks"],
)  # fmt: skip
def test_what_a_person_reads_is_what_would_run(tmp_path: Path, command: str) -> None:
    with asked(tmp_path, command) as (screen, _):
        screen.until("Allow it?")
        screen.say("n")
        assert screen.ended() == 0
    assert shown(screen) == command
    assert not set(screen.plain) & set("\x1b\x07\x9b\u202e")
    assert not (tmp_path / "OWNED").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ahead", "answer", "ran"), [("y\ny\n", "n", False), ("y\ny\n", "y", True), ("y", "", False)]
)
def test_only_what_is_typed_after_the_question_answers_it(
    tmp_path: Path, ahead: str, answer: str, ran: bool
) -> None:
    with asked(tmp_path, "touch OWNED") as (screen, _):
        screen.press(ahead)  # the program has not even begun
        screen.until("Allow it?")
        screen.say(answer)
        assert screen.ended() == 0
    assert screen.plain.count("Allow it?") == 1
    assert (tmp_path / "OWNED").exists() is ran


@pytest.mark.slow
def test_the_end_of_a_line_that_was_begun_before_the_question_does_not_answer_it(tmp_path: Path) -> None:
    with asked(tmp_path, "touch OWNED") as (screen, _):
        screen.until("wants to run")
        for key in " " * 9 + "y\n":
            screen.press(key)
            time.sleep(0.05)
        screen.until("Allow it?")
        screen.say("n")
        assert screen.ended() == 0
    assert screen.plain.count("Allow it?") == 1
    assert not (tmp_path / "OWNED").exists()


@pytest.mark.slow
def test_only_a_known_answer_on_its_own_counts(tmp_path: Path) -> None:
    with asked(tmp_path, "touch OWNED") as (screen, _):
        screen.until("Allow it?")
        screen.press("y\nls\ny\n")  # a paste
        screen.until("several lines at once are not an answer")
        screen.until("Allow it?", 2)
        screen.say("yes please")
        screen.until("Allow it?", 3)
        screen.say("")
        assert screen.ended() == 0
    assert screen.plain.count("Allow it?") == 3
    assert "“yes please” is not an answer; allowed: y, s, a, n, never, or Enter for no" in " ".join(
        screen.plain.split()
    )
    assert "✗ terminal denied: you said no to this call" in screen.plain
    assert not (tmp_path / "OWNED").exists()


@pytest.mark.slow
def test_what_is_typed_ahead_of_a_chat_is_a_message_and_no_answer(tmp_path: Path) -> None:
    """Two lines are read by the chat's own prompt, which keeps the second; a third comes in while the model
    answers."""

    def meanwhile(_: Any) -> Any:
        screen.press("y\n")
        return tools(call("terminal", {"command": "touch OWNED"}))

    replies = [text("Refused."), text("To the third message."), text("To the second message.")]
    with talk(tmp_path, [meanwhile, *replies]) as (screen, server):
        screen.press("hello\ry\r", until="Allow it?")
        screen.say("n", until="Refused.")
        screen.until("To the second message.")
        assert [server.bodies[number]["messages"][-1]["content"] for number in (2, 3)] == ["y", "y"]
    assert not (tmp_path / "OWNED").exists()


@pytest.mark.slow
def test_words_at_a_question_of_a_chat_are_kept_for_the_next_message(tmp_path: Path) -> None:
    script = [tools(call("terminal", {"command": "touch OWNED"})), text("Refused."), text("Why not.")]
    with talk(tmp_path, script) as (screen, server):
        screen.press("hello\r")
        screen.until("Allow it?")
        screen.say("tell me why")
        screen.until("your words are kept")
        screen.until("Allow it?", 2)
        screen.say("n")
        screen.until("Refused.")
        screen.until("› tell me why")
        screen.press("\r")
        screen.until("Why not.")
        assert server.bodies[2]["messages"][-1]["content"] == "tell me why"
    assert not (tmp_path / "OWNED").exists()


@pytest.mark.slow
def test_no_question_is_asked_where_it_cannot_be_seen(tmp_path: Path) -> None:
    """If standard output is a file, the question goes to standard error; if that is a file, too, no person
    is there to ask."""
    with (tmp_path / "out.txt").open("wb") as file:
        with asked(tmp_path, "touch OWNED", stdout=file) as (screen, _):
            screen.until("Allow it?")
            screen.say("y")
            assert screen.ended() == 0
        assert shown(screen) == "touch OWNED"
        (tmp_path / "OWNED").unlink()
        with asked(tmp_path, "touch OWNED", stdout=file, stderr=file) as (screen, server):
            screen.press("y\n")
            assert screen.ended() == 0
    assert "no person is there to approve it" in json.dumps(server.bodies[1])
    assert "Allow it?" not in (tmp_path / "out.txt").read_text("utf-8")


def test_an_approval_is_listed_whole_and_taken_back_as_it_is_listed(
    tmp_path: Path, cli: Any, agent: Any
) -> None:
    command = "ls # \x1b]0;\ntouch OWNED\n: \x07"
    script, said = (
        [tools(call("terminal", {"command": command})), text("ok")],
        {"approval": lambda _: "never"},
    )
    agent(*script, workdir=tmp_path, toolsets=["terminal"], callbacks=said).run_conversation("go")
    (line,) = cli("approvals", "list")[1].splitlines()
    listed = line.split("  ", 2)[2]
    assert original(listed) == f"terminal({command})"
    assert cli("approvals", "remove", listed)[0] == 0
    assert "Nothing" in cli("approvals", "list")[2]
