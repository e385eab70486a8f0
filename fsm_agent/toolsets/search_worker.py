"""The search itself: a script that runs in a process of its own, with the standard library only.

Called with one argument, an ``Order`` as JSON. Prints the results; exits with 2 and one line of explanation when the
regular expression cannot be used.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

SKIPPED = frozenset(
    (".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache", ".tox")
)
MAX_BYTES = 10_000_000
MAX_TEXT = 300
"""Characters of a matching line that are shown."""
_SNIFF = 8_192


class Order(NamedTuple):
    """What to search. ``root`` is what printed paths are relative to; ``content`` is a regular expression, ``name`` a
    glob, and at least one of them is given."""

    root: str
    base: str
    content: str | None
    name: str | None
    ignore_case: bool
    limit: int


def search(order: Order) -> str:
    """The results, one a line, under a line with their number. Raises ``re.error`` for a broken pattern."""
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


def _files(order: Order) -> Iterator[str]:
    if os.path.isfile(order.base):
        if _named(order.base, order):
            yield order.base
        return
    for directory, subdirectories, names in os.walk(order.base):
        subdirectories[:] = sorted(name for name in subdirectories if name not in SKIPPED)
        for name in sorted(names):
            path = os.path.join(directory, name)
            if _named(path, order) and not os.path.islink(path) and os.path.isfile(path):
                yield path


def _named(path: str, order: Order) -> bool:
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
    """Do the order in ``sys.argv[1]``."""
    try:
        answer = search(Order(**json.loads(sys.argv[1])))
    except (re.error, OverflowError, RecursionError) as error:
        sys.stderr.write(f"The regular expression cannot be used: {error}.")
        return 2
    sys.stdout.buffer.write(answer.encode("utf-8", "replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
