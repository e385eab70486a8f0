"""The files of this repository, read and parsed once in a process."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def text(path: Path | str) -> str:
    """A file by its path from the root."""
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path))


@cache
def product() -> tuple[Path, ...]:
    """Every source of the two packages."""
    return tuple(path for room in ("fsm_agent", "states") for path in sorted((ROOT / room).rglob("*.py")))


@cache
def named_tests() -> dict[Path, frozenset[str]]:
    """The names of the tests in each file of tests."""
    named = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
    return {
        path: frozenset(named.findall(text(path))) for path in sorted((ROOT / "tests").rglob("test_*.py"))
    }
