"""What an installation puts on the path, and that it works in the folder of a program that has modules of any
name."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import hatchling.build
import pytest

from tests.helpers.processes import environment, ran

ROOT = Path(__file__).parents[2]
OURS = {"fsm_agent", "fsm_agent_states"}
THEIRS = ("states", "tests", "diagrams", "table", "turn", "docs", "examples")
PROGRAM = """
import sys
import {names}
from fsm_agent import Agent
from fsm_agent.testing import ScriptedModel, text
import fsm_agent_states.table

for name in {theirs!r}:
    assert sys.modules[name].OWNER == "the user", sys.modules[name].__file__
assert Agent(ScriptedModel([text("hello")]), home={home!r}, toolsets=[]).chat("hi") == "hello"
print("ran with", fsm_agent_states.table.__file__)
"""
TEST = """
def test_of_the_user():
    import program
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpacked, as it is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        name = hatchling.build.build_wheel(str(folder))
    finally:
        os.chdir(before)
    with zipfile.ZipFile(folder / name) as packed:
        packed.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_has_no_name_that_a_user_could_have(wheel: Path) -> None:
    found = {one.name for one in wheel.iterdir()}
    assert {name for name in found if not name.endswith(".dist-info")} == OURS
    assert (wheel / "fsm_agent" / "py.typed").exists()
    assert (wheel / "fsm_agent_states" / "py.typed").exists()
    assert (wheel / "fsm_agent_states" / "table.py").read_text() == (
        ROOT / "states" / "fsm_agent_states" / "table.py"
    ).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["module", "package"])
@pytest.mark.parametrize("installed", ["editable", "wheel"])
def test_a_program_with_modules_of_these_names_runs(
    tmp_path: Path, wheel: Path, installed: str, kind: str
) -> None:
    """As a program, as a module, and under pytest."""
    path = {"editable": [], "wheel": [str(wheel)]}[installed]
    env = environment(PYTHONPATH=os.pathsep.join(path))
    for theirs in THEIRS:
        own = tmp_path / f"{theirs}.py" if kind == "module" else tmp_path / theirs / "__init__.py"
        own.parent.mkdir(exist_ok=True)
        own.write_text('OWNER = "the user"\n')
    (tmp_path / "program.py").write_text(
        PROGRAM.format(names=", ".join(THEIRS), theirs=THEIRS, home=str(tmp_path / "home"))
    )
    (tmp_path / "test_program.py").write_text(TEST)
    for words in (
        ["program.py"],
        ["-m", "program"],
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_program.py"],
    ):
        done = ran(*words, cwd=tmp_path, env=env)
        assert done.returncode == 0, f"{words}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}"
        if "pytest" not in words:
            assert done.stdout.startswith(f"ran with {wheel if installed == 'wheel' else ROOT}"), done.stdout
