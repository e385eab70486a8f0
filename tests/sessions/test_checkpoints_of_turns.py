"""When a turn makes a checkpoint, what undo does with it, and what a crash changes about that."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.conversation.effects import KeepFiles, RunTool
from fsm_agent.fsm.journal import Exchange
from fsm_agent.sessions.checkpoints import Checkpoints
from fsm_agent.sessions.store import Store
from fsm_agent.testing import call, text, tools
from tests.helpers.command_line import Cli
from tests.helpers.store_homes import agent

READ = tools(call("read_file", {"path": "a.txt"}))
FIRST = tools(call("write_file", {"path": "a.txt", "content": "two\n"}))
SECOND = tools(call("write_file", {"path": "new.txt", "content": "new\n"}))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    return folder


def worker(script: list[Any], work: Path, **options: Any) -> Agent:
    """An agent that may change files unasked."""
    settings = {"approval": {"allow": ["write_file"]}} | options.pop("settings", {})
    options = {"toolsets": ["files"], "workdir": work, "settings": settings, **options}
    return agent(script, work.parent / "home", **options)


def kept(one: Agent, turn: str) -> list[str]:
    """The tools that this turn made a checkpoint before, as the journal has it."""
    rows = one.store.database.select(
        "SELECT name FROM effects WHERE turn = ? AND kind = 'KeepFiles' AND status = 'done'", turn
    )
    return [name for (name,) in rows]


def checkpoints(one: Agent, work: Path) -> Checkpoints:
    return Checkpoints(one.home, work, one.settings.checkpoints)


def left_in(work: Path, script: list[Any], reached: Callable[[Any], bool]) -> str:
    """A turn whose process ends when something has happened in it."""

    async def begun() -> str:
        store = Store(work.parent / "home")
        one = worker(script, work, store=store)
        turn = one.start("change it")
        while not reached(await turn.step_into()):
            pass
        await one.aclose()
        store.close()
        return turn.id

    turn = asyncio.run(begun())
    gc.collect()
    return turn


@pytest.mark.behaviour("PREP-27")
def test_one_checkpoint_a_turn_before_what_may_change_files_and_undo_puts_it_back(work: Path) -> None:
    one = worker([READ, FIRST, SECOND, text("done"), text("hello"), READ, text("read")], work)
    done = one.run_conversation("change it")
    assert kept(one, done.turn_id) == ["write_file"]
    assert kept(one, one.run_conversation("say hello").turn_id) == []
    assert kept(one, one.run_conversation("only read").turn_id) == []
    (work / "mine.txt").write_text("of the user")

    words = one.undo(2, files=True)
    assert words.files is None, "these turns changed nothing"
    assert (work / "a.txt").read_text() == "two\n"
    undone = one.undo(files=True)
    assert undone.files is not None
    assert undone.files.restored == ("a.txt",)
    assert undone.files.deleted == ("mine.txt", "new.txt")
    assert (work / "a.txt").read_text() == "one\n"
    one.close()


def test_one_that_is_not_made_keeps_no_tool_from_running(work: Path) -> None:
    """Switched off, or too large to keep, which is reported."""
    off = worker([FIRST, text("done")], work, settings={"checkpoints": {"enabled": False}})
    assert kept(off, off.run_conversation("change it").turn_id) == []
    assert off.undo(files=True).files is None
    off.close()
    (work / "b.txt").write_text("b")
    said, few = list[str](), {"checkpoints": {"max_files": 1}}
    one = worker([FIRST, SECOND, text("done")], work, settings=few, callbacks={"status": said.append})
    assert one.run_conversation("change it").completed
    assert (work / "a.txt").read_text() == "two\n"
    assert [line for line in said if "checkpoint" in line] == [
        "no checkpoint of the files before write_file, which runs all the same:"
        " more than 1 files (setting checkpoints.max_files)"
    ]
    one.close()


@pytest.mark.parametrize("after", [KeepFiles, RunTool])
def test_a_turn_that_is_resumed_makes_it_no_second_time(work: Path, after: type) -> None:
    def reached(happened: Any) -> bool:
        asked = happened.requests[0] if isinstance(happened, Exchange) else None
        return isinstance(asked, after) and getattr(asked, "name", "write_file") == "write_file"

    turn = left_in(work, [READ, FIRST], reached)
    (work / "b.txt").write_text("while no turn ran")
    one = worker([SECOND, text("done")], work)
    result = one.resume(turn).run()
    assert result.completed
    assert kept(one, turn) == ["write_file"]
    assert len(checkpoints(one, work).all()) == 1
    undone = one.undo(files=True)
    assert undone.files is not None
    assert (work / "a.txt").read_text() == "one\n"
    one.close()


def test_the_command_lists_shows_and_puts_back(cli: Cli, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    code, _, err = cli("undo")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "there is no checkpoint of" in err
    one = worker([FIRST, SECOND, text("done")], work)
    one.chat("change it")
    other = worker([FIRST, text("done")], work)
    other.chat("once more")

    _, out, _ = cli("undo", "--list")
    assert [line.split()[2:5] for line in out.splitlines()] == [
        ["before", "write_file", what] for what in ("once", "change")
    ]
    _, out, _ = cli("undo", one.session_id, "--diff")
    assert "-one" in out.splitlines()
    assert "+new" in out.splitlines()
    assert (work / "new.txt").exists()
    code, _, err = cli("undo", "--turn", "3")
    assert (code, err.strip()) == (
        2, "fsm-agent: there is no such checkpoint; given: 3; allowed: 1 to 2; --list shows them"
    )  # fmt: skip

    code, out, _ = cli("undo", one.session_id)
    assert (code, out.splitlines()) == (0, [
        "Files put back: 1 written as they were, 1 deleted.", "  as it was  a.txt", "  deleted    new.txt",
        "What was there until now is kept: fsm-agent undo --turn 1 brings it back.",
    ])  # fmt: skip
    assert [path.name for path in work.iterdir()] == ["a.txt"]
    assert (work / "a.txt").read_text() == "one\n"
    _, out, _ = cli("undo", "--turn", "1")
    assert (work / "new.txt").read_text() == "new\n"
    one.close()
    other.close()


def test_doctor_says_whether_files_are_kept(cli: Cli, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    one = worker([FIRST, text("done")], work)
    one.chat("change it")
    one.close()
    _, out, _ = cli("doctor")
    [line] = [line for line in out.splitlines() if "checkpoints" in line]
    assert line.split(maxsplit=2)[2] == f"1 of {work}"
    monkeypatch.setenv("HOME", str(work))
    _, out, _ = cli("doctor")
    assert "none here" in next(line for line in out.splitlines() if "checkpoints" in line)


def test_a_turn_from_a_file_cannot_say_that_one_was_made(
    cli: Cli, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = left_in(work, [FIRST, SECOND], lambda happened: getattr(happened, "source", "") == "ExecuteTools")
    other, carried = tmp_path / "other", tmp_path / "turn.jsonl"
    assert cli("sessions", "export", turn, "-o", str(carried))[0] == 0
    assert "kept_files" in carried.read_text()
    monkeypatch.setenv("FSM_AGENT_HOME", str(other))
    _, out, _ = cli("sessions", "import", str(carried), "--json")
    found = json.loads(out)["id"]
    one = agent(
        [SECOND, text("done")], other, toolsets=["files"], workdir=work,
        callbacks={"approval": lambda **asked: True},
    )  # fmt: skip
    (work / "a.txt").write_text("here")
    result = one.resume(found).run()
    assert result.completed
    assert (work / "new.txt").exists()
    assert [made.turn for made in checkpoints(one, work).all()] == [result.turn_id]
    one.close()


def test_what_a_child_changed_is_put_back_with_the_turn_that_gave_the_task(work: Path) -> None:
    task = tools(call("delegate_task", {"goal": "change it"}))
    one = worker([task, FIRST, text("changed"), text("done")], work, toolsets=["files", "delegate"])
    done = one.run_conversation("have it changed")
    assert kept(one, done.turn_id) == []
    assert (work / "a.txt").read_text() == "two\n"
    undone = one.undo(files=True)
    assert undone.files is not None
    assert (work / "a.txt").read_text() == "one\n"
    one.close()
