"""How the sources read, in figures: files, importers, imports, functions, comments, and words to avoid.

    python benchmarks/sources.py                          # this checkout
    python benchmarks/sources.py ../before . PACKAGE …    # another checkout and other packages beside it

A folder with ``fsm_agent`` in it counts as this project, with the states; any other one as one package."""

from __future__ import annotations

import ast
import re
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[1]
WORDS = {
    "nobody, somebody, whoever": r"nobody|somebody|who(?:ever|soever)",
    "is told, told of": r"(?:is|are|was|were) told|told of",
    "goes on, gone on": r"(?:go(?:es|ing)?|gone) on",
    "so many, so often": r"so (?:many|often)",
    "what is none": r"(?:what|that|which|there) is none",
    "stands": r"stands?",
}
"""Words that docs/style.md replaces, counted for each 10,000 lines."""
SMALL = 40
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def files_of(folder: Path) -> dict[str, Path]:
    """Each source by the name of its module."""
    mine = (folder / "fsm_agent").is_dir()
    roots = [folder / "fsm_agent", *(folder / "states").glob("*")] if mine else [folder]
    found = {}
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imported(nodes: Sequence[ast.AST], module: str, modules: set[str]) -> set[str]:
    """The modules of the same package that a module imports, also inside of functions."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(module.split(".")[: -node.level]) if node.level else ""
            source = ".".join(filter(None, (start, node.module)))
            names = {f"{source}.{alias.name}" for alias in node.names}
            found |= names & modules or {source}
    return (found & modules) - {module}


def is_text(node: ast.AST) -> TypeGuard[ast.Expr]:
    """Whether a statement is a text: a docstring of a module, class, function, or constant."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def height(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def figures(folder: Path) -> dict[str, str]:
    """The figures of one folder, by what they are."""
    files = files_of(folder)
    texts = {module: path.read_text(encoding="utf-8") for module, path in files.items()}
    trees = {module: list(ast.walk(ast.parse(text))) for module, text in texts.items()}
    sizes = [len(text.splitlines()) for text in texts.values()]
    lines = sum(sizes)
    importers = Counter(one for module, nodes in trees.items() for one in imported(nodes, module, set(files)))
    single = [m for m, path in files.items() if importers[m] == 1 and not path.name.startswith("__")]
    nodes = [node for tree in trees.values() for node in tree]
    heights = sorted(height(node) for node in nodes if isinstance(node, FUNCTIONS))
    imports = sum(height(node) for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)))
    docs = sum(height(node) for node in nodes if is_text(node))
    uses: list[int] = []
    for tree in trees.values():
        used = Counter(node.id for node in tree if isinstance(node, ast.Name))
        used.update(node.attr for node in tree if isinstance(node, ast.Attribute))
        own = (node.name for node in tree if isinstance(node, FUNCTIONS))
        uses += [used[name] for name in own if re.match("_[^_]", name)]
    comments = sum(
        token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
        for text in texts.values()
        for token in tokenize.generate_tokens(StringIO(text).readline)
    )
    prose = "\n".join(texts.values())
    found = {
        "files": f"{len(files):,}",
        "lines": f"{lines:,}",
        "lines a file: mean, largest": f"{lines / len(files):.0f}, {max(sizes):,}",
        f"files below {SMALL} lines": f"{sum(size < SMALL for size in sizes)}",
        "modules with one importer": f"{len(single)}",
        "import lines": f"{imports / lines:.1%}",
        "classes, functions": f"{sum(isinstance(one, ast.ClassDef) for one in nodes):,}, {len(heights):,}",
        "lines a function: median, p90, longest": (
            f"{statistics.median(heights):.0f}, {heights[len(heights) * 9 // 10]}, {heights[-1]:,}"
        ),
        "private functions, used once": f"{len(uses):,}, {uses.count(1) / max(len(uses), 1):.0%}",
        "uses a private function": f"{sum(uses) / max(len(uses), 1):.2f}",
        "docstrings, comments": f"{docs / lines:.1%}, {comments / lines:.1%}",
    }
    for name, pattern in WORDS.items():
        count = len(re.findall(rf"\b(?:{pattern})\b", prose, re.IGNORECASE))
        found[f"“{name}”, in 10,000 lines"] = f"{count * 10_000 / lines:.1f}"
    return found


def main() -> None:
    folders = [Path(name).resolve() for name in sys.argv[1:]] or [ROOT]
    columns = [figures(folder) for folder in folders]
    print("| |", *(f" {folder.name} |" for folder in folders), sep="")
    print("|---|", "---:|" * len(folders), sep="")
    for name in columns[0]:
        print(f"| {name} |", *(f" {column[name]} |" for column in columns), sep="")


if __name__ == "__main__":
    main()
