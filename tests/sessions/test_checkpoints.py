"""Files as they were before a turn changed them: kept, compared, put back."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fsm_agent.errors import StoreError
from fsm_agent.sessions.checkpoints import Checkpoints
from fsm_agent.settings.model import CheckpointSettings


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def made(work: Path, **rules: int | bool) -> Checkpoints:
    return Checkpoints(work.parent / "home", work, CheckpointSettings.model_validate(rules))


def files(work: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its bytes and rights; of a link, where it leads."""
    found = {}
    for path in work.rglob("*"):
        if path.is_symlink():
            found[str(path.relative_to(work))] = os.fsencode(os.readlink(path)), 0
        elif path.is_file():
            found[str(path.relative_to(work))] = path.read_bytes(), path.stat().st_mode & 0o777
    return found


@pytest.mark.behaviour("PREP-27")
def test_all_that_was_changed_made_and_deleted_is_as_it_was(work: Path) -> None:
    (work / "deep" / "er").mkdir(parents=True)
    (work / "a.txt").write_bytes(b"one\r\ntwo\n\xff\0")
    (work / "deep" / "er" / "b\nc \xe9.txt").write_text("b")
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o755)
    (work / "key").write_text("secret")
    (work / "key").chmod(0o600)
    (work / "link").symlink_to("a.txt")
    (work / "was_file").write_text("f")
    (work / "was_folder").mkdir()
    (work / "was_folder" / "x").write_text("x")
    (work / ".gitattributes").write_text("*.txt text eol=lf ident working-tree-encoding=UTF-16\n")
    checkpoints, before = made(work), files(work)
    kept = checkpoints.make("turn-1", session="s", turn="t", tool="terminal")

    (work / "a.txt").write_text("other")
    shutil.rmtree(work / "deep")
    (work / "run.sh").chmod(0o644)
    (work / "key").unlink()
    (work / "link").unlink()
    (work / "link").write_text("no link")
    (work / "was_file").unlink()
    (work / "was_file").mkdir()
    (work / "was_file" / "inner").write_text("i")
    shutil.rmtree(work / "was_folder")
    (work / "was_folder").symlink_to("/")
    (work / "new" / "folder").mkdir(parents=True)
    (work / "new" / "folder" / "n").write_text("n")
    changed = files(work)
    assert "-one\r\n" in checkpoints.diff(kept) or "Binary files" in checkpoints.diff(kept)

    done = checkpoints.put_back(kept)
    assert files(work) == before
    assert not (work / "new").exists()
    assert done.before is not None
    assert checkpoints.put_back(done.before).restored, "what was there before is kept, too"
    assert files(work) == changed


def test_what_is_ignored_and_what_is_too_large_is_never_touched(work: Path) -> None:
    (work / ".gitignore").write_text("build/\n*.log\n")
    (work / "build").mkdir()
    (work / "build" / "out").write_text("1")
    (work / "large").write_bytes(b"x" * 5_000)
    (work / "nested").mkdir()
    subprocess.run(["git", "init", "-q", str(work / "nested")], check=True)
    (work / "nested" / "own").write_text("own")
    (work / "a").write_text("a")
    checkpoints = made(work, max_file_bytes=1_000)
    kept = checkpoints.make("k", turn="t", tool="terminal")
    assert kept.left_out == ("large",)

    (work / ".gitignore").write_text("")  # what it hid is seen now, and was there before
    (work / "build" / "out").write_text("2")
    (work / "large").write_bytes(b"now it is small")
    (work / "nested" / "own").write_text("changed")
    (work / "grown").write_bytes(b"y" * 5_000)
    (work / "a").write_bytes(b"z" * 9_000)
    done = checkpoints.put_back(kept)
    assert (done.restored, done.deleted) == ((".gitignore", "a"), ())
    assert (work / "a").read_text() == "a"
    assert (work / "build" / "out").read_text() == "2"
    assert (work / "large").read_bytes() == b"now it is small"
    assert (work / "nested" / "own").read_text() == "changed"
    assert (work / "grown").exists()
    assert done.before is not None
    checkpoints.put_back(done.before)
    assert (work / "a").read_bytes() == b"z" * 9_000, "what was overwritten is kept, however large"


def test_rules_of_the_repository_above_count(work: Path) -> None:
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    (work / ".gitignore").write_text("ignored/\n")
    (work / "package" / "ignored").mkdir(parents=True)
    (work / "package" / "ignored" / "x").write_text("x")
    (work / "package" / "y").write_text("y")
    checkpoints = Checkpoints(work.parent / "home", work / "package", CheckpointSettings())
    kept = checkpoints.make("k", turn="t", tool="terminal")
    (work / "package" / "ignored" / "x").write_text("2")
    (work / "package" / "y").write_text("2")
    (work / "outside").write_text("2")
    assert checkpoints.put_back(kept).restored == ("y",)
    assert (work / "outside").exists()
    assert not (work / ".git" / "index").exists(), "the user's own repository is as it was"


def test_one_key_is_one_checkpoint_and_only_so_many_are_kept(work: Path) -> None:
    checkpoints = made(work, keep=3)
    first = checkpoints.make("k", turn="t1", tool="terminal")
    (work / "a").write_text("a")
    assert checkpoints.make("k", turn="t1", tool="terminal") == first
    for number in range(4):
        checkpoints.make(f"more {number}", turn=f"more-{number}", tool="terminal")
    assert len(checkpoints.all()) == 3
    assert checkpoints.of_turn({"t1"}) is None
    assert checkpoints.of_turn({"more-3"}) == checkpoints.make("more 3")


def test_the_home_in_the_working_directory_is_no_part_of_it(work: Path) -> None:
    home = work / "[home] *"
    checkpoints = Checkpoints(home, work, CheckpointSettings())
    kept = checkpoints.make("k", turn="t", tool="terminal")
    (home / "sessions.db").write_text("later")
    assert checkpoints.put_back(kept).deleted == ()


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"max_files": 1}, "more than 1 files (setting checkpoints.max_files)"),
        ({"max_bytes": 1_000}, "more than 1,000 bytes (setting checkpoints.max_bytes)"),
        ({"enabled": False}, "switched off (checkpoints.enabled)"),
    ],
)
def test_what_is_too_much_is_said_in_one_line(work: Path, rules: dict[str, int], said: str) -> None:
    for number in range(2):
        (work / str(number)).write_bytes(b"x" * 600)
    with pytest.raises(StoreError, match=said.replace("(", r"\(").replace(")", r"\)")):
        made(work, **rules).make("k")


def test_none_are_made_of_a_home_directory_nor_without_git(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "person").mkdir()
    monkeypatch.setenv("HOME", str(work / "person"))
    assert "home directory" in made(work).trouble
    assert "home directory" in made(work / "person").trouble
    assert "home directory" in made(Path("/")).trouble
    monkeypatch.setenv("HOME", "/nowhere")
    assert made(work).trouble == ""
    monkeypatch.setenv("PATH", str(work))
    (work / "git").write_text("#!/bin/sh\n")
    (work / "git").chmod(0o755)
    assert made(work).trouble == "git is not installed"


def test_it_is_the_owners_alone(work: Path) -> None:
    (work / "a").write_text("a")
    made(work).make("k")
    found = [work.parent / "home", *(work.parent / "home").rglob("*")]
    assert len(found) > 10
    assert [path for path in found if path.stat().st_mode & 0o077] == []
