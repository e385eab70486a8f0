"""Threat: a folder that is run by being looked at. Every command that ``@read-only`` lets run unasked is run, in
folders that name programs in every way that we know, and none of these programs runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from fsm_agent.approvals.programs import VERSIONED, reading_programs
from fsm_agent.approvals.rules import Asked, Pattern, allows, why_not_read_only
from fsm_agent.sessions.checkpoints import Checkpoints
from fsm_agent.settings import CheckpointSettings
from tests.helpers.sample import sampled
from tests.security.hostile_folders import READERS, TRAPS, Folder, hostile, plain

READ_ONLY = [Pattern.of("terminal(@read-only)")]
SMOKE = ("core-fsmonitor", "four-files", "submodule", "tool-chain", "named-like-one")
QUICK = (
    "git status", "git diff", "git log -p", "git blame a.txt", "ls -la", "python3 --version", "cargo --version",
    "rustc --version", "yarn --version", "npm --version",
)  # fmt: skip
ASKED = ("cargo --version", "rustc --version", "yarn --version", "npm --version")
FOLDERS = 200


def unasked(folder: Folder, monkeypatch: pytest.MonkeyPatch, lines: Sequence[str] = READERS) -> list[str]:
    """Those of the lines that run unasked in a folder."""
    for name in set(os.environ) - set(folder.environ):
        monkeypatch.delenv(name)
    for name, value in folder.environ.items():
        monkeypatch.setenv(name, value)
    work = str(folder.work)
    free = [line for line in lines if allows(READ_ONLY, asked(line, work), work)]
    monkeypatch.undo()
    return free


def asked(line: str, work: str) -> Asked:
    return Asked.of("terminal", {"command": line}, (), work)


def tried(root: Path, seed: int, monkeypatch: pytest.MonkeyPatch, lines: Sequence[str] = READERS) -> None:
    """Run in a folder what runs unasked there, and see that no trap does."""
    folder, chosen = hostile(root, seed)
    free = unasked(folder, monkeypatch, lines)
    ran = folder.read_with(free)
    assert not ran, f"seed {seed}: with {chosen} ran {sorted(ran)} by one of {free}"
    shutil.rmtree(root)


def test_every_reader_is_tried() -> None:
    tried_ones = {" ".join(line.split()[:2]) for line in READERS} | {line.split()[0] for line in READERS}
    known = {name.replace("/", " ") for name in reading_programs()} | set(VERSIONED)
    assert known - tried_ones == {"gawk", "mawk", ":", "false"}


@pytest.mark.parametrize("trap", SMOKE)
def test_a_folder_runs_nothing_when_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    tried(tmp_path / "f", list(TRAPS).index(trap), monkeypatch, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(range(FOLDERS), "readers"))
def test_no_folder_runs_anything_when_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    tried(tmp_path / "f", seed, monkeypatch)


def test_in_a_plain_folder_most_run_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plain(tmp_path / "f")
    folder.environ["PATH"] = "/usr/bin:/bin"
    assert unasked(folder, monkeypatch, QUICK) == [line for line in QUICK if line not in ASKED]


LOOKS = (
    "git status", "git diff", "git log -p", "git blame a.txt", "git ls-files -m", "git diff --submodule=diff", "wc -l a.txt",
    "ls -la", "pip list", "rustc --version",
)  # fmt: skip
GOOD = (
    "core-fsmonitor", "diff-external", "diff-textconv", "diff-command", "filter-clean", "filter-process", "hook", "hooks-path",
    "included", "included-if", "worktree-config", "four-files", "git-file", "submodule", "named-like-one", "here-in-path",
    "python-path", "bash-env", "own-driver",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("trap", sampled(GOOD, "good traps"))
def test_the_traps_are_good(tmp_path: Path, trap: str) -> None:
    """Without the questions they do run, so the test above can fail."""
    folder, _ = hostile(tmp_path / "f", list(TRAPS).index(trap))
    assert folder.read_with(list(LOOKS))


@pytest.mark.parametrize(
    ("trap", "said"),
    [
        ("core-fsmonitor", "the setting core.fsmonitor may name a program that Git runs"),
        ("included", "the setting include.path may name a program that Git runs"),
        ("hook", "the hook post-index-change is there"),
        ("later-version", "Expected git repo version <= 1, found 999"),
        ("unreadable", "Git cannot say what the repository"),
        ("submodule", "core.fsmonitor may name a program that Git runs (repository {work}/inner)"),
        ("files-of-others", "core.worktree or a variable lets Git read {root} by {work}"),
        ("own-driver", "your setting diff.nb.textconv names a program that runs on files of this folder"),
        ("named-like-one", "ls is {work}/bin/ls, a file of the working directory"),
        ("bash-env", "the variable BASH_ENV names files of the working directory"),
    ],
)
def test_a_person_is_told_what_would_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str, said: str
) -> None:
    folder, _ = hostile(tmp_path / "f", list(TRAPS).index(trap))
    folder.environ["PATH"] = folder.environ["PATH"].replace(os.environ["PATH"], "/usr/bin:/bin")
    for name, value in folder.environ.items():
        monkeypatch.setenv(name, value)
    work = str(folder.work)
    call = asked("ls; git status", work)
    assert not allows(READ_ONLY, call, work)
    assert said.format(work=work, root=folder.root) in why_not_read_only(call, work)


def test_where_there_is_no_repository_git_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    call = asked("git status", str(tmp_path))
    assert not allows(READ_ONLY, call, str(tmp_path))
    assert "not a git repository" in why_not_read_only(call, str(tmp_path))


def booby_trapped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which everything that git could be told to run leaves a file; that file."""
    canary, trap = folder / "canary", folder / "trap"
    trap.write_text(f'#!/bin/sh\necho "$0 $@" >> {canary}\ncat\n')
    trap.chmod(0o755)
    work, person, hooks = folder / "work", folder / "person", folder / "hooks"
    for made in (work, person, hooks, work / "hooks"):
        made.mkdir()
    for hook in ("post-index-change", "post-checkout", "reference-transaction", "pre-auto-gc", "pre-commit"):
        for place in (hooks, work / "hooks"):
            (place / hook).symlink_to(trap)
    settings = (
        f"[core]\nhooksPath = {hooks}\nfsmonitor = {trap}\npager = {trap}\nsshCommand = {trap}\n"
        f'[filter "x"]\nclean = {trap}\nsmudge = {trap}\nprocess = {trap}\nrequired = true\n'
        f'[diff]\nexternal = {trap}\n[diff "x"]\ntextconv = {trap}\ncommand = {trap}\n'
        f"[alias]\nls-files = !{trap}\n[gpg]\nprogram = {trap}\n[commit]\ngpgsign = true\n"
    )
    (person / ".gitconfig").write_text(settings)
    subprocess.run(["git", "init", "-q", str(work)], check=True, env={"PATH": os.environ["PATH"]})
    with (work / ".git" / "config").open("a") as config:
        config.write(settings)
    (work / ".gitattributes").write_text("* filter=x diff=x ident\n")
    (work / "a").write_text("a $Id$\n")
    monkeypatch.setenv("HOME", str(person))
    for name in ("GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_SSH_COMMAND", "GIT_EDITOR", "GIT_ASKPASS"):
        monkeypatch.setenv(name, str(trap))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(trap))
    return canary


