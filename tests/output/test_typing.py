"""What type checkers make of typed agents, turns and results: mypy and pyright over small programs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fsm_agent.composition.options import TurnArguments

ROOT = Path(__file__).parents[2]
RIGHT = """
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from typing_extensions import TypedDict, assert_type

from fsm_agent import Agent, RunContext, Turn, TurnResult, tool
from fsm_agent.output import JsonSchema


class City(BaseModel):
    name: str


@dataclass
class Town:
    title: str


class Found(TypedDict):
    cities: list[City]


class Db:
    pass


def pick(context: RunContext[Db], name: str) -> City:
    assert_type(context.deps, Db)
    return City(name=name)


async def choose(name: str) -> Town:
    return Town(name)


@tool
def look(context: RunContext[Db], name: str) -> str:
    return name


assert_type(Agent(), Agent[Any, str])
assert_type(Agent("offline:demo", tools=[look]).run_conversation("x").output, str | None)
assert_type(Agent(output_type=City).run_conversation("x").output, City | None)
assert_type(Agent(output_type=Town).run_conversation("x").output, Town | None)
assert_type(Agent(output_type=Found).run_conversation("x").output, Found | None)
assert_type(Agent(output_type=City | Town).run_conversation("x").output, City | Town | None)
assert_type(Agent(output_type=list[str]).run_conversation("x").output, list[str] | None)
assert_type(Agent(output_type=int).run_conversation("x").output, int | None)
assert_type(Agent(output_type=bool).run_conversation("x").output, bool | None)
assert_type(Agent(output_type=pick).run_conversation("x").output, City | None)
assert_type(Agent(output_type=choose).run_conversation("x").output, Town | None)
assert_type(Agent(output_type=JsonSchema({})).run_conversation("x").output, Any | None)

agent = Agent[Db, City](output_type=City, tools=[look])
assert_type(agent.start("x", deps=Db()), Turn[City])
assert_type(agent.run_conversation("x", deps=Db()), TurnResult[City])
assert_type(agent.chat("x", deps=Db()), str)
assert_type(agent.resume("t", deps=Db()), Turn[City])
assert_type(agent.run_conversation("x", output_type=Town).output, Town | None)
assert_type(agent.run_conversation("x", output_type=City | Town).output, City | Town | None)
assert_type(agent.start("x", output_type=choose, deps=Db()), Turn[Town])
assert_type(agent.start("x", output_type=pick, task_id="t"), Turn[City])


async def main() -> None:
    assert_type((await agent.arun("x")).output, City | None)
    assert_type((await agent.arun("x", output_type=list[int])).output, list[int] | None)
"""
WRONG = """
from pydantic import BaseModel

from fsm_agent import Agent


class City(BaseModel):
    name: str


agent: Agent[int, City] = Agent(output_type=City)
name: int = agent.run_conversation("x").output  # 1
agent.run_conversation("x", deps="y")  # 2
agent.start("x", output_type=City, deps="y")  # 3
Agent(output_type=City, tols=[])  # 4
other: Agent[int, str] = Agent[int, City](output_type=City)  # 5
agent.run_conversation("x", output_type=City).output.title  # 6
"""


def marked(program: str) -> set[int]:
    return {number for number, line in enumerate(program.splitlines(), 1) if "  # " in line}


def complaints(command: list[str], program: str, folder: Path) -> set[int]:
    """The lines of the program that the checker complains about."""
    file = folder / "program.py"
    file.write_text(program)
    done = subprocess.run([*command, str(file)], cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "error" in line and "program.py:" in line]
    return {int(line.split("program.py:")[1].split(":")[0]) for line in lines}


def mypy(folder: Path) -> list[str]:
    (folder / "mypy.ini").write_text(f"[mypy]\nstrict = true\nmypy_path = {ROOT}:{ROOT / 'states'}\n")
    return [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", str(folder / "cache")]


def pyright(folder: Path) -> list[str]:
    paths = f'["{ROOT}", "{ROOT / "states"}"]'
    (folder / "pyrightconfig.json").write_text(
        f'{{"typeCheckingMode": "strict", "extraPaths": {paths}, "reportUnusedExpression": false,'
        ' "reportMissingModuleSource": false}'
    )
    return [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]


def needs_node() -> None:
    """Pyright is a program of node's; where there is none, it is fetched, or cannot be."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pyright", "--version"], capture_output=True, timeout=120
        )
    except subprocess.TimeoutExpired:
        pytest.skip("PYRIGHT IS NOT RUN: it could not be got ready in two minutes")
    if done.returncode or shutil.which("node") is None:
        pytest.skip(f"PYRIGHT IS NOT RUN, it needs node: {done.stderr.decode()[-300:]}")


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_checkers_know_what_an_answer_is(checker: object, tmp_path: Path) -> None:
    if checker is pyright:
        needs_node()
    command = mypy(tmp_path) if checker is mypy else pyright(tmp_path)
    assert complaints(command, RIGHT, tmp_path) == set()
    assert complaints(command, WRONG, tmp_path) == marked(WRONG)


def test_what_checkers_are_told_of_arguments_is_what_there_is() -> None:
    import inspect

    from fsm_agent import Agent

    started = set(inspect.signature(Agent.start).parameters) - {"self", "user_message", "output_type"}
    assert set(TurnArguments.__annotations__) == started
