"""Rules of the house that no other tool checks."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "fsm_agent", ROOT / "states" / "fsm_agent_states")


def test_each_class_name_is_used_once() -> None:
    """Also of private classes: who reads a name in a trace knows what it is."""
    places = defaultdict[str, list[str]](list)
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