def test_nothing_that_a_repository_or_its_user_says_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary, work = booby_trapped(tmp_path, monkeypatch), tmp_path / "work"
    checkpoints = Checkpoints(tmp_path / "home", work, CheckpointSettings(keep=1))
    own = {path: path.read_bytes() for path in (work / ".git").rglob("*") if path.is_file()}
    kept = checkpoints.make("k", turn="t", tool="terminal")
    (work / "a").write_text("b")
    (work / "new").write_text("b")
    assert "+b" in checkpoints.diff(kept)
    checkpoints.put_back(kept)
    assert (work / "a").read_text() == "a $Id$\n"
    assert not canary.exists(), canary.read_text()
    assert {path: path.read_bytes() for path in (work / ".git").rglob("*") if path.is_file()} == own

    subprocess.run(["git", "add", "."], cwd=work, check=False, capture_output=True)
    assert canary.exists(), "the traps are good: git itself runs them"


def test_a_link_does_not_lead_out_of_the_working_directory(tmp_path: Path) -> None:
    work, other = tmp_path / "work", tmp_path / "other"
    for folder in (work / "d", other):
        folder.mkdir(parents=True)
    (work / "d" / "f").write_text("mine")
    checkpoints = Checkpoints(tmp_path / "home", work, CheckpointSettings())
    kept = checkpoints.make("k", turn="t", tool="terminal")
    (work / "d" / "f").unlink()
    (work / "d").rmdir()
    (work / "d").symlink_to(other)
    (other / "f").write_text("not yours")
    done = checkpoints.put_back(kept)
    assert (other / "f").read_text() == "not yours"
    assert (work / "d" / "f").read_text() == "mine"
    assert not (work / "d").is_symlink()
    assert done.before is not None
    checkpoints.put_back(done.before)
    assert (work / "d").is_symlink()
    assert (other / "f").read_text() == "not yours"
