"""The steps of a GitHub action, run as a runner does: on a repository, and against a server that answers as
GitHub's does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.helpers.http_server import Answer, Asked, HttpServer

ROOT = Path(__file__).parents[2]
BOT, PERSON = {"type": "Bot", "login": "github-actions[bot]"}, {"type": "User", "login": "ann"}
PAGE = 100
QUIET = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
_EXPRESSION = re.compile(r"\$\{\{ (.*?) \}\}")


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


@contextmanager
def github_server() -> Iterator[GitHub]:
    """The comments of one pull request behind a server."""
    state = GitHub()

    def answer(asked: Asked) -> Answer:
        state.tokens.add(asked.headers["authorization"])
        status, value, link = state.answer(asked.method, asked.path, json.loads(asked.raw or b"null"))
        return Answer(status, json.dumps(value).encode(), headers={"Link": link} if link else {})

    with HttpServer(answer) as server:
        state.url = server.root
        yield state


class StepFailed(Exception):
    """A step of the action ended with an error; the text is what it wrote."""


class ActionRunner:
    """Runs the steps of ``action``: scripts in a shell, with inputs and the event in the environment.
    ``home`` is the repository, ``inputs`` those of the action."""

    def __init__(self, folder: Path, github: GitHub, action: str, **environment: str) -> None:
        self.folder, self.home, self.github = folder, folder / "repository", github
        self.action, self.inputs = ROOT / ".github" / "actions" / action, dict[str, str]()
        self._programs, self._environment = folder / "bin", environment
        for one in (self.home, self._programs, folder / "temp"):
            one.mkdir()
        program = self._programs / "fsm-agent"
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH={ROOT}:{ROOT}/states exec {sys.executable} -m fsm_agent "$@"\n'
        )
        program.chmod(0o755)
        (self._programs / "python").symlink_to(sys.executable)
        self.git("init", "--quiet")
        (folder / "event.json").write_text(json.dumps({"pull_request": {"number": 7}}))

    def git(self, *arguments: str) -> str:
        """The output of a git command in the repository."""
        user = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(self.home), *user, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=QUIET).stdout.strip()

    def committed(self, files: Mapping[str, str]) -> str:
        """Write and commit files; the id of the commit."""
        for name, content in files.items():
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            (self.home / name).write_text(content)
        self.git("add", ".")
        self.git("commit", "--quiet", "--allow-empty", "--message=a change")
        return self.git("rev-parse", "HEAD")

    def play(self) -> str:
        """Run all steps but the installation; what they print. Raises ``StepFailed``."""
        outputs, said = self.folder / "output", ""
        outputs.write_text("")
        written = yaml.safe_load((self.action / "action.yml").read_text("utf-8"))
        defaults = {name: str(one.get("default", "")) for name, one in written["inputs"].items()}
        for step in written["runs"]["steps"][1:]:
            known = {f"inputs.{name}": value for name, value in {**defaults, **self.inputs}.items()}
            known["github.token"] = "t0ken"
            for line in outputs.read_text().splitlines():
                name, _, value = line.partition("=")
                known |= {f"steps.{one}.outputs.{name}": value for one in ("compare", "play")}
            env = {
                **QUIET, **{name: _filled(text, known) for name, text in step["env"].items()},
                "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}",
                "GITHUB_ACTION_PATH": str(self.action), "GITHUB_API_URL": self.github.url,
                "GITHUB_EVENT_PATH": str(self.folder / "event.json"), "GITHUB_REPOSITORY": "o/r",
                "RUNNER_TEMP": str(self.folder / "temp"), "GITHUB_OUTPUT": str(outputs),
                "GITHUB_STEP_SUMMARY": str(self.folder / "summary"), **self._environment,
            }  # fmt: skip
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
                cwd=self.home, env=env, capture_output=True, text=True, check=False,
            )  # fmt: skip
            said += done.stdout
            if done.returncode:
                raise StepFailed(f"{step['name']}: {done.stderr}")
        return said


def _filled(text: str, known: Mapping[str, str]) -> str:
    return _EXPRESSION.sub(lambda found: known[found[1]], text)
