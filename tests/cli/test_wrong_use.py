"""Whatever is wrong with a command line is one line on standard error, which says what, and exit code 2."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.sessions.store import store_for
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.testing import text
from tests.helpers.command_line import Cli
from tests.helpers.store_homes import agent
from tests.helpers.text_tables import columns, sections

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
REFUSED = {
    title: dict(columns(lines))
    for title, lines in sections(Path(__file__).with_name("wrong_use.txt")).items()
}
OFFLINE = "--model offline:demo"
WRONG = {f"run ' \n' {OFFLINE}": "the message is empty", **REFUSED["in an empty home"]}
TALKED = {
    "sessions rename {first} '  \x1b '": "a session cannot be called so",
    **REFUSED["where two sessions are"],
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
    names = {"first": first.session_id, "second": second.session_id, "turn": turn, "edit": '{"color": 1}'}
    for line, says in TALKED.items():
        refused(cli, line, says, **names)
