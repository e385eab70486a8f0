"""docs/verify.md: what the proofs assume names tests and files that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## What the proofs assume\n")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in SECTION.splitlines()
    if line.startswith("| ") and not line.startswith("| Assumed |")
]
NAMED = re.findall(r"`(tests/[^`]+::\w+)`", SECTION)


def test_every_assumption_says_who_enforces_it_and_names_a_test() -> None:
    assert len(ROWS) >= 9
    for assumed, enforced, watched in ROWS:
        assert assumed
        assert enforced
        assert re.fullmatch(r"`tests/\S+::test_\w+`( `tests/\S+::test_\w+`)*", watched), assumed


@pytest.mark.parametrize("name", NAMED)
def test_a_test_that_is_named_is_there(name: str) -> None:
    path, _, function = name.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert function in {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_a_file_that_is_named_is_there() -> None:
    named = re.findall(r"`([\w/]+\.py)`", SECTION)
    assert "fsm_agent/fsm/standing.py" in named
    assert [path for path in named if not (ROOT / path).is_file()] == []
