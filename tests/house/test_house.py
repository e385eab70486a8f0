"""Rules of the house that no other tool checks."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
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


CACHES = {"_FIELDS", "_KNOWN", "_MADE", "_PROVED", "_begun"}
"""Of pure functions, and of modules that were loaded: emptied at any time, they cost work and change nothing."""


def test_what_the_process_keeps_stands_in_its_registry() -> None:
    """A module-level object that is filled while the program runs is either handed on, or documented there."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for path in package.rglob("*.py")
        for name, value in _assigned(ast.parse(path.read_text(encoding="utf-8")))
        if _filled_later(value) and name not in CACHES and path.name != "registry.py"
    ]
    assert found == []
    registry = (ROOT / "fsm_agent" / "runtime" / "registry.py").read_text(encoding="utf-8")
    names = {name for name, value in _assigned(ast.parse(registry)) if _filled_later(value)}
    told = {
        line.split()[0]
        for line in (ast.get_docstring(ast.parse(registry)) or "").splitlines()
        if line.strip()
    }
    assert len(names) > 5
    assert names <= told


def _assigned(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in module.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _filled_later(value: ast.expr) -> bool:
    """An empty container, or one that is made to be filled."""
    if isinstance(value, ast.Dict | ast.List):
        return not ast.unparse(value).strip("{}[]")
    if not isinstance(value, ast.Call):
        return False
    name = ast.unparse(value.func).split("[")[0].split(".")[-1]
    return (
        name == "ContextVar"
        or name.startswith("Weak")
        or (name in ("set", "dict", "list", "defaultdict") and not value.args)
    )
