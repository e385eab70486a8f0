"""Every command of the program where there is nothing to do: it says so, and its exit code does not claim that
something was done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import typer.main

from fsm_agent.cli.app import app
from tests.helpers.command_line import Cli
from tests.helpers.sample import sampled

MISSING, DATABASE = "no such session; given: s-0", "postgresql://127.0.0.1:9/x"
OFFLINE = ("--model", "offline:demo")
COMMANDS: dict[str, tuple[tuple[str, ...], int, str]] = {
    "run": (("hi", *OFFLINE, "--session", "s-0"), 2, MISSING),
    "chat": ((*OFFLINE, "--session", "s-0"), 2, MISSING),
    "worker": (("--app", "nowhere:make"), 2, "--app cannot be loaded"),
    "acp": (OFFLINE, 2, "an editor starts this command"),
    "mcp serve": (OFFLINE, 2, "an MCP client starts this command"),
    "mcp login": (("weather",), 2, "no such MCP server; given: weather"),
    "mcp logout": (("weather",), 2, "no such MCP server; given: weather"),
    "serve start": (("--app", "nowhere:make"), 2, "--app cannot be loaded"),
    "serve keys add": (("Ann", "--scope", "fly"), 2, "no such scope"),
    "serve keys list": ((), 0, "There are no keys yet"),
    "serve keys remove": (("nobody",), 2, "no such key"),
    "verify": (("nowhere:T",), 2, "the table cannot be loaded"),
    "simulate": (("--fault", "none"), 2, "unknown fault"),
    "backtest": ((), 2, "there is no recorded turn to play"),
    "predict": ((), 2, "there is no recorded turn to learn from"),
    "eval run": (OFFLINE, 2, "there is no case to ask"),
    "eval show": ((), 2, "there is no evaluation yet"),
    "eval compare": (("r1",), 2, "there is no evaluation yet"),
    "eval cases": (("cases.jsonl",), 2, "there is no case to ask"),
    "report": (("s-0",), 2, MISSING),
    "insights": ((), 0, "there were no turns in the last 30 days"),
    "debug": (("s-0", "--no-open", *OFFLINE), 2, "no such turn; given: s-0"),
    "undo": (("s-0",), 2, MISSING),
    "examples": ((".",), 2, "this is there already"),
    "doctor": ((), 0, "none yet"),
    "diagram show": (("nowhere:T",), 2, "the table cannot be loaded"),
    "diagram diff": (("nothing", "."), 2, "cannot be compared"),
    "sessions list": ((), 0, "there are no sessions yet"),
    "sessions show": (("s-0",), 2, MISSING),
    "sessions search": (("word",), 0, "there are no sessions yet"),
    "sessions export": (("s-0",), 2, MISSING),
    "sessions import": (("nothing.jsonl",), 2, "the file cannot be read"),
    "sessions resume": ((), 2, "nothing to resume"),
    "sessions fork": (("s-0", "--at", "1", *OFFLINE), 2, MISSING),
    "sessions prune": (("--older-than", "1", "--yes"), 0, "nothing is that old"),
    "sessions archive": (("out.jsonl", "--older-than", "1", "--yes"), 0, "nothing is that old"),
    "sessions vacuum": ((), 2, "there are no sessions yet"),
    "sessions copy": (("--to", "there"), 2, "there are no sessions to copy"),
    "sessions rename": (("s-0", "a title"), 2, MISSING),
    "sessions undo": (("s-0",), 2, MISSING),
    "pending list": ((), 0, "No turn waits for an answer."),
    "pending show": (("s-0",), 2, "nothing of this id waits"),
    "pending answer": (("s-0", "yes"), 2, "nothing of this id waits"),
    "pending run": (OFFLINE, 0, "No turn can continue"),
    "approvals list": ((), 0, "Nothing was approved or forbidden"),
    "approvals remove": (("nothing",), 2, "no such approval"),
    "config show": ((), 0, "not there; none is needed"),
    "config list": ((), 0, "max_iterations"),
    "config get": (("nothing",), 2, "unknown setting nothing"),
    "config set": (("nothing", "3"), 2, "unknown setting nothing"),
    "config unset": (("model",), 2, "this is not set in the config file"),
    "config path": ((), 0, "config.toml"),
    "models show": (OFFLINE[1:], 0, "learned  nothing"),
    "models list": (("acme",), 2, "no such provider"),
    "models forget": (("openai:none",), 2, "nothing was learned of this model"),
}
"""Arguments that name nothing that there is, the exit code in an empty home, and words that are printed."""
NO_SESSIONS = {
    "worker", "acp", "mcp serve", "mcp login", "mcp logout", "serve start", "serve keys add", "verify", "simulate", "examples", "diagram show", "diagram diff", "sessions import",
    "config show", "config list", "config get", "config set", "config unset", "config path", "models show", "models list", "models forget",
}  # fmt: skip
"""These read no sessions before they say what is wrong, or at all."""
TAKES_TIME = {"acp", "doctor", "mcp serve"}
OWN_HOME = {name for name in COMMANDS if name.partition(" ")[0] in ("config", "models")} | {
    "sessions copy", "mcp login", "mcp logout",
}  # fmt: skip
"""With ``--home`` these are about that home, whatever the environment says."""


def commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Every command by its words."""
    inner = getattr(group, "commands", None)
    if inner is None:
        yield " ".join(path), group
    for name, one in (inner or {}).items():
        yield from commands(one, *path, name)


