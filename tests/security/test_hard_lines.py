"""Which shell commands are refused for good, left to a person, or asked about each time: ``hard_lines.txt``."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.approvals.rules import Asked, Pattern, allows
from fsm_agent.approvals.shell import hard_line
from tests.helpers.text_tables import sections

ENVIRON = {"HOME": "/home/me", "TOP": "/", "TMPDIR": "/tmp"}
HERE = "/home/me/code/project"
LINES = sections(Path(__file__).with_name("hard_lines.txt"))
OF_SEVERAL_LINES = ("echo hi\nrm -rf /", "rm -rf \\\n/", "x" * 131_072)


def test_hard_lines() -> None:
    for command in [*LINES["refused for good"], *OF_SEVERAL_LINES]:
        assert hard_line(command, environ=ENVIRON, directory=HERE), command
    for command in ["", *LINES["left to a person"]]:
        assert hard_line(command, environ=ENVIRON, directory=HERE) is None, command


@pytest.mark.parametrize(
    "command", ["rm -rf ../../../..", "cd ../../../..; rm -rf *", "rm -rf /home/me", "cd; rm -rf *"]
)
def test_where_a_command_runs_counts(command: str) -> None:
    assert hard_line(command, environ=ENVIRON, directory=HERE), command
    assert (
        hard_line(
            command.replace("../../../..", "..").replace("cd;", "cd a;").replace("/me", "/me/code/x"),
            directory=HERE,
        )
        is None
    )


def test_the_environment_of_this_process_is_what_counts_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PLACE", "/etc")
    assert hard_line("rm -rf $SOME_PLACE")
    monkeypatch.setenv("SOME_PLACE", "/srv/app/build")
    assert hard_line("rm -rf $SOME_PLACE") is None


@pytest.mark.parametrize("command", [*LINES["asked about each time"], "cat <<EOF | sh\nrm -rf /\nEOF"])
def test_what_is_hidden_from_a_reader_is_asked_about_each_time(command: str) -> None:
    """A seat belt does not hold these; no pattern allows them and no yes to them is remembered."""
    call = Asked.of("terminal", {"command": command}, (), HERE)
    wide = [Pattern.of("terminal(*)"), Pattern.of("terminal(@read-only)")]
    assert not call.rememberable
    assert not allows(wide, call, HERE)


@given(st.text(alphabet="rm -f/~$(){}`'\"\\;|&<>*\nsudo:=cbh,x0", max_size=80))
def test_no_command_makes_the_policy_raise(command: str) -> None:
    hard_line(command)
