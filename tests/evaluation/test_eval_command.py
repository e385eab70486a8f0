"""``fsm-agent eval`` from a terminal: real requests over HTTP, counted at the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.evaluation import read_cases
from fsm_agent.testing import ScriptedServer
from tests.evaluation.conftest import CASES
from tests.helpers.command_line import Cli


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"id": one.id, "input": one.input, "target": one.expected}) for one in CASES]
    (tmp_path / "capitals.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "capitals.jsonl"


def model(server: ScriptedServer) -> tuple[str, ...]:
    return "--model", "local:any", "--base-url", server.url


def test_a_run_is_shown_gated_kept_and_compared(server: ScriptedServer, file: Path, cli: Cli) -> None:
    words = ("eval", "run", file.name, *model(server), "--name", "first")
    code, out, err = cli(*words, "--gate", "exact>=0.7", "--gate", "latency.max<60", "--markdown", "out.md")
    assert (code, err) == (0, "")
    assert out.startswith("first: 4 cases of capitals, local:any\n")
    assert "answered 'Barcelona'" in out
    assert "ok  exact>=0.7 (found: 0.75)" in out
    assert "| exact | 4 | 0.750 |" in Path("out.md").read_text()
    assert cli(*words, "--gate", "exact>=0.8")[0] == 1
    assert server.completions == 4
    assert cli.ok("eval", "show", "first").startswith(
        "first: 4 cases of capitals, local:any · 4 answers from"
    )
    assert "Barcelona" in cli.ok("eval", "show", "--case", "Spain")
    cli.ok("eval", "run", file.name, *model(server), "--set", "temperature=0", "--name", "second")
    assert server.completions == 8
    found = cli.json("eval", "compare", "first", "second", "--gate", "exact.low>=0")
    assert (found["differences"]["exact"]["mean"], found["changes"], found["gates"][0]["ok"]) == (0, [], True)
    code, out, _ = cli("eval", "compare", "first", "second", "--gate", "exact>=0.1", "--markdown", "diff.md")
    assert (code, "FAILED  exact>=0.1 (found: 0)" in out) == (1, True)
    assert "first → second" in Path("diff.md").read_text()


def test_recorded_turns_are_cases_and_can_be_written(server: ScriptedServer, file: Path, cli: Cli) -> None:
    for one in CASES[:2]:
        cli.ok("run", one.input, *model(server))
    found = cli.json("eval", "run", *model(server))
    assert [one["answer"] for one in found["results"]] == ["Oslo", "Rome"]
    assert {name: one["mean"] for name, one in found["figures"].items()}["exact"] == 1
    assert cli.ok("eval", "cases", "own.jsonl") == "own.jsonl: 2 cases\n"
    assert [one.expected for one in read_cases("own.jsonl").cases] == ["Oslo", "Rome"]
    assert cli.ok("eval", "cases", "own.json", "--from", "own.jsonl") == "own.json: 2 cases\n"


AGENT = """
from fsm_agent import Agent
from fsm_agent.evaluation import Case

agent = Agent("local:any", base_url={url!r}, toolsets=[], system_prompt="You know capitals.")
CASES = [Case("a", "The capital of Norway?", "Oslo")]


def more():
    return [Case("b", "The capital of Italy?", "Rome")]


def length(case, answer):
    return len(answer.text)
"""


def test_agent_cases_and_scorers_of_a_module(server: ScriptedServer, file: Path, cli: Cli) -> None:
    Path("mine_for_eval.py").write_text(AGENT.format(url=server.url))
    words = ("eval", "run", "mine_for_eval:CASES", "mine_for_eval:more", "--agent", "mine_for_eval:agent")
    found = cli.json(*words, "--score", "exact", "--score", "mine_for_eval:length")
    assert (found["figures"]["exact"]["mean"], found["figures"]["length"]["total"]) == (1, 8)
    assert server.bodies[0]["messages"][0]["content"].startswith("You know capitals.")
    again = cli.json(*words, "--set", "temperature=0.5", "--model", "local:other", "--base-url", server.url)
    assert (server.bodies[2]["model"], server.bodies[2]["temperature"]) == ("other", 0.5)
    assert again["agent"] != found["agent"]
    sent = [body["messages"] for body in server.bodies]  # cases run at once, so they arrive in any order
    assert sorted(sent[2:], key=str) == sorted(sent[:2], key=str)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("none.jsonl",), "the file of cases cannot be read"), (("nowhere:CASES",), "the cases cannot be loaded"),
        (("json:dumps",), "the cases cannot be made"), (("json:decoder",), "these are not cases"),
        (("capitals.jsonl", "--days", "3"), "choose recorded turns"), (("--sample", "0"), "--sample is too small; given: 0"),
        (("capitals.jsonl", "--score", "vibes"), "unknown scorer; given: vibes"), (("capitals.jsonl", "--gate", "exact~1"), "a gate cannot be read"),
        (("capitals.jsonl", "--gate", "judge>=1"), "a score that was not asked for"), (("capitals.jsonl", "--repeat", "0"), "--repeat is out of range"),
        (("capitals.jsonl", "--budget", "0"), "a budget is out of range; given: 0"), (("capitals.jsonl", "--name", "a b"), "a run cannot have this name"),
        (("capitals.jsonl", "--agent", "json:decoder"), "this is not an agent; given: json:decoder"),
        (("capitals.jsonl", "--agent", "json:decoder", "--max-cost", "1"), "--agent has tools and limits of its own; given: --max-cost"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(server: ScriptedServer, file: Path, cli: Cli, words: Any, line: str) -> None:
    err = cli.refused("eval", "run", *words, *model(server))
    assert line in err
    assert err.count("\n") == 1
    assert server.completions == 0


def test_runs_that_are_not_there_are_one_line(server: ScriptedServer, file: Path, cli: Cli) -> None:
    cli.ok("eval", "run", file.name, *model(server))
    assert "no such evaluation; given: r2; allowed: r1" in cli.refused("eval", "compare", "r2")
    assert "the run has no such case; given: Spian; allowed: Spain" in cli.refused(
        "eval", "show", "--case", "Spian"
    )
    assert "this is not an agent; given: json:decoder" in cli.refused(
        "eval", "run", file.name, "--agent", "json:decoder"
    )
