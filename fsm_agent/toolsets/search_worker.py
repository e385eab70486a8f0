"""The search itself: a script that runs in a process of its own, with the standard library only.

Its one argument is a ``SearchOrder`` as JSON. It prints the results, or exits with 2 and a line of
explanation if the regular expression cannot be used."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

SKIPPED = frozenset((
    ".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache",
    ".tox",
))  # fmt: skip
MAX_BYTES = 10_000_000
MAX_TEXT = 300
"""Maximum characters shown of a matching line."""
_SNIFF = 8_192


class SearchOrder(NamedTuple):
    """A search. Printed paths are relative to ``root``. ``content`` is a regular expression, ``name`` a glob,
    and at least one of them is given. ``ripgrep``: the program, or empty; ``literal``: a text that every
    matching line contains, or empty."""

    root: str
    base: str
    content: str | None
    name: str | None
    ignore_case: bool
    limit: int
    ripgrep: str = ""
    literal: str = ""


def search(order: SearchOrder) -> str:
    """Return the results, one per line, below their number. Raises ``re.error`` for a broken pattern."""
    pattern = re.compile(order.content, re.IGNORECASE if order.ignore_case else 0) if order.content else None
    shown: list[str] = []
    matches = files = 0
    for path in _files(order):
        place = os.path.relpath(path, order.root).replace(os.sep, "/")
        results = [place] if pattern is None else [f"{place}:{line}" for line in _lines(path, pattern)]
        matches += len(results)
        files += bool(results)
        shown += results[: order.limit - len(shown)]
    if not matches:
        return "No matches."
    where = f"{files:,} file{'s' * (files != 1)}"
    what = where if pattern is None else f"{matches:,} match{'es' * (matches != 1)} in {where}"
    cut = f"; the first {len(shown):,} are shown" if matches > len(shown) else ""
    return "\n".join([f"{what}{cut}:", *shown])


def _files(order: SearchOrder) -> Iterator[str]:
    if os.path.isfile(order.base):
        if _matches_name(order.base, order):
            yield order.base
        return
    found = _from_ripgrep(order) if order.ripgrep and (order.literal or not order.content) else None
    for path in _walk(order.base) if found is None else found:
        if _matches_name(path, order) and not os.path.islink(path) and os.path.isfile(path):
            yield path


def _walk(base: str) -> Iterator[str]:
    for directory, subdirectories, names in os.walk(base):
        subdirectories[:] = sorted(name for name in subdirectories if name not in SKIPPED)
        yield from (os.path.join(directory, name) for name in sorted(names))


def _from_ripgrep(order: SearchOrder) -> list[str] | None:
    """Return the candidate files in walking order; ``None`` if ripgrep cannot be used.

    ripgrep only finds candidates: matching is always decided here, so that results are the same with and
    without it."""
    what = [
        "--fixed-strings",
        "--files-with-matches",
        "--text",
        "--encoding=none",
        f"--regexp={order.literal}",
    ]
    command = [order.ripgrep, "--no-config", "--no-ignore", "--hidden", "--no-messages", "--null"]
    command += [f"--glob=!{name}/" for name in sorted(SKIPPED)]
    command += [
        *(what if order.content else ["--files"]),
        *(["--ignore-case"] if order.ignore_case else []),
        "./",
    ]
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=order.base, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError:
        return None
    if done.returncode not in (0, 1) and done.stderr:
        return None
    names = [os.fsdecode(name).removeprefix("./") for name in done.stdout.split(b"\0") if name]
    return [os.path.join(order.base, name) for name in sorted(names, key=_walking_order)]


def _walking_order(name: str) -> list[tuple[bool, str]]:
    """Sort the files of a directory before its subdirectories."""
    *directories, file = name.split("/")
    return [*((True, directory) for directory in directories), (False, file)]


def _matches_name(path: str, order: SearchOrder) -> bool:
    if order.name is None:
        return True
    subject, glob = os.path.basename(path), order.name.replace("\\", "/")
    if "/" in glob:
        subject, glob = os.path.relpath(path, order.root).replace(os.sep, "/"), glob.removeprefix("./")
    if order.ignore_case:
        subject, glob = subject.lower(), glob.lower()
    return fnmatch.fnmatchcase(subject, glob) or fnmatch.fnmatchcase(subject, glob.replace("**/", ""))


def _lines(path: str, pattern: re.Pattern[str]) -> Iterator[str]:
    try:
        if os.path.getsize(path) > MAX_BYTES:
            return
        with open(path, "rb") as file:
            if b"\0" in file.read(_SNIFF):
                return
        with open(path, encoding="utf-8-sig", errors="replace") as text:
            for number, line in enumerate(text, start=1):
                line = line.rstrip("\n")
                if pattern.search(line):
                    yield f"{number}: {line.strip()[:MAX_TEXT]}"
    except OSError:
        return


def main() -> int:
    """Execute the order in ``sys.argv[1]``."""
    try:
        answer = search(SearchOrder(**json.loads(sys.argv[1])))
    except (re.error, OverflowError, RecursionError) as error:
        sys.stderr.write(f"The regular expression cannot be used: {error}.")
        return 2
    sys.stdout.buffer.write(answer.encode("utf-8", "replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
