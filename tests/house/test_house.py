"""Rules of the house that no other tool checks: what is kept, the rooms of ARCHITECTURE.md, the suite and
make."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.rooms import BLOCK, budgets, imports_of_rooms, picture, sizes
from tests.helpers.sources import ROOT, product, text, tree
from tests.helpers.suite import Run, divide

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
    classes = defaultdict[str, list[ast.ClassDef]](list)
    for node in (node for module in sources().values() for node in ast.walk(module)):
        if isinstance(node, ast.ClassDef):
            classes[node.name].append(node)
    every = [node for named in classes.values() for node in named]
    promised = {name for node in every if "Protocol" in bases(node) for name in documented(node)}

    def inherited(node: ast.ClassDef) -> set[str]:
        above = [one for name in bases(node) if name != node.name for one in classes.get(name, ())]
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
    """The names of what a class inherits from, without those that a package is named with (``uvicorn.Server``)."""
    named = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return {one.id for one in named if isinstance(one, ast.Name)}


def documented(node: ast.ClassDef) -> set[str]:
    """Names of its methods that have a docstring."""
    return {
        one.name for one in node.body if isinstance(one, Function) and ast.get_docstring(one, clean=False)
    }


def is_repeated(node: ast.stmt) -> bool:
    """Another definition of a name that is there: a setter, an overload."""
    marks = [ast.unparse(mark) for mark in getattr(node, "decorator_list", ())]
    return any(mark.endswith((".setter", "overload")) for mark in marks)


PAGE = text("ARCHITECTURE.md")
CONTRACTS = tomllib.loads(text("pyproject.toml"))["tool"]["importlinter"]["contracts"]
LAYERS = next(contract["layers"] for contract in CONTRACTS if contract["type"] == "layers")


def rooms() -> list[str]:
    """The first cells of its table, a room each, from the top floor down."""
    table = PAGE.partition("| room | what is in it |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()]
    return [name.rstrip("/").removesuffix(".py") for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.behaviour("FSM-14")
def test_every_room_is_on_the_page_where_the_contract_has_it() -> None:
    contract = [name.strip().removeprefix("fsm_agent.") for floor in LAYERS for name in floor.split("|")]
    assert [name.removeprefix("states/") for name in rooms()] == contract
    inside = (ROOT / "fsm_agent").iterdir()
    there = {path.stem for path in inside if path.suffix == ".py" or any(path.rglob("*.py"))} - {"__init__"}
    assert there == {name.split(".")[1] for floor in LAYERS for name in floor.split(" | ") if "." in name}


def test_the_files_it_names_are_there() -> None:
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", PAGE.partition("## The rooms")[0]))
    assert named
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "fsm_agent" / name).exists(), name


LEFT = {ROOT / "fsm_agent" / "sessions" / "store" / "stored_sessions.py"}
"""Loads the debugger's end of a turn only while debugging."""


def loaded_by_name(path: Path) -> set[str]:
    """Modules of ours that a file imports by a constant string, literal or named: imports that no contract
    would see."""
    if "import_module" not in text(path):
        return set()
    named = {
        ast.unparse(node.targets[0]): node.value for node in tree(path).body if isinstance(node, ast.Assign)
    }
    nodes = (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call))
    calls = [node for node in nodes if "import_module" in ast.unparse(node)]
    values = [named.get(ast.unparse(part), part) for call in calls for part in call.args]
    texts = {str(value.value) for value in values if isinstance(value, ast.Constant)}
    return {text for text in texts if re.fullmatch(r"(fsm_agent|states)[\w.]*", text)}


def test_nothing_of_ours_is_imported_behind_the_contracts_back() -> None:
    found = {str(path): loaded_by_name(path) for path in product() if path not in LEFT}
    assert {path: names for path, names in found.items() if names} == {}


def test_the_picture_is_that_of_the_imports_and_has_every_room() -> None:
    assert BLOCK.findall(PAGE) == [picture()], "run: python -m tests.helpers.rooms"
    imports = imports_of_rooms()
    drawn = {"states" if name.startswith("states/") else name for name in rooms()}
    assert drawn == set(imports).union(*imports.values())


