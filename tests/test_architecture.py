"""ARCHITECTURE.md speaks of the rooms that there are, in the order that the import contract holds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.rooms import BLOCK, imports_of_rooms, picture

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
LAYERS = next(
    contract["layers"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]["contracts"]
    if contract["type"] == "layers"
)


def rooms() -> list[str]:
    """The first cells of its table, a room each, from the top floor down."""
    table = PAGE.partition("| room | what is in it |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()]
    return [name.rstrip("/").removesuffix(".py") for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_every_room_is_on_the_page_where_the_contract_has_it() -> None:
    contract = [name.strip().removeprefix("fsm_agent.") for floor in LAYERS for name in floor.split("|")]
    assert [name.removeprefix("states/") for name in rooms()] == contract


def test_there_is_no_room_that_the_contract_does_not_know() -> None:
    inside = (ROOT / "fsm_agent").iterdir()
    there = {path.stem for path in inside if path.suffix == ".py" or any(path.rglob("*.py"))} - {"__init__"}
    assert there == {name.split(".")[1] for floor in LAYERS for name in floor.split(" | ") if "." in name}


def test_the_files_it_names_are_there() -> None:
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", PAGE.partition("## The rooms")[0]))
    assert named
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "fsm_agent" / name).exists(), name


def test_the_picture_is_that_of_the_imports() -> None:
    assert BLOCK.findall(PAGE) == [picture()], "run: python -m tests.rooms"


def test_every_room_is_in_the_picture() -> None:
    imports = imports_of_rooms()
    drawn = {"states" if name.startswith("states/") else name for name in rooms()}
    assert drawn == set(imports).union(*imports.values())
