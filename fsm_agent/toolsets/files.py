"""Read-only file tools: list a directory, read a file, search files by content and by name."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

from pydantic import Field

from fsm_agent.approvals.acting_files import plain_name
from fsm_agent.support.redaction import bare_environment
from fsm_agent.tools import Tool, ToolFailure, cancelled, tool
from fsm_agent.toolsets import search_worker

# A file that changed since it was read. Replacing it is refused. A patch continues, with a warning, only if
# its anchor still matches exactly. A file that was never read may be replaced, and the diff shows the loss.


MAX_FILES = 10_000

Mark = tuple[int, int, int]


class Seen:
    """File versions when last read or written here, by modification time, size and inode; no file is read.

    Kept in memory: after a restart no version is known, and no write is refused."""

    def __init__(self) -> None:
        self._marks: OrderedDict[str, Mark] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, real: Path, stat: os.stat_result | None = None) -> None:
        """Remember the file's current version. Raises ``OSError``."""
        mark = _mark(stat or real.stat())
        with self._lock:
            self._marks[str(real)] = mark
            self._marks.move_to_end(str(real))
            if len(self._marks) > MAX_FILES:
                self._marks.popitem(last=False)

    def has_changed(self, real: Path) -> bool:
        """Return whether the file changed or vanished. False for one that was never read."""
        with self._lock:
            mark = self._marks.get(str(real))
        if mark is None:
            return False
        try:
            return _mark(real.stat()) != mark
        except FileNotFoundError:
            return True


def _mark(stat: os.stat_result) -> Mark:
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


# Which paths are inside the root, and which may not be written.


_GIT = frozenset((".git", "git~1"))
"""Git's own folder, also by its short name on old Windows file systems."""


def resolve(root: Path, path: str) -> Path:
    """Return the real path of ``path``, which is relative to ``root`` or absolute and must be in ``root``.

    Links are resolved first, so neither ``..`` nor a link leads outside. A path whose case differs from the
    directory's counts as outside even on a case-insensitive file system. This keeps a model from straying; it
    is not a sandbox against programs that change links concurrently. For reading, ``still_inside`` checks
    again. Raises ``ToolFailure``."""
    if "\0" in path or path.startswith("~"):
        raise ToolFailure(f"{path!r} is not a usable path: write it relative to the working directory.")
    base = root.resolve()
    try:
        real = (base / path).resolve()
    except (OSError, RuntimeError) as error:  # a cycle of links
        raise ToolFailure(f"{path}: cannot be resolved ({error}).") from None
    if any(place.is_symlink() for place in (real, *real.parents)):  # not an error since Python 3.13
        raise ToolFailure(f"{path}: cannot be resolved (Symlink loop).")
    if real != base and base not in real.parents:
        raise ToolFailure(f"{path}: outside the working directory {base}. Only paths inside it can be used.")
    return real


def writable(root: Path, path: str, protected: Sequence[Path] = ()) -> Path:
    """Resolve a file for writing. Refuse Git's own folder, because its hooks and configuration are programs
    that would run without approval, and ``protected`` folders. Raises ``ToolFailure``."""
    real = resolve(root, path)
    if any(plain_name(part) in _GIT for part in real.relative_to(root.resolve()).parts):
        raise ToolFailure(f"{path}: files of Git itself are not written; use git.")
    for folder in protected:
        closed = folder.resolve()
        if real == closed or closed in real.parents:
            raise ToolFailure(f"{path}: belongs to the agent itself and is not written.")
    return real


def still_inside(folders: Sequence[Path], descriptor: int, path: str) -> None:
    """Check that the opened file is in one of ``folders`` even if a link changed since its path was resolved.
    Raises ``ToolFailure``. Works only where the system reveals the path of an open file (Linux)."""
    try:
        real = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    except OSError:
        return
    if not any(folder.resolve() in real.parents for folder in folders):
        raise ToolFailure(
            f"{path}: leads outside the working directory since a moment ago. Nothing was read."
        )


@contextmanager
def plain_errors(path: str) -> Iterator[None]:
    """Turn an ``OSError`` about ``path`` into a one-line tool failure."""
    try:
        yield
    except FileNotFoundError:
        raise ToolFailure(f"{path}: no such file or directory.") from None
    except OSError as error:
        raise ToolFailure(f"{path}: {error.strerror or error}.") from None


MAX_ENTRIES = 1_000
MAX_LINES = 2_000
MAX_LINE = 2_000
MAX_PAGE = 60_000
"""Characters of one page of a file, about 15,000 tokens. The tool pages by itself, so a page is never
spilled."""

NEVER_SPILLED = 1_000_000_000
_SNIFF = 8_192


def regular_file(root: Path, path: str, results: Path | None = None) -> Path:
    """Return an existing regular file in ``root``, or in ``results`` if given by its full path.

    Raises ``ToolFailure`` for a directory, a device, a pipe, or a missing file."""
    inside = results is not None and Path(path).is_absolute() and Path(path).is_relative_to(results)
    real = resolve(results if inside and results is not None else root, path)
    with plain_errors(path):
        if real.is_dir():
            raise ToolFailure(f"{path}: is a directory; use list_directory.")
        if real.exists() and not real.is_file():
            raise ToolFailure(f"{path}: not a regular file.")
        real.stat()
    return real


def is_binary(real: Path) -> bool:
    """Return whether the file begins with bytes that do not occur in text."""
    with real.open("rb") as file:
        return b"\0" in file.read(_SNIFF)


