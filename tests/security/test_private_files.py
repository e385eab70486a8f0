"""Other users of the machine read nothing of the home: not what is in it, not while it is written, not later."""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.cli import main
from fsm_agent.cli.input import input_history
from fsm_agent.composition.services import HOME_FILES
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.schema import VERSIONS
from fsm_agent.sessions.store.sqlite import SqliteDatabase
from fsm_agent.support.files import make_private, private_folder, replace_file
from fsm_agent.testing import ScriptedModel, call, status, text, tools
from fsm_agent.toolsets.mcp.process import LOGS, ServerLog

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")


@pytest.fixture(autouse=True)
def nothing_is_hidden_by_itself() -> Iterator[None]:
    """The most open umask that there is."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def opened(home: Path) -> list[str]:
    """What others may look into, or do."""
    return [f"{path} {mode(path):o}" for path in (home, *home.rglob("*")) if mode(path) & 0o077]


def used(home: Path, work: Path) -> Agent:
    """An agent that has written all that there is to write into a home."""
    long = tool(name="long")(lambda: "x" * 5_000)
    script = [
        tools(call("long", {}), call("memory", {"action": "add", "target": "memory", "content": "a fact"}),
              call("memory", {"action": "add", "target": "user", "content": "likes tea"})),
        text("done"),
        status(400),
    ]  # fmt: skip
    agent = Agent(
        ScriptedModel(script), home=home, workdir=work, tools=[long], toolsets=["memory"],
        settings={"store": {"trajectories": True}, "tool": {"max_result_chars": 1_000}},
    )  # fmt: skip
    agent.run_conversation("one")
    agent.run_conversation("two")
    return agent


class Newer(SqliteDatabase):
    """The format of a version to come."""

    versions = (*VERSIONS, ("ALTER TABLE sessions ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'",))


def test_all_in_the_home_is_its_owners_alone(tmp_path: Path, capsys: Any) -> None:
    home = tmp_path / "above" / "home"
    (tmp_path / "work").mkdir()
    agent = used(home, tmp_path / "work")
    agent.close()
    Store(home, opened=Newer).database.close()  # it makes a copy first
    assert main(["config", "set", "max_iterations", "7", "--home", str(home)]) == 0
    ServerLog(home / LOGS / "mcp-s.log", frozenset()).say("a line of a server")
    history: Any = input_history(home)
    history.store_string("a prompt")
    there = {path.relative_to(home).parts[0] for path in home.rglob("*")}
    assert there >= {
        "sessions.db", "results", "dumps", "logs", "owners", "config.toml", "chat_history",
        "trajectories.jsonl", "MEMORY.md", "USER.md",
    }  # fmt: skip
    assert any(name.endswith(".backup") for name in there)
    assert opened(home.parent) == []
    unknown = [name for name in there if not any(fnmatch.fnmatchcase(name, one) for one in HOME_FILES)]
    assert unknown == []


def test_a_file_that_replaces_another_is_nobody_elses_before_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def watched(path: Path, to: int) -> None:
        seen.append(mode(path))
        os.chmod(path, to)

    monkeypatch.setattr(Path, "chmod", watched)
    (tmp_path / "kept").touch(0o640)
    for name, given, after in (("new", 0o600, 0o600), ("kept", None, 0o640), ("kept", 0o600, 0o600)):
        replace_file(tmp_path / name, b"secret", given)
        assert (mode(tmp_path / name), seen.pop()) == (after, 0o600)


def test_a_new_file_is_as_open_as_the_umask_says_and_a_folder_or_copy_of_ours_is_not(tmp_path: Path) -> None:
    replace_file(tmp_path / "main.py", b"")
    assert mode(tmp_path / "main.py") == 0o666
    # a copy of an open file is closed
    Store(tmp_path / "2").database.close()
    (tmp_path / "2" / "sessions.db").chmod(0o644)
    Store(tmp_path / "2", opened=Newer).database.close()
    (copy,) = (tmp_path / "2").glob("*.backup")
    assert mode(copy) == 0o600
    # folders that were missing above are closed too
    (tmp_path / "3").mkdir()
    before = mode(tmp_path / "3")
    private_folder(tmp_path / "3" / "a" / "b" / "c")
    assert [mode(tmp_path / "3" / name) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3
    assert mode(tmp_path / "3") == before


def old_home(folder: Path, *others: str) -> Path:
    """As an older version left it."""
    home = folder / "home"
    for name in ("logs/mcp-x.log", "results/a.txt", "sessions.db", "chat_history", "MEMORY.md", *others):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch(0o644)
    return home


def test_an_old_home_is_closed_once_and_it_is_said_in_one_line(tmp_path: Path) -> None:
    home, heard = old_home(tmp_path), []
    for _ in range(2):
        callbacks = {"status": heard.append}
        with Agent(ScriptedModel([text("done")]), home=home, workdir=tmp_path, callbacks=callbacks) as agent:
            agent.run_conversation("go")
    assert opened(home) == []
    said = [line for line in heard if "others could read" in line]
    assert said == [f"{home}: others could read 8 of its files and folders; now only you can"]


def test_what_is_not_ours_in_a_named_home_stays_as_it_is(tmp_path: Path) -> None:
    home = old_home(tmp_path, "index.html", "public/page.html")
    (home / "elsewhere").symlink_to(tmp_path)
    (home / "results" / "link").symlink_to(tmp_path)
    before = mode(tmp_path)
    assert "of its files and folders" in make_private(home, HOME_FILES)
    left = {Path(line.split()[0]).name for line in opened(home)}
    assert left == {"home", "index.html", "public", "page.html", "elsewhere", "link"}
    assert (mode(tmp_path), mode(home)) == (before, 0o777)
    assert make_private(home, HOME_FILES) == ""
