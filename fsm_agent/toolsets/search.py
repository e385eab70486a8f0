"""Searching files by content and by name."""

# ripgrep finds candidates, Python decides. ripgrep's patterns differ from Python's. So a literal that must
# occur is searched first, with ripgrep if available, and Python decides what matches: results are the same
# with and without it.

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fsm_agent.support.redaction import bare_environment
from fsm_agent.tools import Tool, ToolFailure, cancelled, tool
from fsm_agent.toolsets import search_worker
from fsm_agent.toolsets.files import plain_errors, resolve

# A text that must be in every line that a regular expression matches: what a fast program can look for
# first.


SHORTEST = 3
_QUANTIFIER = re.compile(r"[*+?]|\{\d*(?:,\d*)?\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_FOLDED = re.compile(r"[iIkKsS]|[^\x00-\x7f]")
"""What Python's case rules may equate with other letters than another program does (dotless i, Kelvin sign,
long s)."""
_UNSURE = re.compile("[\r\n\x00\ufeff\ufffd\ud800-\udfff]")
"""What reading a file as text may take away, or put there."""


def certain_literal(pattern: str, ignore_case: bool) -> str | None:
    """The longest text of at least three characters that is surely in what ``pattern`` matches; ``None`` when
    none is sure.

    Reads plain characters, escapes, classes and repetitions; gives up at groups, alternatives and everything
    else. With ``ignore_case`` it is to be looked for without regard to case."""
    runs: list[str] = [""]
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character in "()|":
            return None
        if match := _QUANTIFIER.match(pattern, at):
            if match[0] != "+":
                runs[-1] = runs[-1][:-1]
            runs.append("")
            at = match.end()
        elif character == "[":
            closed = _CLASS.match(pattern, at)
            if closed is None:
                return None
            runs.append("")
            at = _after(pattern, closed.end())
        elif character in ".^$":
            runs.append("")
            at = _after(pattern, at + 1)
        elif character == "\\":
            escaped = pattern[at + 1 : at + 2]
            if escaped == "" or (escaped.isalnum() and escaped not in "bBdDsSwWAZ"):
                return None
            runs[-1:] = [runs[-1], ""] if escaped.isalnum() else [runs[-1] + escaped]
            at = _after(pattern, at + 2) if escaped.isalnum() else at + 2
        else:
            runs[-1] += character
            at += 1
    return _longest(runs, ignore_case)


def _after(pattern: str, at: int) -> int:
    """Past the repetition of something that is no literal."""
    match = _QUANTIFIER.match(pattern, at)
    return match.end() if match else at


def _longest(runs: list[str], ignore_case: bool) -> str | None:
    parts = [part for run in runs for part in (_FOLDED.split(run) if ignore_case else [run])]
    return max(
        (part for part in parts if len(part) >= SHORTEST and not _UNSURE.search(part)), key=len, default=None
    )


MAX_RESULTS = 1_000
MAX_SECONDS = 60.0
_LOOK = 0.1
"""Seconds between two looks at the stop signal."""

Pattern = Annotated[str | None, Field(min_length=1, max_length=1_000)]


class FileSearch:
    """The searching tool of one working directory. ``ripgrep``: the program that makes it fast, or empty for
    none; results are the same."""

    def __init__(self, root: Path, ripgrep: str | None = None) -> None:
        self.root = root
        self.ripgrep = (shutil.which("rg") or "") if ripgrep is None else ripgrep

    def search_files(
        self,
        content: Pattern = None,
        name: Pattern = None,
        path: str = ".",
        ignore_case: bool = False,
        max_results: Annotated[int, Field(ge=1, le=MAX_RESULTS)] = 100,
    ) -> str:
        """Search files by content, by name, or both. Content matches come as path:line: text, else as paths.

        Skips .git, .venv, node_modules and the like, links, binary files, and files over 10 MB.

        Args:
            content: A Python regular expression to find in lines.
            name: A glob that the file's name must match, such as "*.py"; with a slash, its path, such as
                "src/**/*.py".
            path: The directory or file to search, relative to the working directory.
            ignore_case: Ignore upper and lower case, in content and name.
            max_results: How many results to show. All are counted.
        """
        if content is None and name is None:
            raise ToolFailure("Give content, name, or both.")
        base = resolve(self.root, path)
        with plain_errors(path):
            base.stat()
        literal = (certain_literal(content, ignore_case) or "") if content else ""
        order = search_worker.SearchOrder(
            str(self.root.resolve()),
            str(base),
            content,
            name,
            ignore_case,
            max_results,
            self.ripgrep,
            literal,
        )
        return _answer(json.dumps(order._asdict()))


def search_tools(root: Path) -> tuple[Tool, ...]:
    """search_files."""
    reader = tool(concurrency="parallel", effect="pure", path_arguments=("path",))
    return (reader(FileSearch(root).search_files),)


def _answer(order: str) -> str:
    """Search in a separate process: an endless regular expression would stop this one with all its
    threads."""
    command = [sys.executable, "-I", "-S", "-X", "utf8", search_worker.__file__, order]
    deadline = time.monotonic() + MAX_SECONDS
    with subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=bare_environment(),
        start_new_session=True,
    ) as worker:
        while True:
            try:
                found, complaint = worker.communicate(timeout=_LOOK)
                break
            except subprocess.TimeoutExpired:
                late = time.monotonic() > deadline
                if late or cancelled():
                    _kill(worker)
                    raise ToolFailure(
                        f"The search took longer than {MAX_SECONDS:g} seconds; use a simpler pattern or a"
                        " smaller path."
                        if late
                        else "The search was stopped."
                    ) from None
    if worker.returncode:
        raise ToolFailure(complaint.decode("utf-8", "replace").strip()[-500:] or "The search failed.")
    return found.decode("utf-8", "replace").rstrip("\n")


def _kill(worker: subprocess.Popen[bytes]) -> None:
    """With the ripgrep that it may have started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL) if hasattr(os, "killpg") else worker.kill()
    worker.communicate()
