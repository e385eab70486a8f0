"""Whatever is wrong with a command line is one line on standard error, which says what, and exit code 2."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.sessions.store import store_for
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.testing import text
from tests.helpers.store_homes import agent

Cli = Callable[..., tuple[int, str, str]]
PROGRAM = """
from fsm_agent import tool
from fsm_agent.fsm.table import Counter, Rung, Table, end, left, lines_of, on

THREE = 3
AGAIN = Rung("again", "Ask", left("tries"), ("tries",))
BAD, GOOD = on("bad", AGAIN, end("gave_up", "Done"), why=""), on("good", end("answered", "Done"), why="")
GOOD = Table("small", ("Ask", "Done"), "Done", (Counter("tries"),), lines_of({"Ask": [BAD, GOOD]}))

def nothing():
    return 3
"""
WORKER, REVIEW = "worker --app tests.dispatch.app:make_agent", "debug --no-open examples.review_loop"
OFFLINE = "--model offline:demo"
WRONG = {
    "fly": "no such command; given: fly; allowed: run, chat, worker, acp, verify",
    "debugger": "no such command; given: debugger; allowed: debug, perhaps; run",
    "run hi --colour": "No such option: --colour",
    "run hi --max-iterations many": "should be a valid integer",
    "run hi --model nonsense:x": "unknown provider 'nonsense'",
    "run hi --model gpt": "names no provider; given: gpt; allowed: '<provider>:<model>'",
    "run hi --model openai:gpt-5": "no key for provider 'openai'; allowed: set OPENAI_API_KEY",
    "run hi --model local:m --base-url localhost:80": "base_url is no web address",
    "run hi --model openai:x --api-key ' '": "api_key is empty",
    "run hi --max-iterations -1": "setting max_iterations is out of range; given: -1",
    "run hi --max-cost 0": "setting limits.tree.usd is out of range; given: 0.0",
    "run hi --set tool.max_workers=0": "setting tool.max_workers is out of range; given: 0",
    "run hi --set retries=1": "unknown setting retries",
    "run hi --set tool.max_worker=1": "tool.max_worker; given: 1; allowed: tool.max_workers, perhaps;",
    "run hi --set retries": "--set cannot be read; given: retries",
    "run hi --set tool=1 --set tool.delay=1": "--set names both a setting and a part of it",
    f"run '' {OFFLINE}": "the message is empty",
    f"run ' \n' {OFFLINE}": "the message is empty",
    f"run hi {OFFLINE} --home {{tmp}}/file/home": "the home directory cannot be written",
    "run bake --tool nowhere:oven": "the tool cannot be loaded",
    "run bake --tool own_program:fridge": "the tool cannot be loaded",
    "run bake --tool own_program:THREE": "not a tool",
    f"run x {OFFLINE} --output-schema nowhere": "--output-schema cannot be read (No such file or directory)",
    f"run x {OFFLINE} --output-schema open.json": "--output-schema cannot be read (Expecting",
    f"run x {OFFLINE} --output-schema cty.json": "not a JSON schema ($.type)",
    f"run x {OFFLINE} --output-schema list.json": "not a JSON schema; given: []",
    f"run hi --remote {OFFLINE}": "--model cannot be given with --remote",
    "run hi --remote --set max_iterations=3": "--set cannot be given with --remote",
    "chat --remote --yes": "--yes cannot be given with --remote",
    "chat --model offline:": "names no model after the colon",
    "worker --app nowhere:app": "--app cannot be loaded (No module named 'nowhere')",
    "worker --app math:pi": "--app is no factory of agents; given: math:pi",
    f"{WORKER} --slots 0": "dispatch.slots",
    f"{WORKER} --temporal nowhere": "dispatch.temporal",
    "acp": "an editor starts this command",
    "acp --model nobody:m": "nobody",
    "acp --set x=1": "x",
    "simulate --fault flood": "unknown fault; given: flood; allowed: rate_limit",
    "debug --no-open some-turn": "no such turn",
    "debug --no-open --attach some-turn": "no such turn",
    "debug --no-open a --attach b": "only one turn",
    "debug --no-open --web --stdio": "only one face",
    "debug --no-open --port 70000": "port cannot be used",
    "debug --no-open nothing.here:x": "cannot be loaded",
    f"{REVIEW}:LIMITS": "this cannot be debugged",
    f"{REVIEW}:draft": "no workflow could be made",
    "debug --no-open own_program:nothing": "makes no workflow",
    f"{REVIEW}:TABLE --set wheels=4": "no such maximum",
    f"{REVIEW}:workflow --set rounds=4": "the program's own",
    f"{REVIEW}:TABLE --attach a --task b": "only one turn",
    f"{REVIEW}:TABLE --attach nothing": "no such turn",
    "verify fsm_agent_states.table:COUNTERS": "this is no transition table",
    "verify own_program:NONE": "the table cannot be loaded (module 'own_program' has no attribute 'NONE')",
    "verify --set speed=3": "unknown setting or maximum; given: speed=3; allowed: a setting such as max_iterations",
    "verify --set iterations=-3": "maximum iterations is out of range; given: -3",
    "verify --set max_iterations=-1": "setting max_iterations is out of range; given: -1; allowed: ",
    "verify --set compression.mode=fast": "setting compression.mode is out of range; given: fast; allowed: ",
    "verify --set compression.speed=3": "unknown setting compression.speed; given: 3; allowed: enabled, mode",
    "verify --set repairs=-1": "maximum repairs is out of range; given: -1; allowed: a whole number from 0",
    "verify --set repairs=true": "maximum repairs is out of range; given: True",
    "verify --set repairs": "--set cannot be read; given: repairs",
    "verify own_program:GOOD --set max_iterations=3": "no such maximum; given: max_iterations=3; allowed: the maxima",
    "verify own_program:GOOD --promela x.pml": "given: no maxima; allowed: --set for each of tries",
    "verify own_program:GOOD --watch Nowhere --watch Done": "to watch; given: Nowhere, Done; allowed: Ask",
    "verify --promela no/x.pml": "model cannot be written (No such file or directory); given: no/x.pml",
    "diagram --format gif": "unknown diagram format; given: gif; allowed: mermaid, dot, svg",
    "diagram --map -f md": "a map is a picture; given: md; allowed: mermaid, dot, svg, png",
    "diagram nowhere:TABLE": "the table cannot be loaded (No module named 'nowhere')",
    "diagram --state Nowhere": "the table 'turn' has no such state; given: Nowhere; allowed: Prepare,",
    "diagram --overlay nowhere.jsonl": "given: nowhere.jsonl; allowed: a file of JSON lines with moves",
    "diagram --state CallLLM --overlay x": "one picture shows one thing",
    "diagram --engine paint": "unknown engine; given: paint; allowed: own, graphviz",
    "diagram --engine graphviz": "graphviz draws SVG only; given: mermaid",
    "diagram diff nonsense": "given: nonsense; allowed: a git revision",
    "diagram diff . --format dot": "of a comparison; given: dot; allowed: md, comment, mermaid, svg, png, json",
    "diagram diff . --table turn": "this names no table; given: turn",
    "diagram diff . --set retries=-1": "limit retries is out of range; given: -1",
    "diagram diff {turn} {turn} --set speed=1": "unknown limit; given: speed",
    "diagram diff": "Missing argument 'OLD'",
    "sessions show s-1": "given: s-1; allowed: an id, its beginning, or a title; the newest: none yet",
    "sessions export ''": "no such session",
    "sessions rename s-1 'a title'": "no such session",
    "sessions undo s-1": "no such session",
    "sessions resume": "nothing to resume: no turn was left unfinished",
    "sessions resume s-1": "no such session",
    "sessions fork s-1 --at 1": "no such session",
    "sessions search word --session s-1": "no such session",
    "sessions search word --role boss": "no such role; given: boss; allowed: user, assistant, tool",
    "sessions search word --days 0": "days are out of range",
    "sessions search word --limit 0": "--limit is out of range; given: 0",
    "sessions list --limit -1": "--limit is out of range",
    "sessions search": "Missing argument",
    "sessions import /nowhere/file": "the file cannot be read (No such file or directory)",
    "sessions fly": "no such command; given: fly; allowed: list, show",
}
TALKED = {
    "sessions show s-": "2 sessions begin so; given: s-; allowed: s-",
    "sessions show alpha": "2 sessions begin so",
    "sessions rename {first} 'alpha two'": "another session is called so",
    "sessions rename {first} {second}": "another session is called so",
    "sessions rename {first} '  \x1b '": "a session cannot be called so",
    f"sessions rename {{first}} {'x' * 121}": "a session cannot be called so",
    "sessions undo {first} --turns 2": "so many turns cannot be undone; given: 2; allowed: 1 to 1",
    "sessions undo {first} --turns 0": "so many turns cannot be undone; given: 0; allowed: 1 to 1",
    f"sessions resume {{first}} {OFFLINE}": "nothing to resume: the turn ended with text_response",
    f"sessions fork {{turn}} --at 99 {OFFLINE}": "has no move of that number; given: 99; allowed: 0 to ",
    f"sessions fork {{turn}} --at 1 --edit [1] {OFFLINE}": "given: [1]; allowed: a JSON object",
    f"sessions fork {{turn}} --at 1 --edit '{{edit}}' {OFFLINE}": "a turn cannot be edited so; given: colour",
    "sessions export {turn} --format xml": "given: xml; allowed: jsonl, sharegpt, pytest",
    "sessions export {turn} -o /nowhere/x": "the file cannot be written",
    "sessions import bad.jsonl": "bad.jsonl cannot be imported: line 2: it is not UTF-8",
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with files that are not what they should be, and nothing on standard input."""
    (tmp_path / "own_program.py").write_text(PROGRAM)
    for name, said in (
        ("file", ""),
        ("open.json", "{"),
        ("cty.json", '{"type": "cty"}'),
        ("list.json", "[]"),
    ):
        (tmp_path / name).write_text(said)
    header = b'{"kind":"fsm-agent","format":1,"of":"session","id":"s","masked":true}'
    (tmp_path / "bad.jsonl").write_bytes(header + b"\n\xff\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        yield tmp_path
    sys.modules.pop("own_program", None)


def refused(cli: Cli, line: str, says: str, **names: Any) -> None:
    code, out, err = cli(*(word.format(**names) for word in shlex.split(line)))
    assert (code, out, err.count("\n"), err[:11]) == (2, "", 1, "fsm-agent: "), (line, err)
    assert says in err, line


@pytest.mark.parametrize("line", WRONG)
def test_wrong_use_is_one_line_and_exit_code_2(line: str, cli: Cli, place: Path) -> None:
    turn = Path(__file__).parents[2] / "diagrams" / "turn.json"
    refused(cli, line, WRONG[line], tmp=place, turn=turn)


def test_wrong_use_where_there_are_sessions(cli: Cli, home: Path) -> None:
    first, second = (agent([text(f"answer to {words}")], home) for words in ("one", "two"))
    for one, words in ((first, "alpha one"), (second, "alpha two")):
        one.chat(words)
        one.close()
    turn = Turns(store_for(str(home)).database).recent(1, first.session_id)[0].id
    names = {"first": first.session_id, "second": second.session_id, "turn": turn, "edit": '{"colour": 1}'}
    for line, says in TALKED.items():
        refused(cli, line, says, **names)