def test_no_folder_outgrows_its_budget_by_more_than_a_tenth() -> None:
    allowed, found = budgets(PAGE), sizes()
    assert allowed.keys() == found.keys(), "run: python -m tests.helpers.rooms --budgets"
    grown = {
        folder: (found[folder], budget)
        for folder, budget in allowed.items()
        if any(size > 1.1 * most for size, most in zip(found[folder], budget, strict=True))
    }
    assert grown == {}


FILES = ["tests/support/test_backoff.py", "tests/support/test_installation.py"]


def test_one_worker_runs_every_file() -> None:
    run = Run(FILES, ["-p", "no:cacheprovider"], workers=1)
    assert run.run() == 0
    ran = {case.id.split("[")[0] for case in run.cases if case.outcome == "passed"}
    wanted = {
        f"{file}::{name}"
        for file in FILES
        for name in re.findall(r"(?m)^def (test_\w+)", (ROOT / file).read_text())
    }
    assert ran == wanted


def test_a_whole_path_is_a_place_too() -> None:
    assert divide(["-k", "some", str(ROOT / FILES[0])]) == ([FILES[0]], ["-k", "some"])


INSTALLING = ("install", "installer.txt", "testing.txt")
OLD = "#!/bin/sh\nexit 1\n"
WITHOUT_VENV = '#!/bin/sh\ncase "$2" in *venv*) exit 1;; esac\n'
OFFLINE = f"""#!/bin/sh
test "$2" = venv || exit 0
mkdir -p $3/bin
printf '#!/bin/sh\\ncase "$*" in *pip*) echo no route to the index >&2; exit 1;; esac\\nexec {sys.executable} "$@"\\n' >$3/bin/python
chmod +x $3/bin/python
"""


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (
            "",
            "fsm_agent needs Python 3.11 or newer; none was found. Install it, or: make PYTHON=/path/to/python3",
        ),
        (OLD, "fsm_agent needs Python 3.11 or newer; given: {python}"),
        (WITHOUT_VENV, "{python} has no module venv; install it (Debian: apt install python3-venv)"),
        (
            OFFLINE,
            "the packages cannot be installed: is the package index reachable? What pip said is in .venv-python.log",
        ),
    ],
    ids=["no Python", "an old Python", "no venv module", "no network"],
)
def test_what_is_missing_is_said_in_one_line(python: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    for name in ("Makefile", "pyproject.toml", *(f"requirements/{name}" for name in INSTALLING)):
        shutil.copy(ROOT / name, tmp_path / name)
    program = tmp_path / "python"
    program.write_text(python)
    program.chmod(0o755)
    given = str(program) if python else ""
    done = subprocess.run(
        ["make", "test", f"PYTHON={given}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("make", "the lock is for"))]
    assert lines == [said.format(python=program)]


UV = '#!/bin/sh\necho "uv installs $7 from $UV_DEFAULT_INDEX for $5"\nexit {status}\n'
PIP = '#!/bin/sh\n[ "$3" = config ] && echo https://index.test || echo "pip installs $6"\n'


@pytest.mark.parametrize("status", [0, 1])
def test_uv_installs_from_the_index_of_pip_and_pip_does_where_uv_fails(status: int, tmp_path: Path) -> None:
    for name, script in (("uv", UV.format(status=status)), ("python", PIP)):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    install = [ROOT / "requirements" / "install", tmp_path, "--editable", "."]
    env = {"PATH": os.environ["PATH"], **({"PIP_PYTHON": "other/python"} if status else {})}
    lines = subprocess.run(install, env=env, capture_output=True, text=True, check=False).stdout.splitlines()
    python = "other/python" if status else tmp_path / "python"
    assert lines[0] == f"uv installs . from https://index.test for {python}"
    assert lines[1:] == (["uv failed: with pip, which takes longer", "pip installs ."] if status else [])
