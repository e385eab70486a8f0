"""The comment of a pull request: what stands in it, and the action that posts it, on a repository of two
commits and against a server that answers as GitHub's does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fsm_agent.diagram.versions.compare import compare
from fsm_agent.diagram.versions.load import Version
from fsm_agent.diagram.versions.text import LONGEST, as_comment
from fsm_agent.fsm.table import Table
from tests.diagram.test_diagram_versions import QUIET, TABLE_FILE, git
from tests.helpers.diagram_tables import LIMITS, OTHER, SMALL, proved
from tests.helpers.http_server import Answer, Asked, HttpServer

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "diagram-diff"
BOT, PERSON = {"type": "Bot", "login": "github-actions[bot]"}, {"type": "User", "login": "somebody"}
MARKER = "<!-- fsm-agent diagram diff loop:LOOP -->"
PAGE = 100


def comment_of(old: Table, new: Table) -> str:
    versions = Version("main", old, LIMITS), Version("working tree", new, LIMITS)
    return as_comment(*versions, compare(old, new), proved(old, new))


def test_a_comment_has_rows_proofs_and_both_maps() -> None:
    text = comment_of(SMALL, OTHER)
    assert "1 row removed, 1 row changed; every turn still ends." in text
    assert "| every turn ends | holds | holds |" in text
    assert "-   bad: fix › give back\n+   bad: give back" in text
    before, after = text.split("Map after (working tree)")
    assert "Map before (main)" in before
    for drawn in (before.partition("Map before")[2], after):
        assert "stateDiagram-v2" in drawn
        assert "[*] --> Start" in drawn
    assert "Act --> Act : fix\n" in before
    assert "Act --> Act" not in after
    assert "Act --> Think : ok, give back\n" in before
    assert "class Act changed" in after
    assert "changed" not in before.partition("Map before")[2]
    assert text.count("<details>") == text.count("</details>") == 3


def test_what_is_not_proved_any_more_is_told_beside_what_was() -> None:
    lines = list(SMALL.lines)
    lines[1] = replace(lines[1], ladder=(replace(lines[1].ladder[0], spends=()), lines[1].ladder[1]))
    text = comment_of(SMALL, replace(SMALL, lines=tuple(lines)))
    assert "| every turn ends | holds | **fails** |" in text
    assert "**the new version is not proved any more**" in text


def test_a_comment_without_changes_is_short() -> None:
    assert comment_of(SMALL, SMALL).splitlines()[2:] == ["No row changed; every turn still ends."]


def test_a_comment_never_gets_too_long() -> None:
    why = "w" * 400
    of_check = [replace(one, why=why, resets=("asks",)) for one in SMALL.lines if one.source == "Check"]
    many = [replace(one, event=f"{one.event}_{number}") for number in range(150) for one in of_check]
    text = comment_of(OTHER, replace(SMALL, lines=(*SMALL.lines, *many)))
    assert len(text) <= LONGEST
    assert text.count("```") % 2 == 0
    assert "does not fit into a comment" in text


@dataclass
class GitHub:
    """Comments of one pull request, and what was asked for. ``refuses``: the token may only read."""

    comments: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    refuses: bool = False
    url: str = ""

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any, str]:
        """Status, JSON, and the Link header."""
        self.asked.append((method, path))
        if self.refuses and method != "GET":
            return 403, {"message": "Resource not accessible by integration"}, ""
        if method == "POST":
            self.comments.append({"id": len(self.comments) + 1, "user": BOT, "body": body["body"]})
            return 201, self.comments[-1], ""
        if method == "PATCH":
            (one,) = (one for one in self.comments if path.endswith(f"/issues/comments/{one['id']}"))
            one["body"] = body["body"]
            return 200, one, ""
        page = int(path.partition("&page=")[2] or 1)
        rest = len(self.comments) > page * PAGE
        link = f'<{self.url}{path.partition("&page=")[0]}&page={page + 1}>; rel="next"' if rest else ""
        return 200, self.comments[(page - 1) * PAGE : page * PAGE], link


@pytest.fixture
def github() -> Iterator[GitHub]:
    state = GitHub()

    def answer(asked: Asked) -> Answer:
        state.tokens.add(asked.headers["authorization"])
        status, value, link = state.answer(asked.method, asked.path, json.loads(asked.raw or b"null"))
        return Answer(status, json.dumps(value).encode(), headers={"Link": link} if link else {})

    with HttpServer(answer) as server:
        state.url = server.root
        yield state


class Runner:
    """Runs the steps of the action as a runner does: scripts in a shell, inputs and the event by the
    environment."""

    def __init__(self, folder: Path, github: GitHub) -> None:
        self.folder, self.home = folder, folder / "repository"
        self.programs, self.github = folder / "bin", github
        for one in (self.home, self.programs, folder / "temp"):
            one.mkdir()
        program = self.programs / "fsm-agent"
        program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m fsm_agent.cli "$@"\n')
        program.chmod(0o755)
        (self.programs / "python").symlink_to(sys.executable)
        self.git("init", "--quiet")
        self.base = self.commit(TABLE_FILE)
        event = {"pull_request": {"number": 7, "base": {"sha": self.base}}}
        (folder / "event.json").write_text(json.dumps(event))

    def git(self, *arguments: str) -> str:
        return git(self.home, *arguments)

    def commit(self, table: str) -> str:
        (self.home / "loop.py").write_text(table)
        self.git("add", ".")
        self.git("commit", "--quiet", "--allow-empty", "--message=a change")
        return self.git("rev-parse", "HEAD")

    def play(self) -> str:
        """All steps but the installation; what they print."""
        outputs = self.folder / "output"
        outputs.write_text("")
        said = ""
        for step in yaml.safe_load((ACTION / "action.yml").read_text("utf-8"))["runs"]["steps"][1:]:
            changed = outputs.read_text().strip().rpartition("changed=")[2]
            values = {
                "${{ inputs.base }}": self.base,
                "${{ inputs.table }}": "loop:LOOP",
                "${{ github.token }}": "t0ken",
                "${{ steps.compare.outputs.changed }}": changed,
            }
            env = {
                **QUIET,
                **{name: values[value] for name, value in step["env"].items()},
                "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
                "GITHUB_ACTION_PATH": str(ACTION),
                "GITHUB_API_URL": self.github.url,
                "GITHUB_EVENT_PATH": str(self.folder / "event.json"),
                "GITHUB_REPOSITORY": "o/r",
                "RUNNER_TEMP": str(self.folder / "temp"),
                "GITHUB_OUTPUT": str(outputs),
                "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
            }
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
                cwd=self.home, env=env, capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            said += done.stdout
        return said


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="runners have a bash")
def test_the_action_posts_a_comment_and_keeps_it_up_to_date(tmp_path: Path, github: GitHub) -> None:
    runner = Runner(tmp_path, github)
    github.comments = [{"id": n, "user": PERSON, "body": f"{MARKER} quoted"} for n in range(1, PAGE + 2)]
    theirs = list(github.comments)
    runner.play()
    assert [method for method, _ in github.asked] == ["GET", "GET"], "nothing changed, so nothing is said"
    runner.commit(TABLE_FILE.replace('"gave_up"', '"tired"'))
    runner.play()
    assert github.asked[-1] == ("POST", "/repos/o/r/issues/7/comments")
    mine = github.comments[-1]
    assert mine["body"].startswith(f"{MARKER}\n# The loop table: {runner.base[:10]} → working tree")
    assert "was ⇥ gave up" in mine["body"]
    assert "Map before" in mine["body"]
    assert mine["body"].partition("\n")[2] in (runner.folder / "summary").read_text()
    runner.commit(TABLE_FILE.replace('"gave_up"', '"exhausted"'))
    runner.play()
    assert github.asked[-1] == ("PATCH", f"/repos/o/r/issues/comments/{mine['id']}")
    assert "⇥ exhausted" in mine["body"]
    runner.commit(TABLE_FILE)
    runner.play()
    assert "No row changed" in mine["body"]
    assert github.comments[:-1] == theirs
    assert github.tokens == {"Bearer t0ken"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="runners have a bash")
def test_a_token_that_may_only_read_is_no_failure(tmp_path: Path, github: GitHub) -> None:
    runner, github.refuses = Runner(tmp_path, github), True
    runner.commit(TABLE_FILE.replace('"gave_up"', '"tired"'))
    said = runner.play()
    assert "::notice::The comparison is in the summary of this job" in said
    assert "403" in said
    assert "t0ken" not in said
    assert "was ⇥ gave up" in (runner.folder / "summary").read_text()
