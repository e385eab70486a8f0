"""Files as they were before a turn changed them: kept, compared, put back."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from fsm_agent.errors import StoreError
from fsm_agent.sessions.checkpoints import Checkpoints
from fsm_agent.settings import CheckpointSettings


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def made(work: Path, **rules: int | bool) -> Checkpoints:
    return Checkpoints(work.parent / "home", work, CheckpointSettings.model_validate(rules))


def written(work: Path, contents: dict[str, str | bytes]) -> None:
    """Make files, with the folders that they are in."""
    for name, content in contents.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(content if isinstance(content, bytes) else content.encode())


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
    attributes = "*.txt text eol=lf ident working-tree-encoding=UTF-16\n"
    before_it = {"a.txt": b"one\r\ntwo\n\xff\0", "deep/er/b\nc \xe9.txt": "b", "run.sh": "#!/bin/sh\n"}
    written(
        work,
        {**before_it, "key": "secret", "was_file": "f", "was_folder/x": "x", ".gitattributes": attributes},
    )
    (work / "run.sh").chmod(0o755)
    (work / "key").chmod(0o600)
    (work / "link").symlink_to("a.txt")
    checkpoints, before = made(work), files(work)
    kept = checkpoints.make("turn-1", session="s", turn="t", tool="terminal")

    for name in ("key", "link", "was_file"):
        (work / name).unlink()
    for name in ("deep", "was_folder"):
        shutil.rmtree(work / name)
    (work / "run.sh").chmod(0o644)
    (work / "was_folder").symlink_to("/")
    written(work, {"a.txt": "other", "link": "no link", "was_file/inner": "i", "new/folder/n": "n"})
    changed = files(work)
    assert "-one\r\n" in checkpoints.diff(kept) or "Binary files" in checkpoints.diff(kept)

    done = checkpoints.put_back(kept)
    assert files(work) == before
    assert not (work / "new").exists()
    assert done.before is not None
    assert checkpoints.put_back(done.before).restored, "what was there before is kept, too"
    assert files(work) == changed


def test_what_processes_share_of_an_open_database_is_left_alone(work: Path) -> None:
    with contextlib.closing(sqlite3.connect(work / "app.db")) as open_elsewhere:
        open_elsewhere.execute("PRAGMA journal_mode = WAL")
        open_elsewhere.execute("CREATE TABLE words (word)")
        checkpoints, shared = made(work), work / "app.db-shm"
        kept, place = checkpoints.make("turn-1"), shared.stat().st_ino
        with open_elsewhere:
            open_elsewhere.executemany("INSERT INTO words VALUES (?)", [["x" * 900]] * 50)
        shown = shared.read_bytes()
        checkpoints.put_back(kept)
        assert (shared.stat().st_ino, shared.read_bytes()) == (place, shown)


def test_what_is_ignored_and_what_is_too_large_is_never_touched(work: Path) -> None:
    before: dict[str, str | bytes] = {"build/out": "1", "large": "x" * 5_000, "nested/own": "own", "a": "a"}
    written(work, {".gitignore": "build/\n*.log\n", **before})
    subprocess.run(["git", "init", "-q", str(work / "nested")], check=True)
    checkpoints = made(work, max_file_bytes=1_000)
    kept = checkpoints.make("k", turn="t", tool="terminal")
    assert kept.left_out == ("large",)

    left = {"build/out": b"2", "large": b"now it is small", "nested/own": b"changed", "grown": b"y" * 5_000}
    written(
        work, {".gitignore": "", "a": b"z" * 9_000, **left}
    )  # what it hid is seen now, and was there before
    done = checkpoints.put_back(kept)
    assert (done.restored, done.deleted) == ((".gitignore", "a"), ())
    assert {name: (work / name).read_bytes() for name in left} == left
    assert (work / "a").read_text() == "a"
    assert done.before is not None
    checkpoints.put_back(done.before)
    assert (work / "a").read_bytes() == b"z" * 9_000, "what was overwritten is kept, however large"


def test_rules_of_the_repository_above_count(work: Path) -> None:
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    written(work, {".gitignore": "ignored/\n", "package/ignored/x": "x", "package/y": "y"})
    checkpoints = Checkpoints(work.parent / "home", work / "package", CheckpointSettings())
    kept = checkpoints.make("k", turn="t", tool="terminal")
    written(work, {"package/ignored/x": "2", "package/y": "2", "outside": "2"})
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


def test_what_is_too_much_is_said_in_one_line(work: Path) -> None:
    written(work, {str(number): "x" * 600 for number in range(2)})
    rules: dict[str, dict[str, int]] = {
        r"more than 1 files \(setting checkpoints.max_files\)": {"max_files": 1},
        r"more than 1,000 bytes \(setting checkpoints.max_bytes\)": {"max_bytes": 1_000},
        r"switched off \(checkpoints.enabled\)": {"enabled": False},
    }
    for said, rule in rules.items():
        with pytest.raises(StoreError, match=said):
            made(work, **rule).make("k")


def test_none_are_made_of_a_home_directory_nor_without_git(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "person").mkdir()
    monkeypatch.setenv("HOME", str(work / "person"))
    assert all("home directory" in made(one).trouble for one in (work, work / "person", Path("/")))
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
