"""Diffs are those of Git."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random

import pytest

from fsm_agent.support.diffs import numbers, unified_diff

LINES = (
    "", "", "    }", "}", "def f():", "    return 1", "    pass", "import os", "    x = 1", "\tif x:", "class A:",
    "        y = 2", "# note", "end\r", "$x", "   ",
)  # fmt: skip


def lines(chance: Random, count: int) -> list[str]:
    """Lines of which most are there more than once."""
    return [
        chance.choice(LINES)
        if chance.random() < 0.6
        else f"{' ' * chance.choice([0, 4, 8])}line {chance.random()}"
        for _ in range(count)
    ]


def edit(chance: Random, length: int, changes: int) -> tuple[str, str]:
    """A text and an edit of it: lines replaced, added, removed or doubled, and ends without a line feed."""
    old = lines(chance, length)
    new = list(old)
    for _ in range(changes):
        start = chance.randint(0, len(new))
        end = min(len(new), start + chance.choice([0, 0, 1, 3, 10]))
        doubled = chance.random() < 0.3
        new[start:end] = new[start:end] * 2 if doubled else lines(chance, chance.choice([0, 1, 2, 6]))
    ends = ("\n" if chance.random() < 0.8 else "" for _ in range(2))
    before, after = (
        "\n".join(text) + (end if text else "") for text, end in zip((old, new), ends, strict=True)
    )
    return before, after


def of_git(pairs: list[tuple[str, str]], folder: Path) -> list[list[str]]:
    """What one ``git diff`` of two folders says about each pair."""
    for name, side in (("a", 0), ("b", 1)):
        (folder / name).mkdir()
        for number, pair in enumerate(pairs):
            (folder / name / str(number)).write_bytes(pair[side].encode())
    asked = ("git", "diff", "--no-index", "--no-renames", "--no-color", "a", "b")
    alone = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    said = subprocess.run(asked, cwd=folder, capture_output=True, env=alone, check=False).stdout.decode()
    found: list[list[str]] = [[] for _ in pairs]
    for part in said.removesuffix("\n").removeprefix("diff --git ").split("\ndiff --git "):
        head, *rest = part.split("\n")
        hunks = [at for at, line in enumerate(rest) if line.startswith("@@")]
        found[int(head.rpartition("/")[2])] = rest[hunks[0] :] if hunks else []
    return found


@pytest.mark.parametrize(
    ("count", "sizes", "changes"),
    [(500, (0, 1, 3, 10, 40, 200), (1, 1, 2, 5)), (6, (1200,), (20, 150, 600))],
    ids=["edits", "rewrites"],
)
def test_a_diff_is_the_one_of_git(
    count: int, sizes: tuple[int, ...], changes: tuple[int, ...], tmp_path: Path
) -> None:
    chance = Random(7)
    pairs = [edit(chance, chance.choice(sizes), chance.choice(changes)) for _ in range(count)]
    for number, (pair, wanted) in enumerate(zip(pairs, of_git(pairs, tmp_path), strict=True)):
        assert unified_diff(*pair) == wanted, f"edit {number}: {pair!r}"


def test_lines_have_their_numbers_in_both_files() -> None:
    before, after = "a\nb\nc\n", "a\nB\nc\nd"
    hunks = unified_diff(before, after)
    assert hunks is not None
    assert list(zip(hunks, numbers(hunks), strict=True)) == [
        ("@@ -1,3 +1,4 @@", (None, None)), (" a", (1, 1)), ("-b", (2, None)), ("+B", (None, 2)),
        (" c", (3, 3)), ("+d", (None, 4)), ("\\ No newline at end of file", (None, None)),
    ]  # fmt: skip