PROGRAM = dict(commands(typer.main.get_command(app)))
WITH_HOME = [name for name, one in PROGRAM.items() if any("--home" in param.opts for param in one.params)]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory without anything, and nothing on standard input."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        yield


def slow_ones(names: Any) -> list[Any]:
    return [pytest.param(one, marks=[pytest.mark.slow] * (one in TAKES_TIME)) for one in names]


def test_the_table_names_every_command() -> None:
    assert list(COMMANDS) == list(PROGRAM)


def test_the_list_of_commands_says_what_the_help_of_each_begins_with() -> None:
    root: Any = typer.main.get_command(app)
    for group in (root, *(one for one in root.commands.values() if hasattr(one, "commands"))):
        helps = [(name, one.get_short_help_str(1_000)) for name, one in group.commands.items()]
        assert group.commands.summaries() == helps


@pytest.mark.parametrize("name", slow_ones(name for name in PROGRAM if COMMANDS[name][0]))
def test_a_word_that_is_not_text_is_no_traceback(name: str, cli: Cli) -> None:
    words = COMMANDS[name][0]
    for at in (at for at, word in enumerate(words) if not word.startswith("-")):
        code, _, err = cli(*name.split(), *words[:at], "s-\udcff", *words[at + 1 :])
        assert (code in (0, 2), "Traceback" in err) == (True, False), (at, code, err)


@pytest.mark.parametrize("name", PROGRAM)
def test_what_the_parser_refuses_is_said_as_all_else(name: str, cli: Cli) -> None:
    own = PROGRAM[name].params
    options = [one for one in own if one.param_type_name == "option"]
    flags = [one.opts[0] for one in options if one.is_flag]
    valued = [one.opts[0] for one in options if not one.is_flag]
    wrong = {"no such option; given: --kolor; allowed: -": ["--kolor"]}
    if not any(one.nargs == -1 or (one in options and one.required) for one in own):
        wrong["too many arguments; given: "] = ["x"] * 9
    if any(one.required for one in own):
        wrong[f" is missing; given: fsm-agent {name}; allowed: "] = []
    for option in valued[:1]:
        wrong[f"option has no value; given: {option}; allowed: {option} VALUE"] = [option]
    for flag in flags[:1]:
        wrong[f"option takes no value; given: {flag}=x; allowed: {flag}"] = [f"{flag}=x"]
    for says, words in wrong.items():
        code, out, err = cli(*name.split(), *words)
        assert (code, out, err.count("\n"), err[:11], says in err) == (2, "", 1, "fsm-agent: ", True), (
            words,
            err,
        )


@pytest.mark.behaviour("HOST-05")
@pytest.mark.parametrize("name", slow_ones(COMMANDS))
def test_in_an_empty_home_a_command_says_that_there_is_nothing(name: str, cli: Cli) -> None:
    arguments, expected, words = COMMANDS[name]
    code, out, err = cli(*name.split(), *arguments)
    assert (code, words in out + err) == (expected, True), out + err
    if expected:
        assert (out, err.count("\n"), err[:11]) == ("", 1, "fsm-agent: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damage"), sampled(product(COMMANDS, ("unreachable", "damaged")), "commands without a store")
)
def test_where_sessions_cannot_be_read_no_command_claims_success(
    name: str, damage: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, expected, words = COMMANDS[name]
    if damage == "unreachable":
        monkeypatch.setenv("FSM_AGENT_STORE__DATABASE_URL", DATABASE)
    else:
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "sessions.db").write_bytes(b"no database " * 1_000)
    code, out, err = cli(*name.split(), *arguments)
    if name in NO_SESSIONS:
        assert (code, words in out + err) == (expected, True), out + err
        return
    assert code == (1 if name == "doctor" else 2), out + err
    assert "cannot be used" in out + err
    assert name == "doctor" or (out, err.count("\n")) == ("", 1)


@pytest.mark.behaviour("HOST-06")
@pytest.mark.parametrize("name", WITH_HOME)
def test_a_home_beside_the_database_of_the_environment_is_refused_or_is_the_one_that_is_used(
    name: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    monkeypatch.setenv("FSM_AGENT_STORE__DATABASE_URL", DATABASE)
    arguments, expected, words = COMMANDS[name]
    code, out, err = cli(*name.split(), *arguments, "--home", str(other))
    if name in OWN_HOME:
        assert (code, words in out + err) == (expected, True), out + err
        return
    line = f"fsm-agent: --home and FSM_AGENT_STORE__DATABASE_URL name different sessions; given: {other}; allowed: "
    assert (code, out, err[: len(line)]) == (2, "", line)
    assert not other.exists()


@pytest.mark.parametrize(
    "words",
    [
        "sessions list --limit 0", "sessions list --limit 99999999999999999999", "sessions search x --limit 99999999999999999999",
        "sessions prune --yes --older-than nan", "sessions prune --yes --older-than inf", "sessions prune --yes --older-than 1e300",
        "sessions archive f --yes --older-than -1", "insights --days nan", "backtest --days inf", "sessions search x --days inf", "verify --time nan",
        "run hi --max-cost nan", "run hi --max-seconds inf", "run hi --max-tokens 99999999999999999999",
    ],
)  # fmt: skip
def test_a_number_that_cannot_be_counted_with_is_refused_in_a_line(words: str, cli: Cli) -> None:
    code, out, err = cli(*words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "out of range; given: " in err
    assert "; allowed: " in err
