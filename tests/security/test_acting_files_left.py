"""Threat: a command in a sandbox needs no yes, and leaves a file that runs outside of it later. Whatever it tries,
after it there is no such file that was not there before, and none that says something else."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import pytest

from fsm_agent.toolsets.sandbox.aside import ActingScan, Aside, Identity
from tests.helpers.waiting import until
from tests.security.test_sandbox import Scene, engine, opened, walled  # noqa: F401  # fixtures

pytestmark = pytest.mark.skipif(os.name != "posix", reason="commands need POSIX")
NEW = {
    "a hook of a new repository": ("mkdir -p .git/hooks; echo x > .git/hooks/pre-commit", ".git"),
    "a new repository": ("git init -q .", ".git"),
    "a repository below": ("git init -q sub/deep/repo", "sub/deep/repo/.git"),
    "a bare one": ("git init -q --bare x.git", "x.git/config"),
    "four files": ("mkdir objects refs; touch HEAD config", "config"),
    "orders": ("echo x > AGENTS.md", "AGENTS.md"),
    "orders below": ("mkdir -p sub/deep; echo x > sub/deep/CLAUDE.md", "sub/deep/CLAUDE.md"),
    "direnv": ("echo x > .envrc", ".envrc"),
    "an editor": ("mkdir .vscode; echo x > .vscode/tasks.json", ".vscode"),
    "an editor below": ("mkdir -p sub/.vscode; echo x > sub/.vscode/tasks.json", "sub/.vscode"),
    "a build": ("mkdir -p .github/workflows; echo x > .github/workflows/x.yml", ".github/workflows"),
    "an interpreter": ("echo x > sitecustomize.py", "sitecustomize.py"),
    "another case": ("echo x > sub/agents.MD", "sub/agents.MD"),
    "wide letters": ("echo x > 'ＡＧＥＮＴＳ.md'", "ＡＧＥＮＴＳ.md"),
    "a blank behind": ("echo x > '.envrc '", ".envrc "),
    "a stream": ("echo x > .envrc:s", ".envrc:s"),
    "by renaming": ("echo x > a; mv a .envrc", ".envrc"),
    "by renaming a folder": ("mkdir -p a/workflows; echo x > a/workflows/x.yml; mv a .github", ".github/workflows"),
    "by a hard link": ("echo x > a; ln a .envrc", ".envrc"),
    "by a link": ("echo x > a; ln -s a .envrc", ".envrc"),
    "by a link that leads nowhere": ("ln -s later .envrc", ".envrc"),
    "by a link of a folder": ("mkdir -p a/workflows; echo x > a/workflows/x.yml; ln -s a .github", ".github"),
    "in a closed folder": ("mkdir sub/in; echo x > sub/in/AGENTS.md; chmod 111 sub/in", "sub/in/AGENTS.md"),
    "with an old date": ("echo x > .envrc; touch -d '2001-01-01' .envrc .", ".envrc"),
    "a pipe": ("mkfifo .envrc", ".envrc"),
    "by a daemon": ("setsid sh -c 'echo x > .envrc' & sleep 0.1", ".envrc"),
    "on the way out": ("trap 'echo x > .envrc' EXIT; true", ".envrc"),
    "and a failure": ("echo x > .envrc; exit 3", ".envrc"),
}  # fmt: skip


def cases(ways: Iterable[str], quick: Collection[str]) -> list[object]:
    """The quick ones in the fast suite."""
    return [pytest.param(way, marks=[] if way in quick else [pytest.mark.slow]) for way in ways]


@pytest.fixture
def free(walled: Scene) -> Scene:  # noqa: F811
    """A working directory that has acting files already, and whose commands need no yes."""
    (walled.work / "sub").mkdir()
    walled.runner(policy="free")
    return walled


def aside_of(scene: Scene) -> list[Path]:
    base = scene.agent_home / "aside"
    return sorted(base.iterdir()) if base.exists() else []


@pytest.mark.parametrize(
    "way", cases(NEW, ("a new repository", "an editor below", "another case", "by a link of a folder"))
)
def test_what_acts_later_is_put_aside_and_named(free: Scene, way: str) -> None:
    command, path = NEW[way]
    told = free.run(command)
    assert not os.path.lexists(free.work / path)
    [place] = aside_of(free)
    assert os.path.lexists(place / path)
    assert f"Put aside, because programs run or obey such files later: {path}" in told
    assert str(place) in told
    assert "the user is asked" in told


def test_what_does_not_act_stays_and_nothing_is_said(free: Scene) -> None:
    told = free.run(
        "echo x > a; mkdir -p src .github; echo x > src/b.py; echo x > Makefile; echo x > .github/x"
    )
    assert told == "exit code 0\n(no output)"
    assert {"a", "src", "Makefile", ".github"} <= {path.name for path in free.work.iterdir()}
    assert not aside_of(free)


CHANGED = {
    "written": "echo evil > sub/AGENTS.md",
    "added to": "echo evil >> sub/AGENTS.md",
    "with its old size and date": "printf evil > x; touch -r sub/AGENTS.md x; cat x > sub/AGENTS.md; touch -r x sub/AGENTS.md",
    "replaced": "echo evil > x; mv x sub/AGENTS.md",
    "by a hard link": "ln sub/AGENTS.md x; echo evil > x",
    "by a link": "rm sub/AGENTS.md; echo evil > x; ln -s ../x sub/AGENTS.md",
    "moved and back": "mv sub/AGENTS.md x; echo evil > x; mv x sub/AGENTS.md",
    "its folder": "mv sub y; mkdir sub; echo evil > sub/AGENTS.md",
    "deleted": "rm sub/AGENTS.md",
    "made a folder": "rm sub/AGENTS.md; mkdir sub/AGENTS.md",
}  # fmt: skip


@pytest.mark.parametrize("way", cases(CHANGED, ("by a hard link", "its folder")))
def test_one_that_was_there_is_as_it_was(free: Scene, way: str) -> None:
    before = free.work / "sub" / "AGENTS.md"
    before.write_text("mine")
    before.chmod(0o640)
    told = free.run(CHANGED[way])
    assert before.read_text() == "mine"
    assert not before.is_symlink()
    assert before.stat().st_mode & 0o777 == 0o640
    assert "sub/AGENTS.md (as it was before, again)" in told
    assert free.run("cat sub/AGENTS.md") == "exit code 0\nmine"  # and is not found changed again


def test_a_link_that_was_there_leads_to_what_it_led_to(free: Scene) -> None:
    (free.work / "sub" / "text").write_text("mine")
    (free.work / "sub" / "AGENTS.md").symlink_to("text")
    told = free.run("mv sub/text x; echo evil > sub/text")
    assert "sub/AGENTS.md" in told


@pytest.mark.slow
def test_settings_of_a_repository_below_are_as_they_were(free: Scene) -> None:
    free.run("true")
    free.use("terminal", command="git init -q sub/repo", outside=True)
    config = free.work / "sub" / "repo" / ".git" / "config"
    text = config.read_text()
    told = free.run(
        "cd sub/repo; git config core.fsmonitor ./evil; echo x > .git/hooks/pre-commit; echo x > f; git add f"
    )
    assert config.read_text() == text
    assert not (config.parent / "hooks" / "pre-commit").exists()
    assert "sub/repo/.git/config (as it was before, again)" in told
    assert (config.parent / "index").exists()


@pytest.mark.slow
def test_a_job_is_looked_after_while_it_runs(free: Scene) -> None:
    free.use("job_start", command="while [ ! -e go ]; do sleep 0.05; done; echo x > .envrc; sleep 600")
    assert aside_of(free) == []
    (free.work / "go").touch()
    until(lambda: bool(aside_of(free)))
    assert not (free.work / ".envrc").exists()
    assert ".envrc" in free.use("job_output", job="job1").text
    assert "Put aside" not in free.use("job_output", job="job1").text


@pytest.mark.slow
def test_what_a_job_writes_at_its_end_is_put_aside(free: Scene) -> None:
    free.use(
        "job_start", command="trap 'echo x > .envrc; exit' TERM; echo > begun; while :; do sleep 0.05; done"
    )
    until((free.work / "begun").exists)
    told = free.use("job_stop", job="job1").text
    until(lambda: not (free.work / ".envrc").exists())
    assert ".envrc" in told or ".envrc" in free.use("job_list").text


def test_closing_waits_for_the_last_look(free: Scene) -> None:
    free.use(
        "job_start", command="trap 'echo x > .envrc; exit' TERM; echo > begun; while :; do sleep 0.05; done"
    )
    until((free.work / "begun").exists)
    free.made[0].close()
    assert not (free.work / ".envrc").exists()


def test_a_file_that_a_person_agreed_to_stays_while_a_job_runs(tmp_path: Path) -> None:
    aside = Aside(tmp_path, tmp_path / "home")
    aside.begin()
    with aside.writing():
        (tmp_path / "AGENTS.md").write_text("agreed")
    aside.end()
    assert (tmp_path / "AGENTS.md").read_text() == "agreed"
    assert aside.notes() == ""


def test_what_a_job_cannot_change_is_a_persons_to_change(free: Scene) -> None:
    (free.work / "AGENTS.md").write_text("mine")
    free.use("job_start", command="echo > begun; sleep 600")
    until((free.work / "begun").exists)
    (free.work / "AGENTS.md").write_text("mine, and changed")
    assert "Put aside" not in free.use("job_stop", job="job1").text
    assert (free.work / "AGENTS.md").read_text() == "mine, and changed"


def test_one_at_the_top_with_a_second_name_is_as_it_was(free: Scene) -> None:
    (free.work / "AGENTS.md").write_text("mine")
    (free.work / "x").hardlink_to(free.work / "AGENTS.md")
    assert "AGENTS.md (as it was before, again)" in free.run("echo evil > x")
    assert (free.work / "AGENTS.md").read_text() == "mine"


def test_what_the_settings_let_commands_change_stays(walled: Scene) -> None:  # noqa: F811
    (walled.work / ".git").mkdir()
    runner = walled.runner(policy="free", writable=[".git"])
    walled.run("echo x > .git/config", runner)
    assert (walled.work / ".git" / "config").exists()


@pytest.mark.slow
def test_outside_the_sandbox_nothing_is_put_aside(free: Scene) -> None:
    free.use("terminal", command="echo x > .envrc", outside=True)
    assert (free.work / ".envrc").exists()
    free.run("true")
    assert (free.work / ".envrc").exists()


def test_no_folder_outside_is_reached_by_a_link_that_is_made_meanwhile(tmp_path: Path) -> None:
    """A scan that saw a folder where there is a link by now."""
    work, other = tmp_path / "work", tmp_path / "other"
    for folder in (work / "sub", other):
        folder.mkdir(parents=True)
    (other / "AGENTS.md").write_text("not yours")
    look = ActingScan(work)

    def looked() -> dict[str, Identity]:
        found = look()
        if found and not (work / "sub").is_symlink():
            (work / "sub" / "AGENTS.md").unlink()
            (work / "sub").rmdir()
            (work / "sub").symlink_to(other)
        return found

    aside = Aside(work, tmp_path / "home", scan=looked)
    aside.begin()
    (work / "sub" / "AGENTS.md").write_text("x")
    aside.end()
    assert (work / "sub").is_symlink()
    assert (other / "AGENTS.md").read_text() == "not yours"
    assert "it cannot be moved" in aside.notes()


def test_a_folder_that_was_left_alone_is_not_listed_again(tmp_path: Path) -> None:
    """The time of a folder says whether a name in it changed, unless the look was in the same moment."""
    (tmp_path / "sub").mkdir()
    scan = ActingScan(tmp_path)
    assert scan() == {}
    (tmp_path / "sub" / ".envrc").write_text("x")  # within the time of one tick
    assert set(scan()) == {"sub/.envrc"}


@pytest.mark.slow
def test_a_look_at_a_hundred_thousand_files_is_quick(tmp_path: Path) -> None:
    for folder in _folders(tmp_path, 1_000):
        for number in range(100):
            (folder / f"file_{number}.py").touch()
    scan = ActingScan(tmp_path)
    first = _seconds(scan)
    os.utime(tmp_path)
    until(lambda: time.time_ns() - os.lstat(tmp_path).st_ctime_ns > 3_100_000_000)
    scan()
    again = min(_seconds(scan) for _ in range(3))
    print(f"100,000 files in 1,000 folders: {first:.3f} s, then {again:.3f} s")
    assert first < 5
    assert again < first / 3


def _folders(root: Path, count: int) -> Iterator[Path]:
    for number in range(count):
        folder = root / f"part{number // 50}" / f"module{number}"
        folder.mkdir(parents=True)
        yield folder


def _seconds(scan: ActingScan) -> float:
    began = time.process_time()
    scan()
    return time.process_time() - began
