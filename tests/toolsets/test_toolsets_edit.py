"""Changing files: anchors that are not quite right, drift, what is shown, and what is never written."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.conversation.effects import RunTool, ToolOutcome
from fsm_agent.providers.scripted.clock import FakeClock
from fsm_agent.tools import ToolFailure, ToolRunner
from fsm_agent.toolsets import toolset
from fsm_agent.toolsets.anchors import places
from fsm_agent.toolsets.confine import writable
from fsm_agent.toolsets.diff import diff
from fsm_agent.toolsets.indent import reindented

SOURCE = """\
import os


def first(a, b):
    total = a + b
    return total


class Thing:
    def second(self, value):
        if value:
            return value * 2
        return None

    def third(self, value):
        if value:
            return value * 3
        return None
"""


class Bench:
    """The file tools of one agent, in one directory."""

    def __init__(self, root: Path, home: Path | None = None) -> None:
        self.root = root
        self.runner = ToolRunner(toolset("files", root, home=home), clock=FakeClock(), poll=0.02)

    def use(self, name: str, /, **arguments: Any) -> ToolOutcome:
        return asyncio.run(self.runner.run(RunTool("1", name, arguments, 20.0), asyncio.Event()))

    def ok(self, name: str, /, **arguments: Any) -> str:
        outcome = self.use(name, **arguments)
        assert outcome.status == "ok", outcome
        return outcome.text

    def error(self, name: str, /, **arguments: Any) -> str:
        outcome = self.use(name, **arguments)
        assert outcome.status == "error", outcome
        return outcome.text


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (tmp_path / "a.py").write_text(SOURCE)
    return Bench(tmp_path)


# ----------------------------------------------------------------------------------------------------------- anchors


def test_an_exact_anchor_needs_no_words(bench: Bench) -> None:
    shown = bench.ok(
        "patch_file", path="a.py", old_text="    total = a + b\n", new_text="    total = a * b\n"
    )
    assert shown.splitlines() == [
        *("--- a.py", "+++ a.py", "@@ -2,7 +2,7 @@", " ", " ", " def first(a, b):"),
        *("-    total = a + b", "+    total = a * b", "     return total", " ", " "),
    ]


def test_spaces_may_differ_and_the_indentation_is_kept(bench: Bench) -> None:
    old = "def second( self, value ):\n    if value:\n        return value*2\n"
    new = "def second(self, value):\n    if value > 0:\n        return value * 4\n"
    shown = bench.ok("patch_file", path="a.py", old_text=old, new_text=new)
    assert shown.startswith(
        "old_text was not found letter for letter; lines 10 to 12, which differs in spaces, was"
        " replaced:\n--- a.py"
    )
    assert (
        "    def second(self, value):\n        if value > 0:\n            return value * 4\n        return"
        " None" in (bench.root / "a.py").read_text()
    )


def test_spaces_may_differ_inside_a_line(bench: Bench) -> None:
    bench.ok("patch_file", path="a.py", old_text="a  +  b", new_text="a - b")
    assert "total = a - b\n" in (bench.root / "a.py").read_text()


def test_similar_lines_are_found_and_named(bench: Bench) -> None:
    old = "def first(a, b):\n    totals = a + b\n    return totals\n"
    shown = bench.ok("patch_file", path="a.py", old_text=old, new_text="def first(a, b):\n    return a + b\n")
    assert "lines 4 to 6, which is 98% the same, was replaced" in shown
    assert "def first(a, b):\n    return a + b\n\n\nclass" in (bench.root / "a.py").read_text()


def test_a_forgotten_line_does_not_hide_the_place() -> None:
    old = "class Thing:\n    def second(self, value):\n        if value:\n            return value * 2\n\n"
    old += "    def third(self, value):\n"
    assert [(place.how, place.first, place.last) for place in places(SOURCE, old)] == [("similar", 9, 15)]


def test_the_ends_of_a_likeness_are_the_ends_of_the_anchor() -> None:
    """What follows or goes before is not replaced with it, and nothing of it is left standing."""
    text = (
        "def f():\n    alpha_beta_gamma = 1\n    delta_epsilon_zeta = 2\n    return alpha_beta_gamma\n\nx"
        " = 1\n"
    )
    for old in (
        "def f():\n    alpha_beta_gamma = 1\n    return alpha_beta_gamma\n",
        (
            "def f():\n    alpha_beta_gama = 1\n    delta_epsilon_zeta = 2\n    other = 4\n    return"
            " alpha_beta_gamma\n"
        ),
    ):
        for place in places(text, old):
            assert text[place.start : place.end].startswith("def f():\n")
            assert text[place.start : place.end].endswith("return alpha_beta_gamma\n")


@pytest.mark.parametrize(
    ("old", "words"),
    [
        ("        return None\n", "occurs 2 times (at lines 13, 18)"),
        ("return   None", "occurs, apart from spaces, 2 times (at lines 13, 18)"),
        (
            (
                "    def fourth(self, value):\n        if value:\n            return value * 9\n       "
                " return None"
            ),
            "is similar to 2 places",
        ),
        ("def other():\n    pass\n", "not in the file"),
        ("x = 1", "not in the file"),
        ("   \n", "not in the file"),
    ],
)
def test_what_is_ambiguous_or_missing_changes_nothing(bench: Bench, old: str, words: str) -> None:
    assert words in bench.error("patch_file", path="a.py", old_text=old, new_text="nothing")
    assert (bench.root / "a.py").read_text() == SOURCE


def test_every_exact_place_at_once(bench: Bench) -> None:
    assert bench.ok("patch_file", path="a.py", old_text="None", new_text="0", every=True).startswith(
        "Replaced 2 places.\n"
    )
    assert (bench.root / "a.py").read_text() == SOURCE.replace("None", "0")
    assert "occurs, apart from spaces" in bench.error(
        "patch_file", path="a.py", old_text="return  0", new_text="x", every=True
    )


def test_line_ends_of_the_file_are_kept_also_by_a_likeness(bench: Bench) -> None:
    (bench.root / "crlf.txt").write_bytes(b"one line here\r\n  two lines here\r\nthree\r\n")
    bench.ok("patch_file", path="crlf.txt", old_text="two lines here\nthree\n", new_text="2\n3\n")
    assert (bench.root / "crlf.txt").read_bytes() == b"one line here\r\n  2\r\n3\r\n"


@pytest.mark.parametrize(
    ("new", "wanted", "found", "result"),
    [
        ("a\n  b\n", "x\n  y\n", "    x\n      y\n", "    a\n      b\n"),
        ("    a\n", "    x\n", "x\n", "a\n"),
        ("\ta\n", "\tx\n", "        x\n", "        a\n"),
        ("a\n\nb\n", "x\n\ny\n", "  x\n\n  y\n", "  a\n\n  b\n"),
        ("a\n", "x\n y\n", "  x\n y\n", "a\n"),
        ("a\n", "    x\n", "x\n", "a\n"),
        ("a\n", "x\n", "x\n", "a\n"),
    ],
)
def test_a_replacement_is_moved_as_its_anchor_was(new: str, wanted: str, found: str, result: str) -> None:
    assert reindented(new, wanted, found) == result


@pytest.mark.slow
def test_looking_for_a_likeness_is_quick_in_a_long_file() -> None:
    text = "".join(
        f"    value_{number} = compute({number}, scale={number % 7})\n" for number in range(20_000)
    )
    wanted = (
        "    value_777 = compute(777, scales=0)\n    value_778 = compute(778, scale=1)\n    value_779 ="
        " compute(779, scale=22)\n"
    )
    started = time.thread_time()  # what others take of the processor is not counted
    assert [place.first for place in places(text, wanted)] == [778]
    assert not places(text, "nothing of this kind is anywhere in the whole of that file\n" * 5)
    assert time.thread_time() - started < 5


@given(
    st.lists(st.sampled_from(["a = 1", "  b", "c c", "", "\tx\r", "long line of words"]), max_size=8),
    st.text("ab c=1\n\t", max_size=30),
)
def test_places_are_always_within_the_text(lines: list[str], wanted: str) -> None:
    text = "\n".join(lines)
    for place in places(text, wanted) if wanted else []:
        assert 0 <= place.start <= place.end <= len(text)
        assert 1 <= place.first <= place.last
        if place.how == "exact":
            assert text[place.start : place.end] == wanted


# ------------------------------------------------------------------------------------------------------------- drift


def test_a_file_that_somebody_else_changed_is_not_replaced(bench: Bench) -> None:
    bench.ok("read_file", path="a.py")
    (bench.root / "a.py").write_text("changed by hand, and longer than before\n" * 20)
    assert (
        bench.error("write_file", path="a.py", content="mine")
        == "a.py: was changed by somebody else since you last read or wrote it. "
        "Nothing was written; read it again and write it then."
    )
    assert (bench.root / "a.py").read_text().startswith("changed by hand")
    bench.ok("read_file", path="a.py", start_line=3, end_line=4)
    bench.ok("write_file", path="a.py", content="mine")
    bench.ok("write_file", path="a.py", content="mine again")
    assert (bench.root / "a.py").read_text() == "mine again"


def test_a_file_that_disappeared_is_drift_too(bench: Bench) -> None:
    bench.ok("read_file", path="a.py")
    (bench.root / "a.py").unlink()
    assert "changed by somebody else" in bench.error("write_file", path="a.py", content="mine")


def test_a_patch_after_drift_needs_the_exact_place(bench: Bench) -> None:
    bench.ok("read_file", path="a.py")
    (bench.root / "a.py").write_text(SOURCE + "# more\n")
    assert "not in it letter for letter" in bench.error(
        "patch_file", path="a.py", old_text="total  =  a + b", new_text="x"
    )
    shown = bench.ok("patch_file", path="a.py", old_text="total = a + b", new_text="total = 0")
    assert (
        "[a.py was changed by somebody else since you last read or wrote it; the place was still there."
        in shown
    )
    assert "changed by somebody else" not in bench.ok(
        "patch_file", path="a.py", old_text="total = 0", new_text="total = 1"
    )


def test_a_file_that_was_never_read_may_be_replaced_and_the_loss_is_shown(bench: Bench) -> None:
    shown = bench.ok("write_file", path="a.py", content="import sys\n")
    assert "-import os" in shown
    assert "+import sys" in shown


# -------------------------------------------------------------------------------------------------------------- diff


def test_a_diff_names_the_lines_of_the_whole_file() -> None:
    before = [f"line {number}" for number in range(1, 10_001)]
    after = [*before[:4_999], "new", "newer", *before[5_000:]]
    assert diff("\n".join(before), "\n".join(after), "f").splitlines()[2:] == [
        *("@@ -4997,7 +4997,8 @@", " line 4997", " line 4998", " line 4999", "-line 5000", "+new", "+newer"),
        *(" line 5001", " line 5002", " line 5003"),
    ]


def test_diffs_that_nobody_reads_are_a_sentence() -> None:
    old, new = ("\n".join(f"{word} {n}" for n in range(3_000)) for word in ("old", "new"))
    started = time.thread_time()
    assert diff(old, new, "f") == "From line 1 on 3,000 lines were replaced by 3,000."
    assert time.thread_time() - started < 1
    assert diff("a\n", "a\r\n", "f") == "Changed line ends only."
    assert diff("a", "a", "f") == "Changed nothing."


# --------------------------------------------------------------------------------------------------------- protected


@pytest.mark.parametrize(
    "path",
    [
        *(
            ".git/hooks/pre-commit",
            ".git/config",
            ".GIT/config",
            ".Git/hooks/x",
            "sub/.git/config",
            ".git",
            "a/../.git/config",
        ),
        *(
            ".g\u200cit/config",
            ".git\u200b/config",
            ".ｇｉｔ/config",
            "GIT~1/config",
            ".git./config",
            ".git /config",
            ".git::$INDEX/x",
        ),
    ],
)
def test_files_of_git_are_not_written_however_they_are_spelled(tmp_path: Path, path: str) -> None:
    with pytest.raises(ToolFailure, match="files of Git itself"):
        writable(tmp_path, path)


def test_a_link_into_git_is_not_written_either(bench: Bench) -> None:
    (bench.root / ".git").mkdir()
    (bench.root / "innocent").symlink_to(".git")
    assert "files of Git" in bench.error("write_file", path="innocent/hooks", content="x")
    (bench.root / "config").symlink_to(".git/config")
    assert "files of Git" in bench.error("write_file", path="config", content="x")


@pytest.mark.parametrize("path", [".gitignore", ".github/workflows/x.yml", "git/config", "docs/.gitkeep"])
def test_what_is_only_called_alike_is_written(tmp_path: Path, path: str) -> None:
    assert writable(tmp_path, path) == (tmp_path / path).resolve()


def test_the_agents_own_files_are_not_written(tmp_path: Path) -> None:
    home = tmp_path / ".agent"
    home.mkdir()
    (tmp_path / "door").symlink_to(home)
    bench = Bench(tmp_path, home)
    for path in (".agent/config.toml", "door/config.toml", "x/../.agent/memory/USER.md"):
        assert "belongs to the agent itself" in bench.error("write_file", path=path, content="x")
    assert not any(home.iterdir())


def test_other_letters_lead_nowhere_else(tmp_path: Path) -> None:
    root = tmp_path / "Root"
    root.mkdir()
    for path in (str(tmp_path / "ROOT/x"), str(tmp_path / "root/../other"), "../ROOT/x", "/TMP/x"):
        with pytest.raises(ToolFailure, match="outside the working directory"):
            writable(root, path)


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(bench: Bench) -> None:
    os.chmod(bench.root / "a.py", 0o400)
    (bench.root / "sub").mkdir()
    assert "is a directory" in bench.error("write_file", path="sub", content="x")
    assert bench.error("write_file", path="a.py/x", content="x")
    assert sorted(entry.name for entry in bench.root.iterdir()) == ["a.py", "sub"]
    assert (bench.root / "a.py").read_text() == SOURCE
