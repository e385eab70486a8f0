"""A person at the terminal: asked for approval and by the model; what they said for good can be listed and taken back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fsm_agent import Agent, tool
from fsm_agent.cli import main
from fsm_agent.testing import ScriptedModel, ScriptedServer, call, text, tools

pty = pytest.importorskip("pty", reason="a terminal is needed")
TIMEOUT = 20


class Terminal:
    """The program at the other end of a terminal. ``screen`` is all that it wrote so far."""

    def __init__(self, file: int, running: subprocess.Popen[bytes]) -> None:
        self._file, self.running, self.screen = file, running, ""
        os.set_blocking(file, False)

    def until(self, words: str) -> None:
        """Read until the program has written this."""
        self._read(lambda: words in self.screen, words)

    def ended(self) -> int:
        self._read(lambda: self.running.poll() is not None, "its end")
        return self.running.returncode

    def say(self, line: str) -> None:
        os.write(self._file, line.encode() + b"\n")

    def _read(self, enough: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + TIMEOUT
        while not enough():
            assert time.monotonic() < until, f"waited for {what}; the screen says: {self.screen[-2000:]}"
            try:
                self.screen += os.read(self._file, 65_536).decode("utf-8", "replace")
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # the other end was closed
                self.running.wait(TIMEOUT)


@contextmanager
def terminal(*arguments: str, home: Path) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "TERM": "xterm-256color", "COLUMNS": "110"}
    running = subprocess.Popen(
        [sys.executable, "-m", "fsm_agent.cli", *arguments, "--home", str(home)],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=home, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(ours, running)
    finally:
        running.kill()
        running.wait()
        os.close(ours)


@pytest.mark.slow
def test_a_question_a_delegated_task_and_an_approval_for_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell = tools(call("terminal", {"command": "echo hello"}))
    script = [
        tools(call("clarify", {"question": "Which greeting?", "choices": ["short", "long"]})),
        tools(call("delegate_task", {"goal": "greet the world"})),
        shell,  # the child's
        text("I may not run commands."),
        shell,
        text("Greeted."),
    ]
    with (
        ScriptedServer(script) as server,
        terminal("run", "greet", "--model", "local:m", "--base-url", server.url, home=tmp_path) as screen,
    ):
        screen.until("Your answer (a number, or in your own words): ")
        screen.say("2")
        screen.until("Allow it?")
        screen.say("always")
        assert screen.ended() == 0
    bodies = [json.dumps(body) for body in server.bodies]
    assert '\\"answer\\": \\"long\\"' in bodies[1]
    assert "a child turn may not ask for approval" in bodies[3]
    assert "hello" in bodies[5]
    assert "↳ greet the world" in screen.screen
    assert screen.screen.count("Allow it?") == 1
    assert "remembered as terminal(echo hello)" in screen.screen

    assert main(["approvals", "list", "--home", str(tmp_path)]) == 0
    assert "allow" in (listed := capsys.readouterr().out)
    assert "terminal(echo hello)" in listed
    assert main(["approvals", "list", "--json", "--home", str(tmp_path)]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["pattern"], row["verdict"]) == ("terminal(echo hello)", "allow")
    assert main(["approvals", "remove", row["pattern"], "--home", str(tmp_path)]) == 0
    assert main(["approvals", "list", "--home", str(tmp_path)]) == 0
    assert "Nothing" in capsys.readouterr().err
    assert main(["approvals", "remove", row["pattern"], "--home", str(tmp_path)]) == 2
    assert "no such approval" in capsys.readouterr().err


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


def test_what_was_answered_for_a_session_is_listed_and_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @tool(approval="ask")
    def drop(name: str) -> str:
        """Drop a table."""
        return "dropped"

    script = ScriptedModel([tools(call("drop", {"name": "users"})), text("ok")])
    agent = Agent(script, home=tmp_path, session_id="s-1", tools=[drop], toolsets=[], callbacks={"approval": lambda _: "session"})
    agent.run_conversation("go")
    home = ("--home", str(tmp_path))
    assert main(["approvals", "list", *home]) == 0
    assert f'drop({{"name":"users"}})  (session s-1, in {Path.cwd()})' in capsys.readouterr().out
    assert main(["approvals", "list", "--json", *home]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["session"], row["verdict"], row["workdir"]) == ("s-1", "allow", str(Path.cwd()))
    assert main(["approvals", "remove", row["pattern"], "--session", "s-2", *home]) == 2
    assert "no such approval" in capsys.readouterr().err
    assert main(["approvals", "remove", row["pattern"], "--session", "s-1", *home]) == 0
    assert main(["approvals", "list", *home]) == 0
    assert "Nothing" in capsys.readouterr().err
