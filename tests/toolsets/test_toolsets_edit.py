"""Changing files: anchors that are not quite right, drift, what is shown, and what is never written."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.tools import ToolFailure
from fsm_agent.toolsets import toolset
from fsm_agent.toolsets.edit import diff, places, reindent
from fsm_agent.toolsets.files import writable
from tests.helpers.toolbench import ToolBench

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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def bench(file: Path) -> ToolBench:
    return ToolBench(toolset("files", file.parent))


def patched(bench: ToolBench, old: str, new: str, **more: object) -> str:
    return bench.ok("patch_file", path="a.py", old_text=old, new_text=new, **more)


def test_an_exact_anchor_needs_no_words(bench: ToolBench) -> None:
    shown = patched(bench, "    total = a + b\n", "    total = a * b\n")
    assert shown.splitlines() == [
        "--- a.py", "+++ a.py", "@@ -2,7 +2,7 @@", " ", " ", " def first(a, b):", "-    total = a + b",
        "+    total = a * b", "     return total", " ", " ",
    ]  # fmt: skip


def test_spaces_may_differ_and_the_indentation_is_kept(bench: ToolBench, file: Path) -> None:
    old = "def second( self, value ):\n    if value:\n        return value*2\n"
    new = "def second(self, value):\n    if value > 0:\n        return value * 4\n"
    shown = patched(bench, old, new)
    what = "lines 10 to 12, which differs in spaces, was replaced"
    assert shown.startswith(f"old_text was not found letter for letter; {what}:\n--- a.py")
    begun, checked, done = (
        "    def second(self, value):\n", "        if value > 0:\n", "            return value * 4\n",
    )  # fmt: skip
    assert f"{begun}{checked}{done}        return None" in file.read_text()
    patched(bench, "a  +  b", "a - b")
    assert "total = a - b\n" in file.read_text()


def test_similar_lines_are_found_and_named(bench: ToolBench, file: Path) -> None:
    old = "def first(a, b):\n    totals = a + b\n    return totals\n"
    shown = patched(bench, old, "def first(a, b):\n    return a + b\n")
    assert "lines 4 to 6, which is 98% the same, was replaced" in shown
    assert "def first(a, b):\n    return a + b\n\n\nclass" in file.read_text()
    # a line that was forgotten does not hide the place
    old = "class Thing:\n    def second(self, value):\n        if value:\n            return value * 2\n\n"
    old += "    def third(self, value):\n"
    assert [(place.how, place.first, place.last) for place in places(SOURCE, old)] == [("similar", 9, 15)]


def test_the_ends_of_a_likeness_are_the_ends_of_the_anchor() -> None:
    """What follows or goes before is not replaced with it, and nothing of it is left standing."""
    begun, ended = "def f():\n    alpha_beta_gamma = 1\n", "    return alpha_beta_gamma\n"
    text = f"{begun}    delta_epsilon_zeta = 2\n{ended}\nx = 1\n"
    misspelt = begun.replace("gamma", "gama")
    for old in (begun + ended, f"{misspelt}    delta_epsilon_zeta = 2\n    other = 4\n{ended}"):
        for place in places(text, old):
            assert text[place.start : place.end].startswith("def f():\n")
            assert text[place.start : place.end].endswith(ended)


@pytest.mark.parametrize(
    ("old", "words"),
    [
        ("        return None\n", "occurs 2 times (at lines 13, 18)"),
        ("return   None", "occurs, apart from spaces, 2 times (at lines 13, 18)"),
        (f"    def fourth{SOURCE.partition('third')[2].replace('3', '9')}", "is similar to 2 places"),
        ("def other():\n    pass\n", "not in the file"), ("x = 1", "not in the file"),
        ("   \n", "not in the file"), ("", "old_text is empty"), ("nothing", "nothing to change"),
        ("  import os\nmore", "like line 1: 'import os'"),
    ],
)  # fmt: skip
def test_what_is_ambiguous_or_missing_changes_nothing(
    bench: ToolBench, file: Path, old: str, words: str
) -> None:
    assert words in bench.error("patch_file", path="a.py", old_text=old, new_text="nothing")
    assert file.read_text() == SOURCE


def test_every_exact_place_at_once(bench: ToolBench, file: Path) -> None:
    assert patched(bench, "None", "0", every=True).startswith("Replaced 2 places.\n")
    assert file.read_text() == SOURCE.replace("None", "0")
    given = {"path": "a.py", "old_text": "return  0", "new_text": "x", "every": True}
    assert "occurs, apart from spaces" in bench.error("patch_file", **given)


def test_line_ends_are_kept_and_what_is_no_text_is_refused(bench: ToolBench, tmp_path: Path) -> None:
    other = tmp_path / "b.txt"
    for before, old, new, after in (
        (b"one\r\ntwo\r\nthree\r\n", "one\ntwo", "1\n2", b"1\r\n2\r\nthree\r\n"),
        (
            b"one line here\r\n  two lines here\r\n3\r\n",
            "two lines here\n3\n",
            "2\n3\n",
            b"one line here\r\n  2\r\n3\r\n",
        ),
    ):
        other.write_bytes(before)
        bench.ok("patch_file", path="b.txt", old_text=old, new_text=new)
        assert other.read_bytes() == after
    other.write_bytes(b"caf\xe9")
    assert "not UTF-8" in bench.error("patch_file", path="b.txt", old_text="caf", new_text="x")
    assert "no such file" in bench.error("patch_file", path="nope", old_text="a", new_text="b")


@pytest.mark.parametrize(
    ("new", "wanted", "found", "result"),
    [
        ("a\n  b\n", "x\n  y\n", "    x\n      y\n", "    a\n      b\n"),
        ("    a\n", "    x\n", "x\n", "a\n"), ("\ta\n", "\tx\n", "        x\n", "        a\n"),
        ("a\n\nb\n", "x\n\ny\n", "  x\n\n  y\n", "  a\n\n  b\n"), ("a\n", "x\n y\n", "  x\n y\n", "a\n"),
        ("a\n", "    x\n", "x\n", "a\n"), ("a\n", "x\n", "x\n", "a\n"),
    ],
)  # fmt: skip
def test_a_replacement_is_moved_as_its_anchor_was(new: str, wanted: str, found: str, result: str) -> None:
    assert reindent(new, wanted, found) == result


@pytest.mark.slow
def test_looking_for_a_likeness_is_quick_in_a_long_file() -> None:
    text = "".join(f"    value_{n} = compute({n}, scale={n % 7})\n" for n in range(20_000))
    wrong = ("777, scales=0", "778, scale=1", "779, scale=22")
    wanted = "".join(f"    value_{given[:3]} = compute({given})\n" for given in wrong)
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


def test_a_file_that_somebody_else_changed_is_not_replaced(bench: ToolBench, file: Path) -> None:
    shown = bench.ok("write_file", path="a.py", content="import sys\n")
    assert "-import os\n" in shown, "it was never read, and the loss is shown"
    file.write_text("changed by hand, and longer than before\n" * 20)
    refused = bench.error("write_file", path="a.py", content="mine")
    changed, again = (
        "a.py: was changed from outside since you last read or wrote it. ",
        "read it again and write it then.",
    )
    assert refused == f"{changed}Nothing was written; {again}"
    assert file.read_text().startswith("changed by hand")
    bench.ok("read_file", path="a.py", start_line=3, end_line=4)
    for content in ("mine", "mine again"):
        bench.ok("write_file", path="a.py", content=content)
        assert file.read_text() == content
    file.unlink()
    assert "changed from outside" in bench.error("write_file", path="a.py", content="mine")


def test_a_patch_after_drift_needs_the_exact_place(bench: ToolBench, file: Path) -> None:
    bench.ok("read_file", path="a.py")
    file.write_text(SOURCE + "# more\n")
    given = {"path": "a.py", "old_text": "total  =  a + b", "new_text": "x"}
    assert "not in it letter for letter" in bench.error("patch_file", **given)
    shown = patched(bench, "total = a + b", "total = 0")
    changed = "[a.py was changed from outside since you last read or wrote it"
    assert f"{changed}; the place was still there." in shown
    assert "changed from outside" not in patched(bench, "total = 0", "total = 1")


def test_a_diff_names_the_lines_of_the_whole_file() -> None:
    before = [f"line {number}" for number in range(1, 10_001)]
    after = [*before[:4_999], "new", "newer", *before[5_000:]]
    assert diff("\n".join(before), "\n".join(after), "f").splitlines()[2:] == [
        "@@ -4997,7 +4997,8 @@", " line 4997", " line 4998", " line 4999", "-line 5000", "+new", "+newer",
        " line 5001", " line 5002", " line 5003",
    ]  # fmt: skip


def test_diffs_that_nobody_reads_are_a_sentence() -> None:
    old, new = ("\n".join(f"{word} {n}" for n in range(3_000)) for word in ("old", "new"))
    started = time.thread_time()
    assert diff(old, new, "f") == "From line 1 on 3,000 lines were replaced by 3,000."
    assert time.thread_time() - started < 1
    assert diff("a\n", "a\r\n", "f") == "Changed line ends only."
    assert diff("a", "a", "f") == "Changed nothing."


@pytest.mark.parametrize(
    "path",
    [
        ".git/hooks/pre-commit", ".git/config", ".GIT/config", ".Git/hooks/x", "sub/.git/config", ".git",
        "a/../.git/config", ".g\u200cit/config", ".git\u200b/config", ".ｇｉｔ/config", "GIT~1/config",
        ".git./config", ".git /config", ".git::$INDEX/x",
    ],
)  # fmt: skip
def test_files_of_git_are_not_written_however_they_are_spelled(tmp_path: Path, path: str) -> None:
    with pytest.raises(ToolFailure, match="files of Git itself"):
        writable(tmp_path, path)
    for alike in (".gitignore", ".github/workflows/x.yml", "git/config", "docs/.gitkeep"):
        assert writable(tmp_path, alike) == (tmp_path / alike).resolve()


def test_a_link_into_git_is_not_written_either(bench: ToolBench, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    for link, target, path in (("innocent", ".git", "innocent/hooks"), ("config", ".git/config", "config")):
        (tmp_path / link).symlink_to(target)
        assert "files of Git" in bench.error("write_file", path=path, content="x")


def test_the_agents_own_files_are_not_written(tmp_path: Path) -> None:
    home = tmp_path / ".agent"
    home.mkdir()
    (tmp_path / "door").symlink_to(home)
    bench = ToolBench(toolset("files", tmp_path, home=home))
    for path in (".agent/config.toml", "door/config.toml", "x/../.agent/memory/USER.md"):
        assert "belongs to the agent itself" in bench.error("write_file", path=path, content="x")
    assert not any(home.iterdir())


def test_other_letters_lead_nowhere_else(tmp_path: Path) -> None:
    root = tmp_path / "Root"
    root.mkdir()
    for path in (str(tmp_path / "ROOT/x"), str(tmp_path / "root/../other"), "../ROOT/x", "/TMP/x"):
        with pytest.raises(ToolFailure, match="outside the working directory"):
            writable(root, path)


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(bench: ToolBench, file: Path) -> None:
    os.chmod(file, 0o400)
    (file.parent / "sub").mkdir()
    assert "is a directory" in bench.error("write_file", path="sub", content="x")
    assert bench.error("write_file", path="a.py/x", content="x")
    assert sorted(entry.name for entry in file.parent.iterdir()) == ["a.py", "sub"]
    assert file.read_text() == SOURCE
