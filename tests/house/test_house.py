"""Rules of the house that no other tool checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from tests.helpers.sources import ROOT, product, tree

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def sources() -> dict[str, ast.Module]:
    return {str(path.relative_to(ROOT)): tree(path) for path in product()}


CACHES = {"_FIELDS", "_KNOWN", "_MADE", "_PROVED", "_begun"}
"""Of pure functions, and of modules that were loaded: emptied at any time, they cost work and change nothing."""

KEPT = re.compile(r"^\| `([A-Z_]+)` \| `([a-z_/]+\.py)` \|", re.MULTILINE)


def test_what_the_process_keeps_is_on_the_page_with_its_place() -> None:
    """A module-level object that is filled while the program runs is either handed on, or listed there."""
    found = {
        (name, path.removeprefix("fsm_agent/"))
        for path, module in sources().items()
        for name, value in _assigned(module)
        if _filled_later(value) and name not in CACHES
    }
    listed = set(KEPT.findall((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")))
    assert found == listed


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


def test_every_public_name_has_a_docstring() -> None:
    """Of modules, classes, functions and methods. A method that does what a base class or a protocol says of it
    needs none of its own, and neither has what one name has besides its first definition (setters,
    overloads)."""
    classes = {
        node.name: node
        for module in sources().values()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
    }
    promised = {name for node in classes.values() if "Protocol" in bases(node) for name in documented(node)}

    def inherited(node: ast.ClassDef) -> set[str]:
        above = [classes[name] for name in bases(node) if name in classes and name != node.name]
        return set().union(*(documented(one) | inherited(one) for one in above))

    def bare(body: ast.Module | ast.ClassDef, exempt: set[str], place: str) -> Iterator[str]:
        for node in body.body:
            if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node, clean=False) and node.name not in exempt and not is_repeated(node):
                yield f"{place}{node.name}"
            if isinstance(node, ast.ClassDef):
                yield from bare(node, promised | inherited(node), f"{place}{node.name}.")

    found = [path for path, module in sources().items() if not ast.get_docstring(module, clean=False)]
    found += [name for path, module in sources().items() for name in bare(module, set(), f"{path}: ")]
    assert [name for name in found if not name.startswith(WITHOUT)] == []


WITHOUT: tuple[str, ...] = ()
"""Rooms whose public names need not all have one yet; the list only gets shorter."""


def bases(node: ast.ClassDef) -> set[str]:
    """The last names of what a class inherits from."""
    named = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return {
        one.id if isinstance(one, ast.Name) else one.attr
        for one in named
        if isinstance(one, ast.Name | ast.Attribute)
    }


def documented(node: ast.ClassDef) -> set[str]:
    """Names of its methods that have a docstring."""
    return {
        one.name for one in node.body if isinstance(one, Function) and ast.get_docstring(one, clean=False)
    }


def is_repeated(node: ast.stmt) -> bool:
    """Another definition of a name that is there: a setter, an overload."""
    marks = [ast.unparse(mark) for mark in getattr(node, "decorator_list", ())]
    return any(mark.endswith((".setter", "overload")) for mark in marks)