class Files:
    """The file-reading tools of one working directory. ``seen`` records the version of each file read."""

    def __init__(self, root: Path, results: Path | None, seen: Seen) -> None:
        self.root, self.results, self.seen = root, results, seen

    def list_directory(self, path: str = ".") -> str:
        """List the files and directories in a directory, sorted by name.

        Directories end with "/", links show where they point, files show their size in bytes. Hidden ones are
        listed.

        Args:
            path: The directory, relative to the working directory.
        """
        real = resolve(self.root, path)
        with plain_errors(path):
            if real.is_file():
                raise ToolFailure(f"{path}: is a file; use read_file.")
            with os.scandir(real) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
            lines = [_entry_line(entry) for entry in entries[:MAX_ENTRIES]]
        if len(entries) > MAX_ENTRIES:
            lines.append(f"… and {len(entries) - MAX_ENTRIES:,} more entries")
        return "\n".join(lines) or "(empty directory)"

    def read_file(
        self,
        path: str,
        start_line: Annotated[int, Field(ge=1)] = 1,
        end_line: Annotated[int | None, Field(ge=1)] = None,
    ) -> str:
        """Read a text file, or a range of its lines. Each line comes as its number, a tab, and its text.

        At most 2,000 lines and 60,000 characters come back at once; a last note says where to continue.

        Args:
            path: The file, relative to the working directory.
            start_line: First line to read, counted from 1.
            end_line: Last line to read, included. Leave it out to read on to the end.
        """
        if end_line is not None and end_line < start_line:
            raise ToolFailure(f"end_line {end_line} is before start_line {start_line}.")
        real = regular_file(self.root, path, self.results)
        with plain_errors(path):
            if is_binary(real):
                raise ToolFailure(f"{path}: a binary file of {real.stat().st_size:,} bytes, not text.")
            with real.open(encoding="utf-8-sig", errors="replace") as file:
                still_inside(
                    [self.root, *([] if self.results is None else [self.results])], file.fileno(), path
                )
                self.seen.note(real, os.fstat(file.fileno()))
                return _page(file, path, start_line, end_line)


def file_tools(root: Path, results: Path | None, seen: Seen) -> tuple[Tool, ...]:
    """Return list_directory and read_file."""
    files = Files(root, results, seen)
    reader = tool(
        concurrency="parallel", effect="pure", path_arguments=("path",), max_result_chars=NEVER_SPILLED
    )
    lister = tool(concurrency="parallel", effect="pure", path_arguments=("path",))
    return (lister(files.list_directory), reader(files.read_file))


def _entry_line(entry: os.DirEntry[str]) -> str:
    try:
        if entry.is_symlink():
            return f"{entry.name} -> {os.readlink(entry.path)}"
        if entry.is_dir():
            return f"{entry.name}/"
        return f"{entry.name}  {entry.stat().st_size:,}"
    except OSError as error:
        return f"{entry.name}  ({error.strerror})"


def _page(file: TextIO, path: str, start: int, end: int | None) -> str:
    lines: list[str] = []
    size = number = 0
    while (line := _line(file)) is not None:
        number += 1
        if number < start:
            if number % 10_000 == 0 and cancelled():
                raise ToolFailure(f"{path}: stopped at line {number}.")
            continue
        if (end is not None and number > end) or len(lines) == MAX_LINES or size + len(line) > MAX_PAGE:
            lines.append(f"[more lines follow; continue with start_line={number}]")
            break
        lines.append(f"{number}\t{line}")
        size += len(line)
    if lines:
        return "\n".join(lines)
    return f"({path} has only {number:,} lines)" if number else "(empty file)"


def _line(file: TextIO) -> str | None:
    """Return the next line without its end, shortened if very long; ``None`` at the end of the file."""
    line = file.readline(MAX_LINE)
    if not line:
        return None
    left_out, rest = 0, line
    while rest and not rest.endswith("\n"):
        rest = file.readline(1_000_000)
        left_out += len(rest.rstrip("\n"))
    return line.rstrip("\n") + (f" … [{left_out:,} more characters in this line]" if left_out else "")


# ----------------------------------------------------------------------------------------------------
# Searching by content and by name. ripgrep finds candidates, and Python decides, because their patterns
# differ. A literal that every matching line must contain is searched first, with ripgrep if available.
# Results are the same with and without it.


SHORTEST = 3
_QUANTIFIER = re.compile(r"[*+?]|\{\d*(?:,\d*)?\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_FOLDED = re.compile(r"[iIkKsS]|[^\x00-\x7f]")
"""Letters that Python's case rules may fold differently from another program's (dotless i, Kelvin sign, long
s)."""
_UNSURE = re.compile("[\r\n\x00\ufeff\ufffd\ud800-\udfff]")
"""Characters that reading a file as text may remove or add."""


def certain_literal(pattern: str, ignore_case: bool) -> str | None:
    """Return the longest text of at least three characters that every match of ``pattern`` contains; ``None``
    if none is certain.

    Reads plain characters, escapes, classes and repetitions; gives up at groups, alternatives and everything
    else. With ``ignore_case`` the text must be searched case-insensitively."""
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
    """Return the index after the quantifier of a part that is not a literal."""
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
"""Seconds between checks of the stop signal."""

Pattern = Annotated[str | None, Field(min_length=1, max_length=1_000)]


class FileSearch:
    """The search tool of one working directory. ``ripgrep``: the program that makes it fast, or an empty
    string; results are the same."""

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
    """Return search_files."""
    reader = tool(concurrency="parallel", effect="pure", path_arguments=("path",))
    return (reader(FileSearch(root).search_files),)


def _answer(order: str) -> str:
    """Search in a separate process: an endless regular expression would stop all threads of this one."""
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
    """Kill the search and the ripgrep that it may have started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL) if hasattr(os, "killpg") else worker.kill()
    worker.communicate()
