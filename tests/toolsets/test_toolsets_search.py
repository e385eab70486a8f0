"""Searching with ripgrep and without: the same results."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.toolsets.files import FileSearch, certain_literal

RIPGREP = shutil.which(
    "rg", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
)
SURE = (
    ("needle", "needle"), (r"def \w+\(self", "(self"), (r"^class Name:$", "class Name:"),
    ("colou?rs", "colo"), (r"foo\.bar", "foo.bar"), ("abc+def", "abc"), ("abc*def", "def"),
    ("abcd{0,3}efgh", "efgh"), (r"abc[xyz]*def\s+ghij", "ghij"), (r"[]abc]defg", "defg"), (r"x\dabc", "abc"),
)  # fmt: skip
NOT_SURE = (
    "ab", "a.b.c", "(foo|barbaz)", "foo|barbaz", "(?i)needle", r"\x41bcdef", r"abc\1def", "abc\\", "[abc", "",
)  # fmt: skip


def test_what_is_surely_in_a_match() -> None:
    for pattern, literal in (*SURE, *((one, None) for one in NOT_SURE)):
        assert certain_literal(pattern, ignore_case=False) == literal, pattern


def test_letters_with_odd_case_rules_are_not_relied_on() -> None:
    assert certain_literal("needle in haystack", ignore_case=True) == "needle "
    assert certain_literal("straße", ignore_case=True) == "tra"
    assert certain_literal("straße", ignore_case=False) == "straße"


PIECES = st.sampled_from(
    ["abc", "d", "K", "k", "i", "ß", " ", ".", "^", "$", "*", "+", "?", "{2}", "{0,1}", "{,2}", "{", "}", "[a-d]", "[^b]",
     "[]d]", "[", "]", "\\d", "\\w", "\\.", "\\b", "\\s", "\\[", "\\\\", "+?", "*?", "|", "(", ")", "xyz", "-", "1"]
)  # fmt: skip


@given(
    st.lists(PIECES, max_size=8).map("".join),
    st.text("abcdKkiıſKßx1. -[]{}\\y z", max_size=30),
    st.booleans(),
)
def test_the_literal_is_in_everything_that_matches(pattern: str, line: str, ignore_case: bool) -> None:
    literal = certain_literal(pattern, ignore_case)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of sets in sets, which Python does not have yet
            found = re.search(pattern, line, re.IGNORECASE if ignore_case else 0)
    except re.error:
        return
    if literal is not None and found:
        assert (literal.lower() in found[0].lower()) if ignore_case else (literal in found[0])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "a.py": "needle one\nNEEDLE two\n  def needle(self):\r\n", "b/z.py": "needle\n",
        "b/a/deep.txt": "a needle here\n", "b.txt": "nothing\n", ".hidden/x": "needle\n",
        ".git/config": "needle\n", "sub/.git": "needle in a file that is called so\n",
        "node_modules/x.js": "needle\n", "ignored.log": "needle\n", ".gitignore": "*.log\n",
        "name with spaces.txt": "needle\n", "ünïcode.txt": "needle straße\n", "Kelvin": "K and ſ\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbfneedle first\n")
    (tmp_path / "utf16.txt").write_bytes("needle\n".encode("utf-16"))
    (tmp_path / "binary").write_bytes(b"needle\n\0")
    (tmp_path / "late_nul").write_bytes(b"x\n" * 8_000 + b"\0\nneedle\n")
    (tmp_path / "latin").write_bytes(b"caf\xe9 needle\n")
    (tmp_path / "huge").write_bytes(b"needle\n" + b"x" * 10_000_001)
    (tmp_path / "link").symlink_to("a.py")
    (tmp_path / "loop").symlink_to(".")
    return tmp_path


QUESTIONS = [
    *({"content": content, "ignore_case": case} for content, case in itertools.product(
        ("needle", "^needle$", r"def \w+\(", "nowhere at all", "straße", "k and s", "needle first",
         r"\bneedle\b.*here", "(one|two)"),
        (False, True),
    )),
    {"content": "needle", "name": "*.py"},
    {"content": "needle", "name": "b/**/*.txt"},
    {"content": "needle", "path": "b"},
    {"content": "needle", "path": "node_modules"},
    {"content": "needle", "path": "a.py"},
    {"content": "needle", "max_results": 3},
    {"name": "*.txt"},
    {"name": "*"},
    {"name": "*", "path": "b"},
    {"name": "NAME*", "ignore_case": True},
]  # fmt: skip


@pytest.mark.skipif(RIPGREP is None, reason="ripgrep is not installed")
@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_ripgrep_changes_nothing_but_the_time(tree: Path, question: dict[str, object]) -> None:
    assert FileSearch(tree, RIPGREP).search_files(**question) == FileSearch(tree, "").search_files(**question)


def test_ripgrep_is_really_asked(tree: Path, tmp_path: Path) -> None:
    """A program that says which files to look into decides what is found, so it is used."""
    fake = tmp_path / "node_modules" / "rg"
    fake.write_text("#!/bin/sh\nprintf './b/z.py\\0'\n")
    fake.chmod(0o755)
    assert (
        FileSearch(tree, str(fake)).search_files(content="needle") == "1 match in 1 file:\nb/z.py:1: needle"
    )
    # a ripgrep that fails is done without
    fake = tmp_path / "node_modules" / "rg"
    fake.write_text("#!/bin/sh\necho 'unknown flag' >&2\nexit 2\n")
    fake.chmod(0o755)
    plain = FileSearch(tree, "").search_files(content="needle")
    assert FileSearch(tree, str(fake)).search_files(content="needle") == plain
    assert FileSearch(tree, str(tmp_path / "no such program")).search_files(content="needle") == plain
    # an argument is never an option of the program
    (tree / "dash").write_text("--pre=touch pwned\n")
    found = FileSearch(tree).search_files(content="--pre=touch pwned")
    assert found == "1 match in 1 file:\ndash:1: --pre=touch pwned"
    assert not (tree / "pwned").exists()
