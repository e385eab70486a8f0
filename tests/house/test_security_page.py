"""Each promise of SECURITY.md names a test that there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
PROMISES = [
    line
    for line in PAGE.split("## What is promised")[1].split("\n## ")[0].splitlines()
    if line.startswith("| ")
]


def defined() -> set[str]:
    return {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_the_tests_that_are_named_are_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 40
    assert sorted(named - defined()) == []


def test_each_promise_names_a_test() -> None:
    rows = [line for line in PROMISES if line != "| promise | test |"]
    assert len(rows) > 20
    assert [line for line in rows if not re.search(r"\| `test_\w+`", line)] == []


def test_all_in_the_folder_of_threats_is_there_for_a_promise() -> None:
    """A file of ``tests/security`` of which no test is named was forgotten here."""
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    for path in (ROOT / "tests" / "security").glob("test_*.py"):
        assert any(f"def {name}(" in path.read_text(encoding="utf-8") for name in named), path.name
