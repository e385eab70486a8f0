"""ARCHITECTURE.md speaks of the rooms that there are, in the order that the import contract holds."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.helpers.rooms import BLOCK, imports_of_rooms, picture
from tests.helpers.sources import ROOT, product, text, tree

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


LEFT = {ROOT / "fsm_agent" / "sessions" / "remote_commands.py"}
"""Loads the debugger's end of a turn only where somebody debugs."""


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
