"""A repository, its user's settings and the environment may name programs: making and putting back checkpoints
runs none of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fsm_agent.sessions.checkpoints import Checkpoints
from fsm_agent.settings.model import CheckpointSettings


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
